"""The fields of a job: from the command or a kept version to the fact, and back to a command.

Each direction is one function, so that a field of a job is copied here and in `make_job`, where the table keeps it,
and nowhere else. What differs between a submission, a child and a revert is said by their decisions.
"""

import msgspec

from schemas.base import EvalKey, JobId
from schemas.jobs import JobRegistered, RegisterJob
from shared.core.state.tables.jobs import Job


def registration_of(
    given: RegisterJob | Job,
    job_id: JobId,
    version: int,
    spec: msgspec.Raw,
    *,
    submission_id: str,
    digest: str,
    evaluation: EvalKey,
    warnings: tuple[str, ...] = (),
    launches_after_ns: int = 0,
    dispatch_token: str = "",
    reverted_from: int = -1,
    deploys: bool = False,
    traceparent: str = "",
    source: bytes = b"",
) -> JobRegistered:
    """Make the fact that registers a version of a job; arguments are what the job itself does not say."""
    return JobRegistered(
        submission_id=submission_id,
        digest=digest,
        job_id=job_id,
        version=version,
        job_type=given.job_type,
        priority=given.priority,
        datacenters=given.datacenters,
        node_pool=given.node_pool,
        all_at_once=given.all_at_once,
        groups=given.groups,
        spec=spec,
        evaluation=evaluation,
        warnings=warnings,
        stopped=given.stopped,
        parent=given.parent,
        periodic=given.periodic,
        launches_after_ns=launches_after_ns,
        parameterized=given.parameterized,
        dispatch_token=dispatch_token,
        reverted_from=reverted_from,
        deploys=deploys,
        gates=given.gates,
        windows=given.windows,
        traceparent=traceparent,
        source=source,
    )


def command_of(
    job: Job | JobRegistered,
    job_id: JobId,
    spec: bytes | msgspec.Raw,
    *,
    submission_id: str,
    digest: str,
    warnings: tuple[str, ...] = (),
) -> RegisterJob:
    """Make the command that registers a kept version of a job under a text."""
    return RegisterJob(
        submission_id=submission_id,
        digest=digest,
        job_id=job_id,
        job_type=job.job_type,
        priority=job.priority,
        datacenters=job.datacenters,
        node_pool=job.node_pool,
        all_at_once=job.all_at_once,
        groups=job.groups,
        spec=msgspec.Raw(spec),
        warnings=warnings,
        stopped=job.stopped,
        parent=job.parent,
        periodic=job.periodic,
        parameterized=job.parameterized,
        gates=job.gates,
        windows=job.windows,
    )
