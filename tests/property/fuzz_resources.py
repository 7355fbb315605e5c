"""What the jobs of the fuzz ask for beside CPU and memory, and what its nodes offer of it.

Drawn from numbers of their own: a job's rules stay what they are without them.
"""

from typing import Any

from schemas.nodes import Instance, NodeSpec, Pool
from tests.property.fuzz import ODD_PERCENT, Draw

COUNTS = (*(1, 1, 2, 0.5, 0.25, 4, 1.5), 2.75, 8, 0.0001, 1_024, 0, -1, 0.00001, 5_000, 1e300)
DEVICES = (*("gpu", "nv/gpu", "amd/gpu", "nv/gpu/a100", "fpga"), "nowhere", "", "a/", "x" * 300)
CUSTOMS = (*("seat", "scratch", "probe"), "nobody", "cores", "device.gpu", "", "x/y")
GROUPINGS = ("", "", "", "compact", "scatter", "strict", "near")
STATICS = (*(80, 443, 8080, 20_001), 65_535, 0, 65_536, -1)
RULES = (
    *(("${device.attr.memory}", ">=", "40 GiB"), ("${device.vendor}", "=", "nv")),
    *(("${device.model}", "regexp", "^a"), ("${device.attr.nothing}", "is_set", "")),
    *(("${device.model}", "regexp", "(a+)+$"), ("${device.x}", "=~", ""), ("", "=", "1")),
)


def offering(spec: NodeSpec, at: int) -> NodeSpec:
    """Return a node that offers cores, and of the rest what its number says."""
    draw = Draw(at * 7 + 5)
    cores = draw.of((2, 4, 8))
    pools = [Pool(name="cores", instances=_instances("", cores, 2))]
    if draw.below(2):
        memory = {"memory": draw.of(("24 GiB", "80 GiB"))}
        model = draw.of(("a100", "t4"))
        some = _instances("n", draw.of((1, 2, 4, 8)), draw.of((1, 2)))
        pools.append(
            Pool(name="device.gpu", vendor="nv", model=model, attributes=memory, instances=some)
        )
    if not draw.below(3):
        pools.append(Pool(name="device.gpu", vendor="amd", instances=_instances("m", 4, 2)))
    if not draw.below(5):
        pools.append(Pool(name="device.fpga", instances=_instances("f", 2, 2)))
    if draw.below(3):
        pools.append(Pool(name="scratch", amount=draw.of((5_000, 40_000, 1_000_000))))
    if not draw.below(4):
        pools.append(Pool(name="probe", instances=_instances("p", 3, 1)))
    return NodeSpec(
        **{
            **{name: getattr(spec, name) for name in NodeSpec.__struct_fields__},
            "pools": tuple(pools),
            "core_mhz": spec.cpu_mhz // cores,
            "port_max": draw.of((20_003, 20_100, 32_000)),
            "reserved_ports": draw.of(((), (443,), (20_001, 20_002))),
        }
    )


def _instances(prefix: str, count: int, groups: int) -> tuple[Instance, ...]:
    return tuple(Instance(id=f"{prefix}{at}", group=at % groups) for at in range(count))


def asking(job: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a job whose groups and tasks ask for more: every second one."""
    draw = Draw(number * 13 + 3)
    if draw.below(2):
        return job
    for group in job["TaskGroups"]:
        if not draw.below(3):
            group["Networks"] = [_network(draw)]
        if not draw.below(6):
            group["Disconnect"] = {"LostAfter": draw.of((0, 60_000_000_000, -1))}
        for task in group["Tasks"]:
            _ask(draw, task["Resources"])
    return job


def _network(draw: Draw) -> dict[str, Any]:
    picked = draw.often((0, 1, 2, 5, 100, 2_000), 3, 4)
    static = [draw.often(STATICS, ODD_PERCENT, 4) for _ in range(draw.of((0, 0, 1, 2)))]
    return {
        "DynamicPorts": [{"Label": f"d{at}"} for at in range(picked)],
        "ReservedPorts": [{"Label": f"s{at}", "Value": one} for at, one in enumerate(static)],
    }


def _ask(draw: Draw, asked: dict[str, Any]) -> None:
    if not draw.below(6):
        asked["Cores"] = draw.often((1, 2, 4, -1, 20_000), ODD_PERCENT, 3)
        asked["CPU"] = draw.often((0, 500), ODD_PERCENT, 1)
        asked["NUMA"] = {"Affinity": draw.often(("none", "prefer", "require", "odd"), 3, 3)}
    if not draw.below(3):
        asked["Devices"] = [_device(draw) for _ in range(draw.of((1, 1, 2)))]
    if not draw.below(4):
        asked["Custom"] = [_custom(draw) for _ in range(draw.of((1, 1, 2)))]


def _device(draw: Draw) -> dict[str, Any]:
    found = _option(draw)
    found["Grouping"] = draw.often(GROUPINGS, ODD_PERCENT, 6)
    if not draw.below(5):
        found["FirstAvailable"] = [_option(draw) for _ in range(draw.of((1, 2, 3)))]
        if draw.below(20):
            found.pop("Count")
    return found


def _option(draw: Draw) -> dict[str, Any]:
    found: dict[str, Any] = {"Name": draw.often(DEVICES, ODD_PERCENT, 5)}
    found["Count"] = draw.often(COUNTS, ODD_PERCENT, 7)
    if not draw.below(4):
        left, operator, right = draw.often(RULES, ODD_PERCENT, 4)
        found["Constraints"] = [{"LTarget": left, "Operand": operator, "RTarget": right}]
    if not draw.below(6):
        left, operator, right = draw.often(RULES, ODD_PERCENT, 4)
        rule = {"LTarget": left, "Operand": operator, "RTarget": right}
        found["Affinities"] = [{**rule, "Weight": draw.often((50, -20, 0), 3, 2)}]
    return found


def _custom(draw: Draw) -> dict[str, Any]:
    return {
        "Name": draw.often(CUSTOMS, ODD_PERCENT, 3),
        "Amount": draw.often(COUNTS, ODD_PERCENT, 7),
        "Grouping": draw.often(GROUPINGS, 2, 3),
    }
