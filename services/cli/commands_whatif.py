"""The command that asks what would have become. See `words.py`."""

from services.cli.words import Arg, Command, option


def _again(name: str, text: str, metavar: str, complete: str = "") -> Arg:
    flag = f"--{name.replace('_', '-')}"
    return Arg(name, f"{text}; may be given again", list, (), (flag,), metavar, complete)


WHAT_IF = Command(
    ("what-if",),
    "fork the log, run it on otherwise, and compare",
    "services.cli.whatif",
    "what_if",
    (
        Arg(
            "begin",
            "fork behind this moment; without: behind the last record",
            str,
            "",
            ("--from",),
            "SEQ|TIME",
        ),
        option(
            "until",
            "run so far; without: to the end of the record, and to rest",
            metavar="SEQ|TIME|+D",
        ),
        _again("policy", "another policy: one field, or a file of fields", "NAME=VALUE|FILE"),
        _again(
            "add_nodes", "more nodes: like one there is, or a file of node classes", "NxNODE|FILE"
        ),
        _again("remove_nodes", "without this node", "NODE", "node"),
        _again("drain", "this node emptied, at once or within a time", "NODE[=D]", "node"),
        _again("priority", "another priority of a job", "JOB=N", "job"),
        option("workers", "so many scheduler workers; 0: as recorded", int, default=0, metavar="N"),
        option(
            "durations",
            "of tasks: recorded (where the log has them) or resampled",
            default="recorded",
            metavar="WHICH",
            complete="(recorded resampled)",
        ),
        Arg("directory", "write the fork's log there, as an export", str, "", ("--out",), "DIR"),
    ),
    (
        *("from_seq", "from_time", "until_time", "end_seq", "workers", "wishes", "faithful"),
        *("agreement", "before", "after", "differences", "changed", "moves", "still_waiting"),
        *("assumptions", "out"),
    ),
    "First every recorded decision behind the fork is made again on its own snapshot: divergence 0, or exit 1. Then "
    "the log is forked: what came from outside (submissions, operators, nodes) comes again, and the real roles decide "
    "in virtual time, once unchanged and once otherwise; these two are compared. Nothing of it touches the cluster. "
    "Tasks last as recorded where the log says so, else as finished ones of their group or job did, else for ever.",
    (
        "what-if --drain node-1",
        "what-if --from 120 --policy algorithm=spread",
        "what-if --from 120 --add-nodes 2xnode-1 --priority report=80",
        "what-if --from 2026-01-31T12:00:00 --remove-nodes node-1 --until +10m --out ./fork",
    ),
)
