"""Place: from one evaluation to a proposed plan. The scheduler, as a pure function.

    reconcile (what is wanted) → feasibility (which nodes may) → scores and the cut (which nodes do) → Proposal

It must not know workers, plan numbers or the bus: services/scheduler/role.py wraps what it returns. The same
snapshot, assignment, seed and lane always give the same proposal, which is what makes a decision replayable.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import EvalKey, JobId
from schemas.envelope import ENCODER
from schemas.evaluations import Blocked, Hold, NewEvaluation, Waiting
from schemas.jobs import GroupSpec
from schemas.plans import Evictions, GroupPlacement, InPlace, Stops
from shared.core.filters import FilterReport, Mask, MaskCache
from shared.core.looking import scores_of
from shared.core.preempt import evictions_of
from shared.core.reconcile import Reconciled, Want, reconcile
from shared.core.reconcile_system import TYPES, named, reconcile_system
from shared.core.resources.asks import columns_of
from shared.core.scores import mean_score
from shared.core.scratch import Draw, Placed, Scratch, Snapshot
from shared.core.state import State
from shared.core.tables.allocations import pack_runs
from shared.core.tables.fleet import FleetTable
from shared.core.tables.jobs import Job

__all__ = [
    "Assignment",
    "FilterReport",
    "MaskCache",
    "Proposal",
    "Snapshot",
    "place",
]

#: An evaluation that goes on where a plan of very many allocations stopped.
GOES_ON = "plan-goes-on"
#: Wait classes of which nodes may be held back until there is room.
HELPED_BY_HOLDING = frozenset({"capacity", "reservation", "priority"})


class Assignment(msgspec.Struct, frozen=True):
    """What is to be decided."""

    key: EvalKey
    job_id: JobId
    triggered_by: str = ""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A plan without worker and number."""

    placements: tuple[GroupPlacement, ...] = ()
    stops: tuple[Stops, ...] = ()
    updates: tuple[InPlace, ...] = ()
    evictions: tuple[Evictions, ...] = ()
    all_at_once: bool = False
    end: str = "complete"
    end_reason: str = ""
    follow_ups: tuple[NewEvaluation, ...] = ()
    decision: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def place(
    snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
) -> Proposal:
    """Decide one evaluation. Pure: reads only its arguments, writes none of them.

    `seed` decides only where the policy draws nodes; else every node is looked at.
    """
    state = snapshot.state
    job = state.jobs.by_id.get(assignment.job_id)
    fleet = state.fleet
    rows = state.allocations.rows_of(assignment.job_id)

    def mask_of(group: GroupSpec) -> Mask:
        assert job is not None
        return snapshot.masks.mask(fleet, job, group)

    def score_of(group: GroupSpec, nodes: Sequence[int]) -> list[int]:
        assert job is not None
        found = scores_of(snapshot, job, group, nodes)
        return [mean_score(list(one.values())) for one in found]

    if job is not None and job.job_type in TYPES:
        wanted = reconcile_system(state, job, rows, mask_of)
    else:
        wanted = reconcile(state, job, rows, mask_of=mask_of, score_of=score_of)
    if job is None or not wanted.wants:
        return Proposal(stops=wanted.stops, updates=wanted.updates)
    may_evict = getattr(state.policy.policy.preemption, job.job_type)
    draw = Draw(seed, lane, lanes)
    proposal = _fill(snapshot, job, assignment, wanted, draw=draw, may_evict=may_evict)
    if job.all_at_once and proposal.evictions and proposal.follow_ups:
        # Nobody goes for a part of what is only worth something whole.
        return _fill(snapshot, job, assignment, wanted, draw=draw, may_evict=False)
    return proposal


def _fill(
    snapshot: Snapshot,
    job: Job,
    assignment: Assignment,
    wanted: Reconciled,
    *,
    draw: Draw,
    may_evict: bool,
) -> Proposal:
    """Find room for everything that is wanted; with `may_evict`, also where others have it now."""
    state = snapshot.state
    fleet = state.fleet
    stopping = [np.asarray(stop.rows, dtype=np.int32) for stop in wanted.stops]
    scratch = Scratch(snapshot, job, stopping, draw)
    placements: list[GroupPlacement] = []
    waiting: dict[str, Waiting] = {}
    classes = np.zeros(len(fleet.classes), dtype=bool)
    holds: tuple[Hold, ...] = ()
    goes_on = False
    for want in wanted.wants:
        if scratch.is_tired:
            goes_on = True
            break
        mask = snapshot.masks.mask(fleet, job, want.group)
        done = scratch.place(want, mask)
        has_stopped = any(one.placement.stopped for one in done)
        if may_evict and not has_stopped:
            done += scratch.preempt(want, mask, done)
        placements += _columns_of(state, job, want, done)
        count = sum([one.placement.placed for one in done])
        rest = want.count - count
        if want.per_node is not None:
            left = scratch.lacking(want, done)
            # Other nodes than those that have no room are not waited for.
            rest, mask = int(left.sum()), left > 0
        elif not (rest or has_stopped):
            continue
        if scratch.has_more(done, rest) or count == want.count < count + rest:
            goes_on = True
        elif rest > 0:
            waiting[want.group.name] = why = scratch.explain(want, mask, rest, done)
            if why.wait_class in HELPED_BY_HOLDING:
                hold = scratch.hold(want, mask, rest, done)
                holds += (hold,) if hold is not None else ()
            classes[np.unique(fleet.class_of[: fleet.size][mask])] = True
    follow_ups: tuple[NewEvaluation, ...] = ()
    if goes_on:
        follow_ups = (_follow_up(job, assignment, GOES_ON),)
    elif waiting:
        follow_ups = _blocked(state, job, assignment, waiting=waiting, classes=classes, holds=holds)
    return Proposal(
        placements=tuple(placements),
        stops=wanted.stops,
        updates=wanted.updates,
        evictions=evictions_of(state, scratch.victims) if scratch.victims else (),
        all_at_once=job.all_at_once,
        follow_ups=follow_ups,
        decision=_record(fleet, waiting) if waiting else msgspec.UNSET,
    )


def _columns_of(state: State, job: Job, want: Want, done: Sequence[Placed]) -> list[GroupPlacement]:
    """Write what became of a want; where all nodes are meant, names come now that the nodes are known."""
    if want.per_node is None:
        return [_columns(job, want, one) for one in done]
    want = named(state, want, [one.placement for one in done])
    out, end = [], 0
    for one in done:
        begin, end = end, end + one.placement.placed
        out.append(_columns(job, want, msgspec.structs.replace(one, part=np.arange(begin, end))))
    return out


def _columns(job: Job, want: Want, placed: Placed) -> GroupPlacement:
    """Write a placement as columns."""
    which = slice(0, placed.placement.placed) if placed.part is None else placed.part
    names = want.names[which]
    ports, instances = columns_of(placed.holdings) if placed.holdings else ((), ())
    return GroupPlacement(
        group=want.group.name,
        version=job.version,
        rows=tuple(placed.placement.rows.tolist()),
        counts=tuple(placed.placement.counts.tolist()),
        names=pack_runs(names),
        previous=() if want.previous is None else _unless_zero(want.previous, which),
        reschedules=() if want.reschedules is None else _unless_zero(want.reschedules, which),
        variant=placed.variant,
        ports=ports,
        instances=instances,
    )


def _unless_zero(column: NDArray[np.int64], which: slice | NDArray[np.intp]) -> tuple[int, ...]:
    some = column[which]
    return tuple(some.tolist()) if some.any() else ()


def _follow_up(
    job: Job, assignment: Assignment, triggered_by: str, blocked: Blocked | None = None
) -> NewEvaluation:
    return NewEvaluation(
        job_id=job.id,
        priority=job.priority,
        job_type=job.job_type,
        triggered_by=triggered_by,
        blocked=blocked,
        previous=assignment.key,
    )


def _blocked(
    state: State,
    job: Job,
    assignment: Assignment,
    *,
    waiting: dict[str, Waiting],
    classes: Mask,
    holds: tuple[Hold, ...],
) -> tuple[NewEvaluation, ...]:
    escaped = any(
        "unique." in constraint.left + constraint.right
        for group in job.groups
        if group.name in waiting
        for constraint in group.constraints
    )
    fleet = state.fleet
    # Of a class without nodes nobody knows whether one that comes back will do.
    absent = np.ones(len(fleet.classes), dtype=bool)
    absent[fleet.class_of[: fleet.size][fleet.live[: fleet.size]]] = False
    blocked = Blocked(
        classes=tuple(np.flatnonzero(classes | absent).tolist()),
        # What a class cannot tell (a node's own name) may be met by any node that comes.
        seen_classes=0 if escaped else len(state.fleet.classes),
        snapshot_seq=state.seq,
        waiting=waiting,
        candidates=holds,
    )
    return (_follow_up(job, assignment, "queued-allocs", blocked),)


def _record(fleet: FleetTable, waiting: dict[str, Waiting]) -> msgspec.Raw:
    """The decision record: by default only what was refused; the rest is recomputed from the snapshot."""
    considered = int(fleet.live.sum())
    return msgspec.Raw(ENCODER.encode({"nodes_considered": considered, "waiting": waiting}))
