"""What one allocation of a group asks for: MHz, MiB, and pools, in every alternative.

Decides the group's ask from its tasks: the most that is needed at one time (Nomad: prestart tasks, then the main ones
beside the sidecars, then poststop tasks), reserved cores always together. `first_available` lists make alternatives:
their product, the first block's options turning slowest. Must not know nodes. Source: Nomad structs.go
AllocatedResources.Comparable.
"""

from collections.abc import Iterable, Iterator, Mapping
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

Remotes = Mapping[str, RemoteDriver]
Asks = tuple[ResourceAsk, ...]
NO_REMOTES: Remotes = {}


class GroupAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The ask of one allocation. Units: MHz, MiB."""

    cpu_mhz: int
    memory_mib: int
    alternatives: tuple[Asks, ...] = ()


def group_ask(group: TaskGroup, remotes: Remotes = NO_REMOTES) -> GroupAsk:
    """Work out the ask of a valid group."""
    tasks = group.tasks
    if not remotes and not any(map(_is_special, tasks)):
        return GroupAsk(
            cpu_mhz=sum(task.resources.cpu_mhz for task in tasks),
            memory_mib=sum(task.resources.memory_mib for task in tasks),
        )
    local = [_local(task, remotes.get(task.driver)) for task in tasks]
    phases = list(_phases(tasks))
    return GroupAsk(
        cpu_mhz=max((sum(local[at][0] for at in phase) for phase in phases), default=0),
        memory_mib=max((sum(local[at][1] for at in phase) for phase in phases), default=0),
        alternatives=_alternatives(tasks, phases, remotes),
    )


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


def _is_special(task: Task) -> bool:
    found = task.resources
    return bool(task.lifecycle or found.cores or found.devices or found.custom)


def _local(task: Task, remote: RemoteDriver | None) -> tuple[int, int]:
    """MHz and MiB on the node itself: whole cores are not counted as a share of all."""
    if remote is not None:
        return remote.cpu_mhz, remote.memory_mib
    return 0 if task.resources.cores else task.resources.cpu_mhz, task.resources.memory_mib


def _phases(tasks: tuple[Task, ...]) -> Iterator[tuple[int, ...]]:
    """Say which tasks live at the same time."""
    before: list[int] = []
    beside: list[int] = []
    main: list[int] = []
    after: list[int] = []
    for at, task in enumerate(tasks):
        hook = task.lifecycle.hook if task.lifecycle is not None else ""
        if hook == "prestart":
            is_sidecar = task.lifecycle is not None and task.lifecycle.sidecar
            (beside if is_sidecar else before).append(at)
        elif hook == "poststop":
            after.append(at)
        else:
            main.append(at)
    yield from (tuple(sorted(one)) for one in (before + beside, main + beside, after) if one)


def _alternatives(
    tasks: tuple[Task, ...], phases: list[tuple[int, ...]], remotes: Remotes
) -> tuple[Asks, ...]:
    blocks = [(at, device) for at, task in enumerate(tasks) for device in task.resources.devices]
    fixed = [tuple(_fixed(task, remotes.get(task.driver))) for task in tasks]
    cores = _cores(tasks, remotes)
    found: dict[Asks, None] = {}
    for picked in product(*(options_of(device) for _, device in blocks)):
        of_task = [list(asks) for asks in fixed]
        for (at, device), option in zip(blocks, picked, strict=True):
            of_task[at].append(_device_ask(option, device.grouping))
        together = [[ask for at in phase for ask in of_task[at]] for phase in phases]
        found.setdefault((*cores, *_most(together)))
    return tuple(found) if found != {(): None} else ()


def _cores(tasks: tuple[Task, ...], remotes: Remotes) -> Iterator[ResourceAsk]:
    """Ask for the cores of all tasks, at whatever time they live."""
    own = [task.resources for task in tasks if task.driver not in remotes and task.resources.cores]
    if own:
        groupings = {_NUMA.get(one.numa.affinity, "") for one in own if one.numa is not None}
        kept = next((one for one in ("strict", "compact") if one in groupings), "")
        amount = WHOLE * sum(one.cores for one in own)
        yield ResourceAsk(pool=CORES, amount=amount, grouping=kept)


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


def _most(phases: list[list[ResourceAsk]]) -> Iterator[ResourceAsk]:
    """Merge what is asked at different times into asks that serve every time.

    Whole amounts of one kind are one ask, unless all of each must lie together; parts stay apart, two halves are not
    a whole instance. The largest of a kind at any time counts, of parts the largest of each rank.
    """
    whole: dict[ResourceAsk, int] = {}
    parts: dict[ResourceAsk, list[int]] = {}
    for phase in phases:
        sums: dict[ResourceAsk, int] = {}
        ranked: dict[ResourceAsk, list[int]] = {}
        for ask in phase:
            kind = msgspec.structs.replace(ask, amount=0)
            if ask.amount % WHOLE or ask.grouping == "strict":
                ranked.setdefault(kind, []).append(ask.amount)
            else:
                sums[kind] = sums.get(kind, 0) + ask.amount
        for kind, amount in sums.items():
            whole[kind] = max(whole.get(kind, 0), amount)
        for kind, amounts in ranked.items():
            parts[kind] = _ranks(parts.get(kind, []), sorted(amounts, reverse=True))
    for kind in dict.fromkeys(
        [msgspec.structs.replace(one, amount=0) for p in phases for one in p]
    ):
        amounts = [whole[kind]] if kind in whole else []
        for amount in amounts + parts.get(kind, []):
            yield msgspec.structs.replace(kind, amount=amount)


def _ranks(first: Iterable[int], second: Iterable[int]) -> list[int]:
    """Take the larger of two falling lists, place by place."""
    a, b = list(first), list(second)
    width = max(len(a), len(b))
    a += [0] * (width - len(a))
    b += [0] * (width - len(b))
    return [max(pair) for pair in zip(a, b, strict=True)]
