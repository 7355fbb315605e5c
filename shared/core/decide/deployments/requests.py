"""Deployments: commands of operators and the clock.

Decides the fact, or the refusal in Nomad's words; what follows from it is decided in `progress.py` once it
is applied. A command that already holds changes nothing.
"""

from collections.abc import Iterable
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsHealthChanged, HealthCount
from schemas.base import DeploymentKey, Event
from schemas.deployments import (
    DeploymentDue,
    DeploymentPaused,
    DeploymentReleased,
    DeploymentResumed,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
    SetAllocationHealth,
)
from schemas.gates import GateDue
from shared.core.columns import Rows
from shared.core.decide.deciders import TimedDeciders
from shared.core.decide.deployments.gates import decide_gates
from shared.core.decide.deployments.progress import (
    BY_DEADLINE,
    BY_OPERATOR,
    Failure,
    evaluate_jobs,
    fail_deployment,
    is_whole,
    new_clocks,
    promotion,
    ready_canaries,
)
from shared.core.decide.operator import refuse
from shared.core.state.ids import deployment_id, rollout_id
from shared.core.state.state import State
from shared.core.state.tables.allocations import HEALTHY, UNHEALTHY
from shared.core.state.tables.deployments import PAUSED, Deployment

OperatorDeploymentCommand = (
    PromoteDeployment | FailDeployment | PauseDeployment | SetAllocationHealth
)
DeploymentCommand = OperatorDeploymentCommand | DeploymentDue | GateDue
#: Allocations whose health one command may set.
ALLOCS_MAX = 10_000
_PAUSED = "Deployment is paused"


def decide_deployment(state: State, command: DeploymentCommand, now_ns: int) -> list[Event]:
    """Decide one command about a deployment."""
    # What becomes of the log's own time is in the facts.
    now_ns = max(now_ns, state.t_ns)
    if isinstance(command, DeploymentDue):
        return decide_deployment_due(state, command)
    if isinstance(command, GateDue):
        return decide_gates(state, command, now_ns)
    deployment = state.deployments.by_key.get(command.deployment_key)
    if deployment is None:
        return refuse(command.request_id, "not_found", "there is no such deployment")
    if not deployment.is_active:
        reason = f"deployment {deployment_id(deployment.key)!r} has terminal status"
        reason = f"{reason} {deployment.status!r}: {deployment.reason}"
        return refuse(command.request_id, "conflict", reason)
    match command:
        case PromoteDeployment():
            return decide_promotion(state, deployment, command, now_ns)
        case PauseDeployment():
            return decide_pause(deployment, command, now_ns)
        case FailDeployment():
            return decide_failure(state, deployment, command)
        case SetAllocationHealth():
            return decide_health(state, deployment, command, now_ns)


def decide_deployment_due(state: State, command: DeploymentDue) -> list[Event]:
    """Fail a deployment whose clock has run out, if it is still the clock that the sender saw."""
    deployment = state.deployments.by_key.get(command.key)
    due_ns = 0 if deployment is None else deployment.due_ns
    if deployment is None or not due_ns or due_ns != command.due_ns or state.t_ns < due_ns:
        return []
    if is_whole(state, deployment):
        # Old allocations are left that nothing has stopped yet, as while no scheduler worked: no reason to go back.
        return []
    late = deployment.lacking or deployment.groups
    return fail_deployment(state, deployment, Failure("deadline", BY_DEADLINE, late))


def decide_promotion(
    state: State, deployment: Deployment, command: PromoteDeployment, now_ns: int
) -> list[Event]:
    """Promote the canaries of groups, all of which must be healthy."""
    if deployment.is_held:
        reason = "; ".join(hold.reason for hold in deployment.holds)
        return refuse(command.request_id, "conflict", f"deployment is held: {reason}"[:600])
    known = {group.name: group for group in deployment.groups}
    if unknown := [name for name in command.groups if name not in known]:
        return refuse(command.request_id, "not_found", f"deployment has no group {unknown[0]!r}")
    chosen = [one for name, one in known.items() if not command.groups or name in command.groups]
    if not any(group.desired_canaries for group in chosen):
        return refuse(command.request_id, "invalid", "no canaries to promote")
    waiting = [group for group in chosen if group.needs_promotion]
    rollout = state.rollouts.of_deployment(deployment.job_id, deployment.key)
    if waiting and rollout is not None and not rollout.is_in_order:
        reason = f"its canaries are promoted with those of rollout {rollout.name!r}"
        reason = f"{reason}: caravan rollout promote {rollout_id(rollout.key)}"
        return refuse(command.request_id, "conflict", reason)
    short = []
    for group in waiting:
        ready = ready_canaries(state, deployment, group.name)
        if ready < group.desired_canaries:
            counts = f"{ready}/{group.desired_canaries}"
            short.append(f"Task group {group.name!r} has {counts} healthy allocations")
    if short:
        return refuse(command.request_id, "conflict", "; ".join(short)[:600])
    if not waiting:
        return []
    promoted = promotion(
        state, deployment, waiting, now_ns, by="operator", request_id=command.request_id
    )
    return [promoted, *evaluate_jobs(state, [deployment.job_id])]


def decide_pause(deployment: Deployment, command: PauseDeployment, now_ns: int) -> list[Event]:
    """Pause a deployment, or resume it with new clocks."""
    if command.ignore_gate and not command.pause:
        return _ignore_gates(deployment, command, now_ns)
    if command.pause == (deployment.status == PAUSED):
        return []
    if command.pause:
        paused = DeploymentPaused(
            key=deployment.key, reason=_PAUSED, request_id=command.request_id, since_ns=now_ns
        )
        return [paused]
    resumed = DeploymentResumed(
        key=deployment.key,
        groups=tuple([group.name for group in deployment.groups]),
        require_by_ns=new_clocks(deployment.groups, now_ns),
        request_id=command.request_id,
    )
    return [resumed]


def _ignore_gates(deployment: Deployment, command: PauseDeployment, now_ns: int) -> list[Event]:
    """Let a deployment continue regardless of its gates and windows, and end its pause."""
    if not deployment.gates and deployment.window is None:
        return refuse(command.request_id, "invalid", "the deployment has no gates and no windows")
    events: list[Event] = []
    groups = tuple([group.name for group in deployment.groups])
    clocks = new_clocks(deployment.groups, now_ns)
    if not deployment.ignores_gates:
        released = DeploymentReleased(
            key=deployment.key,
            cause="gate",
            reason="an operator ignores its gates",
            groups=groups,
            require_by_ns=clocks,
            for_good=True,
            request_id=command.request_id,
        )
        events.append(released)
    if deployment.status == PAUSED:
        resumed = DeploymentResumed(
            key=deployment.key, groups=groups, require_by_ns=clocks, request_id=command.request_id
        )
        events.append(resumed)
    return events


def decide_failure(state: State, deployment: Deployment, command: FailDeployment) -> list[Event]:
    """Declare a deployment failed."""
    failure = Failure("operator", BY_OPERATOR, deployment.groups, command.request_id)
    return fail_deployment(state, deployment, failure)


def decide_health(
    state: State, deployment: Deployment, command: SetAllocationHealth, now_ns: int
) -> list[Event]:
    """Set the health of allocations of a deployment, overriding earlier reports."""
    said = {
        **dict.fromkeys(command.healthy, HEALTHY),
        **dict.fromkeys(command.unhealthy, UNHEALTHY),
    }
    if len(said) != len(command.healthy) + len(command.unhealthy):
        return refuse(command.request_id, "invalid", "duplicate allocation id")
    if not 0 < len(said) <= ALLOCS_MAX:
        reason = f"{len(said)} allocations, must be 1 to {ALLOCS_MAX}"
        return refuse(command.request_id, "invalid", reason)
    table = state.allocations
    mine = table.rows_of(deployment.job_id)
    mine = mine[table.deployment[mine] == deployment.key]
    row_of = {int(table.key[row]): row for row in mine.tolist()}
    if any(key not in row_of for key in said):
        reason = "an allocation does not belong to this deployment"
        return refuse(command.request_id, "not_found", reason)
    changed = {row_of[key]: code for key, code in said.items()}
    changed = {row: code for row, code in changed.items() if table.health[row] != code}
    if not changed:
        return []
    rows = np.array(sorted(changed), dtype=np.int32)
    codes = np.array([changed[row] for row in rows.tolist()], dtype=np.int8)
    return [health_changed(state, rows, codes, now_ns, source="operator")]


def health_changed(
    state: State,
    rows: Rows,
    codes: NDArray[np.int8],
    now_ns: int,
    *,
    reasons: Iterable[str] = (),
    source: str = "agent",
) -> AllocationsHealthChanged:
    """Say that the health of allocations changed, and what that adds to their deployments. Shapes: rows, codes (A,)."""
    return AllocationsHealthChanged(
        rows=tuple(rows.tolist()),
        healths=tuple(codes.tolist()),
        reasons=tuple(reasons),
        source=source,
        counts=_counts(state, rows, codes, now_ns),
    )


def _counts(
    state: State, rows: Rows, codes: NDArray[np.int8], now_ns: int
) -> tuple[HealthCount, ...]:
    """What health changes add to the groups of active deployments."""
    table, deployments = state.allocations, state.deployments
    if not deployments.active:
        return ()
    pairs = np.stack((table.deployment[rows], table.group[rows].astype(np.int64)), axis=1)
    kinds, at = np.unique(pairs, axis=0, return_inverse=True)
    at = at.reshape(-1)
    size, before = len(kinds), table.health[rows]
    grows = [
        np.bincount(at[codes == code], minlength=size)
        - np.bincount(at[before == code], minlength=size)
        for code in (HEALTHY, UNHEALTHY)
    ]
    found = []
    for nth, (key, ref) in enumerate(kinds.tolist()):
        deployment = deployments.by_key.get(DeploymentKey(key))
        group = None if deployment is None else deployment.group(table.groups.names[ref])
        if deployment is None or group is None or not deployment.is_active:
            continue
        healthy, unhealthy = int(grows[0][nth]), int(grows[1][nth])
        clock_ns = 0
        if healthy > 0 and group.progress_deadline_ns and deployment.is_moving:
            clock_ns = max(group.require_by_ns, now_ns + group.progress_deadline_ns)
        one = HealthCount(
            deployment=deployment.key,
            group=group.name,
            healthy=healthy,
            unhealthy=unhealthy,
            require_by_ns=clock_ns,
        )
        found.append(one)
    return tuple(found)


TIMED_DECIDERS: TimedDeciders = dict.fromkeys(get_args(DeploymentCommand), decide_deployment)
