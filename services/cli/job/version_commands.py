"""The commands `caravan job …` that change or restart what is registered: versions, names, restarts, allocations."""

from services.cli.command_spec import (
    AT_OPTION,
    EXACT_JOB_ARGUMENT,
    FOLLOW_FLAG,
    JOB_ARGUMENT,
    LIMIT_OPTION,
    SUBMISSION_ID_OPTION,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_RUN = {"": "job.run:JobRunResult"}
_FOLLOWS = "Follows the rollout and exits as job run does; exit 1 also when it is refused."
_SHARED = (
    option_argument(
        "check_index",
        "only if the job has this modify index",
        int,
        default=-1,
        metavar="INDEX",
    ),
    SUBMISSION_ID_OPTION,
    flag_argument("detach", "return as soon as it is accepted"),
)
_TAG = ArgumentSpec("name", "name of the version", metavar="TAG")

COMMANDS = (
    CommandSpec(
        ("job", "revert"),
        "register the specification of an older version again, as the next version",
        "job.next_versions:revert",
        (
            EXACT_JOB_ARGUMENT,
            ArgumentSpec("version", "number or tag of a kept version", metavar="VERSION|TAG"),
            option_argument(
                "check_version",
                "only if the newest version is this one",
                int,
                default=-1,
                metavar="VERSION",
            ),
            *_SHARED,
        ),
        _RUN,
        details="Counts come back with the text; canaries and max_parallel apply as to any update. The current version "
        f"and a version that is not kept are refused. {_FOLLOWS}",
        examples=("job revert web 3", "job revert web good --check-version 7"),
        changes=True,
    ),
    CommandSpec(
        ("job", "scale"),
        "change the count of a group, as the next version",
        "job.next_versions:scale",
        (
            EXACT_JOB_ARGUMENT,
            ArgumentSpec(
                "group", "group; may be left out if there is one", default="", metavar="GROUP"
            ),
            ArgumentSpec("count", "allocations of the group", int, metavar="COUNT"),
            *_SHARED,
        ),
        _RUN,
        details="Refused outside of the group's scaling block, and while a deployment of the job is active. "
        f"{_FOLLOWS}",
        examples=("job scale hello 5", "job scale shop web 5 --detach"),
        changes=True,
    ),
    CommandSpec(
        ("job", "start"),
        "run a stopped job again, as the next version",
        "job.next_versions:start",
        (EXACT_JOB_ARGUMENT, *_SHARED),
        _RUN,
        details=f"Registers the newest text again. Refused if the job is not stopped. {_FOLLOWS}",
        examples=("job start hello",),
        changes=True,
    ),
    CommandSpec(
        ("job", "restart"),
        "restart the running allocations of a job, batch by batch",
        "job.restart:restart",
        (
            JOB_ARGUMENT,
            option_argument(
                "batch_size",
                "allocations at the same time, or a percentage of all, rounded up",
                default="1",
                metavar="N|N%",
            ),
            option_argument(
                "batch_wait",
                "pause between batches; ask: ask first",
                default="0s",
                metavar="DURATION",
            ),
            option_argument("group", "only this group; repeatable", list, metavar="NAME"),
            option_argument("task", "only this task; repeatable", list, metavar="NAME"),
            flag_argument("reschedule", "stop allocations, so that others replace them elsewhere"),
            option_argument(
                "on_error",
                "ask or fail (default: ask on a terminal, else fail)",
                metavar="WORD",
                complete="(ask fail)",
            ),
            flag_argument("yes", "do not ask: continue after errors and between batches"),
        ),
        {"": "job.restart:JobRestartResult"},
        details="Restarts in place, as alloc restart does, without a new version. With --reschedule a batch ends "
        "when the replacements run; their health is not waited for. Ends when a deployment of the job is or becomes "
        "active. Exit 0 also: nothing runs, or you answered no. Exit 1: an error.",
        examples=(
            "job restart web",
            "job restart web --batch-size 25% --batch-wait 10s",
            "job restart web --group api --reschedule",
        ),
        changes=True,
    ),
    CommandSpec(
        ("job", "tag", "apply"),
        "tag a version of a job; a tagged version is kept",
        "job.version_tags:apply_tag",
        (
            EXACT_JOB_ARGUMENT,
            _TAG,
            option_argument("version", "version; -1: the newest", int, default=-1),
            option_argument("description", "description of the tag", metavar="TEXT"),
        ),
        {"": "job.version_tags:JobTagResult"},
        details="A version has one tag, and a tag names one version of the job: exit 1 if another one has it. The same "
        "version again gets the new description. job revert takes tags.",
        examples=(
            "job tag apply web good",
            "job tag apply web golden --version 3 --description audited",
        ),
        changes=True,
    ),
    CommandSpec(
        ("job", "tag", "unset"),
        "remove the tag of a version",
        "job.version_tags:unset_tag",
        (EXACT_JOB_ARGUMENT, _TAG),
        {"": "job.version_tags:JobTagResult"},
        examples=("job tag unset web good",),
        changes=True,
    ),
    CommandSpec(
        ("job", "stable"),
        "mark a version of a job as stable",
        "job.version_tags:set_stability",
        (
            EXACT_JOB_ARGUMENT,
            ArgumentSpec("version", "number of a kept version", int, metavar="VERSION"),
            flag_argument("unset", "remove the mark"),
        ),
        {"": "job.version_tags:JobStableResult"},
        details="A successful deployment marks its version, too. With auto_revert a failed one goes "
        "back to the newest stable version.",
        examples=("job stable web 3", "job stable web 3 --unset"),
        changes=True,
    ),
    CommandSpec(
        ("job", "allocs"),
        "list the allocations of a job, of all its versions",
        "job.allocs:list_of_job",
        (JOB_ARGUMENT, LIMIT_OPTION, AT_OPTION, VERBOSE_FLAG),
        {"": "schemas.node_answers:AllocsAnswer"},
        Needs.LOG,
        examples=("job allocs web", "job allocs web --verbose"),
    ),
    CommandSpec(
        ("job", "logs"),
        "print the output of all running tasks of a job in one stream",
        "job.logs:logs",
        (
            JOB_ARGUMENT,
            ArgumentSpec("task", "only this task", default="", metavar="TASK"),
            flag_argument("stderr", "only standard error (default: both outputs)"),
            FOLLOW_FLAG,
            option_argument("tail", "of each task only the last lines", int, default=None)._replace(
                flags=("-n", "--tail")
            ),
        ),
        {"": "job.logs:JobLogsResult"},
        details="Each line begins with its allocation and task, and is printed when it arrives. Where no allocation "
        "runs, those that have ended are read. --follow also reads allocations that start later, until the job has "
        "ended. What cannot be read is named on standard error. The short form is `caravan logs JOB`.",
        examples=("job logs web", "job logs -f --tail 10 web", "job logs -f web server"),
    ),
)
