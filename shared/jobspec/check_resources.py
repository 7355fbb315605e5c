"""Validation of what a task asks for: cpu or cores, memory, devices, custom resources, and the ports of its group.

Decides which asks can be understood. What nobody offers is no fault: such a job waits and says why. Next:
`asking.py`, which compiles them.
"""

import re
from collections.abc import Sequence

from shared.core.operators import OPERATORS, right_fault
from shared.jobspec.amounts import amount_fault
from shared.jobspec.asking import ALTERNATIVES_MAX, CORES, DEVICE, device_names, options_of
from shared.jobspec.check_placement import RULES_MAX, WEIGHT_MAX
from shared.jobspec.faults import Faults
from shared.jobspec.identifiers import name_fault
from shared.jobspec.nomad_json import Affinity, Constraint, Resources, TaskGroup
from shared.jobspec.nomad_placement import Custom, Device, DeviceOption, Network, Port
from shared.jobspec.ports import has_networks, networks_of

#: MHz and MiB of one task; far beyond any machine, and sums stay far below int64.
RESOURCE_MAX = 2**31 - 1
CPU_MHZ_MIN = 1
#: What `cpu` is where a task says nothing; whether it did is not known here.
CPU_MHZ_DEFAULT = 100
MEMORY_MIB_MIN = 10
CORES_MAX = 10_000
PORT_MAX = 65_535
#: Ports of one group.
PORTS_MAX = 100
#: Devices and custom resources of one group: each stands in every alternative.
ASKS_MAX = 100
#: And of a job, in all alternatives.
JOB_ASKS_MAX = 5_000
#: More are not counted to the end.
WAYS_COUNTED = 1_000_000
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_CNI = re.compile(r"cni/[\w.-]+")
GROUPINGS = ("", "compact", "scatter", "strict")
NUMA = ("none", "prefer", "require")
#: Instances of one ask; their ids stand in every plan.
INSTANCES_MAX = 1_024


def check_resources(faults: Faults, asked: Resources, path: str) -> None:
    """Find everything wrong with the resources of one task."""
    path += ".Resources"
    if asked.cores:
        faults.within(path, ".Cores", asked.cores, (1, CORES_MAX))
        if asked.cpu_mhz not in {0, CPU_MHZ_DEFAULT}:
            faults.add(f"{path}.CPU", "a task asks for cpu or for cores, not for both")
    else:
        faults.within(path, ".CPU", asked.cpu_mhz, (CPU_MHZ_MIN, RESOURCE_MAX))
    faults.within(path, ".MemoryMB", asked.memory_mib, (MEMORY_MIB_MIN, RESOURCE_MAX))
    highest = asked.memory_max_mib
    if highest not in {0, -1} and not asked.memory_mib <= highest <= RESOURCE_MAX:
        faults.add(
            f"{path}.MemoryMaxMB",
            f"must be 0, -1 or at least MemoryMB ({asked.memory_mib}), was {highest}",
        )
    if asked.secrets_mib:
        faults.within(path, ".SecretsMB", asked.secrets_mib, (0, RESOURCE_MAX))
    if asked.numa is not None and asked.numa.affinity not in NUMA:
        text = f"must be one of {', '.join(NUMA)}, was {asked.numa.affinity[:80]!r}"
        faults.add(f"{path}.NUMA.Affinity", text)
    if asked.devices:
        _devices(faults, asked.devices, f"{path}.Devices")
    if asked.custom:
        _custom(faults, asked.custom, f"{path}.Custom")


def check_group_asks(faults: Faults, group: TaskGroup, path: str) -> None:
    """Find what is wrong with the asks of a group taken together: its ports, and how many alternatives it has."""
    if has_networks(group):
        _ports(faults, group, path)
    total = sum([len(task.resources.devices) + len(task.resources.custom) for task in group.tasks])
    if not total:
        return
    if total > ASKS_MAX:
        text = f"{total} devices and custom resources in the group, at most {ASKS_MAX} are allowed"
        faults.add(f"{path}.Tasks", text)
    ways = _ways(group)
    if ways > ALTERNATIVES_MAX:
        text = f"{ways} combinations of first_available, at most {ALTERNATIVES_MAX} are tried"
        faults.add(f"{path}.Tasks", text)


def check_asks_together(faults: Faults, groups: tuple[TaskGroup, ...]) -> None:
    """Find out whether a job would be too long once compiled: before it is."""
    total = 0
    for group in groups:
        for task in group.tasks:
            asked = task.resources
            if asked.devices or asked.custom:
                total += (len(asked.devices) + len(asked.custom)) * _ways(group)
    if total > JOB_ASKS_MAX:
        text = f"{total} asks in all alternatives of all groups, at most {JOB_ASKS_MAX} are taken"
        faults.add("Job.TaskGroups", text)


def _ways(group: TaskGroup) -> int:
    """Count the alternatives of a group."""
    ways = 1
    for task in group.tasks:
        for device in task.resources.devices:
            ways *= len(device.first_available) or 1
            if ways > WAYS_COUNTED:
                return ways
    return ways


# ---- devices and custom resources ----


def _devices(faults: Faults, devices: tuple[Device, ...], path: str) -> None:
    for at, one in enumerate(devices):
        here = f"{path}[{at}]"
        _grouping(faults, one.grouping, here)
        if one.first_available and one.count is not None:
            faults.add(f"{here}.Count", "stands in each first_available block, not beside them")
        if not one.first_available:
            _option(faults, options_of(one)[0], here)
            continue
        _rules(faults, one.constraints, one.affinities, here)
        for number, option in enumerate(one.first_available):
            inner = f"{here}.FirstAvailable[{number}]"
            _option(faults, option, inner, outer=one.name)


def _option(faults: Faults, one: DeviceOption, path: str, *, outer: str = "") -> None:
    name = one.name or outer
    if text := _device_fault(name):
        faults.add(f"{path}.Name", text)
    if text := amount_fault(one.count):
        faults.add(f"{path}.Count", text)
    elif one.count > INSTANCES_MAX:
        faults.add(f"{path}.Count", f"must be at most {INSTANCES_MAX}, was {one.count}")
    _rules(faults, one.constraints, one.affinities, path)


def _device_fault(name: str) -> str:
    vendor, kind, model = device_names(name)
    parts = name.count("/") + 1
    for part, text in (("vendor", vendor), ("type", kind), ("model", model)):
        is_there = {"vendor": parts > 1, "type": True, "model": parts > 2}[part]
        if is_there and (fault := name_fault(text, slashes=part == "model")):
            return f"{part} {fault}; type, vendor/type or vendor/type/model is wanted"
    return ""


def _custom(faults: Faults, asks: tuple[Custom, ...], path: str) -> None:
    seen: set[str] = set()
    for at, one in enumerate(asks):
        here = f"{path}[{at}]"
        if text := custom_fault(one.name):
            faults.add(f"{here}.Name", text)
        elif one.name in seen:
            faults.add(f"{here}.Name", f"another custom block asks for {one.name!r}")
        seen.add(one.name)
        if text := amount_fault(one.amount):
            faults.add(f"{here}.Amount", text)
        _grouping(faults, one.grouping, here)


def custom_fault(name: str) -> str:
    """Say what is wrong with the name of a custom resource."""
    if text := name_fault(name):
        return text
    if name == CORES:
        return "cores are asked for with `cores`, the name is taken"
    if name.startswith(DEVICE):
        return "devices are asked for with `device`, names that begin with device. are taken"
    return ""


def _grouping(faults: Faults, grouping: str, path: str) -> None:
    if grouping not in GROUPINGS:
        text = f"must be compact, scatter, strict or empty, was {grouping[:80]!r}"
        faults.add(f"{path}.Grouping", text)


def _rules(
    faults: Faults,
    constraints: tuple[Constraint, ...],
    affinities: tuple[Affinity, ...],
    path: str,
) -> None:
    """Check rules over the attributes of one device: no operator that looks at other nodes."""
    kinds: tuple[tuple[str, Sequence[Constraint | Affinity]], ...] = (
        ("Constraints", constraints),
        ("Affinities", affinities),
    )
    for name, rules in kinds:
        if len(rules) > RULES_MAX:
            text = f"{len(rules)} of them, at most {RULES_MAX} are allowed"
            faults.add(f"{path}.{name}", text)
            return
        for at, one in enumerate(rules):
            _rule(faults, one, f"{path}.{name}[{at}]")


def _rule(faults: Faults, one: Constraint | Affinity, path: str) -> None:
    if one.operator not in OPERATORS:
        faults.add(f"{path}.Operand", f"unknown operator {one.operator[:80]!r} of a device")
    elif text := right_fault(one.operator, one.right):
        faults.add(f"{path}.RTarget", text)
    if not one.left:
        faults.add(f"{path}.LTarget", "must not be empty")
    if isinstance(one, Affinity):
        if not one.weight:
            faults.add(f"{path}.Weight", "must not be 0: it would change nothing")
        faults.within(path, ".Weight", one.weight, (-WEIGHT_MAX, WEIGHT_MAX))


# ---- ports ----


def _ports(faults: Faults, group: TaskGroup, path: str) -> None:
    total = 0
    labels: dict[str, set[str]] = {}
    numbers: dict[int, str] = {}
    for below, network in networks_of(group):
        here = f"{path}.{below}"
        # A label of the group is every task's; one of a task, as old files have it, is that task's alone.
        own = labels.setdefault(below.partition(".")[0] if below.startswith("Tasks") else "", set())
        known = (labels.get("", own), own)
        _mode(faults, group, network, here)
        total += len(network.reserved_ports) + len(network.dynamic_ports)
        if total > PORTS_MAX:
            faults.add(here, f"{total} ports in the group, at most {PORTS_MAX} are allowed")
            return
        for at, port in enumerate(network.reserved_ports):
            _port(faults, port, known, path=f"{here}.ReservedPorts[{at}]")
            _static(faults, port, numbers, f"{here}.ReservedPorts[{at}].Value")
        for at, port in enumerate(network.dynamic_ports):
            _port(faults, port, known, path=f"{here}.DynamicPorts[{at}]")
            if port.static:
                text = f"a port with a number stands under ReservedPorts, was {port.static}"
                faults.add(f"{here}.DynamicPorts[{at}].Value", text)


def _mode(faults: Faults, group: TaskGroup, network: Network, path: str) -> None:
    mode = network.mode
    if mode not in {"", "host", "bridge", "none"} and not _CNI.fullmatch(mode):
        faults.add(f"{path}.Mode", f"must be host, bridge, none or cni/NAME, was {mode[:80]!r}")
    if network.hostname and not _HOSTNAME.fullmatch(network.hostname):
        faults.add(f"{path}.Hostname", "must be letters, digits, dots and dashes, at most 63")
    plain = [task.name for task in group.tasks if task.driver == "raw_exec"]
    if mode == "none" and plain:
        text = (
            f"task {plain[0]!r} of raw_exec has the node's network; exec and docker can have none"
        )
        faults.add(f"{path}.Mode", text)


def _port(faults: Faults, port: Port, known: tuple[set[str], set[str]], *, path: str) -> None:
    if text := name_fault(port.label):
        faults.add(f"{path}.Label", text)
    elif any(port.label in labels for labels in known):
        faults.add(f"{path}.Label", f"another port of the group is called {port.label!r}")
    known[1].add(port.label)
    faults.within(path, ".To", port.to, (-1, PORT_MAX))


def _static(faults: Faults, port: Port, numbers: dict[int, str], path: str) -> None:
    if not 1 <= port.static <= PORT_MAX:
        faults.add(path, f"must be 1 to {PORT_MAX}, was {port.static}")
    elif numbers.get(port.static) == port.host_network:
        faults.add(path, f"another port of the group has the number {port.static}")
    numbers[port.static] = port.host_network
