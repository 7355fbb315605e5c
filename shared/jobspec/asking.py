"""What one allocation of a group asks for: MHz, MiB, and pools, in every alternative.

Decides the group's ask from its tasks: the most that is needed at one time (Nomad: prestart tasks, then the main ones
beside the sidecars, then poststop tasks), reserved cores always together. `first_available` lists make alternatives:
their product, the first block's options turning slowest. Must not know nodes. Source: Nomad structs.go
AllocatedResources.Comparable.
"""

from collections.abc import Iterator, Mapping
from itertools import product

import msgspec

from schemas.jobs import Affinity, Constraint, ResourceAsk
from schemas.policy import RemoteDriver
from shared.jobspec import nomad_placement
from shared.jobspec.amounts import WHOLE, parts_of
from shared.jobspec.nomad_json import Task, TaskGroup
from shared.jobspec.nomad_placement import Device, DeviceOption

#: Alternatives of one group.
ALTERNATIVES_MAX = 16
CORES = "cores"
DEVICE = "device."
#: numa affinity -> grouping of the cores.
_NUMA = {"none": "", "prefer": "compact", "require": "strict"}

#: Hooks whose tasks run when the main ones have ended.
AFTER = frozenset(("poststop", "postfail"))
Remotes = Mapping[str, RemoteDriver]
#: pool -> first and number of instances, once for each ask of it.
Spans = dict[str, tuple[tuple[int, int], ...]]
Asks = tuple[ResourceAsk, ...]
NO_REMOTES: Remotes = {}


class GroupAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The ask of one allocation. Units: MHz, MiB."""

    cpu_mhz: int
    memory_mib: int
    alternatives: tuple[Asks, ...] = ()


class _Share:
    """One ask of an alternative, and who has it: task -> first instance of it and how many."""

    def __init__(self, ask: ResourceAsk) -> None:
        self.ask = ask
        self.users: dict[int, tuple[int, int]] = {}


def group_ask(group: TaskGroup, remotes: Remotes = NO_REMOTES) -> GroupAsk:
    """Work out the ask of a valid group."""
    tasks = group.tasks
    cpu_mhz = memory_mib = 0
    for task in tasks:
        asked = task.resources
        if remotes or task.lifecycle or asked.cores or asked.devices or asked.custom:
            return _mixed(tasks, remotes)
        cpu_mhz += asked.cpu_mhz
        memory_mib += asked.memory_mib
    return GroupAsk(cpu_mhz=cpu_mhz, memory_mib=memory_mib)


def _mixed(tasks: tuple[Task, ...], remotes: Remotes) -> GroupAsk:
    local = [_local(task, remotes.get(task.driver)) for task in tasks]
    phases = list(_phases(tasks))
    ways = [tuple([share.ask for share in way]) for way in _ways(tasks, remotes)]
    return GroupAsk(
        cpu_mhz=max((sum(local[at][0] for at in phase) for phase in phases), default=0),
        memory_mib=max((sum(local[at][1] for at in phase) for phase in phases), default=0),
        alternatives=tuple(ways) if any(ways) else (),
    )


def spans_of(group: TaskGroup) -> tuple[tuple[Spans, ...], ...]:
    """Say which of its allocation's instances are each task's, by alternative, task and pool: first and how many.

    Instances of a pool are counted through the asks of the alternative in their order.
    """
    found = []
    for way in _ways(group.tasks, NO_REMOTES):
        tasks: list[Spans] = [{} for _ in group.tasks]
        starts: dict[str, int] = {}
        for share in way:
            start = starts.get(share.ask.pool, 0)
            starts[share.ask.pool] = start - (-share.ask.amount // WHOLE)
            for at, (first, count) in share.users.items():
                known = tasks[at].get(share.ask.pool, ())
                tasks[at][share.ask.pool] = (*known, (start + first, count))
        found.append(tuple(tasks))
    return tuple(found)


def options_of(device: Device) -> tuple[DeviceOption, ...]:
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


def _local(task: Task, remote: RemoteDriver | None) -> tuple[int, int]:
    """MHz and MiB on the node itself: whole cores are not counted as a share of all."""
    if remote is not None:
        return remote.cpu_mhz, remote.memory_mib
    return 0 if task.resources.cores else task.resources.cpu_mhz, task.resources.memory_mib


def _phases(tasks: tuple[Task, ...]) -> Iterator[tuple[int, ...]]:
    """Say which tasks live at the same time; sidecars stand first, so that they keep what they have."""
    before: list[int] = []
    beside: list[int] = []
    main: list[int] = []
    after: list[int] = []
    for at, task in enumerate(tasks):
        hook = task.lifecycle.hook if task.lifecycle is not None else ""
        if hook == "prestart":
            is_sidecar = task.lifecycle is not None and task.lifecycle.sidecar
            (beside if is_sidecar else before).append(at)
        elif hook in AFTER:
            after.append(at)
        else:
            main.append(at)
    yield from (tuple(one) for one in (beside + before, beside + main, after) if one)


def _ways(tasks: tuple[Task, ...], remotes: Remotes) -> Iterator[list[_Share]]:
    """Lay out every alternative."""
    blocks = [(at, device) for at, task in enumerate(tasks) for device in task.resources.devices]
    fixed = [tuple(_fixed(task, remotes.get(task.driver))) for task in tasks]
    cores = list(_cores(tasks, remotes))
    phases = list(_phases(tasks))
    for picked in product(*(options_of(device) for _, device in blocks)):
        of_task = [list(asks) for asks in fixed]
        for (at, device), option in zip(blocks, picked, strict=True):
            of_task[at].append(_device_ask(option, device.grouping))
        yield [*cores, *_shares(phases, of_task)]


def _cores(tasks: tuple[Task, ...], remotes: Remotes) -> Iterator[_Share]:
    """Ask for the cores of all tasks, at whatever time they live."""
    own = {
        at: task.resources
        for at, task in enumerate(tasks)
        if task.driver not in remotes and task.resources.cores
    }
    if own:
        groupings = {_NUMA.get(one.numa.affinity, "") for one in own.values() if one.numa}
        kept = next((one for one in ("strict", "compact") if one in groupings), "")
        amount = WHOLE * sum(one.cores for one in own.values())
        share = _Share(ResourceAsk(pool=CORES, amount=amount, grouping=kept))
        start = 0
        for at, one in own.items():
            share.users[at] = (start, one.cores)
            start += one.cores
        yield share


def _shares(phases: list[tuple[int, ...]], of_task: list[list[ResourceAsk]]) -> list[_Share]:
    """Merge what is asked for at different times: the n-th ask of a kind at one time has what the n-th at another has.

    Asks of one time stay apart: two halves are not a whole instance, and two tasks may have different models.
    """
    found: dict[tuple[ResourceAsk, int], _Share] = {}
    for phase in phases:
        seen: dict[ResourceAsk, int] = {}
        for at in phase:
            for ask in of_task[at]:
                kind = msgspec.structs.replace(ask, amount=0)
                rank = seen[kind] = seen.get(kind, -1) + 1
                share = found.setdefault((kind, rank), _Share(kind))
                most = max(share.ask.amount, ask.amount)
                share.ask = msgspec.structs.replace(kind, amount=most)
                share.users[at] = (0, -(-ask.amount // WHOLE))
    return list(found.values())


def _fixed(task: Task, remote: RemoteDriver | None) -> Iterator[ResourceAsk]:
    """List what a task takes of pools in every alternative, cores apart."""
    asked = task.resources
    if remote is not None:
        if asked.cores:
            yield ResourceAsk(pool=f"{task.driver}.cores", amount=WHOLE * asked.cores)
        elif asked.cpu_mhz:
            yield ResourceAsk(pool=f"{task.driver}.cpu", amount=WHOLE * asked.cpu_mhz)
        yield ResourceAsk(pool=f"{task.driver}.memory", amount=WHOLE * asked.memory_mib)
    for one in asked.custom:
        yield ResourceAsk(pool=one.name, amount=parts_of(one.amount), grouping=one.grouping)


def _device_ask(option: DeviceOption, grouping: str) -> ResourceAsk:
    vendor, kind, model = device_names(option.name)
    return ResourceAsk(
        pool=DEVICE + kind,
        amount=parts_of(option.count),
        vendor=vendor,
        model=model,
        constraints=_constraints(option.constraints),
        affinities=_affinities(option.affinities),
        grouping=grouping,
    )


def device_names(name: str) -> tuple[str, str, str]:
    """Split `type`, `vendor/type` or `vendor/type/model` into vendor, type and model."""
    parts = name.split("/", 2)
    if len(parts) == 1:
        return "", name, ""
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""


def _constraints(found: tuple[nomad_placement.Constraint, ...]) -> tuple[Constraint, ...]:
    return tuple(
        [Constraint(left=one.left, operator=one.operator, right=one.right) for one in found]
    )


def _affinities(found: tuple[nomad_placement.Affinity, ...]) -> tuple[Affinity, ...]:
    return tuple(
        [
            Affinity(left=one.left, operator=one.operator, right=one.right, weight=one.weight)
            for one in found
        ]
    )
