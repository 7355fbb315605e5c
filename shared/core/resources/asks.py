"""What one allocation takes beside CPU, memory and disk, and how a plan's columns say it.

Decides the one form in which that is kept (`Holding`) and its translation to and from GroupPlacement's columns. Must
not know nodes, nor what is free.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from schemas.jobs import GroupSpec, ResourceAsk
from schemas.plans import GroupPlacement

#: One instance, or one unit of a sum.
WHOLE: Final = 10_000
#: In place of a slot: a part of a sum of the node, or of one of the cluster.
OF_NODE: Final = -1
OF_CLUSTER: Final = -2
CORES: Final = "cores"
PORT_MAX: Final = 65_535


class ExtraAsks(msgspec.Struct, frozen=True):
    """What a group asks for beside the three columns."""

    #: at least one list, maybe an empty one.
    alternatives: tuple[tuple[ResourceAsk, ...], ...] = ((),)
    static_ports: tuple[int, ...] = ()
    dynamic_ports: int = 0


class Holding(msgspec.Struct, frozen=True):
    """What one allocation holds. `parts`: pool, slot (or OF_NODE, OF_CLUSTER), amount in 1/10,000."""

    parts: tuple[tuple[str, int, int], ...] = ()
    static_ports: tuple[int, ...] = ()
    #: picked by the cluster, in the order of the job's labels.
    ports: tuple[int, ...] = ()
    variant: int = 0

    @property
    def is_of_cluster(self) -> bool:
        """Tell whether it holds what any node's allocations may wait for."""
        return any(slot == OF_CLUSTER for _, slot, _ in self.parts)


class UnsoundColumnsError(ValueError):
    """A placement's ports or instances do not agree with what its group asks for."""


def extra_asks_of(group: GroupSpec) -> ExtraAsks | None:
    """What a group asks for beside the three columns; None: nothing."""
    if not (any(group.alternatives) or group.static_ports or group.dynamic_ports):
        return None
    return ExtraAsks(group.alternatives or ((),), group.static_ports, group.dynamic_ports)


def slots_of(amount: int) -> int:
    """How many slots an ask of an indexed pool takes, a part of one included."""
    return -(-amount // WHOLE)


def holdings_of(extras: ExtraAsks, placement: GroupPlacement) -> list[Holding]:
    """Read what each allocation of a placement holds, in their order.

    Raises: UnsoundColumnsError where the columns have not what the group asks for.
    """
    count = sum(placement.counts)
    if not 0 <= placement.variant < len(extras.alternatives):
        msg = f"there is no alternative {placement.variant}"
        raise UnsoundColumnsError(msg)
    if len(placement.ports) != count * extras.dynamic_ports:
        msg = f"{len(placement.ports)} ports for {count} allocations of {extras.dynamic_ports}"
        raise UnsoundColumnsError(msg)
    asks = extras.alternatives[placement.variant]
    if not (placement.ports or placement.instances):
        # Nothing tells them apart.
        parts = tuple((ask.pool, OF_NODE, ask.amount) for ask in asks)
        return [Holding(parts, extras.static_ports, (), placement.variant)] * count
    found, at, width = [], 0, extras.dynamic_ports
    for nth in range(count):
        parts, at = _parts(asks, placement.instances, at)
        ports = placement.ports[nth * width : (nth + 1) * width]
        found.append(Holding(parts, extras.static_ports, ports, placement.variant))
    if at != len(placement.instances):
        msg = f"{len(placement.instances)} instances, {at} are requested"
        raise UnsoundColumnsError(msg)
    return found


def _parts(
    asks: Sequence[ResourceAsk], instances: Sequence[int], at: int
) -> tuple[tuple[tuple[str, int, int], ...], int]:
    """Read one allocation's parts from `at` on; return them and where the next one's begin."""
    parts: list[tuple[str, int, int]] = []
    for ask in asks:
        first = instances[at] if at < len(instances) else OF_NODE
        if first < 0:
            parts.append((ask.pool, first, ask.amount))
            # Where no column tells anything, every ask is of a sum of the node.
            at += 1 if instances else 0
            continue
        slots = instances[at : at + slots_of(ask.amount)]
        if len(slots) < slots_of(ask.amount) or min(slots) < 0:
            msg = f"{ask.pool} needs {slots_of(ask.amount)} slots, found {list(slots)}"
            raise UnsoundColumnsError(msg)
        parts += slot_parts(ask, slots)
        at += len(slots)
    return tuple(parts), at


def slot_parts(ask: ResourceAsk, slots: Sequence[int]) -> list[tuple[str, int, int]]:
    """Whole slots first, a part of one last."""
    amounts = [min(WHOLE, ask.amount - nth * WHOLE) for nth in range(len(slots))]
    return [(ask.pool, slot, amount) for slot, amount in zip(slots, amounts, strict=True)]


def columns_of(holdings: Sequence[Holding]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Write holdings as a placement's ports and instances."""
    if not holdings:
        return (), ()
    ports = tuple(port for one in holdings for port in one.ports)
    instances = tuple(slot for one in holdings for _, slot, _ in one.parts)
    return ports, instances if any(slot != OF_NODE for slot in instances) else ()
