"""Every command of `caravan`: its words, its arguments, its one line of help, and where its function is.

Decides the surface only. A module is imported when its command runs, so that `caravan --help` costs nothing; a handler
takes an `Output` and its arguments by name and returns the exit code. docs/cli.md describes the same, held by a test.
Next: `commands_jobs.py`, `commands_cluster.py`.
"""

from services.cli.commands_cluster import CLUSTER_COMMANDS
from services.cli.commands_fleet import FLEET
from services.cli.commands_jobs import JOB_COMMANDS
from services.cli.commands_log import DROP, RESTORE, ROLL
from services.cli.commands_simulate import SIMULATE
from services.cli.commands_sql import EXPORT, SQL
from services.cli.commands_whatif import WHAT_IF
from services.cli.words import AT, LIMIT, Arg, Command, flag, option

GROUPS = {
    "job": "run, stop and look at jobs",
    "node": "look at nodes, and empty them",
    "alloc": "look at allocations, and into them",
    "eval": "look at evaluations",
    "system": "the cluster's own upkeep",
    "operator": "what an operator asks of the cluster",
    "context": "names of buses",
    "log": "read and prove the log",
    "sim": "the simulated world",
    "dead": "messages that nobody could read",
}

PORT = option("port", "port of the bus on 127.0.0.1", int, default=4222, metavar="PORT")

_BEGIN = (
    Command(
        ("demo",),
        "run everything once, on this machine, and take it down again",
        "services.cli.demo",
        "demo",
        (flag("keep", "leave the data directory, to look at the log afterwards"),),
        (
            *("job", "allocations", "ran", "restarted", "stopped", "left_running"),
            *("t_first_running_s", "t_total_s", "ok"),
        ),
        "",
        (
            "demo",
            "demo --keep",
        ),
    ),
    Command(
        ("up",),
        "keep a cluster running on this machine until Ctrl-C",
        "services.cli.up",
        "up",
        (
            PORT,
            option("data_dir", "where the log and everything else is kept", metavar="DIR"),
            option("schedulers", "scheduler workers", int, default=2, metavar="N"),
            option("agents", "agents, each a node of its own", int, default=1, metavar="N"),
            option("intakes", "intakes", int, default=1, metavar="N"),
            option("views", "views", int, default=1, metavar="N"),
            option("appliers", "plan appliers, one active", int, default=2, metavar="N"),
            flag("keep_tasks", "leave tasks running at the end, for the next `up` to adopt"),
            flag("no_raw_exec", "do not offer the raw_exec driver"),
        ),
        ("url", "data_dir", "cluster_id", "pid", "services"),
        "Tasks of raw_exec run as the user who starts this, without isolation.",
        (
            "up",
            "up --data-dir ./cluster --agents 3",
            "up --keep-tasks",
        ),
    ),
    Command(
        ("run",),
        "run one role in this process; CARAVAN_* variables configure it",
        "services.cli.running",
        "run",
        (Arg("role", "intake, eval_broker, scheduler, plan_applier, heartbeat, view or agent"),),
        (),
        "docs/cli.md lists the variables. Logs go to stderr.",
        ("run scheduler",),
    ),
)

_WHY_KEYS = (
    *(
        "job_id",
        "group",
        "allocation",
        "node",
        "decision",
        "nodes_considered",
        "feasible",
        "fitting",
    ),
    *("filters", "exhausted", "nearest", "top", "victims", "class", "reasons", "text"),
    *("seq", "cluster_id"),
)

_END = (
    Command(
        ("why",),
        "say why an allocation is where it is",
        "services.cli.why",
        "why",
        (
            Arg(
                "alloc_id",
                "allocation: the beginning of its id, or its name",
                metavar="ID",
                complete="alloc",
            ),
            AT,
        ),
        _WHY_KEYS,
        "The log is read and the decision looked at again on the snapshot that it was made on.",
        ("why 4f9c21ab", "why 'hello.greeters[0]' --json | jq .top"),
    ),
    Command(
        ("why-not",),
        "say why a job's next allocation finds no place, or not on a node",
        "services.cli.why",
        "why_not",
        (
            Arg("job_id", "job", metavar="JOB", complete="job"),
            Arg(
                "node_id",
                "node or its name; without: all",
                default="",
                metavar="NODE",
                complete="node",
            ),
            option(
                "group", "task group; without: the first that waits, or the first", metavar="NAME"
            ),
            AT,
        ),
        _WHY_KEYS,
        "",
        ("why-not hello", "why-not hello node-1 --at 120"),
    ),
    Command(
        ("log", "tail"),
        "print the last events of the log, one line each",
        "services.cli.tails",
        "tail",
        (
            Arg("count", "so many events", int, 10, ("-n", "--count"), "N"),
            Arg("follow", "go on with what comes", bool, default=False, flags=("-f", "--follow")),
            option("job", "of this job only", metavar="ID", complete="job"),
            option("node", "of this node only", metavar="ID", complete="node"),
            Arg(
                "kind",
                "events whose type begins so; may be given again",
                list,
                (),
                ("--kind",),
                "WORD",
            ),
        ),
        ("events", "first_seq", "last_seq"),
        "With --json and --follow one object is printed for each event. For --job and --node the log is read from "
        "its beginning.",
        (
            "log tail -n 50",
            "log tail -f",
            "log tail --job hello --kind plan --kind evaluation",
        ),
    ),
    Command(
        ("log", "verify"),
        "read the whole log and prove it",
        "services.cli.logs",
        "verify",
        (flag("decisions", "also decide every plan again, and compare"),),
        (
            *("ok", "first_seq", "last_seq", "transactions", "events", "placements", "foreign"),
            *("tables", "head", "decisions", "problem"),
        ),
        "Exit 1: a replay comes to another state than the checkpoints say, or a plan would be decided otherwise. "
        "Exit 2: the log is damaged.",
        (
            "log verify",
            "log verify --decisions",
            "log verify --json | jq .tables",
        ),
    ),
    EXPORT,
    ROLL,
    DROP,
    RESTORE,
    SQL,
    Command(
        ("replay",),
        "rebuild the state as it was",
        "services.cli.replays",
        "replay",
        (
            option("to", "seq, or time as 2026-01-31T12:00:00", default="", metavar="SEQ|TIME"),
            flag("step", "print each event on the way"),
            Arg("begin", "with --step: the first seq that is printed", str, "", ("--from",), "SEQ"),
            option("job", "with --step: of this job only", metavar="ID", complete="job"),
            option("node", "with --step: of this node only", metavar="ID", complete="node"),
            Arg("diff", "compare two moments", list, (), ("--diff",), "SEQ|TIME"),
            Arg("other", "with --diff: the other moment", default="", metavar="OTHER"),
            flag("whole", "from the first record, whatever snapshot there is"),
        ),
        ("seq", "time", "tables", "counts", "begun_seq"),
        "Without --step and --whole it begins at the newest snapshot before that moment. With --diff the keys are "
        "from_seq, to_seq, changes, counts.",
        (
            "replay --to 100",
            "replay --step --from 90 --to 100",
            "replay --diff 100 200",
            "replay --to 2026-01-31T12:00:00",
        ),
    ),
    WHAT_IF,
    SIMULATE,
    Command(
        ("sim", "check"),
        "run simulated worlds with faults and check every invariant",
        "services.cli.sims",
        "check",
        (
            option("seeds", "so many worlds", int, default=20, metavar="N"),
            option("seed", "first seed", int, default=1, metavar="FIRST"),
            option("mutant", "plant this bug, and look for the seed that finds it", metavar="NAME"),
            option("processes", "processes; 0: one a processor", int, default=0, metavar="N"),
        ),
        (
            *("seeds", "first_seed", "failed", "transactions", "faults", "checks", "seeds_per_s"),
            *("mutant", "found", "seed"),
        ),
        "Exit 0 when nothing failed; with --mutant when it was found.",
        (
            "sim check --seeds 100",
            "sim check --seed 7 --seeds 1",
        ),
    ),
    Command(
        ("dead", "list"),
        "list messages that nobody could read",
        "services.cli.dead",
        "list_all",
        (LIMIT,),
        ("messages", "total", "seq", "cluster_id"),
        "",
        ("dead list",),
    ),
    FLEET,
    Command(
        ("bench",),
        "run one benchmark, or list them",
        "services.cli.benches",
        "bench",
        (
            Arg("name", "benchmark; without: the list", default="", metavar="NAME"),
            option("runs", "repeat so often", int, default=0, metavar="N"),
            option("size", "full, or a part of it as a number like 0.1", default="", metavar="X"),
            option(
                "workers",
                "scheduler workers, where the benchmark has any",
                int,
                default=0,
                metavar="N",
            ),
            option("data", "folder of a trace, where the benchmark reads one", metavar="DIR"),
            option("variant", "which list of the trace", metavar="NAME"),
            option("policy", "which policy places, where the benchmark compares", metavar="NAME"),
            flag("no_fsync", "measure on a bus that does not fsync, which every output names"),
        ),
        (
            *("name", "size", "result", "result_min", "result_max", "checks", "cpu_s", "rss_mib"),
            *("log_bytes", "machine", "load_before", "versions", "fsync", "replicas", "runs"),
        ),
        "Only in a checkout: benchmarks are not installed. A check that fails leaves no figures.",
        (
            "bench",
            "bench p10 --size 0.1",
        ),
    ),
    Command(
        ("completion",),
        "print the completion of a shell",
        "services.cli.completion",
        "completion",
        (Arg("shell", "bash, zsh or fish", metavar="SHELL", complete="(bash zsh fish)"),),
        ("shell", "text"),
        "",
        (
            "completion bash > ~/.local/share/bash-completion/completions/caravan",
            "completion zsh > ~/.zfunc/_caravan",
            "completion fish > ~/.config/fish/completions/caravan.fish",
        ),
    ),
)

COMMANDS = (*_BEGIN, *JOB_COMMANDS, *CLUSTER_COMMANDS, *_END)
