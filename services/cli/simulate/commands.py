"""The commands of the simulator: `caravan simulate`, `sim check` and `fleet`."""

from services.cli.command_spec import ArgumentSpec, CommandSpec, Needs, option_argument

COMMANDS = (
    CommandSpec(
        ("simulate",),
        "run a scenario: a whole cluster in virtual time, and a report",
        "simulate.scenario:simulate",
        (
            ArgumentSpec("file", "scenario in YAML or JSON", metavar="SCENARIO", complete="file"),
            option_argument(
                "compare",
                "run this scenario first (`a`) and show both side by side",
                metavar="SCENARIO",
                complete="file",
            ),
            option_argument(
                "folder",
                "write log, report and tables to this new or empty folder; with --compare to `a` and `b` in it",
                flag="--out",
                metavar="DIR",
                complete="file",
            ),
            option_argument(
                "data",
                "folder of traces and exports (default: the scenario's)",
                metavar="DIR",
                complete="file",
            ),
            option_argument(
                "policy", "override a policy field; repeatable", list, metavar="NAME=VALUE"
            ),
            option_argument("seed", "override the scenario's seed", int, default=0),
        ),
        {"": "simulate.scenario:SimulationResult"},
        Needs.NOTHING,
        "The same scenario gives the same log and report, byte for byte. replay, why, sql and log verify read the "
        "log in DIR by --from-file DIR. Exit 2: a job was refused, or allocations are not placed at the end.",
        (
            "simulate examples/scenarios/two-pools.yaml",
            "simulate examples/scenarios/couch-and-sand.yaml --out ./couch",
            "simulate --compare binpack.yaml spread.yaml",
            "simulate examples/scenarios/openb.yaml --data ../data --policy algorithm=spread",
        ),
    ),
    CommandSpec(
        ("sim", "check"),
        "run simulated worlds with faults and check every invariant",
        "simulate.check:check",
        (
            option_argument("seeds", "number of worlds", int, default=20),
            option_argument("seed", "first seed", int, default=1, metavar="FIRST"),
            option_argument(
                "mutant", "plant this bug and search the seed that finds it", metavar="NAME"
            ),
            option_argument("processes", "number of processes; 0: one per CPU", int, default=0),
        ),
        {"": "simulate.check:SimCheckResult"},
        Needs.NOTHING,
        "Exit 0 if nothing failed; with --mutant if the bug was found.",
        (
            "sim check --seeds 100",
            "sim check --seed 7 --seeds 1",
        ),
    ),
    CommandSpec(
        ("fleet",),
        "run thousands of simulated nodes",
        "simulate.fleet:fleet",
        (
            option_argument("nodes", "number of nodes; -1: as in the profile", int, default=-1),
            option_argument(
                "profile",
                "node types, and start and run times of tasks, in YAML or JSON",
                metavar="FILE",
                complete="file",
            ),
            option_argument(
                "name_prefix", "prefix of the node ids", default="sim-", metavar="TEXT"
            ),
            option_argument("seed", "seed of all random draws", int, default=0),
            option_argument(
                "agents",
                "lean keeps allocations in columns, real runs a whole agent per node",
                default="lean",
                metavar="KIND",
                complete="(lean real)",
            ),
        ),
        {"": "simulate.fleet:FleetResult"},
        Needs.NOTHING,
        "Registers the nodes, sends their heartbeats, starts and ends their allocations, and reports all of it over "
        "the bus by the rules of an agent. Runs until Ctrl-C; its nodes are then marked down some seconds later, and "
        "their allocations are placed elsewhere. Profiles: docs/fleet.md.",
        (
            "fleet --nodes 100",
            "fleet --nodes 5000 --profile examples/fleets/c1m.yaml",
        ),
        changes=True,
    ),
)
