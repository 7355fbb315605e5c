"""The commands `caravan deployment …`, `job promote` and `job deployments`."""

from services.cli.command_spec import (
    AT_OPTION,
    JOB_ARGUMENT,
    JOB_OPTION,
    LIMIT_OPTION,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_DEPLOYMENT_ARGUMENT = ArgumentSpec(
    "deployment_id", "deployment id or a unique prefix", metavar="ID", complete="deployment"
)
_GROUP_OPTION = option_argument(
    "group", "only this group; repeatable (default: all with canaries)", list, metavar="NAME"
)
_DETACH_FLAG = flag_argument("detach", "return without following the deployment")
_LIST = {"": "schemas.answers:DeploymentsAnswer"}
_CHANGE = {"": "deployment.actions:DeploymentChangeResult"}
_FOLLOWS = (
    "Follows the deployment: exit 0 when it is successful, 1 when it failed or was cancelled, 2 when it waits again: "
    "for a promotion, for capacity, because it is paused or held."
)

COMMANDS = (
    CommandSpec(
        ("deployment", "list"),
        "list deployments, newest first",
        "deployment.status:list_all",
        (
            JOB_OPTION,
            option_argument(
                "status",
                "running, paused, successful, failed or cancelled",
                metavar="WORD",
                complete="(running paused successful failed cancelled)",
            ),
            LIMIT_OPTION,
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        _LIST,
        Needs.LOG,
        examples=("deployment list", "deployment list --status running"),
    ),
    CommandSpec(
        ("deployment", "status"),
        "show one deployment and what it waits for",
        "deployment.status:status",
        (
            _DEPLOYMENT_ARGUMENT,
            flag_argument("monitor", "follow it until it ended or waits for an operator"),
            LIMIT_OPTION,
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {"": "schemas.answers:DeploymentAnswer"},
        Needs.LOG,
        "Exit 0 also for a deployment that failed.",
        ("deployment status 3f2a", "deployment status 3f2a --monitor"),
    ),
    CommandSpec(
        ("deployment", "promote"),
        "promote the canaries of a deployment: replace the old allocations",
        "deployment.actions:promote",
        (_DEPLOYMENT_ARGUMENT, _GROUP_OPTION, _DETACH_FLAG),
        _CHANGE,
        details="Refused unless every canary of the groups is healthy. " + _FOLLOWS,
        examples=("deployment promote 3f2a", "deployment promote 3f2a --group web --detach"),
        changes=True,
    ),
    CommandSpec(
        ("deployment", "pause"),
        "pause a deployment: replace nothing more, stop its progress deadline",
        "deployment.actions:pause",
        (_DEPLOYMENT_ARGUMENT,),
        _CHANGE,
        examples=("deployment pause 3f2a",),
        changes=True,
    ),
    CommandSpec(
        ("deployment", "resume"),
        "resume a paused deployment",
        "deployment.actions:resume",
        (
            _DEPLOYMENT_ARGUMENT,
            flag_argument("ignore_gate", "ignore gates and update windows"),
            _DETACH_FLAG,
        ),
        _CHANGE,
        details=_FOLLOWS,
        examples=("deployment resume 3f2a", "deployment resume --ignore-gate 3f2a"),
        changes=True,
    ),
    CommandSpec(
        ("deployment", "fail"),
        "end a deployment as failed; with auto_revert the job goes back to its stable version",
        "deployment.actions:fail",
        (_DEPLOYMENT_ARGUMENT,),
        _CHANGE,
        examples=("deployment fail 3f2a",),
        changes=True,
    ),
    CommandSpec(
        ("deployment", "set-health"),
        "set the health of allocations of a deployment",
        "deployment.actions:set_health",
        (
            _DEPLOYMENT_ARGUMENT,
            option_argument(
                "healthy", "a healthy allocation; repeatable", list, metavar="ID", complete="alloc"
            ),
            option_argument(
                "unhealthy",
                "an unhealthy allocation; repeatable",
                list,
                metavar="ID",
                complete="alloc",
            ),
        ),
        _CHANGE,
        details="For groups with health_check = manual, and to overrule an agent.",
        examples=("deployment set-health 3f2a --healthy 4f9c21ab",),
        changes=True,
    ),
    CommandSpec(
        ("job", "promote"),
        "promote the canaries of a job's newest deployment",
        "deployment.actions:promote_job",
        (JOB_ARGUMENT, _GROUP_OPTION, _DETACH_FLAG),
        _CHANGE,
        details=_FOLLOWS,
        examples=("job promote web",),
        changes=True,
    ),
    CommandSpec(
        ("job", "deployments"),
        "list the deployments of a job, newest first",
        "deployment.status:list_of_job",
        (JOB_ARGUMENT, LIMIT_OPTION, AT_OPTION, VERBOSE_FLAG),
        _LIST,
        Needs.LOG,
        examples=("job deployments web",),
    ),
)
