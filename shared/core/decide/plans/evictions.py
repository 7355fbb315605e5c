"""Evictions of a plan, checked against the latest state: which victims may still be evicted, and which need not be.

Decides which victims a plan gets. How they were chosen: shared/core/scheduling/preemption/search.py. A victim that no
longer exists, stopping, already evicted or no longer of lower priority is spared; whether the placement that counted on
it still fits is decided by its room. One that turned out superfluous is spared, too: no allocation is evicted where the
plan fits without it.
"""

import numpy as np

from schemas.base import Event, JobId
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.plans import Evictions, GroupPlacement, SubmitPlan
from shared.core.columns import Rows
from shared.core.resources.asks import CORES, WHOLE, holdings_of
from shared.core.resources.assign import ResourceAssigner
from shared.core.resources.held import HeldResources
from shared.core.scheduling.preemption.eviction import EvictionContext
from shared.core.scheduling.preemption.search import PRIORITY_GAP_MIN
from shared.core.state.state import State

_NO_ROWS: Rows = np.empty(0, dtype=np.int32)


def requested_rows(state: State, plan: SubmitPlan) -> Rows:
    """All rows that a plan wants evicted. Raises ValueError when they are inconsistent."""
    if not plan.evictions:
        return _NO_ROWS
    rows = np.asarray([row for one in plan.evictions for row in one.rows], dtype=np.int64)
    if len(rows) and not (rows.min() >= 0 and rows.max() < state.allocations.size):
        msg = "evicts a row without an allocation"
        raise ValueError(msg)
    if len(np.unique(rows)) != len(rows):
        msg = "names a victim twice"
        raise ValueError(msg)
    return rows.astype(np.int32)


def valid_victims(state: State, plan: SubmitPlan) -> Rows:
    """Those rows of a plan's evictions that may be evicted now, ascending."""
    rows = requested_rows(state, plan)
    job = state.jobs.by_id.get(plan.job_id)
    if not len(rows) or job is None or not getattr(state.policy.policy.preemption, job.job_type):
        return _NO_ROWS
    table = state.allocations
    named = {row: one.job_id for one in plan.evictions for row in one.rows}
    kept = []
    for row in np.sort(rows[table.is_wanted(rows)]).tolist():
        key = int(table.key[row])
        victim = state.jobs.by_id.get(table.groups.job_ids[int(table.group[row])])
        # A row that was given away since the snapshot belongs to another allocation.
        made_seq = state.policy.incarnations.seq(key)
        if not key or made_seq > plan.origin.snapshot_seq or victim is None:
            continue
        if (
            victim.id == named[row] != plan.job_id
            and victim.priority <= job.priority - PRIORITY_GAP_MIN
        ):
            kept.append(row)
    return np.asarray(kept, dtype=np.int32)


def needed_victims(
    state: State, plan: SubmitPlan, victims: Rows, kept: tuple[GroupPlacement, ...]
) -> Rows:
    """Those victims without whom what is kept of the plan would not fit, ascending.

    Of a plan in parts all are needed: what counts on them may come in another part.
    """
    if not len(victims) or plan.origin.parts > 1:
        return victims
    table, held = state.allocations, _held_after(state, plan, victims, kept)
    ground = EvictionContext(state, state.fleet.capacity, held)
    lands = {row for placement in kept for row in placement.rows}
    stays: set[int] = set()
    priority = table.groups.priority[table.group[victims]]
    # The dearest are spared first, among equals those that ran longest.
    for at in np.lexsort((table.key[victims], -priority)).tolist():
        row = int(victims[at])
        if int(table.node[row]) not in lands:
            stays.add(row)
        elif _may_stay(ground, row):
            stays.add(row)
            held.add(*table.held_by(row))
    return np.asarray([row for row in victims.tolist() if row not in stays], dtype=np.int32)


def _held_after(
    state: State, plan: SubmitPlan, victims: Rows, kept: tuple[GroupPlacement, ...]
) -> HeldResources:
    """What is held once all victims are removed and what is kept is in."""
    table, size = state.allocations, state.fleet.size
    held = table.held.copy(size)
    for row in victims.tolist():
        held.remove(*table.held_by(row))
    for placement in kept:
        ref = table.groups.ref(plan.job_id, placement.version, placement.group)
        rows, counts = np.asarray(placement.rows, np.intp), np.asarray(placement.counts, np.int64)
        held.add_columns(rows, counts[:, None] * table.groups.ask[ref])
        extras = table.groups.extras[ref]
        if extras is not None:
            nodes = np.repeat(rows, counts).tolist()
            for node, holding in zip(nodes, holdings_of(extras, placement), strict=True):
                held.add(node, None, holding)
    return held


def _may_stay(ground: EvictionContext, row: int) -> bool:
    """Tell whether a victim's own room is still there with everybody else's."""
    table, offers = ground.state.allocations, ground.state.fleet.offers
    node, ask, holding = table.held_by(row)
    left = ground.free_on(node) - ask
    if holding is None:
        return bool((left >= 0).all())
    cores = sum(amount for pool, _, amount in holding.parts if pool == CORES) // WHOLE
    left[0] -= cores * ground.core_mhz(node)
    extras = table.groups.extras[table.group[row]]
    if extras is None or (left < 0).any():
        return False
    return ResourceAssigner(offers, ground.held).is_sound(node, extras, holding)


def spared_evictions(plan: SubmitPlan, victims: Rows) -> tuple[Evictions, ...]:
    """What a plan wanted evicted and is not."""
    if not plan.evictions:
        return ()
    chosen = set(victims.tolist())
    left = [
        Evictions(job_id=one.job_id, rows=tuple(row for row in one.rows if row not in chosen))
        for one in plan.evictions
    ]
    return tuple(one for one in left if one.rows)


def preemption_evaluations(state: State, evictions: tuple[Evictions, ...]) -> list[Event]:
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
