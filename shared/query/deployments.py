"""Deployments as `query.deployment(s)`, `view.job` and status commands show them, and why one does not continue.

Computed from the state; loops over many allocations are vector operations.
"""

import msgspec
import numpy as np

from schemas.allocations import HEALTHS
from schemas.base import DeploymentKey, JobId
from schemas.node_answers import TaskShown
from schemas.projections import DeploymentGroupLine, DeploymentLine, DeploymentWait, GateLine
from shared.core.columns import Rows
from shared.core.decide.deployments.progress import can_promote_itself, promoted_with
from shared.core.scheduling.reservations.own_rooms import WAITS_FOR_OWN
from shared.core.state.gates import gate_text, window_text
from shared.core.state.ids import DEPLOYMENT_SALT, deployment_id, match_prefix, shown_ids
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.core.state.tables.deployments import Deployment, GroupProgress
from shared.core.state.tables.jobs import Job
from shared.query.blocked_shapes import BlockedShapes
from shared.query.job_wait import job_wait
from shared.query.task_causes import unhealthy_text

#: Allocations that are named in one wait.
NAMED_MAX = 10
#: Causes that are given in one wait.
CAUSES_MAX = 3
_TASKS = msgspec.json.Decoder(dict[str, TaskShown])
_UNHEALTHY = HEALTHS.index("unhealthy")
_RUNNING = "Deployment is running"
#: By status, where the log has no text.
_TEXTS = {
    "running": _RUNNING,
    "paused": "Deployment is paused",
    "successful": "Deployment completed successfully",
    "failed": "Deployment failed",
    "cancelled": "Deployment was cancelled",
}


def description(one: Deployment) -> str:
    """Say where a deployment stands, in Nomad's words."""
    if one.status != "running":
        return one.reason or _TEXTS[one.status]
    if one.holds:
        return f"Deployment is held: {_held_by(one)}"
    waiting = [group for group in one.groups if group.needs_promotion]
    if not waiting:
        return _RUNNING
    if all(group.auto_promote for group in waiting):
        return f"{_RUNNING} pending automatic promotion"
    return f"{_RUNNING} but requires manual promotion"


def _held_by(one: Deployment) -> str:
    return "; ".join(hold.reason for hold in one.holds)


def deployment_line(one: Deployment) -> DeploymentLine:
    """One deployment, with its groups."""
    return DeploymentLine(
        id=deployment_id(one.key),
        key=one.key,
        job=one.job_id,
        version=one.version,
        status=one.status,
        description=description(one),
        cause=one.cause,
        reverted_to=one.reverted_to,
        groups={group.name: _group_line(group) for group in one.groups},
        gates=_gate_lines(one),
        ignores_gates=one.ignores_gates,
        create_seq=one.create_seq,
        modify_seq=one.modify_seq,
    )


def _gate_lines(one: Deployment) -> tuple[GateLine, ...]:
    gates = [
        GateLine(
            name=gate.gate.name, status=gate.status, reason=gate_text(gate), since_ns=gate.since_ns
        )
        for gate in one.gates
    ]
    if (window := one.window) is not None:
        status = "open" if window.is_open else "closed"
        gates.append(GateLine(status=status, reason=window_text(window), since_ns=window.since_ns))
    return tuple(gates)


def _group_line(group: GroupProgress) -> DeploymentGroupLine:
    return DeploymentGroupLine(
        desired=group.desired_total,
        canaries=group.desired_canaries,
        placed=group.placed,
        placed_canaries=group.placed_canaries,
        healthy=group.healthy,
        unhealthy=group.unhealthy,
        promoted=group.promoted,
        max_parallel=group.max_parallel,
        auto_promote=group.auto_promote,
        auto_revert=group.auto_revert,
        progress_deadline_ns=group.progress_deadline_ns,
        require_by_ns=group.require_by_ns,
    )


def newest_deployment(state: State, job: Job) -> Deployment | None:
    """Return the deployment of a job's newest version; None: it has none."""
    found = state.deployments.latest_of(job.id)
    return found if found is not None and found.version == job.version else None


def matching_deployments(state: State, prefix: str) -> list[Deployment]:
    """List the deployments whose shown id starts with `prefix`. Raises ValueError: it is not hexadecimal."""
    table = state.deployments
    keys = np.fromiter(table.by_key, dtype=np.int64, count=len(table.by_key))
    found = keys[match_prefix(keys, prefix, DEPLOYMENT_SALT)].tolist()
    return [table.by_key[DeploymentKey(key)] for key in found]


def deployment_ids(found: list[Deployment]) -> list[str]:
    """Shown ids of deployments."""
    return shown_ids(np.array([one.key for one in found], dtype=np.int64), DEPLOYMENT_SALT)


def listed_deployments(state: State, job_id: str, status: str) -> list[Deployment]:
    """List deployments, newest first. `job_id`, `status`: of this job, with this status; empty: all."""
    table = state.deployments
    found = list(table.of_job(JobId(job_id)) if job_id else table.by_key.values())
    if status:
        found = [one for one in found if one.status == status]
    return sorted(found, key=lambda one: -one.key)


def deployment_rows(state: State, one: Deployment) -> Rows:
    """Rows of the allocations that count for a deployment. Shape: (A,)."""
    rows = state.allocations.rows_of(one.job_id)
    found: Rows = rows[state.allocations.deployment[rows] == one.key]
    return found


class _Standing(msgspec.Struct, frozen=True):
    """The allocations of a group that should run: names of those without health, and of unhealthy ones."""

    undecided: list[str]
    unhealthy: list[str]
    #: what those without health wait for, where a task or a check says it.
    causes: list[str]


def deployment_waits(
    state: State, one: Deployment, shapes: BlockedShapes | None = None
) -> tuple[DeploymentWait, ...]:
    """Say what each group of an active deployment waits for; empty: it ended, or is about to."""
    if not one.is_active:
        return ()
    rows = deployment_rows(state, one)
    found = (_wait(state, one, group, rows, shapes=shapes) for group in one.groups)
    return tuple(wait for wait in found if wait is not None)


def _wait(
    state: State,
    one: Deployment,
    group: GroupProgress,
    rows: Rows,
    *,
    shapes: BlockedShapes | None,
) -> DeploymentWait | None:
    is_done = group.healthy >= group.required_healthy
    if is_done and (not group.needs_promotion or group.auto_promote):
        barrier = _barrier_reason(state, one) if group.needs_promotion else ""
        return DeploymentWait(group=group.name, why="rollout", reason=barrier) if barrier else None
    names: list[str] = []
    if one.status == "paused":
        text = one.reason or "paused by an operator"
        return DeploymentWait(group=group.name, why="paused", reason=text, since_ns=one.paused_ns)
    if one.holds:
        first = min(hold.since_ns for hold in one.holds)
        return DeploymentWait(group=group.name, why="held", reason=_held_by(one), since_ns=first)
    if is_done:
        why, text = "promotion", f"{group.healthy} of {group.desired_canaries} canaries are healthy"
        text = f"{text}; it waits for its promotion"
    else:
        why, text, names = _unfinished(state, one, group, rows, shapes=shapes)
    is_timed = bool(group.require_by_ns and group.progress_deadline_ns)
    return DeploymentWait(
        group=group.name,
        why=why,
        reason=text,
        allocations=tuple(names[:NAMED_MAX]),
        since_ns=group.require_by_ns - group.progress_deadline_ns if is_timed else 0,
    )


def _barrier_reason(state: State, one: Deployment) -> str:
    """Say which members of its rollout a deployment waits for with its canaries; empty: for none."""
    waiting = [other for other in promoted_with(state, one) if other.needs_promotion]
    if one not in waiting or len(waiting) < 2 or not can_promote_itself(state, one):
        return ""
    others = [other.job_id for other in waiting if not can_promote_itself(state, other)]
    if not others:
        return ""
    jobs = ", ".join(repr(job) for job in others)
    return f"its canaries are healthy; those of {jobs} are promoted with them"


def _unfinished(
    state: State,
    one: Deployment,
    group: GroupProgress,
    rows: Rows,
    *,
    shapes: BlockedShapes | None,
) -> tuple[str, str, list[str]]:
    """Kind of wait, its reason, and the allocations that it waits for."""
    standing = _standing(state, group.name, rows)
    if standing.unhealthy:
        text = f"{_counted(standing.unhealthy)} unhealthy; nothing more is replaced until one takes its place"
        return "unhealthy", text, standing.unhealthy
    if standing.undecided:
        noun = "canaries" if group.needs_promotion else f"max_parallel {group.max_parallel}"
        return (
            "health",
            _with_causes(f"{_counted(standing.undecided)} not healthy yet ({noun})", standing),
            standing.undecided,
        )
    job = state.jobs.by_id.get(one.job_id)
    waiting = None if job is None else job_wait(state, job, shapes).groups.get(group.name)
    if waiting is not None:
        reason = "; ".join(waiting.reasons) or waiting.wait_class
        if waiting.wait_class == WAITS_FOR_OWN:
            return "predecessor", reason, []
        return "place", f"{waiting.n} without a place: {reason}", []
    return "schedule", "its next allocations are about to be placed", []


def _counted(names: list[str]) -> str:
    return f"{len(names)} allocation{' is' if len(names) == 1 else 's are'}"


def _with_causes(text: str, standing: _Standing) -> str:
    return "; ".join((text, *standing.causes[:CAUSES_MAX]))


def _standing(state: State, name: str, rows: Rows) -> _Standing:
    table = state.allocations
    standing = _Standing([], [], [])
    wanted = rows[(table.desired[rows] == RUN) & (table.health[rows] != HEALTHS.index("healthy"))]
    for row in wanted.tolist():
        ref = int(table.group[row])
        if table.groups.names[ref] != name:
            continue
        shown = f"{table.groups.job_ids[ref]}.{name}[{int(table.index[row])}]"
        if table.health[row] == _UNHEALTHY:
            standing.unhealthy.append(shown)
        elif not TERMINAL[table.client[row]]:
            standing.undecided.append(shown)
            if len(standing.causes) < CAUSES_MAX:
                cause = unhealthy_text(_TASKS.decode(table.details.get(row, b"{}")))
                standing.causes.extend([f"{shown}: {cause}"] if cause else [])
    return standing
