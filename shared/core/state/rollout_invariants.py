"""Invariants of rollouts of several jobs, as slow as the rest of `invariants.py`."""

from shared.core.state.deployment_invariants import Violation
from shared.core.state.state import State
from shared.core.state.tables.rollouts import MemberProgress, RolloutRecord


def check_rollouts(state: State) -> list[Violation]:
    """Check the table of rollouts against itself, the jobs and their deployments."""
    table = state.rollouts
    found: list[Violation] = []
    active: dict[str, list[int]] = {}
    for rollout in table.by_key.values():
        if not rollout.is_active:
            continue
        for member in rollout.members:
            active.setdefault(member.job_id, []).append(rollout.key)
            found += _member(state, rollout, member)
        found += _promotions(state, rollout)
    if active != {job_id: [key] for job_id, key in table.active.items()}:
        found.append(Violation("rollouts", f"active are {table.active}, entries say {active}"))
    return found


def _member(state: State, rollout: RolloutRecord, member: MemberProgress) -> list[Violation]:
    """A member of an active rollout runs its version, and is held as long as others come first."""
    job = state.jobs.by_id.get(member.job_id)
    if job is None or job.version != member.version or job.stopped:
        text = f"{member.job_id} is not at version {member.version} of {rollout.name}"
        return [Violation("rollouts", text)]
    if not member.deployment:
        return []
    deployment = state.deployments.by_key.get(member.deployment)
    if deployment is None or (deployment.job_id, deployment.version) != (job.id, job.version):
        return [Violation("rollouts", f"{job.id} has another deployment than {rollout.name} says")]
    if member.done != (deployment.status == "successful") or not (
        member.done or deployment.is_active
    ):
        text = f"{job.id} is {deployment.status}, and {'' if member.done else 'not '}done"
        return [Violation("rollouts", text)]
    following = rollout.next_member
    must_wait = rollout.is_in_order and not member.done and following is not member
    if must_wait != (deployment.hold_of("rollout") is not None):
        return [Violation("rollouts", f"{job.id} is held {not must_wait}, wrongly")]
    kept = state.jobs.version(job.id, member.version)
    if kept is not None and kept.is_stable:
        return [Violation("rollouts", f"{job.id} is stable before {rollout.name} ended")]
    return []


def _promotions(state: State, rollout: RolloutRecord) -> list[Violation]:
    """Members with canaries are promoted together."""
    if rollout.is_in_order:
        return []
    found = [state.deployments.by_key[one.deployment] for one in rollout.members if one.deployment]
    groups = [group for one in found for group in one.groups if group.desired_canaries]
    if len({group.promoted for group in groups}) > 1:
        return [Violation("rollouts", f"{rollout.name} promoted a part of its members")]
    return []
