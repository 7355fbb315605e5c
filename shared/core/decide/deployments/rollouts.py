"""Rollouts of several jobs: how one starts, continues and ends.

Decides from the state that already holds the fact which brought it about: a member's deployment that ended, a member
that was registered or stopped alone, a rollout that ended. How a single deployment continues is decided in
`progress.py`, which asks the table of rollouts where a member differs.
"""

from collections.abc import Iterator, Sequence
from typing import get_args

from msgspec.structs import replace

from schemas.base import DeploymentKey, EvalKey, Event, JobId, RolloutKey
from schemas.deployments import DeploymentEnded
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import JobRegistered, JobStopped
from schemas.rollouts import (
    MEMBERS_MAX,
    ROLLOUT_ORDERS,
    FailRollout,
    PromoteRollout,
    RegisterJobs,
    RolloutEnded,
    RolloutMember,
    RolloutStarted,
)
from shared.core.decide.deciders import TimedDeciders
from shared.core.decide.deployments.progress import (
    TRIGGER,
    ended_deployment,
    evaluate_jobs,
    promote_together,
    promotion,
    ready_canaries,
    register_version,
    release_deployment,
)
from shared.core.decide.deployments.rollout_members import member_fault
from shared.core.decide.evaluations import next_evaluation
from shared.core.decide.operator import refuse
from shared.core.decide.submission_fault import SPEC_BYTES_MAX, SubmissionFault
from shared.core.state.ids import rollout_id
from shared.core.state.state import State
from shared.core.state.tables.deployments import Deployment, paced_groups
from shared.core.state.tables.rollouts import MemberProgress, RolloutRecord

RolloutCommand = FailRollout | PromoteRollout
_SUCCESSFUL = "Rollout completed successfully"
_BY_OPERATOR = "Rollout marked as failed"


# ---- beginning ----


def start_rollout(
    state: State, command: RegisterJobs, registered: Sequence[JobRegistered]
) -> list[Event]:
    """Register the jobs of a rollout, each as it would be alone. Raises SubmissionFault: none of them is."""
    _check_command(command)
    for one in registered:
        _check_member(state, one)
    keys = state.policy.incarnations
    ordinal = state.evaluations.next_ordinal(state.seq)
    members: list[RolloutMember] = []
    changed: list[JobRegistered] = []
    for one in registered:
        old = state.jobs.by_id.get(one.job_id)
        member = RolloutMember(
            job_id=one.job_id, version=one.version, before=-1 if old is None else old.version
        )
        if member.version != member.before:
            evaluation = EvalKey(keys.key(state.seq, ordinal + len(changed)))
            changed.append(replace(one, evaluation=evaluation))
            if paced_groups(one.groups):
                member = replace(member, deployment=DeploymentKey(evaluation))
        members.append(member)
    _check_return(state, members)
    started = RolloutStarted(
        key=RolloutKey(keys.key(state.seq, state.rollouts.next_ordinal(state.seq))),
        submission_id=command.submission_id,
        digest=command.digest,
        name=command.rollout,
        order=command.order,
        members=tuple(members),
        warnings=tuple(
            [f"job {one.job_id!r}: {text}" for one in registered for text in one.warnings]
        ),
    )
    if any(one.deployment for one in members):
        return [started, *_registrations(changed)]
    # Nothing has to become healthy.
    ended = RolloutEnded(key=started.key, status="successful", cause="healthy", reason=_SUCCESSFUL)
    return [started, *_registrations(changed), ended]


def _registrations(changed: Sequence[JobRegistered]) -> list[Event]:
    """Registrations without a verdict of their own, and their evaluations."""
    events: list[Event] = [
        # The deployment of a member may be held from its start: it has a fact of its own.
        replace(one, submission_id="", digest="", warnings=(), deploys=False)
        for one in changed
    ]
    new = [
        NewEvaluation(job_id=one.job_id, priority=one.priority, job_type=one.job_type)
        for one in changed
    ]
    return [*events, EvaluationsCreated(evaluations=tuple(new))] if new else events


def _check_command(command: RegisterJobs) -> None:
    """Raise SubmissionFault for a rollout that none can be."""
    if not 1 <= len(command.jobs) <= MEMBERS_MAX:
        text = f"{len(command.jobs)} jobs, a rollout has 1 to {MEMBERS_MAX}"
        raise SubmissionFault("invalid", text)
    if command.order not in ROLLOUT_ORDERS:
        raise SubmissionFault("invalid", f"order must be one of {', '.join(ROLLOUT_ORDERS)}")
    ids = [one.job_id for one in command.jobs]
    if twice := [one for one in ids if ids.count(one) > 1]:
        raise SubmissionFault("invalid", f"job {twice[0]!r} is listed twice in the rollout")


def _check_member(state: State, one: JobRegistered) -> None:
    """Raise SubmissionFault for a job that cannot be of a rollout, or is of another one."""
    if reason := member_fault(one):
        raise SubmissionFault("invalid", reason)
    other = state.rollouts.active_of(one.job_id)
    if other is not None:
        text = f"job {one.job_id!r} is in the rollout {other.name!r} ({rollout_id(other.key)})"
        raise SubmissionFault("conflict", f"{text}, which has not ended")


def _check_return(state: State, members: Sequence[RolloutMember]) -> None:
    """Raise SubmissionFault where the texts to go back to are too long for one transaction."""
    size = sum(
        len(state.jobs.spec(one.job_id, one.before) or b"")
        for one in members
        if one.version != one.before
    )
    if size > SPEC_BYTES_MAX:
        text = f"the versions to go back to have {size} bytes together, at most {SPEC_BYTES_MAX}"
        raise SubmissionFault("too_large", text)


# ---- going on ----


def follow_deployment_end(state: State, event: DeploymentEnded, now_ns: int) -> list[Event]:
    """End the rollout of a member that failed or was the last one, or have the next member begin."""
    rollout = state.rollouts.of_deployment(event.job_id, event.key)
    if rollout is None or event.status == "cancelled":
        # What cancels a member's deployment cancels its rollout.
        return []
    if event.status == "failed":
        reason = f"job {event.job_id!r}: {event.reason.partition(' - ')[0]}"
        return [_ended(rollout, "failed", event.cause, reason)]
    following = rollout.next_member
    if following is None:
        return [_ended(rollout, "successful", "healthy", _SUCCESSFUL)]
    if not rollout.is_in_order:
        return []
    active = _active_deployment(state, following)
    reason = "the jobs before it are done"
    return [] if active is None else [*release_deployment(active, "rollout", reason, now_ns)]


def cancel_rollout(state: State, job_id: JobId) -> list[Event]:
    """End the rollout of a job that was registered or stopped alone."""
    rollout, job = state.rollouts.active_of(job_id), state.jobs.by_id.get(job_id)
    member = None if rollout is None else rollout.member(job_id)
    if rollout is None or member is None or job is None:
        return []
    if job.stopped:
        reason = f"Cancelled because job {job_id!r} was stopped"
        return [_ended(rollout, "cancelled", "stopped", reason)]
    if job.version == member.version:
        # By the rollout itself, or the same text again.
        return []
    reason = f"Cancelled because job {job_id!r} has a newer version"
    return [_ended(rollout, "cancelled", "newer_version", reason)]


# ---- ends ----


def follow_rollout_end(state: State, event: RolloutEnded, now_ns: int) -> Iterator[Event]:
    """Bring every member of a failed rollout back; let those of a cancelled one continue singly."""
    rollout = state.rollouts.by_key[event.key]
    if event.status == "failed":
        for nth in reversed(range(len(rollout.members))):
            yield from _back(state, rollout, nth)
    elif event.status == "cancelled":
        for member in rollout.members:
            yield from _alone(state, member, now_ns)


def _back(state: State, rollout: RolloutRecord, nth: int) -> Iterator[Event]:
    """End a member's deployment, and register the version before it; a job that was new is stopped."""
    member = rollout.members[nth]
    job = state.jobs.by_id.get(member.job_id)
    if job is None or job.version != member.version or not member.is_changed:
        return
    active = _active_deployment(state, member)
    if active is not None:
        reason = f"Failed because rollout {rollout.name!r} failed"
        yield ended_deployment(
            active, "failed", "rollout", reason=reason, reverted_to=member.before
        )
    submission_id = f"rollback:{rollout_id(rollout.key)}:{nth}"
    target = state.jobs.version(job.id, member.before)
    if target is not None and target.job is not None:
        yield from register_version(state, job, target, submission_id, stopped=target.job.stopped)
        return
    yield JobStopped(
        submission_id=submission_id, digest="", job_id=job.id, evaluation=next_evaluation(state)
    )
    new = NewEvaluation(
        job_id=job.id, priority=job.priority, job_type=job.job_type, triggered_by=TRIGGER
    )
    yield EvaluationsCreated(evaluations=(new,))


def _alone(state: State, member: MemberProgress, now_ns: int) -> Iterator[Event]:
    """Let a member continue without the others: nothing holds it, and its canaries wait for none but themselves."""
    active = _active_deployment(state, member)
    if active is None:
        return
    if released := release_deployment(active, "rollout", "the rollout was cancelled", now_ns):
        yield from released
        return
    yield from promote_together(state, active, now_ns)
    yield from evaluate_jobs(state, [member.job_id])


def _active_deployment(state: State, member: MemberProgress) -> Deployment | None:
    """The deployment of a member, if it has not ended."""
    active = state.deployments.active_of(member.job_id)
    return active if active is not None and active.key == member.deployment else None


def _ended(
    rollout: RolloutRecord, status: str, cause: str, reason: str, *, request_id: str = ""
) -> RolloutEnded:
    stable: list[RolloutMember] = []
    if status != "failed":
        stable = [
            RolloutMember(job_id=one.job_id, version=one.version)
            for one in rollout.members
            if one.done and one.deployment
        ]
    return RolloutEnded(
        key=rollout.key,
        status=status,
        cause=cause,
        reason=reason[:600],
        stable=tuple(stable),
        request_id=request_id,
    )


# ---- what an operator says ----


def decide_rollout(state: State, command: RolloutCommand, now_ns: int) -> list[Event]:
    """Decide one command about a rollout. What finds things as it wants them changes nothing."""
    rollout = state.rollouts.by_key.get(command.rollout_key)
    if rollout is None:
        return refuse(command.request_id, "not_found", "there is no such rollout")
    if not rollout.is_active:
        reason = f"rollout {rollout_id(rollout.key)!r} has terminal status {rollout.status!r}"
        return refuse(command.request_id, "conflict", f"{reason}: {rollout.reason}"[:600])
    if isinstance(command, FailRollout):
        return [_ended(rollout, "failed", "operator", _BY_OPERATOR, request_id=command.request_id)]
    return decide_promotions(state, rollout, command, max(now_ns, state.t_ns))


def decide_promotions(
    state: State, rollout: RolloutRecord, command: PromoteRollout, now_ns: int
) -> list[Event]:
    """Promote the canaries of the members that have begun; all of them must be healthy."""
    following = rollout.next_member
    begun = [following] if rollout.is_in_order and following is not None else rollout.members
    found = [one for member in begun if (one := _active_deployment(state, member)) is not None]
    if not any(group.desired_canaries for one in found for group in one.groups):
        return refuse(command.request_id, "invalid", "no canaries to promote")
    waiting = [one for one in found if one.needs_promotion]
    if short := [text for one in waiting for text in _unready(state, one)]:
        return refuse(command.request_id, "conflict", "; ".join(short)[:600])
    events: list[Event] = [
        promotion(
            state,
            one,
            [group for group in one.groups if group.needs_promotion],
            now_ns,
            by="operator",
            request_id=command.request_id,
        )
        for one in waiting
    ]
    return [*events, *evaluate_jobs(state, [one.job_id for one in waiting])]


def _unready(state: State, one: Deployment) -> list[str]:
    """Say what keeps the canaries of a deployment from their promotion."""
    if one.is_held:
        return [f"job {one.job_id!r} is held: {one.holds[0].reason}"]
    short = []
    for group in one.groups:
        ready = ready_canaries(state, one, group.name) if group.needs_promotion else 0
        if group.needs_promotion and ready < group.desired_canaries:
            counts = f"{ready}/{group.desired_canaries}"
            short.append(f"job {one.job_id!r}, group {group.name!r}: {counts} healthy canaries")
    return short


TIMED_DECIDERS: TimedDeciders = dict.fromkeys(get_args(RolloutCommand), decide_rollout)
