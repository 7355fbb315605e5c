"""Rescheduling: when a failed allocation may be replaced, and the evaluation that will do it.

Decides from the group's policy and the chain of replacements so far. Jobs that run on every node are not rescheduled.
Source: Nomad structs.go, RescheduleEligible and NextDelay.
"""

import msgspec

from schemas.allocations import AllocationsReported, AllocDetail
from schemas.base import Event, JobId
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from shared.core.scheduling.reconcile.reschedule_delays import (
    recent_reschedules,
    reschedule_delay_ns,
)
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, FAILED, RUN
from shared.core.state.tables.jobs import Job

#: Reschedule delays within this window share one evaluation, as in Nomad.
RESCHEDULE_WINDOW_NS = 5_000_000_000
#: Reschedules of one chain that are remembered at the most.
RESCHEDULES_KEPT = 100


def reschedule_time(state: State, row: int, code: int, now_ns: int) -> tuple[int, tuple[int, ...]]:
    """Log time from which an ended allocation may be replaced (0: never), and the reschedules of its chain then."""
    allocations = state.allocations
    groups = allocations.groups
    ref = int(allocations.group[row])
    job = state.jobs.by_id.get(groups.job_ids[ref])
    if job is None:
        return 0, ()
    if job.stopped:
        # No one waits for it now. Should the job come back before its stop was planned, it is due at once.
        return now_ns, ()
    if job.id in state.jobs.everywhere:
        return 0, ()
    if code == COMPLETE:
        return now_ns if job.job_type == "service" else 0, ()
    for group in job.groups:
        if group.name == groups.names[ref]:
            chain = allocations.chains.get(int(allocations.key[row]), ())
            delay = reschedule_delay_ns(group.reschedule, chain, now_ns)
            if delay is None:
                return 0, ()
            kept = (*recent_reschedules(group.reschedule, chain, now_ns), now_ns + delay, delay)
            return now_ns + delay, kept[-2 * RESCHEDULES_KEPT :]
    return 0, ()


def make_due(state: State, job: Job) -> list[Event]:
    """Make failed allocations of a job due now, regardless of attempts and delays."""
    table = state.allocations
    rows = table.rows_of(job.id)
    failed = rows[(table.client[rows] == FAILED) & (table.desired[rows] == RUN)]
    if job.runs_nothing or not len(failed):
        return []
    details = [
        AllocDetail(
            row=row,
            tasks=msgspec.Raw(table.details.get(row, b"{}")),
            reschedule_at_ns=max(state.t_ns, 1),
        )
        for row in failed.tolist()
    ]
    return [AllocationsReported(details=tuple(details))]


def is_stopped(state: State, job_id: JobId) -> bool:
    """Tell whether a job no longer wants any allocations."""
    job = state.jobs.by_id.get(job_id)
    return job is None or job.runs_nothing


def reschedule_evaluations(state: State, retries: dict[JobId, int], now_ns: int) -> list[Event]:
    """Create the evaluations that replace what failed: `retries` says when, by job; those soon after share one."""
    new = []
    for job_id, due in sorted(retries.items()):
        job = state.jobs.by_id[job_id]
        wait = due if due > now_ns else 0
        if wait and has_delayed(state, job_id, due):
            continue
        evaluation = NewEvaluation(
            job_id=job_id,
            priority=job.priority,
            job_type=job.job_type,
            triggered_by="alloc-failure",
            wait_until_ns=wait,
        )
        new.append(evaluation)
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []


def has_delayed(state: State, job_id: JobId, due_ns: int) -> bool:
    """Tell whether a delayed evaluation of the job comes at or soon after `due_ns`."""
    table = state.evaluations
    waits = (table.by_key[key].wait_until_ns for key in table.open_of.get(job_id, ()))
    return any(due_ns <= wait <= due_ns + RESCHEDULE_WINDOW_NS for wait in waits)
