"""How many more allocations each node takes, as far as pools, ports and cores go: vectors for the cut's `limit`.

Decides the room of every condition by itself, so that an explanation can name the one that is short; the room of a
node is the least of them. Exact: as often as assign.py could assign one after another. Must not know scores, nor the
three columns beyond what cores take of them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.resources.asks import CORES, WHOLE, ExtraAsks
from shared.core.resources.assign import FreeSlot, choose_slots
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import (
    CLUSTER_WIDE,
    INDEXED,
    SUM,
    OfferedResources,
    Slots,
    column_of_size,
)

#: As many as one likes.
UNLIMITED: Final = 1 << 31


class HeadroomQuery(msgspec.Struct, frozen=True, eq=False):
    """What one allocation of a group needs. Shapes: (N,) each; `mask`: rows that matter, others may get anything."""

    extras: ExtraAsks
    variant: int
    mask: Mask
    #: MHz left on each row, reserved cores subtracted, and what is requested beside reserved cores.
    free_cpu_mhz: Int64s
    cpu_mhz: int
    #: more than this is not asked for.
    count: int

    @property
    def asks(self) -> tuple[ResourceAsk, ...]:
        """The asks of the variant."""
        return self.extras.alternatives[self.variant]


class HeadroomCondition(msgspec.Struct, frozen=True, eq=False):
    """One thing that may be short: its name and what happens to it, and how many more each row takes. Shape: (N,)."""

    name: str
    verb: str
    room: Int64s


class ClusterPool(msgspec.Struct, frozen=True):
    """Something that the cluster has: how much one allocation takes of it, and what is left, in 1/10,000."""

    name: str
    amount: int
    left: int

    @property
    def room(self) -> int:
        """How many more allocations it is enough for."""
        return max(self.left, 0) // self.amount if self.amount > 0 else UNLIMITED


def headroom_of(
    offers: OfferedResources, held: HeldResources, need: HeadroomQuery
) -> Int64s | None:
    """How many more each row takes by all conditions of the nodes. Shape: (N,); None: nothing limits them."""
    found = headroom_conditions(offers, held, need)
    if not found:
        return None
    least = found[0].room
    for one in found[1:]:
        least = np.minimum(least, one.room)
    return np.maximum(least, 0)


def cluster_pools(
    offers: OfferedResources, held: HeldResources, asks: Sequence[ResourceAsk]
) -> list[ClusterPool]:
    """What a list of asks takes of the cluster as a whole, by name."""
    amounts: dict[str, int] = {}
    for ask in asks:
        if offers.cached_kind(ask.pool) == CLUSTER_WIDE:
            amounts[ask.pool] = amounts.get(ask.pool, 0) + ask.amount
    return [
        ClusterPool(name, amount, offers.cluster.get(name, 0) - held.of_cluster(name))
        for name, amount in sorted(amounts.items())
    ]


def headroom_conditions(
    offers: OfferedResources, held: HeldResources, need: HeadroomQuery
) -> list[HeadroomCondition]:
    """Every condition that one node alone can meet, ports first, then pools in the order asked for."""
    size = len(need.mask)
    found = [
        HeadroomCondition(f"port {port}", "taken", _static_room(offers, held, port, size))
        for port in need.extras.static_ports
    ]
    if need.extras.dynamic_ports:
        free = dynamic_ports_free(offers, held, need.extras, size)
        room = np.maximum(free, 0) // need.extras.dynamic_ports
        found.append(HeadroomCondition("the range of ports", "exhausted", room))
    by_pool: dict[str, list[ResourceAsk]] = {}
    for ask in need.asks:
        by_pool.setdefault(ask.pool, []).append(ask)
    for name, asks in by_pool.items():
        kind = offers.cached_kind(name)
        amount = sum(ask.amount for ask in asks)
        if kind == CLUSTER_WIDE:
            continue
        if kind == INDEXED:
            room = _slots_room(offers, held, need, asks)
        elif kind == SUM:
            free = offers.sum_of(name, size) - held.sum_of(name, size)
            room = np.maximum(free, 0) // max(amount, 1)
        else:
            room = np.zeros(size, np.int64)
        found.append(HeadroomCondition(name, "exhausted", room))
        if name == CORES and kind == INDEXED:
            found.append(
                HeadroomCondition("cpu of cores", "exhausted", _cores_room(offers, need, amount))
            )
    return found


def _static_room(offers: OfferedResources, held: HeldResources, port: int, size: int) -> Int64s:
    room = np.ones(size, np.int64)
    taken = [*held.ports.rows_of(port), *sorted(offers.reserved.get(port, ()))]
    room[[row for row in taken if row < size]] = 0
    return room


def free_ports(offers: OfferedResources, held: HeldResources, size: int) -> Int64s:
    """How many ports of its range each node has free; below 0 where fewer are left than are held. Shape: (size,)."""
    free = offers.ports_open(size) - held.ports.picked(size)
    first, last = column_of_size(offers.port_min, size), column_of_size(offers.port_max, size)
    for port, rows in held.ports.static():
        at = np.array([row for row in rows if row < size], np.int64)
        at = at[(first[at] <= port) & (port <= last[at])]
        free[at] -= 1
    moved = [row for row in offers.moved if row < size]
    if moved:
        taken = held.ports.taken_on(set(moved))
        whole = offers.ports_open(size)
        for row in moved:
            low, high = int(first[row]), int(last[row])
            free[row] = whole[row] - sum(
                low <= port <= high and row not in offers.reserved.get(port, ())
                for port in taken.get(row, ())
            )
    return free


def dynamic_ports_free(
    offers: OfferedResources, held: HeldResources, extras: ExtraAsks, size: int
) -> Int64s:
    """How many ports of its range each node has free, those that are asked for by number excluded. Shape: (size,)."""
    free = free_ports(offers, held, size)
    first, last = column_of_size(offers.port_min, size), column_of_size(offers.port_max, size)
    for port in extras.static_ports:
        # At most one allocation a node then, and its own named port is not among those that are picked.
        free -= (first <= port) & (port <= last)
    return free


def cores_mhz(offers: OfferedResources, need: HeadroomQuery, amount: int) -> Int64s:
    """MHz that `amount` of cores take on each node, with what is requested beside them. Shape: (N,)."""
    core_mhz = column_of_size(offers.core_mhz, len(need.mask))
    return need.cpu_mhz + (amount // WHOLE) * core_mhz


def _cores_room(offers: OfferedResources, need: HeadroomQuery, amount: int) -> Int64s:
    core_mhz = column_of_size(offers.core_mhz, len(need.mask))
    takes = cores_mhz(offers, need, amount)
    room: Int64s = np.maximum(need.free_cpu_mhz, 0) // np.maximum(takes, 1)
    return np.where(core_mhz > 0, room, 0)


def _slots_room(
    offers: OfferedResources, held: HeldResources, need: HeadroomQuery, asks: Sequence[ResourceAsk]
) -> Int64s:
    size = len(need.mask)
    pool = offers.slots[asks[0].pool]
    pool.grow(size, pool.present.shape[1])
    width = pool.present.shape[1]
    free = pool.present[:size] - held.slots_of(asks[0].pool, size, width)
    rooms = [
        _one_ask(ask, np.where(offers.eligible(ask, size), np.maximum(free, 0), 0), pool_keys)
        for ask, pool_keys in (
            (
                ask,
                (pool.cell[:size], pool.cells)
                if _is_strict(ask)
                else (pool.part[:size], pool.parts),
            )
            for ask in asks
        )
    ]
    if len(rooms) == 1:
        return rooms[0]
    bound = np.minimum.reduce(rooms)
    return _several_asks(offers, free, need, asks, bound=bound)


def fits_ask(
    offers: OfferedResources,
    held: HeldResources,
    ask: ResourceAsk,
    rows: NDArray[np.intp],
    *,
    model: int,
) -> Mask:
    """On which rows one ask of an indexed pool fits on slots of one model. Shapes: rows, result (R,)."""
    pool = offers.slots[ask.pool]
    width = pool.present.shape[1]
    pool.grow(int(rows.max()) + 1 if len(rows) else 0, width)
    free = pool.present[rows] - held.slots_at(ask.pool, rows, width)
    free = np.where(pool.model[rows] == model, np.maximum(free, 0), 0)
    keyed = (pool.cell[rows], pool.cells) if _is_strict(ask) else (pool.part[rows], pool.parts)
    fits: Mask = _one_ask(ask, free, keyed) > 0
    return fits


def _is_strict(ask: ResourceAsk) -> bool:
    return ask.grouping == "strict"


def _one_ask(ask: ResourceAsk, free: Slots, keyed: tuple[Slots, int]) -> Int64s:
    """How often one ask fits. Shapes: free (N, G), what it may not have being 0; result (N,)."""
    whole, part = divmod(ask.amount, WHOLE)
    if not whole:
        return (free // part).sum(axis=1) if part else np.full(len(free), UNLIMITED, np.int64)
    keys, count = keyed
    if count == 1 and not part:
        empty: Int64s = np.count_nonzero(free == WHOLE, axis=1)
        return empty // whole
    total = np.zeros(len(free), np.int64)
    for key in range(count):
        of_key = free if count == 1 else np.where(keys == key, free, 0)
        is_empty = of_key == WHOLE
        empty = is_empty.sum(axis=1)
        room = empty // whole
        if part:
            # m allocations fit when the parts beyond those that find room in partly used slots, `per` of them in a
            # fresh one, leave m * whole empty: m * whole + ceil((m - partly) / per) <= empty.
            partly = np.where(is_empty, 0, of_key // part).sum(axis=1)
            per = WHOLE // part
            room = np.minimum(room, (per * empty + partly) // (1 + per * whole))
        total += room
    return total


def _several_asks(
    offers: OfferedResources,
    free: Slots,
    need: HeadroomQuery,
    asks: Sequence[ResourceAsk],
    *,
    bound: Int64s,
) -> Int64s:
    """How often asks of one pool fit together: by trying, once for each state that a node is in."""
    pool = offers.slots[asks[0].pool]
    accepted = [offers.matches(ask) for ask in asks]
    known = offers.tried(asks)
    room = np.zeros(len(free), np.int64)
    rows = np.flatnonzero(need.mask & (bound > 0))
    mosts = np.minimum(bound[rows], need.count)
    columns = [free, pool.present, pool.model, pool.cell, pool.group]
    states = np.hstack([column[rows].astype(np.int64) for column in columns] + [mosts[:, None]])
    for row, most, state in zip(rows.tolist(), mosts.tolist(), states, strict=True):
        key = state.tobytes()
        if key not in known:
            slots = [
                FreeSlot(number, left, 0, group, model)
                for number, (left, group, model) in enumerate(
                    zip(
                        np.where(pool.present[row] > 0, free[row], 0).tolist(),
                        pool.group[row].tolist(),
                        pool.model[row].tolist(),
                        strict=True,
                    )
                )
            ]
            keys = [(pool.cell if _is_strict(ask) else pool.part)[row].tolist() for ask in asks]
            known[key] = _try_all(asks, slots, keys, accepted, most=most)
        room[row] = known[key]
    return room


def _try_all(
    asks: Sequence[ResourceAsk],
    slots: list[FreeSlot],
    keys: Sequence[Sequence[int]],
    accepted: Sequence[Mask],
    *,
    most: int,
) -> int:
    left = [slot.free for slot in slots]
    for nth in range(most):
        for at, ask in enumerate(asks):
            usable = [
                slot._replace(free=left[slot.number], key=keys[at][slot.number])
                for slot in slots
                if left[slot.number] > 0 and accepted[at][slot.model]
            ]
            chosen = choose_slots(ask, usable)
            if chosen is None:
                return nth
            for rank, number in enumerate(chosen):
                left[number] -= min(WHOLE, ask.amount - rank * WHOLE)
    return most
