"""The commands `caravan job …`."""

from services.cli.command_spec import (
    AT_OPTION,
    DETACH_FLAG,
    EXACT_JOB_ARGUMENT,
    FILE_ARGUMENT,
    JOB_ARGUMENT,
    JOB_FILE_OPTIONS,
    LIMIT_OPTION,
    SUBMISSION_ID_OPTION,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)
from services.cli.sql.commands import EXPORT_DIR_OPTION, LIVE_FLAG

COMMANDS = (
    CommandSpec(
        ("job", "run"),
        "submit a job and follow it until it runs",
        "job.run:run",
        (
            FILE_ARGUMENT._replace(kind=list),
            option_argument(
                "together",
                "submit the files as one rollout with this name: all jobs are updated, or rolled back, together",
                metavar="NAME",
            ),
            flag_argument(
                "in_order", "with --together: a job begins when the one before it is successful"
            ),
            flag_argument("detach", "return as soon as the job is accepted"),
            option_argument(
                "check_index",
                "submit only if the job has this modify index; 0: only if the job does not exist",
                int,
                default=-1,
                metavar="INDEX",
            ),
            SUBMISSION_ID_OPTION,
            *JOB_FILE_OPTIONS,
        ),
        {"": "job.run:JobRunResult", "with --together": "job.run_together:TogetherResult"},
        details="Follows the deployment of a service or system job: exit 0 when it is successful, 1 when it failed or "
        "was cancelled, 2 when it waits for a promotion or for capacity, or is paused. Other jobs: waits until the job "
        "has run for 10 s, is complete, failed, or can only wait, at most 60 s. Exit 2: accepted, but "
        "some allocations could not be placed. Exit 1: refused; or the evaluation, the deployment or a task failed, a "
        "task was restarted, or not all runs in time: then --json prints the keys and `error`. "
        "With --together the same exit codes are those of the rollout: 0 all jobs are successful, 1 refused, or one "
        "failed and all were rolled back, 2 it waits. "
        "A field that is not built yet is an error: with --accept-unbuilt the job runs without it, and job status "
        "names it.",
        examples=(
            "job run hello.nomad.hcl",
            "job run --var image=redis:8 --detach cache.nomad.hcl",
            "job run --check-index 0 hello.nomad.hcl",
            "job run --together shop --in-order db.nomad.hcl web.nomad.hcl",
            "job run --accept-unbuilt web.nomad.hcl",
            "job run - < hello.json",
        ),
        changes=True,
    ),
    CommandSpec(
        ("job", "plan"),
        "show what running a job file would change, without changing anything",
        "job.plan:plan",
        (FILE_ARGUMENT, *JOB_FILE_OPTIONS, AT_OPTION),
        {"": "job.plan:JobPlanResult"},
        Needs.LOG,
        "Exit 0: no allocation would be created or stopped; there may be an update in place. Exit 1: some would. "
        "Exit 255: error.",
        ("job plan hello.nomad.hcl", "job plan --var count=5 hello.nomad.hcl"),
        255,
    ),
    CommandSpec(
        ("job", "validate"),
        "check a job file, without a bus",
        "job.files:validate",
        (FILE_ARGUMENT, *JOB_FILE_OPTIONS),
        {"": "job.files:ValidateResult"},
        Needs.NOTHING,
        "Reports every error with its line.",
        ("job validate hello.nomad.hcl",),
    ),
    CommandSpec(
        ("job", "init"),
        "write an example job file with comments",
        "job.files:init",
        (
            ArgumentSpec(
                "file",
                "file to write",
                default="example.nomad.hcl",
                metavar="FILE",
                complete="file",
            ),
        ),
        {"": "job.files:InitResult"},
        Needs.NOTHING,
        "Never overwrites an existing file.",
        ("job init", "job init web.nomad.hcl"),
    ),
    CommandSpec(
        ("job", "stop"),
        "stop a job",
        "job.status:stop",
        (
            EXACT_JOB_ARGUMENT,
            flag_argument("purge", "delete the job once its allocations have ended"),
            flag_argument("detach", "return without waiting for its tasks to end"),
        ),
        {"": "job.status:JobStopResult"},
        examples=("job stop hello", "job stop --purge hello"),
        changes=True,
    ),
    CommandSpec(
        ("job", "status"),
        "list jobs, or show one",
        "job.status:status",
        (
            JOB_ARGUMENT._replace(default="", help="job id or a unique prefix; omit to list all"),
            LIMIT_OPTION,
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {"": "schemas.job_answers:JobAnswer", "without ID": "schemas.job_answers:JobsAnswer"},
        Needs.LOG,
        examples=("job status", "job status hello", "job status hello --json | jq .groups"),
    ),
    CommandSpec(
        ("job", "inspect"),
        "print a job as it was submitted",
        "job.versions:inspect",
        (
            JOB_ARGUMENT,
            option_argument("version", "version; -1: the newest", int, default=-1),
            flag_argument("hcl", "print the file that it was submitted from, whatever its format"),
            flag_argument("with_vars", "with --hcl: also print its variables, on stderr"),
            AT_OPTION,
        ),
        {"": "job.versions:JobInspectResult", "with --hcl": "job.versions:JobSourceResult"},
        Needs.LOG,
        "The output can be submitted again. The file is read from the log: one whose record was dropped is gone.",
        (
            "job inspect hello",
            "job inspect --version 0 hello | caravan job run -",
            "job inspect --hcl hello",
        ),
    ),
    CommandSpec(
        ("job", "history"),
        "show the versions of a job and the changes between them",
        "job.versions:history",
        (JOB_ARGUMENT, LIMIT_OPTION, AT_OPTION),
        {"": "job.versions:JobHistoryResult"},
        Needs.LOG,
        "The six newest versions are kept, and those with a tag and the newest stable one.",
        ("job history hello",),
    ),
    CommandSpec(
        ("job", "timeline"),
        "show every state of a job, the reasons it waited, and the durations",
        "job.timeline:timeline",
        (
            JOB_ARGUMENT,
            EXPORT_DIR_OPTION,
            LIVE_FLAG,
            option_argument(
                "trace",
                "also write a trace for chrome://tracing or Perfetto; never overwrites a file",
                metavar="FILE",
                complete="file",
            ),
        ),
        {"": "job.timeline:TimelineResult"},
        details="Each row is one state: of the job's versions, its evaluations, the reasons why allocations of a "
        "group waited, its allocations, and the stop requests with their reason. A state that still holds is counted "
        "up to now, in an export up to its last record.",
        examples=("job timeline hello", "job timeline hello --trace hello.trace.json"),
    ),
    CommandSpec(
        ("job", "dispatch"),
        "make a child of a parameterized job and wait until it runs",
        "job.dispatch:dispatch",
        (
            EXACT_JOB_ARGUMENT,
            option_argument("meta", "meta of the child; repeatable", list, metavar="KEY=VALUE"),
            option_argument(
                "payload", "file with the payload, at most 16 KiB; - reads stdin", metavar="FILE"
            ),
            option_argument(
                "idempotency_token",
                "dispatching again with this token is the same child, as long as it is known",
                metavar="TOKEN",
            ),
            option_argument("priority", "priority of the child; 0: the job's", int, default=0),
            SUBMISSION_ID_OPTION,
            flag_argument("detach", "return as soon as the dispatch is accepted"),
        ),
        {"": "job.run:JobRunResult"},
        details="Waits and exits as job run does. Exit 1 also: the job is unknown, stopped or not parameterized, or "
        "does not accept this payload or meta.",
        examples=(
            "job dispatch render --meta scene=7 --payload scene.json",
            "job dispatch render --idempotency-token order-17 --payload - < scene.json",
        ),
        changes=True,
    ),
    CommandSpec(
        ("job", "usage"),
        "show what the tasks of a job used in the last hour, against what it asks for",
        "job.usage:usage",
        (JOB_ARGUMENT,),
        {"": "job.usage:JobUsageResult"},
        details="Asks the nodes of at most 200 running allocations, whose agents measure each task every ten seconds. "
        "`suggested` leaves 15 % above the 95th percentile of CPU, and 20 % above the largest use of memory, without "
        "caches of files. Exit 1: no node answered.",
        examples=("job usage web",),
    ),
    CommandSpec(
        ("job", "action"),
        "run an action of a job in one of its allocations, or list its actions",
        "job.action:action",
        (
            JOB_ARGUMENT,
            ArgumentSpec(
                "name",
                "action; without one the actions are listed",
                default="",
                metavar="ACTION",
            ),
            option_argument("alloc", "in this allocation", metavar="ID", complete="alloc"),
            option_argument("group", "in an allocation of this group", metavar="GROUP"),
            option_argument("task", "in this task, if several have the action", metavar="TASK"),
            ArgumentSpec("interactive", "forward stdin", bool, default=False, flags=("-i",)),
            ArgumentSpec(
                "tty", "allocate a terminal and forward stdin", bool, default=False, flags=("-t",)
            ),
        ),
        {"": "job.action:JobActionsResult", "with ACTION": "job.action:JobActionResult"},
        details="Without --alloc it runs in the running allocation of the newest version that has the action. The "
        "command is that of the version which the allocation runs; it has the user, files, limits and environment of "
        "its task. The exit code is the command's. Who ran it, and its exit code, is an event of the task. The short "
        "form is `caravan action`.",
        examples=(
            "job action cache",
            "job action cache flush",
            "job action cache flush --alloc 4f9c21ab",
        ),
    ),
    CommandSpec(
        ("job", "periodic", "force"),
        "launch a child of a periodic job now",
        "job.periodic:force",
        (EXACT_JOB_ARGUMENT,),
        {"": "job.periodic:JobForceResult"},
        details="Planned launches are not affected, and prohibit_overlap is ignored. Exit 1: the job is unknown, "
        "not periodic, stopped or disabled.",
        examples=("job periodic force backup",),
        changes=True,
    ),
    CommandSpec(
        ("job", "eval"),
        "create an evaluation of a job: place missing allocations",
        "job.status:evaluate",
        (
            JOB_ARGUMENT,
            DETACH_FLAG,
            flag_argument(
                "force_reschedule",
                "also replace failed allocations, regardless of attempts and delays",
            ),
        ),
        {"": "job.status:JobEvalResult"},
        examples=("job eval hello", "job eval hello --force-reschedule"),
        changes=True,
    ),
)
