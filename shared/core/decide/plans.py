"""Verify: a plan against the latest state. It commits whole, in part, or not at all; never more than there is room.

Three fences, in this order: the worker's gapless number (an earlier plan still on its way: wait for the resend), the
evaluation (ended, or put back since the snapshot), and the job fence `plan_seq`. What passes them may still be cut
node by node; then the evaluation stays pending and the rest is planned on a newer snapshot.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import Event
from schemas.evaluations import EvaluationEnded, EvaluationsCreated
from schemas.plans import GroupPlacement, PlanCommitted, PlanRefused, SubmitPlan
from shared.core.absent import is_gone
from shared.core.columns import Rows
from shared.core.decide.everywhere import is_behind, node_update
from shared.core.decide.evictions import evaluations_of, needed, spared, victims_of
from shared.core.preempt import evictions_of
from shared.core.state import State
from shared.core.tables.allocations import TERMINAL, expand_runs, pack_runs


class _Refused(Exception):
    """A plan must be refused whole."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def decide_plan(state: State, plan: SubmitPlan) -> list[Event]:
    """Decide one plan of `cmd.plan`; [] when its number is not next, because it was decided or must come again."""
    if not is_next(state, plan):
        return []
    try:
        committed = _commit(state, plan)
    except _Refused as refusal:
        refused = PlanRefused(
            key=plan.key,
            job_id=plan.job_id,
            origin=plan.origin,
            code=refusal.code,
            reason=refusal.reason[:500],
            placements=tuple(_bare(placement) for placement in plan.placements),
            evictions=plan.evictions,
        )
        return [refused]
    evaluations = evaluations_of(state, committed.evictions)
    return [committed, *evaluations, *_ending(state, plan, was_cut=bool(committed.cut))]


def _commit(state: State, plan: SubmitPlan) -> PlanCommitted:
    _check_fences(state, plan)
    _check_stops(state, plan)
    for placement in plan.placements:
        _check_placement(state, plan, placement)
    victims = _victims(state, plan)
    kept, cut = _fit(state, plan, victims)
    victims = needed(state, plan, victims, kept)
    if cut and plan.all_at_once:
        raise _Refused("capacity", f"{_total(cut)} allocations do not fit, and all must")
    return PlanCommitted(
        key=plan.key,
        job_id=plan.job_id,
        origin=plan.origin,
        placements=kept,
        stops=plan.stops,
        updates=plan.updates,
        evictions=evictions_of(state, victims.tolist()),
        spared=spared(plan, victims),
        cut=cut,
        decision=plan.decision,
    )


def is_next(state: State, plan: SubmitPlan) -> bool:
    """Tell whether the log waits for this number and part of the worker."""
    origin = plan.origin
    last = state.evaluations.workers.get(origin.worker)
    if last is None:
        return origin.number == 1 and origin.part == 0
    if last.is_done:
        return origin.number == last.number + 1 and origin.part == 0
    return origin.number == last.number and origin.part == last.part + 1


def _check_fences(state: State, plan: SubmitPlan) -> None:
    seen = plan.origin.snapshot_seq
    evaluation = state.evaluations.by_key.get(plan.key)
    if evaluation is None or evaluation.status != "pending":
        found = "unknown" if evaluation is None else evaluation.status
        raise _Refused("evaluation_ended", f"evaluation is {found}")
    if evaluation.job_id != plan.job_id:
        raise _Refused("stale", f"the evaluation is of job {evaluation.job_id!r}")
    job = state.jobs.by_id.get(plan.job_id)
    if job is None:
        if plan.placements or plan.updates:
            raise _Refused("stale", "the job is gone")
        return
    fence = job.fence
    same = (fence.key, fence.worker, fence.number) == (
        plan.key,
        plan.origin.worker,
        plan.origin.number,
    )
    changed = fence.before if same and plan.origin.part else job.plan_seq
    if changed > seen:
        raise _Refused("stale", f"made at seq {seen}, the job changed at {changed}")
    if evaluation.min_seq > seen and not (same and plan.origin.part):
        raise _Refused("stale", f"made at seq {seen}, the evaluation needs {evaluation.min_seq}")
    if plan.placements and job.stopped:
        raise _Refused("stale", "the job is stopped")


def _check_stops(state: State, plan: SubmitPlan) -> None:
    """Refuse a plan that stops or updates rows which are not what its worker saw."""
    allocations = state.allocations
    mine = allocations.rows_of(plan.job_id)
    named = [stop.rows for stop in plan.stops] + [update.rows for update in plan.updates]
    for part in named:
        rows = np.asarray(part, dtype=np.int64)
        if not np.isin(rows, mine).all():
            raise _Refused("unknown_row", "stops or updates a row that is not of this job")
        if len(np.unique(rows)) != len(rows):
            raise _Refused("invalid", "names a row twice")
    for stop in plan.stops:
        if not stop.client_status:
            continue
        gone = is_gone(state, np.asarray(stop.rows, dtype=np.int32))
        if stop.client_status != "lost" or not gone.all():
            raise _Refused("stale", "declares allocations lost on a node that is up")
    for update in plan.updates:
        if TERMINAL[allocations.client[np.asarray(update.rows, dtype=np.int64)]].any():
            raise _Refused("stale", "updates an allocation that ended")
        _check_group(state, plan, update.group, update.version)


def _check_placement(state: State, plan: SubmitPlan, placement: GroupPlacement) -> None:
    _check_group(state, plan, placement.group, placement.version)
    # Builtins on tuples: an array would cost more than the question.
    rows, counts = placement.rows, placement.counts
    if len(rows) != len(counts) or min(counts, default=1) < 1:
        raise _Refused("invalid", "rows and counts do not agree")
    if rows and not (min(rows) >= 0 and max(rows) < state.fleet.size):
        raise _Refused("unknown_row", f"no node has row {max(rows)}")
    total = sum(counts)
    if sum(placement.names[1::2]) != total or len(placement.names) % 2:
        raise _Refused("invalid", "names and counts do not agree")
    for column in (placement.previous, placement.reschedules):
        if column and len(column) != total:
            raise _Refused("invalid", "columns and counts do not agree")


def _check_group(state: State, plan: SubmitPlan, group: str, version: int) -> None:
    job = state.jobs.by_id.get(plan.job_id)
    if job is None or version != job.version or all(g.name != group for g in job.groups):
        raise _Refused("stale", f"group {group!r} of version {version} is not the job's")


def _victims(state: State, plan: SubmitPlan) -> Rows:
    try:
        return victims_of(state, plan)
    except ValueError as err:
        raise _Refused("invalid", str(err)) from err


def _fit(
    state: State, plan: SubmitPlan, victims: Rows
) -> tuple[tuple[GroupPlacement, ...], tuple[GroupPlacement, ...]]:
    """Split placements into what fits the latest state without the victims, and what does not."""
    if not plan.placements:
        return (), ()
    fleet, groups = state.fleet, state.allocations.groups
    size = fleet.size
    used = state.allocations.used(size)
    if len(victims):
        used = used.copy()
        asks = groups.ask[state.allocations.group[victims]]
        np.subtract.at(used, state.allocations.node[victims], asks)
    usable = fleet.ready() & (fleet.row_seq[:size] <= plan.origin.snapshot_seq)
    touched, asked = _asked(state, plan)
    over = used[touched] + asked > fleet.capacity[touched]
    if not over.any() and usable[touched].all():
        return plan.placements, ()
    room = np.where(usable[:, None], fleet.capacity[:size] - used, -1)
    kept, cut = [], []
    for placement in plan.placements:
        ask = groups.ask[groups.ref_of[plan.job_id, placement.version, placement.group]]
        inside, outside = _split(placement, ask, room)
        kept.append(inside)
        cut.append(outside)
    return tuple(p for p in kept if p.rows), tuple(p for p in cut if p.rows)


def _asked(state: State, plan: SubmitPlan) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Rows that a plan names and what it asks of each. Shapes: (R,) ascending, (R, 3)."""
    groups = state.allocations.groups
    rows, amounts = [], []
    for placement in plan.placements:
        ask = groups.ask[groups.ref_of[plan.job_id, placement.version, placement.group]]
        rows.append(np.asarray(placement.rows, dtype=np.intp))
        amounts.append(np.asarray(placement.counts, dtype=np.int64)[:, None] * ask)
    touched, where = np.unique(np.concatenate(rows), return_inverse=True)
    asked = np.zeros((len(touched), 3), dtype=np.int64)
    np.add.at(asked, where, np.concatenate(amounts))
    return touched, asked


def _split(
    placement: GroupPlacement, ask: NDArray[np.int64], room: NDArray[np.int64]
) -> tuple[GroupPlacement, GroupPlacement]:
    """Take runs in order as long as their node has room; `room` shrinks by what is taken."""
    fits: list[bool] = []
    for row, count in zip(placement.rows, placement.counts, strict=True):
        left = room[row]
        if (left < 0).any():
            taken = 0
        else:
            bounds = [int(have // need) for have, need in zip(left, ask, strict=True) if need]
            taken = min([count, *bounds])
        room[row] = left - taken * ask
        fits.extend([True] * taken + [False] * (count - taken))
    mask = np.asarray(fits, dtype=bool)
    return _subset(placement, mask), _subset(placement, ~mask)


def _subset(placement: GroupPlacement, mask: NDArray[np.bool_]) -> GroupPlacement:
    rows = np.repeat(np.asarray(placement.rows, dtype=np.int64), placement.counts)[mask]
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    names = expand_runs(placement.names)[mask]
    return GroupPlacement(
        group=placement.group,
        version=placement.version,
        rows=tuple(rows[starts].tolist()),
        counts=tuple(np.diff(starts, append=len(rows)).tolist()),
        names=pack_runs(names),
        previous=_pick(placement.previous, mask),
        reschedules=_pick(placement.reschedules, mask),
    )


def _pick(values: tuple[int, ...], mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.asarray(values)[mask].tolist()) if values else ()


def _ending(state: State, plan: SubmitPlan, *, was_cut: bool) -> list[Event]:
    """End the evaluation with its last part, unless something was cut."""
    if not plan.end or was_cut:
        return []
    job = state.jobs.by_id.get(plan.job_id)
    if job is not None and plan.origin.part:
        fence = job.fence
        same = (fence.key, fence.number) == (plan.key, plan.origin.number)
        if same and fence.worker == plan.origin.worker and fence.cut:
            return []
    events: list[Event] = []
    blocked = state.evaluations.blocked_of.get(plan.job_id)
    if blocked is not None:
        # A job has one blocked evaluation at most: this plan saw all that is missing.
        events.append(EvaluationEnded(key=blocked, status="canceled", reason="superseded"))
    follow_ups = plan.follow_ups
    if job is not None and is_behind(state, job, plan.origin.snapshot_seq):
        follow_ups = (*follow_ups, node_update(job))
    if follow_ups:
        events.append(EvaluationsCreated(evaluations=follow_ups))
    events.append(EvaluationEnded(key=plan.key, status=plan.end, reason=plan.end_reason))
    return events


def _bare(placement: GroupPlacement) -> GroupPlacement:
    return msgspec.structs.replace(placement, names=(), previous=(), reschedules=())


def _total(placements: tuple[GroupPlacement, ...]) -> int:
    return sum(sum(placement.counts) for placement in placements)
