"""Every command of `caravan`: its words, its arguments, its one line of help, and where its function is.

Decides the surface only. A module is imported when its command runs, so that `caravan --help` costs nothing; a handler
takes an `Output` and its arguments by name and returns the exit code. docs/cli.md describes the same, held by a test.
"""

from typing import NamedTuple


class Arg(NamedTuple):
    """One argument. Without `flags` it is positional; `kind` bool is a switch."""

    name: str
    help: str
    kind: type = str
    default: object = None
    flags: tuple[str, ...] = ()
    metavar: str = ""


class Command(NamedTuple):
    """One command. `keys` are those of its JSON object, as docs/cli.md lists them."""

    words: tuple[str, ...]
    summary: str
    module: str
    handler: str
    args: tuple[Arg, ...] = ()
    keys: tuple[str, ...] = ()
    more: str = ""


GROUPS = {
    "job": "run, stop and look at jobs",
    "node": "look at nodes",
    "alloc": "look at allocations and their output",
    "eval": "look at evaluations",
    "log": "read and prove the log",
    "sim": "the simulated world",
    "dead": "messages that nobody could read",
    "operator": "what an operator asks of the cluster",
}


def _flag(name: str, text: str) -> Arg:
    return Arg(name, text, bool, default=False, flags=(f"--{name.replace('_', '-')}",))


def _option(
    name: str, text: str, kind: type = str, *, default: object = "", metavar: str = ""
) -> Arg:
    return Arg(name, text, kind, default, (f"--{name.replace('_', '-')}",), metavar)


_FILE = Arg("file", "job file, Nomad's JSON; - reads it from stdin", metavar="FILE")
_VERBOSE = _flag("verbose", "show whole ids and everything else")
_LIMIT = _option("limit", "lines at the most", int, default=100, metavar="N")
_PORT = _option("port", "port of the bus on 127.0.0.1", int, default=4222, metavar="PORT")

COMMANDS = (
    Command(
        ("demo",),
        "run everything once, on this machine, and take it down again",
        "services.cli.demo",
        "demo",
        (_flag("keep", "leave the data directory, to look at the log afterwards"),),
        (
            *("job", "allocations", "ran", "restarted", "stopped", "left_running"),
            *("t_first_running_s", "t_total_s", "ok"),
        ),
    ),
    Command(
        ("up",),
        "keep a cluster running on this machine until Ctrl-C",
        "services.cli.up",
        "up",
        (
            _PORT,
            _option("data_dir", "where the log and everything else is kept", metavar="DIR"),
            _option("schedulers", "scheduler workers", int, default=2, metavar="N"),
            _option("agents", "agents, each a node of its own", int, default=1, metavar="N"),
            _option("intakes", "intakes", int, default=1, metavar="N"),
            _option("views", "views", int, default=1, metavar="N"),
            _option("appliers", "plan appliers, one active", int, default=2, metavar="N"),
            _flag("keep_tasks", "leave tasks running at the end, for the next `up` to adopt"),
            _flag("no_raw_exec", "do not offer the raw_exec driver"),
        ),
        ("url", "data_dir", "cluster_id", "pid", "services"),
        "Tasks of raw_exec run as the user who starts this, without isolation.",
    ),
    Command(
        ("run",),
        "run one role in this process; CARAVAN_* variables configure it",
        "services.cli.running",
        "run",
        (Arg("role", "intake, eval_broker, scheduler, plan_applier, heartbeat, view or agent"),),
        (),
        "docs/cli.md lists the variables. Logs go to stderr.",
    ),
    Command(
        ("job", "run"),
        "submit a job and wait until it was placed",
        "services.cli.jobs",
        "run",
        (
            _FILE,
            _flag("detach", "do not wait for the evaluation"),
            _option(
                "check_index",
                "only if the job's modify index is this; 0: only if there is no such job",
                int,
                default=-1,
                metavar="INDEX",
            ),
            _option(
                "submission_id", "name the submission: asking again is then harmless", metavar="ID"
            ),
        ),
        (
            *("job", "version", "modify_index", "eval_id", "eval_status", "placed", "waiting"),
            *("warnings", "submission_id", "seq"),
        ),
        "Exit 2: accepted, but not everything found a place.",
    ),
    Command(
        ("job", "stop"),
        "stop a job",
        "services.cli.jobs",
        "stop",
        (
            Arg("job_id", "job", metavar="ID"),
            _flag("purge", "forget the job once its allocations ended"),
            _flag("detach", "do not wait until its tasks ended"),
        ),
        ("job", "eval_id", "eval_status", "stopped", "submission_id", "seq"),
    ),
    Command(
        ("job", "status"),
        "list jobs, or show one",
        "services.cli.jobs",
        "status",
        (Arg("job_id", "job; without: all", default="", metavar="ID"), _LIMIT, _VERBOSE),
        (
            *("job", "groups", "allocations", "waiting", "evaluations"),
            *("placed", "allocations_total", "seq", "cluster_id"),
        ),
        "Without ID the keys are jobs, total, seq, cluster_id.",
    ),
    Command(
        ("job", "validate"),
        "check a job file, without a bus",
        "services.cli.jobs",
        "validate",
        (_FILE,),
        ("ok", "job", "warnings", "errors"),
    ),
    Command(
        ("node", "status"),
        "list nodes, or show one",
        "services.cli.nodes",
        "status",
        (
            Arg("node_id", "node or its name; without: all", default="", metavar="ID"),
            _LIMIT,
            _VERBOSE,
        ),
        ("nodes", "total", "seq", "cluster_id"),
        "With ID the keys are nodes, attributes, meta, allocations, allocations_total, seq, cluster_id.",
    ),
    Command(
        ("alloc", "status"),
        "show one allocation and its tasks",
        "services.cli.allocs",
        "status",
        (Arg("alloc_id", "allocation, or the beginning of its id", metavar="ID"), _VERBOSE),
        ("allocation", "tasks", "why", "seq", "cluster_id"),
    ),
    Command(
        ("alloc", "logs"),
        "print what a task wrote",
        "services.cli.allocs",
        "logs",
        (
            Arg("alloc_id", "allocation, or the beginning of its id", metavar="ID"),
            Arg("task", "task; may be left out when there is one", default="", metavar="TASK"),
            _flag("stderr", "its standard error"),
            Arg("tail", "only the last lines", int, 0, ("-n", "--tail"), "N"),
        ),
        ("allocation", "task", "stream", "path", "size", "text"),
        "Reads the files of an agent that `caravan up` runs on this machine; logs of other machines come with a "
        "later release.",
    ),
    Command(
        ("eval", "list"),
        "list evaluations, newest first",
        "services.cli.evals",
        "list_all",
        (
            _option("job", "of this job only", metavar="ID"),
            _option("status", "pending, blocked, complete, failed or canceled", metavar="WORD"),
            _LIMIT,
            _VERBOSE,
        ),
        ("evaluations", "total", "seq", "cluster_id"),
    ),
    Command(
        ("eval", "status"),
        "show one evaluation",
        "services.cli.evals",
        "status",
        (Arg("eval_id", "evaluation, or the beginning of its id", metavar="ID"), _VERBOSE),
        ("evaluation", "follow_ups", "seq", "cluster_id"),
    ),
    Command(
        ("log", "tail"),
        "print the last events of the log, one line each",
        "services.cli.logs",
        "tail",
        (
            Arg("count", "so many events", int, 10, ("-n", "--count"), "N"),
            Arg("follow", "go on with what comes", bool, default=False, flags=("-f", "--follow")),
        ),
        ("events", "first_seq", "last_seq"),
        "With --json and --follow one object is printed for each event.",
    ),
    Command(
        ("log", "verify"),
        "read the whole log and prove it",
        "services.cli.logs",
        "verify",
        (),
        (
            *("ok", "first_seq", "last_seq", "transactions", "events", "placements", "foreign"),
            *("tables", "head", "decisions", "problem"),
        ),
        "Exit 1: a replay comes to another state than the checkpoints say. Exit 2: the log is damaged.",
    ),
    Command(
        ("replay",),
        "rebuild the state as it was",
        "services.cli.logs",
        "replay",
        (_option("to", "seq, or time as 2026-01-31T12:00:00", default="", metavar="SEQ|TIME"),),
        ("seq", "time", "tables", "counts"),
    ),
    Command(
        ("sim", "check"),
        "run simulated worlds with faults and check every invariant",
        "services.cli.sims",
        "check",
        (
            _option("seeds", "so many worlds", int, default=20, metavar="N"),
            _option("seed", "first seed", int, default=1, metavar="FIRST"),
            _option(
                "mutant", "plant this bug, and look for the seed that finds it", metavar="NAME"
            ),
            _option("processes", "processes; 0: one a processor", int, default=0, metavar="N"),
        ),
        (
            *("seeds", "first_seed", "failed", "transactions", "faults", "checks", "seeds_per_s"),
            *("mutant", "found", "seed"),
        ),
        "Exit 0 when nothing failed; with --mutant when it was found.",
    ),
    Command(
        ("dead", "list"),
        "list messages that nobody could read",
        "services.cli.dead",
        "list_all",
        (_LIMIT,),
        ("messages", "total", "seq", "cluster_id"),
    ),
    Command(
        ("operator", "status"),
        "show who leads, how safe the bus is, and how much there is",
        "services.cli.operator",
        "status",
        (_flag("hashes", "also the hashes of all tables"),),
        (
            *("seq", "cluster_id", "t_ns", "counts", "epoch", "holder", "fsync", "replicas"),
            *("foreign", "policy", "tables"),
        ),
    ),
    Command(
        ("operator", "bootstrap"),
        "write config and secrets of a cluster of containers",
        "services.cli.bootstrap",
        "bootstrap",
        (
            _option("directory", "write here", default="deploy/secrets", metavar="DIR"),
            _option("nodes", "ids of agents", default="node-1,node-2,node-3", metavar="ID,..."),
            _option("servers", "servers of the bus, 1 or 3", int, default=1, metavar="N"),
            _option("port", "port of the bus on this machine", int, default=4222, metavar="N"),
        ),
        ("directory", "cluster_id", "nodes"),
        "Again in the same folder: nodes are added, passwords stay.",
    ),
    Command(
        ("operator", "create"),
        "create the streams of a new cluster, or check those of an old one",
        "services.cli.bootstrap",
        "create",
        (_option("state", "folder that remembers it", default="/var/lib/caravan", metavar="DIR"),),
        ("cluster_id", "streams"),
        "Run by compose before everything else; reads CARAVAN_* like a service, as user admin.",
    ),
    Command(
        ("bench",),
        "run one benchmark, or list them",
        "services.cli.benches",
        "bench",
        (
            Arg("name", "benchmark; without: the list", default="", metavar="NAME"),
            _option("runs", "repeat so often", int, default=0, metavar="N"),
            _option("size", "full, or a part of it as a number like 0.1", default="", metavar="X"),
            _option(
                "workers",
                "scheduler workers, where the benchmark has any",
                int,
                default=0,
                metavar="N",
            ),
        ),
        (
            *("name", "size", "result", "result_min", "result_max", "checks", "cpu_s", "rss_mib"),
            *("log_bytes", "machine", "load_before", "versions", "fsync", "replicas", "runs"),
        ),
        "Only in a checkout: benchmarks are not installed.",
    ),
)
