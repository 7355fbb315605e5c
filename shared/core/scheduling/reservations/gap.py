"""Gap rule: how much of a reserved node is left for jobs behind its holder in the queue.

From HyperQueue. On a node reserved for H, jobs behind H in the queue may use what is left once as many of H as fit on
the empty node, and are waiting or running there, have their room, minus what others run:

    gap(n) = total(n) - min(floor(total(n) / H), waiting) * H - what others run on n

in every dimension that both ask for. It needs no run times and starves no job: the room for H only grows. hold.py
proposes the nodes to reserve; the eval broker decides (decide/reservations.py).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.evaluations import Hold, Reservation
from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.columns import Int64s
from shared.core.resources.held import HeldResources
from shared.core.scheduling.reservations.amounts import (
    NO_LIMIT,
    first_alternative,
    how_many_fit,
    need_of,
    totals_of,
    used_of,
)
from shared.core.scheduling.reservations.own_rooms import rooms_of
from shared.core.scheduling.reservations.wait_shapes import queue_order
from shared.core.state.state import State
from shared.core.state.tables.allocations import EVICT, TERMINAL
from shared.core.state.tables.jobs import Job
from shared.core.state.tables.reservations import queue_position


def reservations_ahead(state: State, job: Job) -> list[Reservation]:
    """List the reservations of jobs ahead of a job in the queue."""
    held = state.reservations.by_job
    if not held:
        return []
    order = queue_order(job)
    return [one for one in held.values() if one.job_id != job.id and queue_position(one) < order]


def gap_limit(
    state: State,
    held: HeldResources,
    job: Job,
    group: GroupSpec,
    *,
    asks: Sequence[ResourceAsk] = (),
) -> Int64s | None:
    """How many more of a group each node takes beside the jobs it is reserved for. Shape: (N,); None: no limit.

    `asks`: the pools of the alternative that is tried. `held`: what is held now.
    """
    ahead = reservations_ahead(state, job)
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
    if limit is not None:
        # What is kept for its own replacements is reserved for no other job.
        own = rooms_of(state, job)
        names = [
            state.allocations.groups.names[ref] for ref in state.allocations.group[own].tolist()
        ]
        own = own[np.array([name == group.name for name in names], dtype=bool)]
        kept = np.bincount(state.allocations.node[own], minlength=len(limit))
        limit = np.maximum(limit, kept)
    return limit


def _room_beside(
    state: State,
    held: HeldResources,
    holder: tuple[Reservation, Hold, GroupSpec],
    *,
    rows: NDArray[np.intp],
    ours: tuple[GroupSpec, Sequence[ResourceAsk]],
) -> Int64s:
    group, mine = ours
    reservation, hold, theirs = holder
    if set(group.static_ports) & set(theirs.static_ports):
        return np.zeros(len(rows), dtype=np.int64)
    asks = first_alternative(state, theirs, rows)
    need = need_of(theirs, asks)
    total = totals_of(state, asks, rows)
    most = how_many_fit(total, need)
    if theirs.static_ports:
        most = np.minimum(most, 1)
    own = _already_placed(state, reservation, theirs, rows)
    if hold.count:
        most = np.minimum(most, hold.count + own)
    others = used_of(state, held, asks, rows) - own[:, None] * need
    gap = total - most[:, None] * need - others
    by_pool = {one.pool: one.amount for one in mine}
    needs = need_of(group, ())
    needs = np.append(needs, [by_pool.get(one.pool, 0) for one in asks]).astype(np.int64)
    return np.clip(how_many_fit(gap, needs), 0, NO_LIMIT)


def _already_placed(
    state: State, reservation: Reservation, theirs: GroupSpec, rows: NDArray[np.intp]
) -> Int64s:
    """How many of the group that these rows are reserved for already run there. Shape: (R,)."""
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


def _group_of(state: State, reservation: Reservation, hold: Hold) -> GroupSpec | None:
    job = state.jobs.by_id.get(reservation.job_id)
    groups = job.groups if job is not None else ()
    return next((group for group in groups if group.name == hold.group), None)


def _rows(state: State, hold: Hold) -> NDArray[np.intp]:
    rows = np.asarray(hold.rows, dtype=np.intp)
    return rows[rows < state.fleet.size]
