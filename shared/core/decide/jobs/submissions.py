"""Submissions: register, stop, evaluate, and the drop box's position."""

from typing import cast

from msgspec.structs import replace

from schemas.base import EvalKey, Event
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, NewEvaluation
from schemas.job_versions import RevertJob, ScaleJob, StartJob
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
from schemas.launches import DispatchJob
from schemas.rollouts import RegisterJobs
from shared.core.decide.deciders import Deciders
from shared.core.decide.deployments.progress import deploys_plainly
from shared.core.decide.deployments.rollouts import start_rollout
from shared.core.decide.evaluations import next_evaluation
from shared.core.decide.job_fields import registration_of
from shared.core.decide.jobs.dispatch import decide_dispatch
from shared.core.decide.jobs.versions import VersionCommand, next_version
from shared.core.decide.purge import purge_job
from shared.core.decide.reschedules import make_due
from shared.core.decide.submission_fault import SubmissionFault
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job, spec_digest

SubmissionCommand = (
    RegisterJob | RegisterJobs | StopJob | EvaluateJob | DispatchJob | VersionCommand
)

_VERBS: dict[type, str] = {
    RegisterJob: "submit",
    RegisterJobs: "submit_together",
    StopJob: "stop",
    EvaluateJob: "evaluate",
    DispatchJob: "dispatch",
    RevertJob: "revert",
    ScaleJob: "scale",
    StartJob: "start",
}
#: Pools that exist without nodes, as in Nomad.
BUILT_IN_POOLS = ("default", "all")

#: Tasks that a warning names; the rest is counted.
_WARNED_MAX = 5


def decide_submission(state: State, command: SubmissionCommand | SkipSubmission) -> list[Event]:
    """Decide one command of `cmd.job`.

    Natural keys: the submission id, and for the drop box the position: out of order means that an earlier one is
    still on its way, so nothing happens and intake sends both again.
    """
    if not _is_in_order(state, command):
        return []
    advanced = _advanced(command)
    if isinstance(command, SkipSubmission):
        return advanced
    known = state.jobs.submissions.get(command.submission_id)
    if known is not None:
        # A request learns it from intake; a message of the drop box is gone with this transaction.
        if not command.jobs_seq or known.digest == command.digest:
            return advanced
        return [_reused(command), *advanced]
    return [*_verdict(state, command), *advanced]


def decide_refusal(
    state: State, command: SubmissionCommand | SkipSubmission, code: str, reason: str
) -> list[Event]:
    """Refuse a submission that could not be decided; the drop box moves on behind it."""
    if not _is_in_order(state, command):
        return []
    advanced = _advanced(command)
    if isinstance(command, SkipSubmission) or command.submission_id in state.jobs.submissions:
        return advanced
    return [_refusal(command, code, reason), *advanced]


def _is_in_order(state: State, command: SubmissionCommand | SkipSubmission) -> bool:
    """Tell whether a command came as a request, or is of the drop box's next message."""
    seen = state.jobs.jobs_seq
    is_next = command.jobs_seq > seen and command.jobs_prev == seen
    return not command.jobs_seq or is_next


def _advanced(command: SubmissionCommand | SkipSubmission) -> list[Event]:
    return [IntakeAdvanced(jobs_seq=command.jobs_seq)] if command.jobs_seq else []


def _verdict(state: State, command: SubmissionCommand) -> list[Event]:
    job = state.jobs.by_id.get(command.job_id)
    if isinstance(command, RegisterJob):
        return _register(state, command, job)
    if isinstance(command, RegisterJobs | DispatchJob | RevertJob | ScaleJob | StartJob):
        try:
            if isinstance(command, RegisterJobs):
                return _register_together(state, command)
            if isinstance(command, DispatchJob):
                return decide_dispatch(state, command, job)
            return _register_kept(state, command, job)
        except SubmissionFault as fault:
            return [_refusal(command, fault.code, fault.reason)]
    if job is None:
        return [_refusal(command, "not_found", f"there is no job {command.job_id!r}")]
    if isinstance(command, EvaluateJob) and job.is_pattern:
        kind = "periodic" if job.parameterized is None else "parameterized"
        how = "force a launch" if job.parameterized is None else "dispatch it"
        message = f"job {command.job_id!r} is {kind}: it runs nothing itself"
        return [_refusal(command, "invalid", f"{message}; {how}, or evaluate a child")]
    if isinstance(command, StopJob):
        stopped = JobStopped(
            submission_id=command.submission_id,
            digest=command.digest,
            job_id=command.job_id,
            purge=command.purge or job.purge,
            evaluation=EvalKey(0) if job.is_pattern else next_evaluation(state),
        )
        events: list[Event] = [stopped]
        if not job.is_pattern:
            events.append(_evaluation(job, "job-deregister"))
        gone = purge_job(state, job.id) if stopped.purge else []
        if gone and not job.is_pattern:
            # Nothing of it is left to be stopped.
            events.append(EvaluationEnded(key=stopped.evaluation, status="complete"))
        return [*events, *gone]
    evaluated = JobEvaluated(
        submission_id=command.submission_id,
        digest=command.digest,
        job_id=command.job_id,
        evaluation=next_evaluation(state),
        force_reschedule=command.force_reschedule,
    )
    due = make_due(state, job) if command.force_reschedule else []
    return [evaluated, *due, _evaluation(job, "job-register")]


def _register_kept(state: State, command: VersionCommand, job: Job | None) -> list[Event]:
    """Register the next version out of a kept one. Raises SubmissionFault."""
    origin = job.version if job is not None and isinstance(command, RevertJob) else -1
    first, *rest = _register(state, next_version(state, command, job), job, origin)
    if isinstance(first, SubmissionRefused):
        first = replace(first, verb=_VERBS[type(command)])
    return [first, *rest]


def _register_together(state: State, command: RegisterJobs) -> list[Event]:
    """Register the jobs of a rollout, or none of them. Raises SubmissionFault."""
    registered: list[JobRegistered] = []
    for one in command.jobs:
        first = _register(state, one, state.jobs.by_id.get(one.job_id))[0]
        if isinstance(first, SubmissionRefused):
            raise SubmissionFault(first.code, first.reason)
        registered.append(cast("JobRegistered", first))
    return start_rollout(state, command, registered)


def _register(state: State, command: RegisterJob, old: Job | None, origin: int = -1) -> list[Event]:
    """Register a version; `origin` is the newest one where it takes the text of an older one."""
    index = old.modify_seq if old is not None else 0
    if index != command.check_index != -1:
        message = f"job {command.job_id!r} is at modify index {index}, not {command.check_index}"
        return [_refusal(command, "conflict", message)]
    if old is not None and old.job_type != command.job_type and not old.stopped:
        message = f"job {command.job_id!r} is of type {old.job_type}, not {command.job_type}"
        return [_refusal(command, "invalid", f"{message}: stop it first")]
    if old is not None and (old.periodic is None) != (command.periodic is None) and not old.stopped:
        message = f"job {command.job_id!r} is {'not ' * (old.periodic is None)}periodic"
        return [_refusal(command, "invalid", f"{message}: stop it first")]
    if old is not None and not old.stopped:
        was, wanted = old.parameterized is not None, command.parameterized is not None
        if was != wanted:
            message = f"job {command.job_id!r} is {'not ' * (not was)}parameterized"
            return [_refusal(command, "invalid", f"{message}: stop it first")]
    is_same = (
        old is not None
        and old.stopped == command.stopped
        and old.spec_digest == spec_digest(bytes(command.spec))
    )
    version = 0 if old is None else old.version + (not is_same)
    # Nothing of it is ever placed: there is nothing to evaluate.
    is_pattern = command.periodic is not None or command.parameterized is not None
    runs = not is_pattern and not command.stopped
    registered = registration_of(
        command,
        command.job_id,
        version,
        command.spec,
        submission_id=command.submission_id,
        digest=command.digest,
        evaluation=EvalKey(0) if is_pattern else next_evaluation(state),
        warnings=command.warnings + fleet_warnings(state, command),
        launches_after_ns=state.t_ns if command.periodic is not None else 0,
        # The same text again is not a revert.
        reverted_from=-1 if is_same else origin,
        traceparent=command.traceparent,
        source=command.source,
        # What may be held from its start has a fact of its own.
        deploys=runs
        and not (is_same or command.gates or command.windows)
        and deploys_plainly(command.job_type, command.groups),
    )
    if is_pattern:
        return [registered]
    new = NewEvaluation(job_id=command.job_id, priority=command.priority, job_type=command.job_type)
    return [registered, EvaluationsCreated(evaluations=(new,))]


def unknown_pool_warnings(state: State, pool: str) -> tuple[str, ...]:
    """Warn of a node pool that no registered node names: the job waits for the first node of it."""
    if pool in BUILT_IN_POOLS or state.fleet.count_pool(pool):
        return ()
    return (f"node_pool: no node is in pool {pool!r}; the job waits until one registers in it",)


def fleet_warnings(state: State, command: RegisterJob) -> tuple[str, ...]:
    """Warn of what the registered nodes cannot give a job; it is registered all the same."""
    unknown = unknown_pool_warnings(state, command.node_pool)
    return unknown or _memory_max_warnings(state, command)


def _memory_max_warnings(state: State, command: RegisterJob) -> tuple[str, ...]:
    """Warn of each `memory_max` above the memory of every node of the pool: the task is placed and cannot reach it."""
    if not command.memory_limits:
        return ()
    fleet, pool = state.fleet, command.node_pool
    rows = [row for row in fleet.row_of.values() if pool in {"all", fleet.specs[row].node_pool}]
    if not rows:
        return ()
    largest = min(rows, key=lambda row: (-int(fleet.capacity[row, 1]), fleet.ids[row]))
    most = int(fleet.capacity[largest, 1])
    over = [one for one in command.memory_limits if one.memory_max_mib > most]
    parts = [
        f"group {one.group!r}: task {one.task!r}: resources: memory_max {one.memory_max_mib} MiB"
        for one in over[:_WARNED_MAX]
    ]
    if len(over) > _WARNED_MAX:
        parts.append(f"{len(over) - _WARNED_MAX} more tasks")
    where = "every node" if pool == "all" else f"every node in pool {pool!r}"
    beyond = f"above the memory of {where}; the largest, {fleet.ids[largest]}, has {most} MiB"
    return (f"{'; '.join(parts)}: {beyond}",) if parts else ()


def _evaluation(job: Job, trigger: str) -> EvaluationsCreated:
    new = NewEvaluation(
        job_id=job.id, priority=job.priority, job_type=job.job_type, triggered_by=trigger
    )
    return EvaluationsCreated(evaluations=(new,))


def _reused(command: SubmissionCommand) -> SubmissionRefused:
    """Refuse other content under a known id, by the name that its place in the drop box gives it."""
    refusal = _refusal(
        command, "conflict", f"submission id {command.submission_id!r} was used for other content"
    )
    place = f"jobs-{command.jobs_seq}"
    return replace(refusal, submission_id=place, reused_id=command.submission_id)


def _refusal(command: SubmissionCommand, code: str, reason: str) -> SubmissionRefused:
    verb = _VERBS[type(command)]
    return SubmissionRefused(
        submission_id=command.submission_id,
        digest=command.digest,
        verb=verb,
        job_id=command.job_id,
        code=code,
        reason=reason[:600],
    )


DECIDERS: Deciders = {
    SkipSubmission: decide_submission,
    **dict.fromkeys(_VERBS, decide_submission),
}
