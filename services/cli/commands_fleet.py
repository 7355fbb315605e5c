"""The command about simulated nodes. See `words.py`."""

from services.cli.words import Command, option

FLEET = Command(
    ("fleet",),
    "speak for thousands of simulated nodes",
    "services.cli.fleets",
    "fleet",
    (
        option(
            "nodes", "how many; without: as many as the profile has", int, default=-1, metavar="N"
        ),
        option(
            "profile",
            "what they are, and how long tasks start and run: YAML or JSON",
            metavar="FILE",
            complete="file",
        ),
        option("name_prefix", "how their ids begin", default="sim-", metavar="TEXT"),
        option("seed", "of all draws", int, default=0, metavar="N"),
        option(
            "agents",
            "lean keeps allocations in columns, real is one whole agent a node",
            default="lean",
            metavar="KIND",
            complete="(lean real)",
        ),
    ),
    ("nodes", "registered", "refused", "started", "alive"),
    "Registers them, sends their heartbeats, starts and ends what is placed on them, and reports it, all through "
    "the bus and by the rules of an agent. Ctrl-C ends it: its nodes are down some seconds later, and what ran "
    "there is placed elsewhere. A profile is explained in docs/fleet.md.",
    (
        "fleet --nodes 100",
        "fleet --nodes 5000 --profile examples/fleets/c1m.yaml",
    ),
)
