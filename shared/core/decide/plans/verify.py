"""Verify: a plan against the latest state. It commits whole, in part, or not at all; never more than there is room.

A plan with inconsistent columns is refused first (columns.py), and nothing of them is written. Three fences, in
this order: the worker's gapless number (an earlier plan still on its way: wait for the resend), the evaluation (ended,
or put back since the snapshot), and the job fence `plan_seq`. What passes them may still be cut node by node; then the
evaluation stays pending and the rest is planned on a newer snapshot.
"""

import msgspec
import numpy as np

from schemas.base import Event
from schemas.evaluations import EvaluationEnded, EvaluationsCreated
from schemas.jobs import FINITE_JOB_TYPES
from schemas.nodes import CapacityFreed
from schemas.plans import Evictions, GroupPlacement, PlanCommitted, PlanRefused, Stops, SubmitPlan
from shared.core.columns import Rows
from shared.core.decide.capacity_freed import freed_on_nodes
from shared.core.decide.deciders import Deciders
from shared.core.decide.host_volumes import leaving_fault
from shared.core.decide.plans.claims import claim_fault, claims_made
from shared.core.decide.plans.columns import MalformedPlanError, check_plan_columns
from shared.core.decide.plans.deployment_limits import (
    StaleDeploymentError,
    check_deployment,
    is_kept_version,
    sized_deployment,
)
from shared.core.decide.plans.evictions import (
    needed_victims,
    preemption_evaluations,
    spared_evictions,
    valid_victims,
)
from shared.core.decide.plans.fit import Fitted, fit
from shared.core.decide.plans.kept_rooms import has_newer_room, rooms_given_up
from shared.core.decide.refusals import refuse_command
from shared.core.decide.reservations import reserve
from shared.core.decide.system_jobs import has_newer_node, node_evaluation
from shared.core.resources.asks import UnsoundColumnsError, holdings_of
from shared.core.scheduling.preemption.search import evictions_of
from shared.core.scheduling.reconcile.lost_allocs import is_lost
from shared.core.scheduling.reconcile.stateful_allocs import second_instance
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, TERMINAL
from shared.core.state.tables.jobs import Job, PlanFence

_NO_ROWS: Rows = np.empty(0, dtype=np.int32)


class _Refused(Exception):
    """A plan must be refused whole."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def decide_plan(state: State, plan: SubmitPlan) -> list[Event]:
    """Decide one plan of `cmd.plan`; [] when its number is not next, because it was decided or must come again."""
    if not state.evaluations.is_next(plan.origin):
        return []
    try:
        check_plan_columns(state, plan)
    except MalformedPlanError as err:
        return refuse_command(state, plan, err.code, str(err))
    try:
        committed, job = _commit(state, plan)
        sized = sized_deployment(state, plan)
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
        # Its worker may have found others blocked by what it asked for and never got.
        return [refused, *_never_held(state, refused.placements)]
    ending = _ending(state, plan, job) if plan.end and not committed.cut else []
    claims = claims_made(state, committed) if committed.placements else []
    rooms = rooms_given_up(state, plan)
    if not (committed.cut or committed.evictions or len(rooms)):
        return [*sized, committed, *claims, *ending]
    evaluations = preemption_evaluations(state, committed.evictions)
    freed = _never_held(state, committed.cut, committed.evictions, rooms)
    return [*sized, committed, *claims, *evaluations, *freed, *ending]


def _never_held(
    state: State,
    placements: tuple[GroupPlacement, ...],
    evictions: tuple[Evictions, ...] = (),
    rooms: Rows = _NO_ROWS,
) -> list[CapacityFreed]:
    """Room that a worker took for gone, and what victims and kept `rooms` leave beyond what takes their place."""
    nodes = [row for one in placements for row in one.rows]
    nodes += state.allocations.node[rooms].tolist()
    nodes += [int(state.allocations.node[row]) for one in evictions for row in one.rows]
    return freed_on_nodes(state, nodes)


def _commit(state: State, plan: SubmitPlan) -> tuple[PlanCommitted, Job | None]:
    """Say what of a plan is done, and the job as it is."""
    job = _check_fences(state, plan)
    if plan.stops or plan.updates:
        _check_stops(state, plan, job)
    for placement in plan.placements:
        _check_placement(state, plan, placement, job)
    if fault := claim_fault(state, plan.job_id, plan.placements):
        raise _Refused("stale", fault)
    if fault := leaving_fault(state, plan.job_id, plan.placements):
        raise _Refused("stale", fault)
    if job is not None and state.allocations.groups.stateful:
        _check_instances(state, plan, job)
    try:
        check_deployment(state, plan)
    except StaleDeploymentError as err:
        raise _Refused(err.code, str(err)) from err
    fitted, victims = _fit(state, plan, _victims(state, plan), rooms_given_up(state, plan))
    if fitted.cut and plan.all_at_once:
        raise _Refused("capacity", f"{_total(fitted.cut)} allocations do not fit, and all must")
    committed = PlanCommitted(
        key=plan.key,
        job_id=plan.job_id,
        origin=plan.origin,
        placements=fitted.kept,
        stops=_stops_left(state, plan, fitted.cut) if fitted.cut else plan.stops,
        updates=plan.updates,
        evictions=evictions_of(state, victims.tolist()) if len(victims) else (),
        spared=spared_evictions(plan, victims),
        cut=fitted.cut,
        asked=fitted.asked,
        decision=plan.decision,
    )
    return committed, job


def _check_fences(state: State, plan: SubmitPlan) -> Job | None:
    """Return the current job; None: the job no longer exists, and the plan places nothing of it."""
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
            raise _Refused("stale", "job no longer exists")
        return None
    goes_on = plan.origin.part > 0 and _is_of(job.fence, plan)
    changed = job.fence.before if goes_on else job.plan_seq
    if changed > seen:
        raise _Refused("stale", f"made at seq {seen}, the job changed at {changed}")
    if evaluation.min_seq > seen and not goes_on:
        raise _Refused("stale", f"made at seq {seen}, the evaluation needs {evaluation.min_seq}")
    if plan.placements and job.runs_nothing:
        raise _Refused("stale", "the job is stopped, or runs nothing itself")
    return job


def _is_of(fence: PlanFence, plan: SubmitPlan) -> bool:
    """Tell whether the job was last changed by an earlier part of this plan."""
    named = (fence.key, fence.worker, fence.number)
    return named == (plan.key, plan.origin.worker, plan.origin.number)


def _check_stops(state: State, plan: SubmitPlan, job: Job | None) -> None:
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
        stopped = np.asarray(stop.rows, dtype=np.int32)
        lost = is_lost(state, stopped) & ~TERMINAL[allocations.client[stopped]]
        if stop.client_status != "lost" or not lost.all():
            raise _Refused("stale", "declares allocations lost that ended, or on a node that is up")
    may_be_complete = job is not None and job.job_type in FINITE_JOB_TYPES
    for update in plan.updates:
        client = allocations.client[np.asarray(update.rows, dtype=np.int64)]
        # What completed counts in the version of a job that was started again.
        if (TERMINAL[client] & ~(may_be_complete & (client == COMPLETE))).any():
            raise _Refused("stale", "updates an allocation that ended")
        _check_group(job, update.group, update.version)


def _stops_left(
    state: State, plan: SubmitPlan, cut: tuple[GroupPlacement, ...]
) -> tuple[Stops, ...]:
    """The stops of a plan, without those of allocations whose replacements were cut."""
    unreplaced = {key for one in cut for key in one.previous if key}
    key = state.allocations.key
    stops = [
        msgspec.structs.replace(
            stop, rows=tuple([row for row in stop.rows if int(key[row]) not in unreplaced])
        )
        if stop.tied
        else stop
        for stop in plan.stops
    ]
    return tuple([stop for stop in stops if stop.rows])


def _check_instances(state: State, plan: SubmitPlan, job: Job) -> None:
    """Refuse a second instance of an index of a stateful group. What is declared lost was checked as such."""
    lost = frozenset(row for stop in plan.stops if stop.client_status for row in stop.rows)
    second = second_instance(state, job, plan.placements, lost)
    if second is not None:
        group, index = second
        raise _Refused("stale", f"index {index} of group {group!r} may still run elsewhere")


def _check_canaries(state: State, placement: GroupPlacement) -> None:
    """Refuse canaries of a group that was promoted meanwhile."""
    deployment = state.deployments.by_key.get(placement.deployment)
    progress = None if deployment is None else deployment.group(placement.group)
    if progress is None or progress.promoted:
        raise _Refused("stale", f"group {placement.group!r} no longer needs canaries")


def _check_placement(
    state: State, plan: SubmitPlan, placement: GroupPlacement, job: Job | None
) -> None:
    if placement.canaries:
        _check_canaries(state, placement)
    groups = state.allocations.groups
    if not is_kept_version(state, job, placement.group, placement.version):
        _check_group(job, placement.group, placement.version)
    extras = groups.extras[groups.ref(plan.job_id, placement.version, placement.group)]
    try:
        if extras is not None:
            holdings_of(extras, placement)
        elif placement.ports or placement.instances or placement.variant:
            raise _Refused("invalid", "assigned resources the group did not request")
    except UnsoundColumnsError as err:
        raise _Refused("invalid", str(err)) from err


def _check_group(job: Job | None, group: str, version: int) -> None:
    if job is not None and version == job.version:
        for one in job.groups:
            if one.name == group:
                return
    raise _Refused("stale", f"group {group!r} of version {version} is not the job's")


def _fit(state: State, plan: SubmitPlan, victims: Rows, rooms: Rows) -> tuple[Fitted, Rows]:
    """Fit the placements, and say which of the victims really have to go for them. `rooms`: kept ones, given up."""
    if len(rooms):
        fitted = fit(state, plan, np.concatenate((victims, rooms)))
        if not fitted.cut:
            return fitted, needed_victims(state, plan, victims, fitted.kept)
        # What is cut keeps its room.
    if not len(victims):
        return fit(state, plan, victims), victims
    if plan.origin.parts == 1:
        # Another allocation may have ended meanwhile.
        fitted = fit(state, plan, victims[:0])
        if not fitted.cut:
            return fitted, victims[:0]
    fitted = fit(state, plan, victims)
    return fitted, needed_victims(state, plan, victims, fitted.kept)


def _victims(state: State, plan: SubmitPlan) -> Rows:
    if not plan.evictions:
        return _NO_ROWS
    try:
        return valid_victims(state, plan)
    except ValueError as err:
        raise _Refused("invalid", str(err)) from err


def _ending(state: State, plan: SubmitPlan, job: Job | None) -> list[Event]:
    """End the evaluation with its last part, unless something of an earlier one was cut."""
    if job is not None and plan.origin.part and job.fence.cut and _is_of(job.fence, plan):
        return []
    events: list[Event] = []
    blocked = state.evaluations.blocked_of.get(plan.job_id)
    if blocked is not None:
        # A job has one blocked evaluation at most: this plan saw all that is missing.
        events.append(EvaluationEnded(key=blocked, status="canceled", reason="superseded"))
    follow_ups = plan.follow_ups
    if has_newer_room(state, plan):
        # Its own predecessors ended since its snapshot: nothing wakes it for that any more.
        follow_ups = tuple([msgspec.structs.replace(one, blocked=None) for one in follow_ups])
    if job is not None and has_newer_node(state, job, plan.origin.snapshot_seq):
        follow_ups = (*follow_ups, node_evaluation(job))
    if follow_ups:
        events.append(EvaluationsCreated(evaluations=follow_ups))
    events.append(EvaluationEnded(key=plan.key, status=plan.end, reason=plan.end_reason))
    if plan.follow_ups or state.reservations.by_job:
        events += reserve(state, plan.job_id, follow_ups)
    return events


def _bare(placement: GroupPlacement) -> GroupPlacement:
    return msgspec.structs.replace(placement, names=(), previous=(), reschedules=())


def _total(placements: tuple[GroupPlacement, ...]) -> int:
    return sum(sum(placement.counts) for placement in placements)


DECIDERS: Deciders = {SubmitPlan: decide_plan}
