"""The commands `caravan rollout …`."""

from services.cli.command_spec import (
    AT_OPTION,
    JOB_OPTION,
    LIMIT_OPTION,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_ROLLOUT_ARGUMENT = ArgumentSpec(
    "rollout_id",
    "rollout id, a unique prefix, or a name: the newest with it",
    metavar="ID",
    complete="rollout",
)
_CHANGE = {"": "rollout.actions:RolloutChangeResult"}

COMMANDS = (
    CommandSpec(
        ("rollout", "list"),
        "list rollouts of several jobs, newest first",
        "rollout.status:list_all",
        (
            JOB_OPTION._replace(help="only those with this job: id or a unique prefix"),
            option_argument(
                "status",
                "running, successful, failed or cancelled",
                metavar="WORD",
                complete="(running successful failed cancelled)",
            ),
            LIMIT_OPTION,
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {"": "schemas.rollout_answers:RolloutsAnswer"},
        Needs.LOG,
        examples=("rollout list", "rollout list --status running"),
    ),
    CommandSpec(
        ("rollout", "status"),
        "show one rollout, and what each of its jobs waits for",
        "rollout.status:status",
        (
            _ROLLOUT_ARGUMENT,
            flag_argument("monitor", "follow it until it ended or waits for an operator"),
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {"": "schemas.rollout_answers:RolloutAnswer"},
        Needs.LOG,
        "Exit 0 also for a rollout that failed.",
        ("rollout status shop", "rollout status 3f2a --monitor"),
    ),
    CommandSpec(
        ("rollout", "promote"),
        "promote the canaries of all jobs of a rollout",
        "rollout.actions:promote",
        (_ROLLOUT_ARGUMENT, flag_argument("detach", "return without following the rollout")),
        _CHANGE,
        details="Refused unless every canary of every job is healthy; of a rollout in order, of the job that is next. "
        "Follows the rollout: exit 0 when it is successful, 1 when it failed or was cancelled, 2 when it waits again.",
        examples=("rollout promote shop",),
        changes=True,
    ),
    CommandSpec(
        ("rollout", "fail"),
        "end a rollout as failed: every job of it returns to its previous version",
        "rollout.actions:fail",
        (_ROLLOUT_ARGUMENT,),
        _CHANGE,
        details="Successful jobs are rolled back, too, in reverse order; new jobs are stopped.",
        examples=("rollout fail shop",),
        changes=True,
    ),
)
