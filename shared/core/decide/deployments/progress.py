"""Progress of a deployment: how it begins, continues and ends by itself.

Decides from the state that already holds the fact which brought it about: a version that was registered, a plan that
was committed, health that was reported. What fails goes back to the newest stable version, as a new version. Must not
know commands (`requests.py`), nor which allocations are placed or stopped: that is the scheduler's.
Source of rules and texts: Nomad, deploymentwatcher/deployment_watcher.go and structs/deployment.go.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from schemas.allocations import AllocationsHealthChanged
from schemas.base import DeploymentKey, Event, JobId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentGroup,
    DeploymentHeld,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentStarted,
)
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import SYSTEM_JOB_TYPES, GroupSpec, JobRegistered, JobStopped, UpdatePolicy
from schemas.plans import PlanCommitted
from shared.core.columns import Rows
from shared.core.decide.evaluations import next_evaluation
from shared.core.decide.job_fields import registration_of
from shared.core.scheduling.reconcile.reschedule_delays import reschedule_delay_ns
from shared.core.state.ids import deployment_id
from shared.core.state.state import State
from shared.core.state.tables.allocations import HEALTHY, UNHEALTHY
from shared.core.state.tables.deployments import RUNNING, Deployment, GroupProgress, paced_groups
from shared.core.state.tables.jobs import Job, JobVersion
from shared.core.state.tables.rollouts import RolloutRecord

TRIGGER = "deployment-watcher"
#: While an evaluation may be at work on an older state, what follows waits so long and shares one more: at most ten
#: evaluations a second of a job, and a step of an update is not held up by more than a tenth of one.
SHARED_DELAY_NS = 100_000_000
_SUCCESSFUL = "Deployment completed successfully"
_NEWER = "Cancelled due to newer version of job"
_STOPPED = "Cancelled because job is stopped"
BY_UNHEALTHY = "Failed due to unhealthy allocations"
BY_DEADLINE = "Failed due to progress deadline"
BY_OPERATOR = "Deployment marked as failed"


class Failure(msgspec.Struct, frozen=True):
    """Why a deployment fails."""

    #: unhealthy, deadline or operator.
    cause: str
    reason: str
    #: the job goes back to a stable version if one of these groups wants it.
    groups: tuple[GroupProgress, ...]
    request_id: str = ""


# ---- beginning ----


def deploy_version(state: State, event: JobRegistered) -> list[Event]:
    """End the deployment of the version before; begin that of this one, unless its registration did."""
    if event.deploys and len(state.deployments.keys_of[event.job_id]) == 1:
        return []
    job = state.jobs.by_id.get(event.job_id)
    if job is None or job.version != event.version or job.modify_seq != state.seq:
        # The same text again.
        return []
    older = state.deployments.of_job(job.id)
    if event.deploys:
        older = older[:-1]
    elif older and older[-1].version == job.version:
        return []
    events: list[Event] = [
        _cancelled(one, _STOPPED if job.stopped else _NEWER) for one in older if one.is_active
    ]
    groups = () if event.deploys or job.runs_nothing else _deployed_groups(state, job)
    if groups:
        rollout = state.rollouts.active_of(job.id)
        member = None if rollout is None else rollout.member(job.id)
        is_member = member is not None and member.version == job.version
        started = DeploymentStarted(
            key=DeploymentKey(event.evaluation),
            job_id=job.id,
            version=job.version,
            cause="rollout" if is_member else "revert" if job.reverted_from >= 0 else "submit",
            groups=groups,
        )
        events.append(started)
        events += _held_by_rollout(state, rollout, started) if rollout and is_member else []
    return events


def _held_by_rollout(
    state: State, rollout: RolloutRecord, started: DeploymentStarted
) -> list[Event]:
    """Hold the deployment of a member that is not the next one of its rollout."""
    following = rollout.next_member
    if not rollout.is_in_order or following is None or following.job_id == started.job_id:
        return []
    names = [one.job_id for one in rollout.members if not one.done]
    before = names[names.index(started.job_id) - 1]
    reason = f"job {before!r} comes first in rollout {rollout.name!r}"
    held = DeploymentHeld(key=started.key, cause="rollout", reason=reason, since_ns=state.t_ns)
    return [held]


def deploys_plainly(job_type: str, groups: Iterable[GroupSpec]) -> bool:
    """Tell whether the deployment of a new version follows from its groups alone: no canaries, not on every node."""
    paced = () if job_type in SYSTEM_JOB_TYPES else paced_groups(groups)
    return bool(paced) and not any(update.canary for _, update in paced)


def _cancelled(deployment: Deployment, reason: str) -> DeploymentEnded:
    cause = "stopped" if reason == _STOPPED else "newer_version"
    return ended_deployment(deployment, "cancelled", cause, reason=reason)


def stop_deployment(state: State, event: JobStopped) -> list[Event]:
    """End the active deployment of a job that was stopped."""
    active = state.deployments.active_of(event.job_id)
    return [] if active is None else [_cancelled(active, _STOPPED)]


def _deployed_groups(state: State, job: Job) -> tuple[DeploymentGroup, ...]:
    """Groups with a pace; counts of system jobs are a guess until their first plan."""
    return tuple(
        [_deployed_group(state, job, group, update) for group, update in paced_groups(job.groups)]
    )


def _deployed_group(
    state: State, job: Job, group: GroupSpec, update: UpdatePolicy
) -> DeploymentGroup:
    total, canaries = group.count, 0
    older = _older_count(state, job, group) if update.canary else 0
    if job.job_type in SYSTEM_JOB_TYPES:
        total *= max(1, int(state.fleet.ready().sum()))
        canaries = min(-(-update.canary * older // 100), update.max_parallel)
    elif older:
        canaries = update.canary
    return DeploymentGroup(
        name=group.name,
        desired_total=total,
        desired_canaries=canaries,
        max_parallel=update.max_parallel,
        progress_deadline_ns=update.progress_deadline_ns,
        auto_revert=update.auto_revert,
        auto_promote=update.auto_promote,
    )


def _older_count(state: State, job: Job, group: GroupSpec) -> int:
    """Count wanted allocations of a group that its new version replaces; waiting canaries are stopped, not replaced."""
    table = state.allocations
    rows = table.rows_of(job.id)
    rows = rows[table.is_wanted(rows) & ~table.canary[rows]]
    refs, counts = np.unique(table.group[rows], return_counts=True)
    names, digests = table.groups.names, table.groups.digests
    return sum(
        count
        for ref, count in zip(refs.tolist(), counts.tolist(), strict=True)
        if names[ref] == group.name and digests[ref] != group.digest
    )


# ---- going on ----


def follow_plan(state: State, event: PlanCommitted) -> list[Event]:
    """End a deployment that has nothing left to do."""
    active = state.deployments.active_of(event.job_id)
    if active is None or not is_complete(state, active):
        return []
    return [_succeeded(state, active)]


def follow_health(state: State, event: AllocationsHealthChanged, now_ns: int) -> Iterator[Event]:
    """Fail, promote or end the deployments whose allocations changed; have their jobs looked at.

    Each is decided on the state that holds what came of the one before: a rollout may have ended it.
    """
    waiting: list[JobId] = []
    for key in dict.fromkeys(one.deployment for one in event.counts):
        deployment = state.deployments.by_key[key]
        if not deployment.is_active:
            continue
        failure = _failure(state, deployment, event, now_ns)
        if failure is not None:
            yield from fail_deployment(state, deployment, failure)
            continue
        if is_complete(state, deployment):
            yield _succeeded(state, deployment)
            continue
        promoted = promote_together(state, deployment, now_ns)
        waiting += [state.deployments.by_key[one.key].job_id for one in promoted]
        yield from promoted
        waiting.append(deployment.job_id)
    if state.fleet.drains:
        waiting += _moving_jobs(state, event)
    yield from evaluate_jobs(state, waiting)


def go_on(state: State, key: DeploymentKey, now_ns: int) -> list[Event]:
    """Promote what became ready while a deployment waited; have its job looked at."""
    deployment = state.deployments.by_key[key]
    if not deployment.is_moving:
        return []
    promoted = promote_together(state, deployment, now_ns)
    jobs = [state.deployments.by_key[one.key].job_id for one in promoted]
    return [*promoted, *evaluate_jobs(state, [deployment.job_id, *jobs])]


def _failure(
    state: State, deployment: Deployment, event: AllocationsHealthChanged, now_ns: int
) -> Failure | None:
    """Say why unhealthy allocations fail their deployment at once; None: they do not."""
    if deployment.status != RUNNING and event.source != "operator":
        return None
    if not any(one.unhealthy > 0 for one in event.counts if one.deployment == deployment.key):
        return None
    table = state.allocations
    rows = np.asarray(event.rows, dtype=np.int32)[np.asarray(event.healths) == UNHEALTHY]
    rows = rows[table.deployment[rows] == deployment.key]
    names = [table.groups.names[ref] for ref in table.group[rows].tolist()]
    guilty: dict[str, GroupProgress] = {}
    for row, name in zip(rows.tolist(), names, strict=True):
        group = deployment.group(name)
        if group is None or name in guilty:
            continue
        is_final = event.source == "operator" or not group.progress_deadline_ns
        if is_final or not _may_reschedule(state, deployment.job_id, row, now_ns):
            guilty[name] = group
    return Failure("unhealthy", BY_UNHEALTHY, tuple(guilty.values())) if guilty else None


def _may_reschedule(state: State, job_id: JobId, row: int, now_ns: int) -> bool:
    """Tell whether another attempt may take the place of an unhealthy allocation."""
    job, table = state.jobs.by_id.get(job_id), state.allocations
    if job is None or job_id in state.jobs.everywhere:
        return False
    if row in table.reschedule_at_ns:
        return True
    name = table.groups.names[int(table.group[row])]
    chain = table.chains.get(int(table.key[row]), ())
    for group in job.groups:
        if group.name == name:
            return reschedule_delay_ns(group.reschedule, chain, now_ns) is not None
    return False


def _moving_jobs(state: State, event: AllocationsHealthChanged) -> list[JobId]:
    """Jobs of these allocations that have others on drained nodes: the next may move."""
    table = state.allocations
    refs = np.unique(table.group[np.asarray(event.rows, dtype=np.int32)]).tolist()
    drained = np.array(sorted(state.fleet.drains), dtype=np.int32)
    moving = []
    for job_id in dict.fromkeys(table.groups.job_ids[ref] for ref in refs):
        rows = table.rows_of(job_id)
        rows = rows[table.is_wanted(rows)]
        if np.isin(table.node[rows], drained).any():
            moving.append(job_id)
    return moving


# ---- holds ----


def hold_deployment(
    deployment: Deployment, cause: str, reason: str, now_ns: int
) -> list[DeploymentHeld]:
    """Have a deployment wait for a cause; empty: it waits for it already, for the same reason."""
    hold = deployment.hold_of(cause)
    if hold is not None and hold.reason == reason:
        return []
    since_ns = now_ns if hold is None else hold.since_ns
    return [DeploymentHeld(key=deployment.key, cause=cause, reason=reason, since_ns=since_ns)]


def release_deployment(
    deployment: Deployment, cause: str, reason: str, now_ns: int, *, request_id: str = ""
) -> list[DeploymentReleased]:
    """Let a deployment continue as far as a cause is concerned; empty: that does not hold it."""
    if deployment.hold_of(cause) is None:
        return []
    released = DeploymentReleased(
        key=deployment.key,
        cause=cause,
        reason=reason,
        groups=tuple([group.name for group in deployment.groups]),
        require_by_ns=new_clocks(deployment.groups, now_ns),
        request_id=request_id,
    )
    return [released]


# ---- promotion ----


def canary_rows(state: State, deployment: Deployment, name: str) -> Rows:
    """Canaries of a group that were not promoted, in any status. Shape: (C,)."""
    table = state.allocations
    rows = table.rows_of(deployment.job_id)
    rows = rows[(table.deployment[rows] == deployment.key) & table.canary[rows]]
    names = table.groups.names
    kept = [row for row in rows.tolist() if names[int(table.group[row])] == name]
    return np.array(kept, dtype=np.int32)


def ready_canaries(state: State, deployment: Deployment, name: str) -> int:
    """Count the canaries of a group that are healthy and wanted."""
    table = state.allocations
    rows = canary_rows(state, deployment, name)
    return int((table.is_wanted(rows) & (table.health[rows] == HEALTHY)).sum())


def can_promote_itself(state: State, deployment: Deployment) -> bool:
    """Tell whether all groups with canaries want to be promoted as soon as they can, and can."""
    waiting = [group for group in deployment.groups if group.needs_promotion]
    if not waiting or not deployment.is_moving:
        return False
    counted = all(
        group.auto_promote
        and group.placed_canaries >= group.desired_canaries
        and group.healthy >= group.desired_canaries
        for group in waiting
    )
    return counted and all(
        ready_canaries(state, deployment, group.name) >= group.desired_canaries for group in waiting
    )


def promote_together(state: State, deployment: Deployment, now_ns: int) -> list[DeploymentPromoted]:
    """Promote a deployment that can promote itself; one of a rollout with all its members, once all of them can."""
    waiting = [one for one in promoted_with(state, deployment) if one.needs_promotion]
    if not all(can_promote_itself(state, one) for one in waiting):
        return []
    return [
        promotion(
            state,
            one,
            [group for group in one.groups if group.needs_promotion],
            now_ns,
            by="auto",
        )
        for one in waiting
    ]


def promoted_with(state: State, deployment: Deployment) -> list[Deployment]:
    """Active deployments whose canaries are promoted in the same transaction as those of this one."""
    rollout = state.rollouts.of_deployment(deployment.job_id, deployment.key)
    if rollout is None or rollout.is_in_order:
        return [deployment]
    return [state.deployments.by_key[one.deployment] for one in rollout.members if not one.done]


def promotion(
    state: State,
    deployment: Deployment,
    groups: Sequence[GroupProgress],
    now_ns: int,
    *,
    by: str,
    request_id: str = "",
) -> DeploymentPromoted:
    """Promote the canaries of groups; their clocks begin anew."""
    rows = [canary_rows(state, deployment, group.name) for group in groups]
    return DeploymentPromoted(
        key=deployment.key,
        groups=tuple([group.name for group in groups]),
        rows=tuple(np.sort(np.concatenate(rows)).tolist()) if rows else (),
        by=by,
        require_by_ns=new_clocks(groups, now_ns),
        request_id=request_id,
    )


def new_clocks(groups: Sequence[GroupProgress], now_ns: int) -> tuple[int, ...]:
    """Instants until which groups must make progress, counted from now; 0 where no clock runs."""
    return tuple(
        [
            now_ns + group.progress_deadline_ns
            if group.progress_deadline_ns and (group.require_by_ns or group.placed)
            else 0
            for group in groups
        ]
    )


# ---- ends ----


def is_complete(state: State, deployment: Deployment) -> bool:
    """Tell whether every group is promoted, whole and healthy, and nothing of another version is left."""
    return is_whole(state, deployment) and _is_alone(state, deployment)


def is_whole(state: State, deployment: Deployment) -> bool:
    """Tell whether every group is promoted, and has as many healthy allocations now as it needs."""
    if deployment.needs_promotion or deployment.lacking:
        return False
    table = state.allocations
    rows = table.rows_of(deployment.job_id)
    rows = rows[table.is_wanted(rows)]
    # What became healthy and died since is replaced: its replacement counts once it is healthy, too.
    mine = rows[(table.deployment[rows] == deployment.key) & (table.health[rows] == HEALTHY)]
    refs, counts = np.unique(table.group[mine], return_counts=True)
    names = table.groups.names
    now = {names[ref]: count for ref, count in zip(refs.tolist(), counts.tolist(), strict=True)}
    return all(now.get(group.name, 0) >= group.desired_total for group in deployment.groups)


def _is_alone(state: State, deployment: Deployment) -> bool:
    """Tell whether nothing of another version of its job is left that is wanted."""
    table = state.allocations
    rows = table.rows_of(deployment.job_id)
    versions = table.groups.versions
    refs = np.unique(table.group[rows[table.is_wanted(rows)]])
    return all(versions[ref] == deployment.version for ref in refs.tolist())


def fail_deployment(state: State, deployment: Deployment, failure: Failure) -> list[Event]:
    """Fail a deployment; its job goes back to a stable version, or is looked at."""
    rollout = state.rollouts.of_deployment(deployment.job_id, deployment.key)
    if rollout is not None:
        # Its rollout fails with it, and brings all members back.
        member = rollout.member(deployment.job_id)
        ended = ended_deployment(
            deployment,
            "failed",
            failure.cause,
            reason=f"{failure.reason} - rolling back rollout {rollout.name!r}",
            reverted_to=-1 if member is None else member.before,
            request_id=failure.request_id,
        )
        return [ended]
    job = state.jobs.by_id.get(deployment.job_id)
    reason, target = failure.reason, None
    if job is not None and any(group.auto_revert for group in failure.groups):
        target, more = _revert_target(state, job, deployment)
        reason = f"{reason} - {more}"
    ended = ended_deployment(
        deployment,
        "failed",
        failure.cause,
        reason=reason,
        reverted_to=-1 if target is None else target.version,
        request_id=failure.request_id,
    )
    if job is None or target is None:
        return [ended, *evaluate_jobs(state, [deployment.job_id])]
    return [ended, *register_version(state, job, target, f"revert:{deployment_id(deployment.key)}")]


def _revert_target(state: State, job: Job, deployment: Deployment) -> tuple[JobVersion | None, str]:
    """Say which version a job goes back to, if any, and that in words."""
    stable = state.jobs.stable_version(job.id)
    is_loop = (
        stable is not None
        and deployment.cause == "revert"
        and (stable.version == job.reverted_from)
    )
    if stable is None or is_loop:
        return None, "no stable job version to auto revert to"
    now = state.jobs.version(job.id, job.version)
    if stable.job is None or (now is not None and stable.spec == now.spec):
        text = f"not rolling back to stable job version {stable.version}"
        return None, f"{text} as current job has same specification"
    return stable, f"rolling back to job version {stable.version}"


def register_version(
    state: State, job: Job, target: JobVersion, submission_id: str, *, stopped: bool = False
) -> list[Event]:
    """Register the text of an older version as the next one."""
    old = target.job
    assert old is not None
    registered = registration_of(
        replace(old, stopped=stopped),
        job.id,
        job.version + 1,
        msgspec.Raw(target.spec),
        submission_id=submission_id,
        digest=old.spec_digest,
        evaluation=next_evaluation(state),
        reverted_from=job.version,
        # A way back is not held: gates and windows do not matter.
        deploys=not (stopped or old.is_pattern) and deploys_plainly(old.job_type, old.groups),
    )
    new = NewEvaluation(
        job_id=job.id, priority=old.priority, job_type=old.job_type, triggered_by=TRIGGER
    )
    return [registered, EvaluationsCreated(evaluations=(new,))]


def _succeeded(state: State, deployment: Deployment) -> DeploymentEnded:
    """End a deployment well; of a rollout, the version is stable once all members are."""
    rollout = state.rollouts.of_deployment(deployment.job_id, deployment.key)
    ended = ended_deployment(deployment, "successful", "healthy", reason=_SUCCESSFUL)
    return ended if rollout is None else replace(ended, rollout=rollout.key)


def ended_deployment(
    deployment: Deployment,
    status: str,
    cause: str,
    *,
    reason: str,
    reverted_to: int = -1,
    request_id: str = "",
) -> DeploymentEnded:
    """Return the end of a deployment."""
    return DeploymentEnded(
        key=deployment.key,
        job_id=deployment.job_id,
        version=deployment.version,
        status=status,
        cause=cause,
        reason=reason,
        reverted_to=reverted_to,
        request_id=request_id,
    )


# ---- evaluations ----


def evaluate_jobs(state: State, job_ids: Iterable[JobId]) -> list[Event]:
    """Have jobs looked at again: at once, or with one more a little later where an evaluation may be at work."""
    new = []
    for job_id in sorted(set(job_ids)):
        job = state.jobs.by_id.get(job_id)
        if job is None or job.runs_nothing:
            continue
        wait_ns = _wait_ns(state, job_id)
        if wait_ns is None:
            continue
        one = NewEvaluation(
            job_id=job_id,
            priority=job.priority,
            job_type=job.job_type,
            triggered_by=TRIGGER,
            wait_until_ns=wait_ns,
        )
        new.append(one)
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []


def _wait_ns(state: State, job_id: JobId) -> int | None:
    """Log time that an evaluation of a job waits for; 0: it does not; None: one that comes sees all that is now."""
    wait_ns = 0
    for key in state.evaluations.open_of.get(job_id, ()):
        one = state.evaluations.by_key[key]
        if one.triggered_by != TRIGGER or one.status != "pending":
            continue
        if one.min_seq == state.seq or one.wait_until_ns > state.t_ns:
            return None
        wait_ns = state.t_ns + SHARED_DELAY_NS
    return wait_ns
