"""Reservations: what nodes that are held back offer to whoever stands behind, and which nodes an item should have.

The gap rule (HyperQueue): on a node held for H, those behind H in the queue may use what is left over once as many of
H as fit on the empty node, and wait, stand there, minus what others run:

    gap(n) = total(n) - min(floor(total(n) / H), waiting) * H - what others run on n

in every dimension that both ask for. It needs no run times, and it starves nobody: what H waits for only grows. Held
are the few nodes that would have to be emptied the least; a node that is held already counts half, so that an item
does not change its mind with every allocation that ends elsewhere.

Decides limits and proposals. Must not know who may hold nodes back (`decide/reservations.py`), nor scores.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.evaluations import Hold, Reservation
from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.resources.asks import WHOLE
from shared.core.resources.held import Held
from shared.core.resources.rooms import countables
from shared.core.shapes import order_of
from shared.core.state import State
from shared.core.tables.allocations import EVICT, RUN, TERMINAL
from shared.core.tables.jobs import Job
from shared.core.tables.reservations import place_of

Int64s = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: More than anybody asks for.
NO_LIMIT = 1 << 31
#: Nodes held for one group at the same time; what is placed there makes room for the next.
HOLDS_MAX = 8
#: and of the nodes that it may run on, one of so many, but one at least.
HOLDS_SHARE = 16
#: Nodes of which it is asked what will end there.
LOOKED_AT_MAX = 64
#: Job types whose allocations end by themselves.
ENDING = frozenset({"batch", "sysbatch"})


def ahead_of(state: State, job: Job) -> list[Reservation]:
    """Name the reservations of those who stand before a job in the queue."""
    held = state.reservations.by_job
    if not held:
        return []
    order = order_of(job)
    return [one for one in held.values() if one.job_id != job.id and place_of(one) < order]


def limit_beside(
    state: State, held: Held, job: Job, group: GroupSpec, *, asks: Sequence[ResourceAsk] = ()
) -> Int64s | None:
    """How many more of a group each node may take beside those for whom it is held. Shape: (N,); None: no limit.

    `asks`: what the group asks for of pools, in the alternative that is tried. `held`: what is held now.
    """
    ahead = ahead_of(state, job)
    limit: Int64s | None = None
    for one in ahead:
        for hold in one.holds:
            theirs = _group_of(state, one, hold)
            rows = _rows(state, hold)
            if theirs is None or not len(rows):
                continue
            if limit is None:
                limit = np.full(state.fleet.size, NO_LIMIT, dtype=np.int64)
            room = _room_beside(state, held, (one, hold, theirs), rows=rows, ours=(group, asks))
            limit[rows] = np.minimum(limit[rows], room)
    return limit


def propose(
    state: State, held: Held, job: Job, group: GroupSpec, *, usable: Mask, count: int
) -> Hold | None:
    """Propose nodes to be held for `count` more of a group; None: none would make room for one by itself.

    `usable` (N,): nodes that it may run on. Nodes held for those before it are left to them, and so are nodes on which
    what lasts (services) leaves too little: holding them back would help nobody.
    """
    if not state.policy.policy.reservations_max:
        return None
    rows = np.flatnonzero(usable).astype(np.intp)
    taken = [row for one in ahead_of(state, job) for hold in one.holds for row in hold.rows]
    if taken:
        rows = rows[~np.isin(rows, taken)]
    asks = _alternative(state, group, rows)
    if any(one.room < 1 for one in countables(state.fleet.offers, held, asks)):
        # What the cluster as a whole has is short: no node that is emptied brings it back.
        return None
    need = _need(group, asks)
    total = _totals(state, asks, rows)
    fits = _times(total, need)
    rows, total, fits = rows[fits > 0], total[fits > 0], fits[fits > 0]
    if not len(rows):
        return None
    lacking = np.maximum(need - (total - _used(state, held, asks, rows)), 0)
    cost = ((lacking << 20) // np.maximum(total, 1)).sum(axis=1)
    mine = state.reservations.by_job.get(job.id)
    if mine is not None:
        own = [row for hold in mine.holds if hold.group == group.name for row in hold.rows]
        cost = np.where(np.isin(rows, own), cost // 2, cost)
    best = np.lexsort((rows, cost))[:LOOKED_AT_MAX]
    lasting = _lasting(state, rows[best])
    spare = total[best] - _held_by(state, lasting, asks, rows[best])
    best = best[(spare >= need).all(axis=1) & ~_barred(state, lasting, group, rows[best])]
    best = best[: max(1, min(HOLDS_MAX, len(rows) // HOLDS_SHARE))]
    if not len(best):
        return None
    enough = int(np.searchsorted(np.cumsum(fits[best]), count)) + 1
    chosen = tuple(sorted(rows[best[:enough]].tolist()))
    return Hold(group=group.name, rows=chosen, count=count)


def _room_beside(
    state: State,
    held: Held,
    holder: tuple[Reservation, Hold, GroupSpec],
    *,
    rows: NDArray[np.intp],
    ours: tuple[GroupSpec, Sequence[ResourceAsk]],
) -> Int64s:
    group, mine = ours
    reservation, hold, theirs = holder
    if set(group.static_ports) & set(theirs.static_ports):
        return np.zeros(len(rows), dtype=np.int64)
    asks = _alternative(state, theirs, rows)
    need = _need(theirs, asks)
    total = _totals(state, asks, rows)
    most = _times(total, need)
    if theirs.static_ports:
        most = np.minimum(most, 1)
    own = _own(state, reservation, theirs, rows)
    if hold.count:
        most = np.minimum(most, hold.count + own)
    others = _used(state, held, asks, rows) - own[:, None] * need
    gap = total - most[:, None] * need - others
    by_pool = {one.pool: one.amount for one in mine}
    wants = _need(group, ())
    wants = np.append(wants, [by_pool.get(one.pool, 0) for one in asks]).astype(np.int64)
    return np.clip(_times(gap, wants), 0, NO_LIMIT)


def _alternative(state: State, group: GroupSpec, rows: NDArray[np.intp]) -> tuple[ResourceAsk, ...]:
    """Take the first of a group's alternatives that any of these rows could hold, empty."""
    choices = group.alternatives or ((),)
    for asks in choices[:-1]:
        if (_times(_totals(state, asks, rows), _need(group, asks)) > 0).any():
            return asks
    return choices[-1]


def _need(group: GroupSpec, asks: Sequence[ResourceAsk]) -> Int64s:
    """What one allocation takes: the three columns, then each ask. Shape: (3 + asks,)."""
    columns = (group.cpu_mhz, group.memory_mib, group.disk_mib)
    return np.array([*columns, *[one.amount for one in asks]], dtype=np.int64)


def _totals(state: State, asks: Sequence[ResourceAsk], rows: NDArray[np.intp]) -> Int64s:
    """What these rows offer of it, empty. Shape: (R, 3 + asks)."""
    fleet = state.fleet
    columns = [fleet.capacity[rows]]
    for one in asks:
        if one.pool in fleet.offers.cluster:
            # Of the cluster as a whole: no node is emptied for it.
            columns.append(np.full((len(rows), 1), NO_LIMIT * WHOLE, dtype=np.int64))
        elif one.pool in fleet.offers.slots:
            slots = fleet.offers.eligible(one, fleet.size)
            columns.append(slots[rows].sum(axis=1, dtype=np.int64)[:, None] * WHOLE)
        else:
            columns.append(fleet.offers.sum_of(one.pool, fleet.size)[rows][:, None])
    return np.concatenate(columns, axis=1) if asks else columns[0]


def _used(state: State, held: Held, asks: Sequence[ResourceAsk], rows: NDArray[np.intp]) -> Int64s:
    """What is held of it on these rows. Shape: (R, 3 + asks)."""
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


def _own(
    state: State, reservation: Reservation, theirs: GroupSpec, rows: NDArray[np.intp]
) -> Int64s:
    """How many of the group for which these rows are held are there already. Shape: (R,)."""
    table = state.allocations
    of_job = table.rows_of(reservation.job_id)
    if not len(of_job):
        return np.zeros(len(rows), dtype=np.int64)
    of_job = of_job[~TERMINAL[table.client[of_job]] & (table.desired[of_job] != EVICT)]
    groups = table.groups
    refs = [
        groups.ref_of[key] for key in groups.of_job(reservation.job_id) if key[2] == theirs.name
    ]
    of_job = of_job[np.isin(table.group[of_job], refs)]
    return np.bincount(table.node[of_job], minlength=state.fleet.size)[rows].astype(np.int64)


def _lasting(state: State, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Allocation rows on these nodes of what does not end by itself. Shape: rows (R,)."""
    table, jobs = state.allocations, state.jobs.by_id
    of_these = np.zeros(state.fleet.size, dtype=bool)
    of_these[rows] = True
    size = table.size
    there = np.flatnonzero(of_these[table.node[:size]] & (table.key[:size] != 0))
    there = there[~TERMINAL[table.client[there]] & (table.desired[there] == RUN)]
    refs = np.unique(table.group[there]).tolist()
    owners = {ref: jobs.get(table.groups.job_ids[ref]) for ref in refs}
    lasts = [ref for ref, job in owners.items() if job is not None and job.job_type not in ENDING]
    found: NDArray[np.intp] = there[np.isin(table.group[there], lasts)]
    return found


def _held_by(
    state: State, there: NDArray[np.intp], asks: Sequence[ResourceAsk], rows: NDArray[np.intp]
) -> Int64s:
    """What these allocations hold of it on these nodes. Shapes: there (A,), rows (R,), result (R, 3 + asks)."""
    table = state.allocations
    found = np.zeros((len(rows), 3 + len(asks)), dtype=np.int64)
    at = {row: n for n, row in enumerate(rows.tolist())}
    where = np.array([at[row] for row in table.node[there].tolist()], dtype=np.intp)
    np.add.at(found[:, :3], where, table.groups.ask[table.group[there]])
    if asks:
        columns = {one.pool: 3 + n for n, one in enumerate(asks)}
        for row, n in zip(there.tolist(), where.tolist(), strict=True):
            holding = table.holdings.get(row)
            for pool, _, amount in holding.parts if holding is not None else ():
                if pool in columns:
                    found[n, columns[pool]] += amount
    return found


def _barred(
    state: State, there: NDArray[np.intp], group: GroupSpec, rows: NDArray[np.intp]
) -> Mask:
    """Nodes where these allocations, or the node for others, keep a static port. Shapes: as above, result (R,)."""
    ports, table = set(group.static_ports), state.allocations
    nodes = {row for port in ports for row in state.fleet.offers.reserved.get(port, ())}
    for row in there.tolist() if ports else ():
        holding = table.holdings.get(row)
        if holding is not None and not ports.isdisjoint((*holding.static_ports, *holding.ports)):
            nodes.add(int(table.node[row]))
    return np.isin(rows, sorted(nodes))


def _times(amounts: Int64s, need: Int64s) -> Int64s:
    """How often a need goes into each row of amounts. Shapes: (R, D), (D,), result (R,)."""
    asked = need > 0
    if not asked.any():
        return np.full(len(amounts), NO_LIMIT, dtype=np.int64)
    times: Int64s = (amounts[:, asked] // need[asked]).min(axis=1)
    return times


def _group_of(state: State, reservation: Reservation, hold: Hold) -> GroupSpec | None:
    job = state.jobs.by_id.get(reservation.job_id)
    groups = job.groups if job is not None else ()
    return next((group for group in groups if group.name == hold.group), None)


def _rows(state: State, hold: Hold) -> NDArray[np.intp]:
    rows = np.asarray(hold.rows, dtype=np.intp)
    return rows[rows < state.fleet.size]
