"""Place: from one evaluation to a proposed plan. The scheduler, as a pure function of named stages.

    reconcile            the job against its allocations: stops, updates, requests     reconcile/
    for each request
        limits_for       which nodes, and how many more each takes                     feasibility/
        place_group      alternative by alternative, the best nodes by score           selection/, scoring/, packing/
        make_room        evict allocations of lower priority                           preemption/
        explain, hold    why the rest waits, and nodes to reserve for it               explain/, reservations/
    Proposal             columns, follow-up evaluations, decision record               proposal.py

The stages share one PlanState (plan_state.py). The same snapshot, assignment, seed and lane always give the same
proposal; that makes a decision replayable. Workers, plan numbers and the bus belong to services/scheduler/role.py.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from schemas.base import EvalKey
from schemas.evaluations import Hold, NewEvaluation, Waiting
from schemas.jobs import SYSTEM_JOB_TYPES, GroupSpec
from schemas.plans import GroupPlacement
from shared.core.columns import Mask, Rows
from shared.core.scheduling.explain.placement_probe import GroupTurn, score_nodes
from shared.core.scheduling.explain.plan_view import explain_waiting
from shared.core.scheduling.feasibility.index_volumes import (
    NewClaim,
    apart_from_plan,
    claim_reasons,
    new_claims,
    split_by_index,
)
from shared.core.scheduling.feasibility.node_limits import (
    lacking,
    limits_by_avoidance,
    limits_for,
    open_nodes,
)
from shared.core.scheduling.model import Assignment, LaneDraw, PlacedPart, Proposal, Snapshot
from shared.core.scheduling.plan_state import PlanState
from shared.core.scheduling.preemption.make_room import make_room
from shared.core.scheduling.preemption.search import evictions_of
from shared.core.scheduling.proposal import (
    PLAN_CONTINUES,
    WaitingGroups,
    follow_up,
    group_placements,
)
from shared.core.scheduling.reconcile.paced_jobs import deployment_of, reconcile_paced
from shared.core.scheduling.reconcile.service_jobs import (
    PlacementRequest,
    ReconcileResult,
    reconcile,
)
from shared.core.scheduling.reconcile.stateful_allocs import has_stateful
from shared.core.scheduling.reconcile.stateful_groups import reconcile_stateful
from shared.core.scheduling.reconcile.system_jobs import reconcile_system
from shared.core.scheduling.reservations.hold import hold_for
from shared.core.scheduling.reservations.own_rooms import (
    own_wait,
    rooms_to_give_up,
    take_own_rooms,
    waits_for_own,
    with_own_rooms,
)
from shared.core.scheduling.scoring.scores import mean_score
from shared.core.scheduling.selection.alternatives import place_group
from shared.core.scheduling.selection.data_nodes import (
    has_data_nodes,
    place_on_data_nodes,
    waits_for_data,
)
from shared.core.scheduling.tied_stops import tied_stops
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job

#: Wait classes for which nodes may be reserved until there is room.
RESERVABLE_WAIT_CLASSES = frozenset({"capacity", "reservation", "priority"})


class _Unplaced(msgspec.Struct, frozen=True):
    """What is left of a request, and how many of these have what they replace stopped by the plan to make room."""

    count: int
    making_room: int
    #: placing ended for its budget.
    is_stopped: bool


def place(
    snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
) -> Proposal:
    """Decide one evaluation. Pure: reads only its arguments, writes none of them.

    `seed` matters only for policies that sample nodes and for ports; otherwise every node is considered.
    """
    state = snapshot.state
    job = state.jobs.by_id.get(assignment.job_id)
    wanted = _reconcile(snapshot, assignment, job)
    if job is None or not (wanted.requests or wanted.waits):
        return Proposal(stops=wanted.stops, updates=wanted.updates, sizes=wanted.sizes)
    return _decide(snapshot, job, assignment, wanted, draw=LaneDraw(seed, lane, lanes))[0]


def decide_group(
    snapshot: Snapshot, job: Job, group_name: str
) -> tuple[Proposal, GroupTurn | None]:
    """Decide a job, and return also what its plan was when a group had its turn; None: it requests none of the group.

    What a plan places of other groups before takes their room, and may be all or nothing.
    """
    assignment = Assignment(EvalKey(0), job.id)
    wanted = _reconcile(snapshot, assignment, job)
    names = [request.group.name for request in wanted.requests]
    if not (names or wanted.waits):
        return Proposal(stops=wanted.stops, updates=wanted.updates, sizes=wanted.sizes), None
    proposal, may_evict = _decide(snapshot, job, assignment, wanted, draw=LaneDraw())
    if group_name not in names:
        return proposal, None
    at = names.index(group_name)
    plan = _plan_state(snapshot, job, wanted, LaneDraw())
    before = msgspec.structs.replace(wanted, requests=wanted.requests[:at])
    _place_requests(plan, assignment, before, may_evict=may_evict)
    mine = tuple(one for one in wanted.requests[at:] if one.group.name == group_name)
    return proposal, GroupTurn(plan, mine)


def _decide(
    snapshot: Snapshot,
    job: Job,
    assignment: Assignment,
    wanted: ReconcileResult,
    *,
    draw: LaneDraw,
) -> tuple[Proposal, bool]:
    """Return the proposal, and whether it was allowed to evict."""
    may_evict = getattr(snapshot.state.policy.policy.preemption, job.job_type)
    plan = _plan_state(snapshot, job, wanted, draw)
    proposal = _place_requests(plan, assignment, wanted, may_evict=may_evict)
    if job.all_at_once and proposal.evictions and proposal.follow_ups:
        # A partial placement of an all-at-once job is useless, so it evicts nothing.
        plan = _plan_state(snapshot, job, wanted, draw)
        return _place_requests(plan, assignment, wanted, may_evict=False), False
    return proposal, may_evict


def _plan_state(snapshot: Snapshot, job: Job, wanted: ReconcileResult, draw: LaneDraw) -> PlanState:
    """Begin the plan of a job."""
    if snapshot.state.allocations.predecessors.rooms:
        snapshot = with_own_rooms(snapshot, job)
    stopping = [np.asarray(stop.rows, dtype=np.int32) for stop in wanted.stops]
    stopping += [request.tied for request in wanted.requests if len(request.tied)]
    return PlanState(snapshot, job, stopping, draw)


def _reconcile(snapshot: Snapshot, assignment: Assignment, job: Job | None) -> ReconcileResult:
    state, fleet = snapshot.state, snapshot.state.fleet
    rows = state.allocations.rows_of(assignment.job_id)

    def mask_of(group: GroupSpec) -> Mask:
        assert job is not None
        return snapshot.caches.mask(fleet, job, group)

    def score_of(group: GroupSpec, nodes: Sequence[int]) -> list[int]:
        assert job is not None
        scores = score_nodes(snapshot, job, group, nodes)
        return [mean_score(list(one.values())) for one in scores]

    wanted = _reconcile_job(state, job, rows, mask_of=mask_of, score_of=score_of)
    # Of the groups of the requests: what an older version runs may have volumes that the newest has no more.
    if job is not None and any(one.group.volumes for one in wanted.requests):
        requests = split_by_index(state, job.id, wanted.requests)
        return msgspec.structs.replace(wanted, requests=requests)
    return wanted


def _reconcile_job(
    state: State,
    job: Job | None,
    rows: Rows,
    *,
    mask_of: Callable[[GroupSpec], Mask],
    score_of: Callable[[GroupSpec, Sequence[int]], list[int]],
) -> ReconcileResult:
    deployment = deployment_of(state, job)
    if job is not None and job.job_type in SYSTEM_JOB_TYPES:
        return reconcile_system(state, job, rows, mask_of, deployment=deployment)
    if has_stateful(state, job, rows):
        return reconcile_stateful(
            state, job, rows, deployment=deployment, mask_of=mask_of, score_of=score_of
        )
    if job is not None and deployment is not None:
        return reconcile_paced(
            state, job, rows, deployment=deployment, mask_of=mask_of, score_of=score_of
        )
    return reconcile(state, job, rows, mask_of=mask_of, score_of=score_of)


def _place_requests(
    plan: PlanState, assignment: Assignment, wanted: ReconcileResult, *, may_evict: bool
) -> Proposal:
    """Run the stages on every request; with `may_evict`, also where lower priorities hold the room."""
    state, fleet, job = plan.state, plan.fleet, plan.job
    stops = wanted.stops
    placements: list[GroupPlacement] = []
    waiting = WaitingGroups(fleet)
    for group, why in wanted.waits:
        waiting.add_turn(group, why)
    claimed: list[NewClaim] = []
    continues = False
    for wish in wanted.requests:
        if plan.is_over_budget:
            continues = True
            break
        request = apart_from_plan(state, job.id, wish, claimed)
        mask = plan.caches.mask(fleet, request.job or job, request.group)
        parts = _place_request(plan, request, mask)
        if not has_data_nodes(request):
            parts = take_own_rooms(state, request, parts)
        stopped = _is_stopped(parts)
        placed = _count(parts)
        if may_evict and not stopped and placed < request.count:
            parts += _evict_for_rest(plan, request, mask, parts)
            placed = _count(parts)
        placements += group_placements(state, job, request, parts)
        if request.group.volumes:
            of_index = plan.of_index.setdefault(request.group.name, [])
            of_index += [part.placement for part in parts]
            nodes = [fleet.ids[row] for part in parts for row in part.placement.rows.tolist()]
            claimed += new_claims(request, nodes)
        making_room = 0
        if len(request.tied):
            tied = tied_stops(plan, request, mask, parts, may_make_room=not stopped)
            making_room = sum(len(one.rows) for one in tied if one.to_replace)
            stops += tied
        rest = request.count - placed
        if rest or stopped or request.per_node is not None:
            left = _Unplaced(rest, making_room, stopped)
            continues |= _leaves_rest(plan, request, mask, parts, left=left, waiting=waiting)
    if not continues and state.allocations.predecessors.rooms:
        ordered = [group.name for group, _ in wanted.waits]
        stops += rooms_to_give_up(state, job, placements, stops, keeping=ordered)
    return Proposal(
        placements=tuple(placements),
        stops=stops,
        updates=wanted.updates,
        sizes=wanted.sizes,
        evictions=evictions_of(state, plan.victims) if plan.victims else (),
        all_at_once=job.all_at_once,
        follow_ups=_follow_ups(plan, assignment, waiting, continues=continues),
        decision=waiting.decision_record() if waiting.by_group else msgspec.UNSET,
    )


def _leaves_rest(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    parts: Sequence[PlacedPart],
    *,
    left: _Unplaced,
    waiting: WaitingGroups,
) -> bool:
    """Return whether what was not placed of a request needs another plan; else it waits, as noted in `waiting`."""
    rest = left.count
    if request.per_node is not None:
        lacks = lacking(plan, request, parts)
        # A system job waits only for the nodes that have no room.
        rest, mask = int(lacks.sum()), lacks > 0
    if _needs_another_plan(plan, parts, rest) or (not left.count and rest > 0):
        return True
    if rest > 0:
        left = msgspec.structs.replace(left, count=rest)
        why, hold = _explain(plan, request, mask, left, placed=parts)
        waiting.add(request.group, why, hold, mask)
    return False


def _explain(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    left: _Unplaced,
    *,
    placed: Sequence[PlacedPart],
) -> tuple[Waiting, Hold | None]:
    """Say why the rest of a request waits, and propose nodes to reserve for it."""
    rest = left.count
    open_ = open_nodes(plan, request, plan.on_group_with(request, placed))
    own = mask if open_ is None else mask & open_
    count = waits_for_own(plan.state, request, own) + left.making_room
    if max(count, waits_for_data(plan, request, mask, placed)) >= rest:
        return own_wait(rest), None
    why = explain_waiting(plan, request, mask, rest, placed=placed)
    if request.group.volumes:
        reasons = claim_reasons(plan.state, plan.job.id, request)
        return msgspec.structs.replace(why, reasons=(*reasons, *why.reasons)), None
    if why.wait_class not in RESERVABLE_WAIT_CLASSES:
        return why, None
    return why, hold_for(plan, request, mask, rest, placed=placed)


def _follow_ups(
    plan: PlanState, assignment: Assignment, waiting: WaitingGroups, *, continues: bool
) -> tuple[NewEvaluation, ...]:
    """The evaluation that continues this one, or that waits for room."""
    if continues:
        return (follow_up(plan.job, assignment, PLAN_CONTINUES),)
    if waiting.by_group:
        blocked = waiting.blocked(plan.state, plan.job)
        return (follow_up(plan.job, assignment, "queued-allocs", blocked),)
    return ()


def _place_request(plan: PlanState, request: PlacementRequest, mask: Mask) -> list[PlacedPart]:
    """Place a request as far as there is room."""
    if has_data_nodes(request):
        parts, rest = place_on_data_nodes(plan, request, mask)
        if _is_stopped(parts):
            return parts
    elif request.avoid is None:
        return place_group(plan, request.group, request.count, limits_for(plan, request, mask))
    else:
        parts, rest = [], np.arange(request.count)
    for positions, limits in limits_by_avoidance(plan, request, mask, open_=rest, placed=parts):
        parts += place_group(plan, request.group, len(positions), limits, positions=positions)
        if _is_stopped(parts):
            break
    return parts


def _evict_for_rest(
    plan: PlanState, request: PlacementRequest, mask: Mask, parts: Sequence[PlacedPart]
) -> list[PlacedPart]:
    """Place by evictions what found no room, and does not wait for the end of what it replaces."""
    if _count(parts) + waits_for_data(plan, request, mask, parts) >= request.count:
        return []
    return make_room(plan, request, mask, parts)


def _count(parts: Sequence[PlacedPart]) -> int:
    if len(parts) == 1:
        return parts[0].placement.placed
    return sum(part.placement.placed for part in parts)


def _is_stopped(parts: Sequence[PlacedPart]) -> bool:
    """Tell whether placing stopped for its budget, not for want of room."""
    if len(parts) == 1:
        return parts[0].placement.stopped
    return any(part.placement.stopped for part in parts)


def _needs_another_plan(plan: PlanState, parts: Sequence[PlacedPart], rest: int) -> bool:
    """Tell whether the rest of a request continues in another plan: this one is over its budget."""
    return _is_stopped(parts) or (rest > 0 and bool(plan.victims) and plan.is_over_budget)
