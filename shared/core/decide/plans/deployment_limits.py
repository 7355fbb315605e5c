"""What a plan may do for a deployment: only for the active one of its job, and for the version that it brings up.

Decides which plans are refused for it, and how large a deployment is. Must not know the rest of a plan (`verify.py`).
"""

import numpy as np

from schemas.base import Event
from schemas.deployments import DeploymentSized
from schemas.plans import GroupPlacement, InPlace, SubmitPlan
from shared.core.state.state import State
from shared.core.state.tables.deployments import Deployment
from shared.core.state.tables.jobs import Job

_COUNT_MAX = 2**31 - 1


class StaleDeploymentError(ValueError):
    """A plan that adds to a deployment to which it must not; `code` is that of its refusal."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def check_deployment(state: State, plan: SubmitPlan) -> None:
    """Check every placement and update that names a deployment. Raises StaleDeploymentError."""
    deployment = state.deployments.active_of(plan.job_id)
    for one in plan.placements:
        if one.canaries and not one.deployment:
            raise StaleDeploymentError("invalid", "places canaries of no deployment")
        if one.deployment:
            _check(deployment, one)
            _check_pause(deployment, plan)
    for update in plan.updates:
        if update.deployment:
            _check(deployment, update)
            rows = np.asarray(update.rows, dtype=np.int64)
            if (state.allocations.deployment[rows] == update.deployment).any():
                raise StaleDeploymentError("stale", "updates an allocation for its own deployment")


def _check(deployment: Deployment | None, one: GroupPlacement | InPlace) -> None:
    if deployment is None or deployment.key != one.deployment:
        raise StaleDeploymentError("stale", "is for a deployment that is not the active one")
    if deployment.version != one.version or deployment.group(one.group) is None:
        text = f"group {one.group!r} of version {one.version} is not of the deployment"
        raise StaleDeploymentError("stale", text)


def _check_pause(deployment: Deployment | None, plan: SubmitPlan) -> None:
    if deployment is None or deployment.is_moving:
        return
    if deployment.modify_seq > plan.origin.snapshot_seq:
        raise StaleDeploymentError("stale", "the deployment was paused or held meanwhile")


def is_kept_version(state: State, job: Job | None, group: str, version: int) -> bool:
    """Tell whether an older version of a job is known well enough to place a group of it again."""
    if job is None or version >= job.version:
        return False
    older = state.jobs.job_at(job.id, version)
    if older is None or group not in {one.name for one in older.groups}:
        return False
    return (job.id, version, group) in state.allocations.groups.ref_of


def sized_deployment(state: State, plan: SubmitPlan) -> list[Event]:
    """Say which groups of the active deployment are of another size than it has."""
    deployment = state.deployments.active_of(plan.job_id) if plan.sizes else None
    if deployment is None:
        return []
    found: list[Event] = []
    for size in plan.sizes:
        group = deployment.group(size.group)
        if group is None or not _is_size(size.desired_total) or not _is_size(size.desired_canaries):
            continue
        if (group.desired_total, group.desired_canaries) != (
            size.desired_total,
            size.desired_canaries,
        ):
            sized = DeploymentSized(
                key=deployment.key,
                group=size.group,
                desired_total=size.desired_total,
                desired_canaries=size.desired_canaries,
            )
            found.append(sized)
    return found


def _is_size(count: int) -> bool:
    return 0 <= count <= _COUNT_MAX
