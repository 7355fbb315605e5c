"""The commands `caravan eval …`, `caravan why` and `caravan why-not`."""

from services.cli.command_spec import (
    ALLOC_ARGUMENT,
    AT_OPTION,
    JOB_ARGUMENT,
    JOB_OPTION,
    LIMIT_OPTION,
    NODE_ARGUMENT,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_WHY_RESULT = {"": "schemas.evaluation_answers:WhyAnswer"}

COMMANDS = (
    CommandSpec(
        ("eval", "list"),
        "list evaluations, newest first",
        "eval.status:list_all",
        (
            JOB_OPTION,
            option_argument(
                "status",
                "pending, blocked, complete, failed or canceled",
                metavar="WORD",
                complete="(pending blocked complete failed canceled)",
            ),
            flag_argument("waiting", "list waiting task groups instead, in queue order"),
            LIMIT_OPTION,
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {
            "": "schemas.evaluation_answers:EvalsAnswer",
            "with --waiting": "schemas.evaluation_answers:WaitingAnswer",
        },
        Needs.LOG,
        "Each line of `waiting` has `position` (1 is the next in its pool; 0: no node could hold it), `job`, "
        "`group`, `n`, `class`, `priority`, `pool`, `since_ns`, `reasons`, `wakes` (the events that trigger another "
        "attempt), `nodes` (reserved for it), `eval_id` and `decided_seq` (the seq at which class and reasons were "
        "decided; 0: not decided, it is parked behind the job that `reasons` names).",
        ("eval list", "eval list --status blocked", "eval list --waiting"),
    ),
    CommandSpec(
        ("eval", "status"),
        "show one evaluation",
        "eval.status:status",
        (
            ArgumentSpec(
                "eval_id", "evaluation id or a unique prefix", metavar="ID", complete="eval"
            ),
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {"": "schemas.evaluation_answers:EvalAnswer"},
        Needs.LOG,
        examples=("eval status 91d0",),
    ),
    CommandSpec(
        ("why",),
        "explain the placement of an allocation",
        "eval.why:why",
        (ALLOC_ARGUMENT, AT_OPTION),
        _WHY_RESULT,
        Needs.LOG,
        "Reads the log and repeats the decision on its own snapshot.",
        ("why 4f9c21ab", "why 'hello.greeters[0]' --json | jq .top"),
    ),
    CommandSpec(
        ("why-not",),
        "explain why a job's next allocation cannot be placed, or not on a node",
        "eval.why:why_not",
        (
            JOB_ARGUMENT._replace(metavar="JOB"),
            NODE_ARGUMENT._replace(
                default="", metavar="NODE", help="node: id, unique prefix or name; omit for all"
            ),
            option_argument(
                "group",
                "task group (default: the first that waits, else the first)",
                metavar="NAME",
            ),
            AT_OPTION,
        ),
        _WHY_RESULT,
        Needs.LOG,
        examples=("why-not hello", "why-not hello node-1 --at 120"),
    ),
)
