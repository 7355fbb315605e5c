"""Dispatch: a child of a parameterized job is registered with a payload and meta of its own.

Decides what a dispatch must have, and that two of one token are one. Its verdict is that of a submission
(`submissions.py`).
"""

from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from schemas.base import EvalKey, Event, JobId
from schemas.jobs import JobRegistered, ParameterizedBlock
from schemas.launches import PAYLOAD_BYTES_MAX, DispatchJob
from shared.core.decide.job_fields import registration_of
from shared.core.decide.jobs.children import child_spec, merged_meta, register_child
from shared.core.decide.submission_fault import SPEC_BYTES_MAX, SubmissionFault
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job
from shared.core.state.tables.launches import token_key

PRIORITY_MAX = 100


def decide_dispatch(state: State, command: DispatchJob, job: Job | None) -> list[Event]:
    """Register the child, or accept the one that has the token already. Raises SubmissionFault."""
    if job is None:
        raise SubmissionFault("not_found", f"there is no job {command.job_id!r}")
    if job.parameterized is None:
        raise SubmissionFault("invalid", f"job {job.id!r} is not parameterized")
    known = state.launches.tokens.get(token_key(job.id, command.token)) if command.token else None
    if known is not None and (child := state.jobs.by_id.get(known)) is not None:
        return [_known(state, command, child)]
    if job.stopped:
        raise SubmissionFault("invalid", f"job {job.id!r} is stopped")
    _check(command, job.id, job.parameterized)
    name = blake2b(command.submission_id.encode(), digest_size=4).hexdigest()
    child_id = JobId(f"{job.id}/dispatch-{state.seq}-{name}")
    if child_id in state.jobs.by_id:
        raise SubmissionFault("conflict", f"there is a job {child_id!r} already; dispatch again")
    return _dispatched(state, command, job, child_id)


def _check(command: DispatchJob, job_id: str, block: ParameterizedBlock) -> None:
    """Raise SubmissionFault for a payload, meta or priority that the job does not take."""
    if block.payload == "required" and not command.payload:
        raise SubmissionFault("invalid", f"job {job_id!r} requires a payload")
    if block.payload == "forbidden" and command.payload:
        raise SubmissionFault("invalid", f"job {job_id!r} takes no payload")
    if len(command.payload) > PAYLOAD_BYTES_MAX:
        text = f"the payload has {len(command.payload)} bytes, at most {PAYLOAD_BYTES_MAX}"
        raise SubmissionFault("too_large", text)
    allowed = {*block.meta_required, *block.meta_optional}
    if unknown := sorted(command.meta.keys() - allowed):
        listed = ", ".join(sorted(allowed)[:20]) or "none"
        raise SubmissionFault("invalid", f"meta {unknown[0]!r} is not one of the job's: {listed}")
    if missing := sorted(set(block.meta_required) - command.meta.keys()):
        raise SubmissionFault("invalid", f"meta {missing[0]!r} is required")
    if not 0 <= command.priority <= PRIORITY_MAX:
        text = f"priority must be 0 (the job's) to {PRIORITY_MAX}, was {command.priority}"
        raise SubmissionFault("invalid", text)


def _dispatched(state: State, command: DispatchJob, job: Job, child_id: JobId) -> list[Event]:
    text = state.jobs.spec(job.id, job.version) or b"{}"
    priority = command.priority or job.priority
    own: dict[str, object] = {"ID": child_id, "Name": child_id, "Priority": priority}
    if meta := merged_meta(text, command.meta):
        own["Meta"] = meta
    spec = child_spec(text, without="ParameterizedJob", **own)
    if len(spec) > SPEC_BYTES_MAX:
        raise SubmissionFault(
            "too_large", f"the child has {len(spec)} bytes, at most {SPEC_BYTES_MAX} are allowed"
        )
    return register_child(
        state,
        job,
        child_id,
        spec=spec,
        triggered_by="job-register",
        payload=command.payload,
        submission_id=command.submission_id,
        digest=command.digest,
        priority=priority,
        dispatch_token=command.token,
        periodic=job.periodic,
    )


def _known(state: State, command: DispatchJob, child: Job) -> JobRegistered:
    """Say again what is registered: it changes nothing, and is the verdict."""
    spec = state.jobs.spec(child.id, child.version) or b"{}"
    return registration_of(
        # A dispatched child has none of these; who registered a job under its id changes no verdict.
        replace(child, parameterized=None, gates=(), windows=()),
        child.id,
        child.version,
        msgspec.Raw(spec),
        submission_id=command.submission_id,
        digest=command.digest,
        evaluation=EvalKey(0),
        dispatch_token=command.token,
    )
