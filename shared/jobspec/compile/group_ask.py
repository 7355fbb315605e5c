"""The ask of one allocation of a group: MHz, MiB, and pools, in every alternative.

The ask is the peak over the phases of the tasks (prestart; main and sidecars; poststop), except that reserved cores are
added up over all phases. `first_available` lists make alternatives: their product, the first block's options varying
slowest. Source: Nomad structs.go, AllocatedResources.Comparable.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TypeVar

import msgspec

from schemas.jobs import Affinity, Constraint, ResourceAsk
from schemas.policy import RemoteDriver
from shared.jobspec.amounts import PARTS_PER_UNIT, to_parts
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.job import TaskGroup, TaskSpec
from shared.jobspec.nomad.placement import Device, DeviceOption

#: Alternatives of one group.
ALTERNATIVES_MAX = 16
CORES = "cores"
DEVICE = "device."
#: numa affinity -> grouping of the cores.
_NUMA = {"none": "", "prefer": "compact", "require": "strict"}

#: Hooks whose tasks run when the main ones have ended.
POST_HOOKS = frozenset(("poststop", "postfail"))
RemoteDriverMap = Mapping[str, RemoteDriver]
#: pool -> first and number of instances, once for each ask of it.
InstanceRanges = dict[str, tuple[tuple[int, int], ...]]
AskList = tuple[ResourceAsk, ...]
_Compiled = TypeVar("_Compiled")
NO_REMOTE_DRIVERS: RemoteDriverMap = {}


class GroupAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The ask of one allocation. Units: MHz, MiB."""

    cpu_mhz: int
    memory_mib: int
    alternatives: tuple[AskList, ...] = ()


class _SharedAsk:
    """One ask of an alternative; `users`: task -> first of its instances and their number."""

    def __init__(self, ask: ResourceAsk) -> None:
        self.ask = ask
        self.users: dict[int, tuple[int, int]] = {}


def group_ask(group: TaskGroup, remotes: RemoteDriverMap = NO_REMOTE_DRIVERS) -> GroupAsk:
    """Compute the request of a valid group."""
    tasks = group.tasks
    cpu_mhz = memory_mib = 0
    for task in tasks:
        asked = task.resources
        if remotes or task.lifecycle or asked.cores or asked.devices or asked.custom:
            return _full_ask(tasks, remotes)
        cpu_mhz += asked.cpu_mhz
        memory_mib += asked.memory_mib
    return GroupAsk(cpu_mhz=cpu_mhz, memory_mib=memory_mib)


def _full_ask(tasks: tuple[TaskSpec, ...], remotes: RemoteDriverMap) -> GroupAsk:
    local = [_local_resources(task, remotes.get(task.driver)) for task in tasks]
    phases = list(_phases(tasks))
    ways = [tuple([share.ask for share in way]) for way in _alternatives(tasks, remotes)]
    return GroupAsk(
        cpu_mhz=max((sum(local[at][0] for at in phase) for phase in phases), default=0),
        memory_mib=max((sum(local[at][1] for at in phase) for phase in phases), default=0),
        alternatives=tuple(ways) if any(ways) else (),
    )


def task_instance_ranges(group: TaskGroup) -> tuple[tuple[InstanceRanges, ...], ...]:
    """Map alternative, task and pool to the task's instances: index of the first, and number.

    Instances of a pool are counted through the requests of the alternative in their order.
    """
    found = []
    for way in _alternatives(group.tasks, NO_REMOTE_DRIVERS):
        tasks: list[InstanceRanges] = [{} for _ in group.tasks]
        starts: dict[str, int] = {}
        for share in way:
            start = starts.get(share.ask.pool, 0)
            starts[share.ask.pool] = start - (-share.ask.amount // PARTS_PER_UNIT)
            for at, (first, count) in share.users.items():
                known = tasks[at].get(share.ask.pool, ())
                tasks[at][share.ask.pool] = (*known, (start + first, count))
        found.append(tuple(tasks))
    return tuple(found)


def device_options(device: Device) -> tuple[DeviceOption, ...]:
    """List the ways to serve a device block: its own, or its alternatives with what is theirs alone filled in."""
    if not device.first_available:
        return (
            DeviceOption(
                name=device.name,
                count=1 if device.count is None else device.count,
                constraints=device.constraints,
                affinities=device.affinities,
            ),
        )
    return tuple(
        [
            msgspec.structs.replace(
                one,
                name=one.name or device.name,
                constraints=device.constraints + one.constraints,
                affinities=device.affinities + one.affinities,
            )
            for one in device.first_available
        ]
    )


def _local_resources(task: TaskSpec, remote: RemoteDriver | None) -> tuple[int, int]:
    """MHz and MiB on the node itself: whole cores are not counted as a share of all."""
    if remote is not None:
        return remote.cpu_mhz, remote.memory_mib
    return 0 if task.resources.cores else task.resources.cpu_mhz, task.resources.memory_mib


def _phases(tasks: tuple[TaskSpec, ...]) -> Iterator[tuple[int, ...]]:
    """Group the tasks that run at the same time; sidecars come first, so that they keep their instances."""
    before: list[int] = []
    beside: list[int] = []
    main: list[int] = []
    after: list[int] = []
    for at, task in enumerate(tasks):
        hook = task.lifecycle.hook if task.lifecycle is not None else ""
        if hook == "prestart":
            is_sidecar = task.lifecycle is not None and task.lifecycle.sidecar
            (beside if is_sidecar else before).append(at)
        elif hook in POST_HOOKS:
            after.append(at)
        else:
            main.append(at)
    yield from (tuple(one) for one in (beside + before, beside + main, after) if one)


def _alternatives(
    tasks: tuple[TaskSpec, ...], remotes: RemoteDriverMap
) -> Iterator[list[_SharedAsk]]:
    """Lay out every alternative."""
    blocks = [(at, device) for at, task in enumerate(tasks) for device in task.resources.devices]
    fixed = [tuple(_fixed_asks(task, remotes.get(task.driver))) for task in tasks]
    cores = list(_core_asks(tasks, remotes))
    phases = list(_phases(tasks))
    for picked in product(*(device_options(device) for _, device in blocks)):
        of_task = [list(asks) for asks in fixed]
        for (at, device), option in zip(blocks, picked, strict=True):
            of_task[at].append(_device_ask(option, device.grouping))
        yield [*cores, *_merge_phases(phases, of_task)]


def _core_asks(tasks: tuple[TaskSpec, ...], remotes: RemoteDriverMap) -> Iterator[_SharedAsk]:
    """Add up the cores of all tasks, of every phase."""
    own = {
        at: task.resources
        for at, task in enumerate(tasks)
        if task.driver not in remotes and task.resources.cores
    }
    if own:
        groupings = {_NUMA.get(one.numa.affinity, "") for one in own.values() if one.numa}
        kept = next((one for one in ("strict", "compact") if one in groupings), "")
        amount = PARTS_PER_UNIT * sum(one.cores for one in own.values())
        share = _SharedAsk(ResourceAsk(pool=CORES, amount=amount, grouping=kept))
        start = 0
        for at, one in own.items():
            share.users[at] = (start, one.cores)
            start += one.cores
        yield share


def _merge_phases(
    phases: list[tuple[int, ...]], of_task: list[list[ResourceAsk]]
) -> list[_SharedAsk]:
    """Merge the requests of different phases: the n-th asks of a kind share instances.

    Asks of one phase are not merged: two halves are not a whole instance, and two tasks may have different models.
    """
    found: dict[tuple[ResourceAsk, int], _SharedAsk] = {}
    for phase in phases:
        seen: dict[ResourceAsk, int] = {}
        for at in phase:
            for ask in of_task[at]:
                kind = msgspec.structs.replace(ask, amount=0)
                rank = seen[kind] = seen.get(kind, -1) + 1
                share = found.setdefault((kind, rank), _SharedAsk(kind))
                most = max(share.ask.amount, ask.amount)
                share.ask = msgspec.structs.replace(kind, amount=most)
                share.users[at] = (0, -(-ask.amount // PARTS_PER_UNIT))
    return list(found.values())


def _fixed_asks(task: TaskSpec, remote: RemoteDriver | None) -> Iterator[ResourceAsk]:
    """List what a task takes of pools in every alternative, cores apart."""
    asked = task.resources
    if remote is not None:
        if asked.cores:
            yield ResourceAsk(pool=f"{task.driver}.cores", amount=PARTS_PER_UNIT * asked.cores)
        elif asked.cpu_mhz:
            yield ResourceAsk(pool=f"{task.driver}.cpu", amount=PARTS_PER_UNIT * asked.cpu_mhz)
        yield ResourceAsk(pool=f"{task.driver}.memory", amount=PARTS_PER_UNIT * asked.memory_mib)
    for one in asked.custom:
        yield ResourceAsk(pool=one.name, amount=to_parts(one.amount), grouping=one.grouping)


def _device_ask(option: DeviceOption, grouping: str) -> ResourceAsk:
    vendor, kind, model = parse_device_name(option.name)
    return ResourceAsk(
        pool=DEVICE + kind,
        amount=to_parts(option.count),
        vendor=vendor,
        model=model,
        constraints=to_compiled(option.constraints, tuple[Constraint, ...]),
        affinities=to_compiled(option.affinities, tuple[Affinity, ...]),
        grouping=grouping,
    )


def parse_device_name(name: str) -> tuple[str, str, str]:
    """Split `type`, `vendor/type` or `vendor/type/model` into vendor, type and model."""
    parts = name.split("/", 2)
    if len(parts) == 1:
        return "", name, ""
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""


def to_compiled(blocks: tuple[JobBlock, ...], kind: type[_Compiled]) -> _Compiled:
    """Convert blocks to a tuple of Structs whose fields have the same names."""
    return msgspec.convert(blocks, kind, from_attributes=True)
