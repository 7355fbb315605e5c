"""Submissions: register, stop, evaluate, and the drop box's position."""

from schemas.base import EvalKey, Event
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, NewEvaluation
from schemas.jobs import (
    EvaluateJob,
    IntakeAdvanced,
    JobEvaluated,
    JobRegistered,
    JobStopped,
    RegisterJob,
    SkipSubmission,
    StopJob,
    SubmissionRefused,
)
from shared.core.decide.purge import forget
from shared.core.ids import make_key
from shared.core.state import State
from shared.core.tables.jobs import Job, spec_digest

Submission = RegisterJob | StopJob | EvaluateJob


def decide_submission(state: State, command: Submission | SkipSubmission) -> list[Event]:
    """Decide one command of `cmd.job`.

    Natural keys: the submission id, and for the drop box the position: out of order means that an earlier one is
    still on its way, so nothing happens and intake sends both again.
    """
    if command.jobs_seq:
        if command.jobs_seq <= state.jobs.jobs_seq or command.jobs_prev != state.jobs.jobs_seq:
            return []
        advanced = [IntakeAdvanced(jobs_seq=command.jobs_seq)]
    else:
        advanced = []
    if isinstance(command, SkipSubmission) or command.submission_id in state.jobs.submissions:
        return [*advanced]
    return [*_verdict(state, command), *advanced]


def _verdict(state: State, command: Submission) -> list[Event]:
    job = state.jobs.by_id.get(command.job_id)
    if isinstance(command, RegisterJob):
        return _register(state, command, job)
    if job is None:
        return [_refusal(command, "not_found", f"there is no job {command.job_id!r}")]
    if isinstance(command, StopJob):
        stopped = JobStopped(
            submission_id=command.submission_id,
            digest=command.digest,
            job_id=command.job_id,
            purge=command.purge or job.purge,
            evaluation=_next_key(state),
        )
        events: list[Event] = [stopped, _evaluation(job, "job-deregister")]
        gone = forget(state, job.id) if stopped.purge else []
        if gone:
            # Nothing of it is left to be stopped.
            events.append(EvaluationEnded(key=stopped.evaluation, status="complete"))
        return [*events, *gone]
    evaluated = JobEvaluated(
        submission_id=command.submission_id,
        digest=command.digest,
        job_id=command.job_id,
        evaluation=_next_key(state),
    )
    return [evaluated, _evaluation(job, "job-register")]


def _register(state: State, command: RegisterJob, old: Job | None) -> list[Event]:
    index = old.modify_seq if old is not None else 0
    if command.check_index not in {-1, index}:
        message = f"job {command.job_id!r} is at modify index {index}, not {command.check_index}"
        return [_refusal(command, "conflict", message)]
    if old is not None and old.job_type != command.job_type and not old.stopped:
        message = f"job {command.job_id!r} is of type {old.job_type}, not {command.job_type}"
        return [_refusal(command, "invalid", f"{message}: stop it first")]
    version = 0
    if old is not None:
        is_same = not old.stopped and old.spec_digest == spec_digest(bytes(command.spec))
        version = old.version + (not is_same)
    registered = JobRegistered(
        submission_id=command.submission_id,
        digest=command.digest,
        job_id=command.job_id,
        version=version,
        job_type=command.job_type,
        priority=command.priority,
        datacenters=command.datacenters,
        node_pool=command.node_pool,
        all_at_once=command.all_at_once,
        groups=command.groups,
        spec=command.spec,
        evaluation=_next_key(state),
        warnings=command.warnings,
    )
    new = NewEvaluation(job_id=command.job_id, priority=command.priority, job_type=command.job_type)
    return [registered, EvaluationsCreated(evaluations=(new,))]


def _next_key(state: State) -> EvalKey:
    # The state stands in the transaction that is being written, so its seq is the one these events will get.
    return EvalKey(make_key(state.seq, state.evaluations.next_ordinal(state.seq)))


def _evaluation(job: Job, trigger: str) -> EvaluationsCreated:
    new = NewEvaluation(
        job_id=job.id, priority=job.priority, job_type=job.job_type, triggered_by=trigger
    )
    return EvaluationsCreated(evaluations=(new,))


def _refusal(command: Submission, code: str, reason: str) -> SubmissionRefused:
    verb = {RegisterJob: "submit", StopJob: "stop", EvaluateJob: "evaluate"}[type(command)]
    return SubmissionRefused(
        submission_id=command.submission_id,
        digest=command.digest,
        verb=verb,
        job_id=command.job_id,
        code=code,
        reason=reason[:600],
    )
