"""Jobs by counter hash: most of them possible, some odd, some wrong; and a fleet that they meet.

The n-th job is a pure function of seed and n, so that a failure names one number.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from shared.core.splitmix import splitmix64

T = TypeVar("T")

ATTRIBUTES = (
    *("${meta.rack}", "${meta.zone}", "${node.class}", "${node.datacenter}", "${attr.os.version}"),
    *("${node.unique.name}", "${node.unique.id}", "${attr.nothing}", "${meta.tags}", "literal"),
    *(
        "${attr.cpu.cores}",
        "${node.pool}",
        "${node.region}",
        "${",
        "${meta.rack",
        "",
        "${env.HOME}",
    ),
)
OPERATORS = (
    *("=", "==", "is", "!=", "not", "<", "<=", ">", ">=", "regexp", "version", "semver"),
    *("set_contains", "set_contains_all", "set_contains_any", "is_set", "is_not_set"),
    *("distinct_hosts", "distinct_property", "distinct_property", "=~", "exists"),
)
VALUES = (
    *(
        "r1",
        "r2",
        "z0",
        "c1",
        "dc1",
        "22.04",
        ">= 20",
        "~> 22.1, < 25",
        "4",
        "16",
        "",
        "true",
        "-1",
    ),
    *(
        "^r[0-3]$",
        "(a+)+$",
        "(a*)*b",
        "[",
        r"(x)\1",
        "^n0.*[0-9]+.*$",
        "a,b",
        "b",
        "${meta.zone}",
        "3",
    ),
    *(".*.*.*.*.*x", "r" * 600, "1" * 30, "\u65e5\u672c", "${attr.nothing}", "0", "2", "(r|r1)*$"),
)
#: Rules that some nodes meet.
SENSIBLE = (
    ("${meta.rack}", "regexp", "^r[0-3]"),
    ("${meta.rack}", "regexp", "^(r|r1)*[0-9]*$"),
    ("${meta.rack}", "!=", "r1"),
    ("${meta.zone}", "is_set", ""),
    ("${meta.tags}", "set_contains_any", "a,b"),
    ("${node.class}", "=", "c1"),
    ("${node.unique.name}", "regexp", "^n0.*[0-9]+.*$"),
    ("${attr.os.version}", "version", ">= 20, < 24"),
    ("${attr.os.version}", "semver", "< 25"),
    ("${attr.cpu.cores}", ">=", "4"),
    ("${attr.nothing}", "is_not_set", ""),
)
DISTINCT = (
    ("", "distinct_hosts", "true"),
    ("${meta.rack}", "distinct_property", "3"),
    ("${node.unique.name}", "distinct_property", "2"),
    ("${meta.zone}", "distinct_property", ""),
)
SPREADS = (
    "${meta.rack}",
    "${meta.zone}",
    "${node.class}",
    "${node.datacenter}",
    "${node.unique.id}",
)
#: Draws of a hundred that may be anything at all.
ODD_PERCENT = 6

COUNTS = (*(1, 1, 2, 3, 5, 8, 13, 40, 100), 300, 1_200, 5_000, 50_000, 1_000_000, 0, -1, 2_000_000)
SIZES = (*(1, 10, 100, 100, 250, 500, 1_000, 4_000), 20_000, 10**6, 2**31, 0, -5)


class Draw:
    """Draws one after the other."""

    def __init__(self, seed: int) -> None:
        self._at = splitmix64(seed)

    def below(self, bound: int) -> int:
        self._at = (self._at + 1) & ((1 << 64) - 1)
        return splitmix64(self._at) % bound

    def of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def often(self, choices: Sequence[T], percent: int, usual: int) -> T:
        """One of all choices in so many of a hundred cases, else one of the first `usual`."""
        return self.of(choices if self.below(100) < percent else choices[:usual])


def node(at: int) -> NodeSpec:
    draw = Draw(at * 2 + 1)
    cpu = draw.of((4_000, 10_400, 20_800, 41_600))
    meta = {"rack": f"r{draw.below(40)}", "zone": f"z{at % 3}", "tags": draw.of(("a", "a,b", "b"))}
    return NodeSpec(
        node_id=NodeId(f"node-{at}"),
        name=f"n{at:05d}",
        datacenter=draw.of(("dc1", "dc1", "dc2", "eu-1")),
        node_class=draw.of(("c1", "c2", "")),
        node_pool=draw.of(("default", "default", "default", "gpu")),
        cpu_mhz=cpu,
        memory_mib=cpu * draw.of((1, 2, 3)),
        disk_mib=100_000,
        attributes={
            "driver.exec": draw.of(("1", "1", "1", "0")),
            "os.version": draw.of(("20.04", "22.04", "24.04-beta")),
            "cpu.cores": str(draw.of((2, 4, 16, 128))),
        },
        meta=meta if draw.below(20) else {},
    )


def job(number: int, seed: int = 1) -> dict[str, Any]:
    draw = Draw(seed * 1_000_003 + number)
    return {
        "ID": f"fuzz-{seed}-{number}",
        "Type": draw.often(("service", "batch", "system", "sysbatch", "odd"), 4, 2),
        "Datacenters": draw.often((["*"], ["dc1"], ["dc*", "eu-*"], ["mars"]), ODD_PERCENT, 3),
        "NodePool": draw.often(("default", "all", "gpu", "nowhere"), ODD_PERCENT, 3),
        "AllAtOnce": not draw.below(9),
        "SchedulerAlgorithm": draw.often(("", "binpack", "spread", "odd"), 3, 3),
        **rules(draw, 3),
        "TaskGroups": [group(draw, f"g{at}") for at in range(1 + draw.below(3))],
    }


def group(draw: Draw, name: str) -> dict[str, Any]:
    return {
        "Name": name,
        "Count": draw.often(COUNTS, ODD_PERCENT, 14),
        "EphemeralDisk": {"SizeMB": draw.of((10, 10, 300, 50_000))},
        **rules(draw, 2),
        "Tasks": [task(draw, f"t{at}") for at in range(1 + draw.below(2))],
    }


def task(draw: Draw, name: str) -> dict[str, Any]:
    found = rules(draw, 1)
    found.pop("Spreads", None)
    return {
        "Name": name,
        "Driver": draw.often(("exec", "exec", "docker"), 5, 2),
        "Config": {"command": "/bin/true"},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        "Resources": {
            "CPU": draw.often(SIZES, ODD_PERCENT, 8),
            "MemoryMB": max(draw.often(SIZES, ODD_PERCENT, 8), 10 if draw.below(40) else -1),
        },
        **found,
    }


def rules(draw: Draw, most: int) -> dict[str, Any]:
    """Constraints, affinities and spreads of one level; one in four has any of a kind."""
    found: dict[str, Any] = {}
    if not draw.below(4):
        found["Constraints"] = [constraint(draw) for _ in range(1 + draw.below(most))]
    if not draw.below(4):
        found["Affinities"] = [affinity(draw) for _ in range(1 + draw.below(most))]
    if not draw.below(4):
        found["Spreads"] = [spread(draw) for _ in range(1 + draw.below(most))]
    return found


def is_odd(draw: Draw) -> bool:
    return draw.below(100) < ODD_PERCENT


def constraint(draw: Draw) -> dict[str, Any]:
    left, operator, right = draw.of(SENSIBLE if draw.below(4) else DISTINCT)
    if is_odd(draw):
        left, operator, right = draw.of(ATTRIBUTES), draw.of(OPERATORS), draw.of(VALUES)
    return {"LTarget": left, "Operand": operator, "RTarget": right}


def affinity(draw: Draw) -> dict[str, Any]:
    left, operator, right = draw.of(SENSIBLE)
    if is_odd(draw):
        left, operator, right = draw.of(ATTRIBUTES), draw.of(OPERATORS), draw.of(VALUES)
    weight = draw.often((50, -50, 100, 7, -100, 0, 101), 2, 5)
    return {"LTarget": left, "Operand": operator, "RTarget": right, "Weight": weight}


def spread(draw: Draw) -> dict[str, Any]:
    if is_odd(draw):
        values, percents = ("r1", "r2", "*", ""), (10, 50, 90, 101, -1)
    else:
        values, percents = draw.of((("r1", "r2", "*"), ("z0", "z1"), ("c1", "r7"))), (10, 30, 0)
    picked = values[: draw.of((0, 0, 1, 2, 3))]
    return {
        "Attribute": draw.of(ATTRIBUTES if is_odd(draw) else SPREADS),
        "Weight": draw.often((50, 100, 1, 0, 200), 2, 3),
        "SpreadTarget": [{"Value": one, "Percent": draw.of(percents)} for one in picked],
    }
