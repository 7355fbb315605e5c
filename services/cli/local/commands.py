"""The commands that run services on this machine: `caravan demo`, `up` and `run`."""

from services.cli.command_spec import (
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_ROLE_WORDS = (
    "intake eval_broker scheduler plan_applier heartbeat timekeeper keeper view gateway agent"
)

COMMANDS = (
    CommandSpec(
        ("demo",),
        "run a complete example on this machine and remove it again",
        "local.demo:demo",
        (flag_argument("keep", "keep the data directory, to inspect the log afterwards"),),
        {"": "local.demo:DemoResult"},
        Needs.NOTHING,
        examples=("demo", "demo --keep"),
    ),
    CommandSpec(
        ("up",),
        "run a cluster on this machine until Ctrl-C",
        "local.up:up",
        (
            option_argument(
                "port", "port of the bus on 127.0.0.1", int, default=4222, metavar="PORT"
            ),
            option_argument(
                "data_dir",
                "folder of the log and all other data",
                metavar="DIR",
                complete="file",
            ),
            option_argument(
                "schedulers", "number of scheduler workers (default 2)", int, default=-1
            ),
            option_argument(
                "agents",
                "number of agents, each its own node (default: as many as the data has, at least 1)",
                int,
                default=-1,
            ),
            option_argument("intakes", "number of intakes (default 1)", int, default=-1),
            option_argument("views", "number of views (default 1)", int, default=-1),
            option_argument(
                "appliers", "number of plan appliers, one is active (default 2)", int, default=-1
            ),
            flag_argument(
                "one_process",
                "run all roles but agents in one process, each once: less memory, and all end together",
            ),
            flag_argument("no_gateway", "start no gateway: no HTTP API and no console"),
            flag_argument("keep_tasks", "on exit leave tasks running for the next `up` to adopt"),
            flag_argument("raw_exec", "offer the raw_exec driver although this is root"),
            flag_argument("no_raw_exec", "disable the raw_exec driver"),
        ),
        {"": "local.up:UpResult"},
        Needs.NOTHING,
        "raw_exec tasks run as the user of this process, without isolation: root offers the driver with "
        "--raw-exec only. Other users and isolated tasks of this machine cannot use the bus: its password is in "
        "DIR/credentials/public, which the commands of this user read.",
        (
            "up",
            "up --data-dir ./cluster --agents 3",
            "up --keep-tasks",
        ),
    ),
    CommandSpec(
        ("run",),
        "run roles in this process, configured by CARAVAN_* variables; with a file as job run",
        "local.run_role:run",
        (
            ArgumentSpec(
                "role",
                "intake, eval_broker, scheduler, plan_applier, heartbeat, timekeeper, keeper, view, gateway or agent",
                complete=f"({_ROLE_WORDS})",
            ),
        ),
        {},
        Needs.NOTHING,
        "docs/cli.md lists the variables. Logs go to stderr. With a file or an option it is the short form of "
        "`caravan job run`; a file whose name could be a role's is ./NAME.",
        ("run scheduler", "run hello.nomad.hcl"),
    ),
    CommandSpec(
        ("monitor",),
        "follow what the services of a cluster on this machine log",
        "local.monitor:monitor",
        (
            option_argument(
                "log_level", "least level: trace, debug, info, warn or error", default="info"
            ),
            option_argument(
                "service", "only logs with this name prefix; repeatable", list, metavar="NAME"
            ),
            option_argument(
                "count", "number of last lines to print first", int, default=10
            )._replace(flags=("-n", "--count")),
        ),
        {"": "local.monitor:MonitorLine"},
        details="Reads the logs of the selected `caravan up`, until Ctrl-C; --json prints one object for each line. "
        "Services that run elsewhere log into their journal or container. What was decided is in the log of the "
        "cluster: caravan log tail -f.",
        examples=("monitor", "monitor --log-level warn", "monitor --service scheduler -n 100"),
    ),
    CommandSpec(
        ("bench",),
        "run one benchmark, or list them",
        "bench.harness.runner:bench",
        (
            ArgumentSpec("name", "benchmark; omit to list all", default="", metavar="NAME"),
            option_argument("runs", "number of runs; 0: the benchmark's default", int, default=0),
            option_argument("size", "full, or a fraction like 0.1", metavar="X"),
            option_argument(
                "workers", "number of scheduler workers, if the benchmark has any", int, default=0
            ),
            option_argument(
                "data",
                "folder of the trace, if the benchmark reads one",
                metavar="DIR",
                complete="file",
            ),
            option_argument("variant", "list of the trace", metavar="NAME"),
            option_argument(
                "policy", "placement policy, if the benchmark compares policies", metavar="NAME"
            ),
            flag_argument("no_fsync", "use a bus without fsync; every output says so"),
        ),
        {
            "": "bench.harness.runner:BenchResult",
            "without NAME": "bench.harness.runner:BenchListResult",
        },
        Needs.CHECKOUT,
        "Only in a checkout: benchmarks are not installed. A failed check discards the figures (exit 1). A machine "
        "with too few cores or too little memory is refused, with the size that would fit. A bus without fsync and "
        "a load above 0.3 before the start are reported in every output.",
        (
            "bench",
            "bench p10 --size 0.1",
        ),
    ),
)
