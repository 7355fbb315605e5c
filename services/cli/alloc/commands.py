"""The commands `caravan alloc …`."""

from services.cli.command_spec import (
    ALLOC_ARGUMENT,
    AT_OPTION,
    FOLLOW_FLAG,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_PATH = ArgumentSpec(
    "path",
    "path below the allocation's directory, like alloc/logs",
    default="",
    metavar="PATH",
)
_TASK = ArgumentSpec("task", "task; optional if there is only one", default="", metavar="TASK")
_TASKS = option_argument("task", "only this task (default: all running tasks)", metavar="TASK")

COMMANDS = (
    CommandSpec(
        ("alloc", "status"),
        "show one allocation, its resources and its tasks",
        "alloc.status:status",
        (ALLOC_ARGUMENT, AT_OPTION, VERBOSE_FLAG),
        {"": "schemas.node_answers:AllocAnswer"},
        Needs.LOG,
        examples=(
            "alloc status 4f9c21ab",
            "alloc status 'hello.greeters[0]'",
        ),
    ),
    CommandSpec(
        ("alloc", "logs"),
        "print the output of a task",
        "alloc.logs:logs",
        (
            ALLOC_ARGUMENT,
            _TASK,
            flag_argument("stderr", "print standard error instead of standard output"),
            FOLLOW_FLAG,
            option_argument("tail", "only the last lines", int, default=None)._replace(
                flags=("-n", "--tail")
            ),
            flag_argument(
                "shipped", "what was shipped to the bus (logs { ship = true }), without the node"
            ),
        ),
        {"": "alloc.logs:AllocLogsResult"},
        details="The node's agent sends the output over the bus. --follow continues through log rotation and "
        "restarts of the task until the allocation has ended. --shipped reads what is on the bus, also when the node "
        "is gone; there control characters are shown as question marks.",
        examples=(
            "alloc logs 4f9c21ab",
            "alloc logs -f --tail 20 4f9c21ab server",
            "alloc logs --stderr 'hello.greeters[0]'",
            "alloc logs --shipped 4f9c21ab",
        ),
    ),
    CommandSpec(
        ("alloc", "exec"),
        "run a command in the environment of a task",
        "alloc.exec:execute",
        (
            ALLOC_ARGUMENT,
            ArgumentSpec("command", "command and its arguments, after --", list, metavar="CMD"),
            option_argument("task", "task; optional if there is only one", metavar="TASK"),
            ArgumentSpec("interactive", "forward stdin", bool, default=False, flags=("-i",)),
            ArgumentSpec(
                "tty", "allocate a terminal and forward stdin", bool, default=False, flags=("-t",)
            ),
        ),
        {"": "alloc.exec:AllocExecResult"},
        details="The command has the task's user, files, limits and environment. The exit code is the command's. "
        "With -t every key goes to the command, including Ctrl-C; without it Ctrl-C ends the command. The command "
        "also ends with its task, and 30 s after this client disconnects. With --json the output is in the object.",
        examples=(
            "alloc exec 4f9c21ab -- ls -l",
            "alloc exec -t --task server 4f9c21ab -- /bin/sh",
            "alloc exec -i 4f9c21ab -- tar x < files.tar",
        ),
    ),
    CommandSpec(
        ("alloc", "fs", "ls"),
        "list a directory of an allocation",
        "alloc.files:ls",
        (
            ALLOC_ARGUMENT,
            _PATH,
            option_argument("limit", "maximum number of rows", int, default=1000),
        ),
        {"": "alloc.files:FileListResult"},
        details="Only files inside the allocation's directory; symbolic links are not followed, and secrets/ is "
        "not readable.",
        examples=("alloc fs ls 4f9c21ab", "alloc fs ls 4f9c21ab server/local"),
    ),
    CommandSpec(
        ("alloc", "fs", "stat"),
        "describe a file of an allocation",
        "alloc.files:stat",
        (ALLOC_ARGUMENT, _PATH),
        {"": "alloc.files:FileStatResult"},
        examples=("alloc fs stat 4f9c21ab alloc/data/out.bin",),
    ),
    CommandSpec(
        ("alloc", "fs", "cat"),
        "print a file of an allocation",
        "alloc.files:cat",
        (
            ALLOC_ARGUMENT,
            _PATH,
            option_argument("offset", "first byte to print", int, default=0),
            option_argument("limit", "number of bytes; 0: up to the end", int, default=0),
        ),
        {"": "alloc.files:FileContentResult"},
        details="Regular files only. With --json at most 1 MiB.",
        examples=("alloc fs cat 4f9c21ab server/local/config.yaml",),
    ),
    CommandSpec(
        ("alloc", "stop"),
        "stop an allocation; its job replaces it",
        "alloc.actions:stop",
        (ALLOC_ARGUMENT,),
        {"": "alloc.actions:AllocStopResult"},
        details="The request is an event in the log. The replacement may be placed on the same node.",
        examples=("alloc stop 4f9c21ab",),
        changes=True,
    ),
    CommandSpec(
        ("alloc", "restart"),
        "restart tasks of an allocation in place",
        "alloc.actions:restart",
        (ALLOC_ARGUMENT, _TASKS),
        {"": "alloc.actions:AllocRestartResult"},
        details="Does not count as a failure or against the restart policy.",
        examples=("alloc restart 4f9c21ab", "alloc restart --task server 4f9c21ab"),
        changes=True,
    ),
    CommandSpec(
        ("alloc", "signal"),
        "send a signal to tasks of an allocation",
        "alloc.actions:send_signal",
        (
            ALLOC_ARGUMENT,
            _TASKS,
            ArgumentSpec("signal", "signal name", str, "SIGHUP", ("-s", "--signal"), "NAME"),
        ),
        {"": "alloc.actions:AllocSignalResult"},
        examples=("alloc signal -s SIGUSR1 4f9c21ab",),
        changes=True,
    ),
    CommandSpec(
        ("alloc", "stats"),
        "show the current resource use of an allocation's tasks",
        "alloc.actions:stats",
        (
            ALLOC_ARGUMENT,
            ArgumentSpec(
                "follow",
                "show it again every two seconds while a task runs",
                bool,
                default=False,
                flags=("-f", "--follow"),
            ),
        ),
        {"": "alloc.actions:AllocStatsResult"},
        details="Each task has `cpu_millicores` (over a quarter second; 1,000 is a core), `cpu_ns` (since its "
        "start) and `memory_bytes` (without caches of files); beside them what the job asks for, and what its "
        "driver counts: the highest memory, time throttled by a limit, kills for lack of memory, processes, bytes "
        "read and written.",
        examples=("alloc stats 4f9c21ab", "alloc stats -f 4f9c21ab"),
    ),
)
