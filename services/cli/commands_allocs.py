"""The commands about allocations, and what is done to them by hand. See `words.py`."""

from services.cli.words import AT, VERBOSE, Arg, Command, flag, option

_ALLOC = Arg(
    "alloc_id", "allocation: the beginning of its id, or its name", metavar="ID", complete="alloc"
)
_PATH = Arg(
    "path", "from the allocation's directory on, like alloc/logs", default="", metavar="PATH"
)
_VERDICT = ("request_id", "status", "changed", "seq", "cluster_id")
_TASK = Arg("task", "task; may be left out when there is one", default="", metavar="TASK")
_TASKS = option("task", "only this one; without: all that run", metavar="TASK")

ALLOC_COMMANDS = (
    Command(
        ("alloc", "status"),
        "show one allocation and its tasks",
        "services.cli.allocs",
        "status",
        (_ALLOC, AT, VERBOSE),
        ("allocation", "ports", "resources", "variant", "tasks", "why", "seq", "cluster_id"),
        "",
        (
            "alloc status 4f9c21ab",
            "alloc status 'hello.greeters[0]'",
        ),
    ),
    Command(
        ("alloc", "logs"),
        "print what a task wrote",
        "services.cli.alloc_logs",
        "logs",
        (
            _ALLOC,
            _TASK,
            flag("stderr", "its standard error"),
            Arg("follow", "go on with what comes", bool, default=False, flags=("-f", "--follow")),
            Arg("tail", "only the last lines", int, 0, ("-n", "--tail"), "N"),
        ),
        ("allocation", "task", "stream", "size", "text"),
        "The node's agent sends it over the bus, from any node to anywhere. A follower goes on through rotation and "
        "restarts of the task, until the allocation is over.",
        (
            "alloc logs 4f9c21ab",
            "alloc logs -f --tail 20 4f9c21ab server",
            "alloc logs --stderr 'hello.greeters[0]'",
        ),
    ),
    Command(
        ("alloc", "exec"),
        "run a command beside a task",
        "services.cli.alloc_exec",
        "execute",
        (
            _ALLOC,
            Arg("command", "command and its arguments, behind --", list, metavar="CMD"),
            option("task", "which task; may be left out when there is one", metavar="TASK"),
            Arg("interactive", "its input is ours", bool, default=False, flags=("-i",)),
            Arg("tty", "with a terminal, and our input", bool, default=False, flags=("-t",)),
        ),
        ("allocation", "task", "exit_code", "stdout", "stderr"),
        "It has what the task has: its user, files, limits and environment. The exit code is the command's. With -t "
        "every key goes to the command, Ctrl-C too; without, Ctrl-C ends it. It ends with the task, and half a minute "
        "after its asker fell silent. With --json its output is in the object.",
        (
            "alloc exec 4f9c21ab -- ls -l",
            "alloc exec -t --task server 4f9c21ab -- /bin/sh",
            "alloc exec -i 4f9c21ab -- tar x < files.tar",
        ),
    ),
    Command(
        ("alloc", "fs", "ls"),
        "list a directory of an allocation",
        "services.cli.alloc_files",
        "ls",
        (_ALLOC, _PATH, option("limit", "lines at the most", int, default=1000, metavar="N")),
        ("allocation", "path", "files", "total"),
        "Only what is inside the allocation's directory, over no link; what is in secrets/ is the task's alone.",
        ("alloc fs ls 4f9c21ab", "alloc fs ls 4f9c21ab server/local"),
    ),
    Command(
        ("alloc", "fs", "stat"),
        "describe a file of an allocation",
        "services.cli.alloc_files",
        "stat",
        (_ALLOC, _PATH),
        ("allocation", "path", "file"),
        "",
        ("alloc fs stat 4f9c21ab alloc/data/out.bin",),
    ),
    Command(
        ("alloc", "fs", "cat"),
        "print a file of an allocation",
        "services.cli.alloc_files",
        "cat",
        (
            _ALLOC,
            _PATH,
            option("offset", "from this byte on", int, default=0, metavar="N"),
            option("limit", "so many bytes; 0: to its end", int, default=0, metavar="N"),
        ),
        ("allocation", "path", "offset", "size", "text"),
        "Plain files only. With --json at most 1 MiB of it.",
        ("alloc fs cat 4f9c21ab server/local/config.yaml",),
    ),
    Command(
        ("alloc", "stop"),
        "stop an allocation; its job replaces it",
        "services.cli.alloc_orders",
        "stop",
        (_ALLOC,),
        ("allocation", *_VERDICT),
        "An event in the log. Where the replacement goes is decided anew; nothing keeps it from the same node.",
        ("alloc stop 4f9c21ab",),
    ),
    Command(
        ("alloc", "restart"),
        "end tasks of an allocation and start them again, where they are",
        "services.cli.alloc_orders",
        "restart",
        (_ALLOC, _TASKS),
        ("allocation", "node", "tasks"),
        "It counts as no failure and takes no attempt of the restart policy.",
        ("alloc restart 4f9c21ab", "alloc restart --task server 4f9c21ab"),
    ),
    Command(
        ("alloc", "signal"),
        "send a signal to tasks of an allocation",
        "services.cli.alloc_orders",
        "send_signal",
        (_ALLOC, _TASKS, Arg("signal", "which one", str, "SIGHUP", ("-s", "--signal"), "NAME")),
        ("allocation", "node", "tasks", "signal"),
        "",
        ("alloc signal -s SIGUSR1 4f9c21ab",),
    ),
    Command(
        ("alloc", "stats"),
        "show what the tasks of an allocation use now",
        "services.cli.alloc_orders",
        "stats",
        (_ALLOC,),
        ("allocation", "node", "tasks", "disk_mib"),
        "Each has `cpu_millicores` (over a quarter second; 1,000 is a core), `cpu_ns` (since its start) and "
        "`memory_bytes`.",
        ("alloc stats 4f9c21ab",),
    ),
)
