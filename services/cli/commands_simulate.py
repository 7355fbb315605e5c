"""The command that plays a scenario. See `words.py`."""

from services.cli.words import Arg, Command, option

SIMULATE = Command(
    ("simulate",),
    "play a scenario: a whole cluster in virtual time, and a report of it",
    "services.cli.simulate",
    "simulate",
    (
        Arg("file", "scenario: YAML or JSON", metavar="SCENARIO", complete="file"),
        option(
            "compare",
            "play this one first, and show both side by side",
            metavar="SCENARIO",
            complete="file",
        ),
        Arg(
            "folder",
            "write the log, the report, its tables and a page into this new or empty folder",
            default="",
            flags=("--out",),
            metavar="DIR",
        ),
        option(
            "data", "where traces and exports lie (default: beside the scenario)", metavar="DIR"
        ),
        Arg(
            "policy",
            "another value of a field of the policy; may be given again",
            list,
            (),
            ("--policy",),
            "NAME=VALUE",
        ),
        option("seed", "another seed than the scenario's", int, default=0, metavar="N"),
    ),
    ("report", "measured", "out", "compared"),
    "The log in DIR is a log like any other: replay, why, sql and log verify read it by --from-file DIR.",
    (
        "simulate examples/scenarios/two-pools.yaml",
        "simulate examples/scenarios/couch-and-sand.yaml --out ./couch",
        "simulate --compare binpack.yaml spread.yaml",
        "simulate examples/scenarios/openb.yaml --data ../data --policy algorithm=spread",
    ),
)
