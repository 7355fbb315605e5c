"""Evictions of a plan, held against the latest state: who may still be evicted, and who need not be any more.

Decides which victims a plan gets. Must not know how they were chosen (shared/core/preempt.py). A victim that is gone,
stopping, evicted already or no longer less important is spared; whether the placement that counted on it still fits
is decided by its room. One that turned out superfluous is spared, too: nobody goes where it fits without.
"""

import numpy as np

from schemas.base import Event, JobId
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.plans import Evictions, GroupPlacement, SubmitPlan
from shared.core.columns import Rows
from shared.core.ids import key_seq
from shared.core.preempt import LEVELS
from shared.core.scores import Int64s
from shared.core.state import State

_NO_ROWS: Rows = np.empty(0, dtype=np.int32)


def named_rows(state: State, plan: SubmitPlan) -> Rows:
    """All rows that a plan wants evicted. Raises ValueError when they make no sense."""
    if not plan.evictions:
        return _NO_ROWS
    rows = np.asarray([row for one in plan.evictions for row in one.rows], dtype=np.int64)
    if len(rows) and not (rows.min() >= 0 and rows.max() < state.allocations.size):
        msg = "evicts a row that nothing has"
        raise ValueError(msg)
    if len(np.unique(rows)) != len(rows):
        msg = "names a victim twice"
        raise ValueError(msg)
    return rows.astype(np.int32)


def victims_of(state: State, plan: SubmitPlan) -> Rows:
    """Those rows of a plan's evictions that may be evicted now, ascending."""
    rows = named_rows(state, plan)
    job = state.jobs.by_id.get(plan.job_id)
    if not len(rows) or job is None or not getattr(state.policy.policy.preemption, job.job_type):
        return _NO_ROWS
    table = state.allocations
    named = {row: one.job_id for one in plan.evictions for row in one.rows}
    kept = []
    for row in np.sort(rows[table.is_wanted(rows)]).tolist():
        key = int(table.key[row])
        victim = state.jobs.by_id.get(table.groups.job_ids[int(table.group[row])])
        # A row that was given away since the snapshot is somebody else.
        if not key or key_seq(key) > plan.origin.snapshot_seq or victim is None:
            continue
        if victim.id == named[row] != plan.job_id and victim.priority <= job.priority - LEVELS:
            kept.append(row)
    return np.asarray(kept, dtype=np.int32)


def needed(state: State, plan: SubmitPlan, victims: Rows, kept: tuple[GroupPlacement, ...]) -> Rows:
    """Those victims without whom what is kept of the plan would not fit, ascending.

    Of a plan in parts all are needed: what counts on them may come in another part.
    """
    if not len(victims) or plan.origin.parts > 1:
        return victims
    table = state.allocations
    room = _room_after(state, plan, victims, kept)
    stays: set[int] = set()
    priority = table.groups.priority[table.group[victims]]
    # The dearest are spared first, among equals those that ran longest.
    for at in np.lexsort((table.key[victims], -priority)).tolist():
        row = int(victims[at])
        node, ask = int(table.node[row]), table.groups.ask[table.group[row]]
        if node not in room:
            stays.add(row)
        elif (room[node] >= ask).all():
            stays.add(row)
            room[node] = room[node] - ask
    return np.asarray([row for row in victims.tolist() if row not in stays], dtype=np.int32)


def _room_after(
    state: State, plan: SubmitPlan, victims: Rows, kept: tuple[GroupPlacement, ...]
) -> dict[int, Int64s]:
    """What the nodes that get something have left once all victims are gone, by row."""
    table, fleet = state.allocations, state.fleet
    used = table.used(fleet.size)
    room: dict[int, Int64s] = {}
    for placement in kept:
        ask = table.groups.ask[table.groups.ref_of[plan.job_id, placement.version, placement.group]]
        for node, count in zip(placement.rows, placement.counts, strict=True):
            left = room.get(node)
            room[node] = (fleet.capacity[node] - used[node] if left is None else left) - ask * count
    for row in victims.tolist():
        node = int(table.node[row])
        if node in room:
            room[node] = room[node] + table.groups.ask[table.group[row]]
    return room


def spared(plan: SubmitPlan, victims: Rows) -> tuple[Evictions, ...]:
    """What a plan wanted evicted and is not."""
    if not plan.evictions:
        return ()
    chosen = set(victims.tolist())
    left = [
        Evictions(job_id=one.job_id, rows=tuple(row for row in one.rows if row not in chosen))
        for one in plan.evictions
    ]
    return tuple(one for one in left if one.rows)


def evaluations_of(state: State, evictions: tuple[Evictions, ...]) -> list[Event]:
    """One evaluation for every job that lost something, so that it is placed elsewhere or waits."""
    new = []
    for job_id in sorted({one.job_id for one in evictions}):
        job = state.jobs.by_id[JobId(job_id)]
        if not job.stopped:
            new.append(
                NewEvaluation(
                    job_id=job.id,
                    priority=job.priority,
                    job_type=job.job_type,
                    triggered_by="preemption",
                )
            )
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []
