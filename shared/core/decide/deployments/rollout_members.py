"""Which jobs may be in a rollout: those with a deployment, by which it knows that they are healthy.

Looks at the job alone, so that a submission is checked before it is sent.
"""

from schemas.jobs import FINITE_JOB_TYPES, GroupSpec, JobRegistered, RegisterJob


def has_pace(group: GroupSpec) -> bool:
    """Tell whether a new version of a group replaces the old one step by step."""
    return group.update is not None and group.update.max_parallel > 0


def member_fault(one: JobRegistered | RegisterJob) -> str:
    """Say why a job has no deployment, by which a rollout could tell that it is healthy; empty: it may have one."""
    if one.job_type in FINITE_JOB_TYPES:
        return f"job {one.job_id!r} is of type {one.job_type}, which has no deployment"
    if one.periodic is not None or one.parameterized is not None:
        return f"job {one.job_id!r} runs nothing itself: it has no deployment"
    if one.stopped:
        return f"job {one.job_id!r} has Stop = true: it has no deployment"
    if not any(has_pace(group) for group in one.groups):
        return f"job {one.job_id!r} has no group with update.max_parallel above 0: it has no deployment"
    return ""
