"""How much each node lacks of pools, ports and cores for one more allocation, for explanations.

The least that would have to be free in addition. Its names and conditions are those of headroom.py: a node lacks
something exactly where that has no room. Knows no scores, nor the three columns beyond what cores take of them.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.jobs import ResourceAsk
from shared.core.columns import Int64s
from shared.core.resources.asks import CORES, WHOLE
from shared.core.resources.headroom import (
    HeadroomQuery,
    cores_mhz,
    dynamic_ports_free,
    headroom_conditions,
)
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import INDEXED, SUM, OfferedResources, SlotPool, Slots

#: Name of the condition that cores need MHz, too.
CPU_OF_CORES = "cpu of cores"
PORT_RANGE = "the range of ports"


class Lack(msgspec.Struct, frozen=True, eq=False):
    """One condition, how much of it each row lacks (0: enough), and how much is asked for. Shape: amount (N,).

    `scale`: raw amount per unit.
    """

    name: str
    amount: Int64s
    asked: int
    scale: int = 1


def lacks_of(offers: OfferedResources, held: HeldResources, need: HeadroomQuery) -> list[Lack]:
    """List what each row lacks of every condition of headroom_conditions, in its order."""
    asks: dict[str, list[ResourceAsk]] = {}
    for ask in need.asks:
        asks.setdefault(ask.pool, []).append(ask)
    found = []
    for one in headroom_conditions(offers, held, need):
        amount, scale = _amount(offers, held, need, name=one.name, asks=asks.get(one.name, ()))
        # Asks that fit one by one and not together lack something, whatever the sums say.
        least = np.where(one.room > 0, 0, np.maximum(amount, 1))
        asked = sum(ask.amount for ask in asks.get(one.name, ())) or int(least.max(initial=1))
        found.append(Lack(one.name, least, asked, scale))
    return found


def _amount(
    offers: OfferedResources,
    held: HeldResources,
    need: HeadroomQuery,
    *,
    name: str,
    asks: Sequence[ResourceAsk],
) -> tuple[Int64s, int]:
    """What rows lack of one condition, where they lack it, and its scale."""
    size = len(need.mask)
    total = sum(ask.amount for ask in asks)
    kind = offers.cached_kind(name) if asks else ""
    if kind == SUM:
        return total - np.maximum(offers.sum_of(name, size) - held.sum_of(name, size), 0), WHOLE
    if kind == INDEXED:
        return _slots_amount(offers, held, asks, size), WHOLE
    if asks:
        # No node offers it.
        return np.full(size, total, np.int64), WHOLE
    if name == PORT_RANGE:
        ports = need.extras.dynamic_ports
        return ports - np.maximum(dynamic_ports_free(offers, held, need.extras, size), 0), 1
    if name == CPU_OF_CORES:
        cores = sum(ask.amount for ask in need.asks if ask.pool == CORES)
        return cores_mhz(offers, need, cores) - np.maximum(need.free_cpu_mhz, 0), 1
    return np.ones(size, np.int64), 1


def _slots_amount(
    offers: OfferedResources, held: HeldResources, asks: Sequence[ResourceAsk], size: int
) -> Int64s:
    pool = offers.slots[asks[0].pool]
    width = pool.present.shape[1]
    pool.grow(size, width)
    free = np.maximum(pool.present[:size] - held.slots_of(asks[0].pool, size, width), 0)
    any_of = np.zeros((size, width), dtype=bool)
    alone = np.zeros(size, np.int64)
    for ask in asks:
        eligible = offers.eligible(ask, size)
        any_of |= eligible
        alone += _ask_amount(ask, np.where(eligible, free, 0), pool)
    together = sum(ask.amount for ask in asks) - np.where(any_of, free, 0).sum(axis=1)
    most: Int64s = np.maximum(alone, together)
    return most


def _ask_amount(ask: ResourceAsk, free: Slots, pool: SlotPool) -> Int64s:
    """What rows lack for one ask of slots of one kind. Shapes: free (N, G), 0 where it may not; result (N,)."""
    if ask.grouping == "strict":
        keys, count = pool.cell[: len(free)], pool.cells
    else:
        keys, count = pool.part[: len(free)], pool.parts
    of_keys = [free if count == 1 else np.where(keys == key, free, 0) for key in range(count)]
    least: Int64s = np.minimum.reduce([_slots_lack(ask.amount, one) for one in of_keys])
    return least


def _slots_lack(amount: int, free: Slots) -> Int64s:
    """Fill the freest slots: whole ones first, then the part of one. Shapes: free (N, G); result (N,)."""
    whole, part = divmod(amount, WHOLE)
    count = whole + (part > 0)
    best = np.zeros((len(free), count), np.int64)
    some = -np.sort(-free, axis=1)[:, :count]
    best[:, : some.shape[1]] = some
    lack: Int64s = (WHOLE - best[:, :whole]).sum(axis=1)
    return lack + np.maximum(part - best[:, whole], 0) if part else lack
