"""Validation of the resources of a task: cpu or cores, memory, devices, custom resources, and the ports of its group.

A resource that no node offers is valid: the job waits, with the reason. Next: `shared/jobspec/compile/group_ask.py`.
"""

from shared.jobspec.amounts import amount_error
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.identifiers import name_error
from shared.jobspec.checks.networks import check_ports
from shared.jobspec.checks.placement import check_rules
from shared.jobspec.compile.group_ask import (
    ALTERNATIVES_MAX,
    CORES,
    DEVICE,
    device_options,
    parse_device_name,
)
from shared.jobspec.compile.ports import has_networks
from shared.jobspec.nomad.job import TaskGroup
from shared.jobspec.nomad.placement import (
    AffinityBlock,
    ConstraintBlock,
    CustomResource,
    Device,
    DeviceOption,
    Resources,
)

#: MHz and MiB of one task; far beyond any machine, and sums stay far below int64.
RESOURCE_MAX = 2**31 - 1
CPU_MHZ_MIN = 1
#: Nomad's default; here it cannot be told from a value that the job sets.
CPU_MHZ_DEFAULT = 100
MEMORY_MIB_MIN = 10
CORES_MAX = 10_000
#: Devices and custom resources of one group; each is part of every alternative.
ASKS_MAX = 100
#: The same of a job, over all alternatives.
JOB_ASKS_MAX = 5_000
#: Counting stops here.
ALTERNATIVES_COUNTED_MAX = 1_000_000
GROUPINGS = ("", "compact", "scatter", "strict")
NUMA_AFFINITIES = ("none", "prefer", "require")
#: Instances of one ask; their ids are in every plan.
INSTANCES_MAX = 1_024


def check_resources(faults: ErrorList, asked: Resources, path: str) -> None:
    """Find everything wrong with the resources of one task."""
    path += ".Resources"
    if asked.cores:
        faults.within(path, ".Cores", asked.cores, (1, CORES_MAX))
        if asked.cpu_mhz not in {0, CPU_MHZ_DEFAULT}:
            faults.add(f"{path}.CPU", "set either cpu or cores, not both")
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
    if asked.numa is not None and asked.numa.affinity not in NUMA_AFFINITIES:
        text = f"must be one of {', '.join(NUMA_AFFINITIES)}, was {asked.numa.affinity[:80]!r}"
        faults.add(f"{path}.NUMA.Affinity", text)
    if asked.devices:
        _devices(faults, asked.devices, f"{path}.Devices")
    if asked.custom:
        _custom(faults, asked.custom, f"{path}.Custom")


def check_group_asks(faults: ErrorList, group: TaskGroup, path: str) -> None:
    """Find what is wrong with the requests of a group taken together: its ports, and how many alternatives it has."""
    if has_networks(group):
        check_ports(faults, group, path)
    total = sum([len(task.resources.devices) + len(task.resources.custom) for task in group.tasks])
    if not total:
        return
    if total > ASKS_MAX:
        text = f"{total} devices and custom resources in the group, at most {ASKS_MAX} are allowed"
        faults.add(f"{path}.Tasks", text)
    ways = _count_alternatives(group)
    if ways > ALTERNATIVES_MAX:
        text = f"{ways} combinations of first_available, at most {ALTERNATIVES_MAX} are tried"
        faults.add(f"{path}.Tasks", text)


def check_job_asks(faults: ErrorList, groups: tuple[TaskGroup, ...]) -> None:
    """Refuse a job whose compiled form would be too large."""
    total = 0
    for group in groups:
        for task in group.tasks:
            asked = task.resources
            if asked.devices or asked.custom:
                total += (len(asked.devices) + len(asked.custom)) * _count_alternatives(group)
    if total > JOB_ASKS_MAX:
        text = f"{total} resource requests over all alternatives of all groups, at most {JOB_ASKS_MAX} are allowed"
        faults.add("Job.TaskGroups", text)


def _count_alternatives(group: TaskGroup) -> int:
    """Count the alternatives of a group."""
    ways = 1
    for task in group.tasks:
        for device in task.resources.devices:
            ways *= len(device.first_available) or 1
            if ways > ALTERNATIVES_COUNTED_MAX:
                return ways
    return ways


# ---- devices and custom resources ----


def _devices(faults: ErrorList, devices: tuple[Device, ...], path: str) -> None:
    for at, one in enumerate(devices):
        here = f"{path}[{at}]"
        _grouping(faults, one.grouping, here)
        if one.first_available and one.count is not None:
            faults.add(
                f"{here}.Count", "must be inside each first_available block, not beside them"
            )
        if not one.first_available:
            _option(faults, device_options(one)[0], here)
            continue
        _rules(faults, one.constraints, one.affinities, here)
        for number, option in enumerate(one.first_available):
            inner = f"{here}.FirstAvailable[{number}]"
            _option(faults, option, inner, outer=one.name)


def _option(faults: ErrorList, one: DeviceOption, path: str, *, outer: str = "") -> None:
    name = one.name or outer
    if text := _device_name_error(name):
        faults.add(f"{path}.Name", text)
    if text := amount_error(one.count):
        faults.add(f"{path}.Count", text)
    elif one.count > INSTANCES_MAX:
        faults.add(f"{path}.Count", f"must be at most {INSTANCES_MAX}, was {one.count}")
    _rules(faults, one.constraints, one.affinities, path)


def _device_name_error(name: str) -> str:
    vendor, kind, model = parse_device_name(name)
    parts = name.count("/") + 1
    for part, text in (("vendor", vendor), ("type", kind), ("model", model)):
        is_there = {"vendor": parts > 1, "type": True, "model": parts > 2}[part]
        if is_there and (fault := name_error(text, slashes=part == "model")):
            return f"{part} {fault}; expected type, vendor/type or vendor/type/model"
    return ""


def _custom(faults: ErrorList, asks: tuple[CustomResource, ...], path: str) -> None:
    seen: set[str] = set()
    for at, one in enumerate(asks):
        here = f"{path}[{at}]"
        if text := custom_name_error(one.name):
            faults.add(f"{here}.Name", text)
        elif one.name in seen:
            faults.add(f"{here}.Name", f"another custom block requests {one.name!r}")
        seen.add(one.name)
        if text := amount_error(one.amount):
            faults.add(f"{here}.Amount", text)
        _grouping(faults, one.grouping, here)


def custom_name_error(name: str) -> str:
    """Describe what is wrong with the name of a custom resource."""
    if text := name_error(name):
        return text
    if name == CORES:
        return "reserved name; use `cores` to request cores"
    if name.startswith(DEVICE):
        return "names that begin with device. are reserved; use a `device` block"
    return ""


def _grouping(faults: ErrorList, grouping: str, path: str) -> None:
    if grouping not in GROUPINGS:
        text = f"must be compact, scatter, strict or empty, was {grouping[:80]!r}"
        faults.add(f"{path}.Grouping", text)


def _rules(
    faults: ErrorList,
    constraints: tuple[ConstraintBlock, ...],
    affinities: tuple[AffinityBlock, ...],
    path: str,
) -> None:
    """Check rules over the attributes of one device."""
    check_rules(faults, constraints, f"{path}.Constraints", subject=" for a device")
    check_rules(faults, affinities, f"{path}.Affinities", subject=" for a device")
