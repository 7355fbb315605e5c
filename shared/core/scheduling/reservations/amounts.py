"""Amounts of resources by node, as matrices: the three columns, then one column for each asked pool."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.columns import Int64s
from shared.core.resources.asks import WHOLE
from shared.core.resources.held import HeldResources
from shared.core.state.state import State

#: More than any ask: no limit.
NO_LIMIT = 1 << 31


def first_alternative(
    state: State, group: GroupSpec, rows: NDArray[np.intp]
) -> tuple[ResourceAsk, ...]:
    """Return the first alternative of a group that fits on any of these rows when empty."""
    choices = group.alternatives or ((),)
    for asks in choices[:-1]:
        if (how_many_fit(totals_of(state, asks, rows), need_of(group, asks)) > 0).any():
            return asks
    return choices[-1]


def need_of(group: GroupSpec, asks: Sequence[ResourceAsk]) -> Int64s:
    """Amounts that one allocation takes: the three columns, then each ask. Shape: (3 + asks,)."""
    columns = (group.cpu_mhz, group.memory_mib, group.disk_mib)
    return np.array([*columns, *[one.amount for one in asks]], dtype=np.int64)


def totals_of(state: State, asks: Sequence[ResourceAsk], rows: NDArray[np.intp]) -> Int64s:
    """Amounts that these rows offer when empty. Shape: (R, 3 + asks)."""
    fleet = state.fleet
    columns = [fleet.capacity[rows]]
    for one in asks:
        if one.pool in fleet.offers.cluster:
            # Cluster-wide pools limit no single node.
            columns.append(np.full((len(rows), 1), NO_LIMIT * WHOLE, dtype=np.int64))
        elif one.pool in fleet.offers.slots:
            slots = fleet.offers.eligible(one, fleet.size)
            columns.append(slots[rows].sum(axis=1, dtype=np.int64)[:, None] * WHOLE)
        else:
            columns.append(fleet.offers.sum_of(one.pool, fleet.size)[rows][:, None])
    return np.concatenate(columns, axis=1) if asks else columns[0]


def used_of(
    state: State, held: HeldResources, asks: Sequence[ResourceAsk], rows: NDArray[np.intp]
) -> Int64s:
    """Amounts held on these rows. Shape: (R, 3 + asks)."""
    fleet = state.fleet
    size = fleet.size
    columns = [held.columns(size)[rows]]
    for one in asks:
        if one.pool in fleet.offers.cluster:
            columns.append(np.zeros((len(rows), 1), dtype=np.int64))
        elif one.pool in fleet.offers.slots:
            slots = fleet.offers.eligible(one, size)
            taken = held.slots_of(one.pool, size, slots.shape[1])
            columns.append(
                np.where(slots[rows], taken[rows], 0).sum(axis=1, dtype=np.int64)[:, None]
            )
        else:
            columns.append(held.sum_of(one.pool, size)[rows][:, None])
    return np.concatenate(columns, axis=1) if asks else columns[0]


def how_many_fit(amounts: Int64s, need: Int64s) -> Int64s:
    """How many times a need fits into each row of amounts. Shapes: (R, D), (D,), result (R,)."""
    asked = need > 0
    if not asked.any():
        return np.full(len(amounts), NO_LIMIT, dtype=np.int64)
    times: Int64s = (amounts[:, asked] // need[asked]).min(axis=1)
    return times
