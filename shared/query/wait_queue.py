"""The wait queue: what waits, why, at which position, and what would unblock it (docs/concepts.md, "Waiting").

Lists blocked evaluations, and parked ones: pending behind a blocked evaluation of the same shape. Reads only the tables
that the eval broker acts on; what it says of a job is its wait (job_wait.py).
"""

from collections.abc import Callable, Iterator

import numpy as np

from schemas.base import JobId
from schemas.evaluation_answers import QueueLine
from schemas.job_answers import WaitingLine
from shared.core.scheduling.reservations.wait_shapes import queue_order
from shared.core.state.ids import eval_id
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job
from shared.query.blocked_shapes import BlockedShapes
from shared.query.job_wait import PARKED, JobWait, job_wait

#: Nothing that is given back helps these: they have no place in the queue.
UNSATISFIABLE_CLASSES = frozenset({"misconfigured", "never_fits"})
#: job -> log time since when it waits, 0 if unknown.
WaitingSince = Callable[[JobId], int]


def waiting_lines(
    state: State, since: WaitingSince, shapes: BlockedShapes | None = None
) -> list[QueueLine]:
    """List all that wait, a line a group, the first of each pool first."""
    waits = {queue_order(job): (job, wait) for job, wait in queued_jobs(state, shapes)}
    reach: dict[tuple[int, ...], int] = {}
    places: dict[str, int] = {}
    lines: list[QueueLine] = []
    for order in sorted(waits):
        job, wait = waits[order]
        at = 0
        if not _is_unsatisfiable(wait):
            at = places[job.node_pool] = places.get(job.node_pool, 0) + 1
        lines += _lines(state, job, wait, position=at, since_ns=since(job.id), reach=reach)
    return lines


def queued_jobs(state: State, shapes: BlockedShapes | None = None) -> Iterator[tuple[Job, JobWait]]:
    """Every job that is blocked, then every parked one, with its wait."""
    table, jobs = state.evaluations, state.jobs.by_id
    if not table.blocked_of:
        return
    shapes = BlockedShapes(state) if shapes is None else shapes
    for job_id in table.blocked_of:
        job = jobs.get(job_id)
        if job is not None:
            yield job, job_wait(state, job, shapes)
    for key in table.open:
        evaluation = table.by_key[key]
        # Most of those open are pending for a moment.
        if evaluation.status != "pending" or evaluation.job_id in table.blocked_of:
            continue
        job = jobs.get(evaluation.job_id)
        wait = JobWait() if job is None else job_wait(state, job, shapes)
        if job is not None and wait.kind == PARKED and wait.evaluation is evaluation:
            yield job, wait


def job_waits(wait: JobWait) -> tuple[WaitingLine, ...]:
    """A line a group, for the status of a job."""
    if wait.evaluation is None:
        return ()
    return tuple(
        WaitingLine(
            group=name,
            n=one.n,
            wait_class=one.wait_class,
            reasons=one.reasons,
            eval_id=eval_id(wait.evaluation.key),
            decided_seq=one.decided_seq,
        )
        for name, one in wait.groups.items()
    )


def _is_unsatisfiable(wait: JobWait) -> bool:
    groups = wait.groups.values()
    return bool(groups) and all(one.wait_class in UNSATISFIABLE_CLASSES for one in groups)


def _lines(
    state: State,
    job: Job,
    wait: JobWait,
    *,
    position: int,
    since_ns: int,
    reach: dict[tuple[int, ...], int],
) -> Iterator[QueueLine]:
    assert wait.evaluation is not None
    held = state.reservations.by_job.get(job.id)
    for name, why in wait.groups.items():
        rows = [
            row
            for hold in (held.holds if held is not None else ())
            for row in hold.rows
            if hold.group == name
        ]
        yield QueueLine(
            position=position,
            job=job.id,
            group=name,
            n=why.n,
            wait_class=why.wait_class,
            priority=job.priority,
            pool=job.node_pool,
            since_ns=since_ns,
            reasons=why.reasons,
            wakes=_wake_conditions(state, wait, why.wait_class, reach),
            nodes=tuple(state.fleet.ids[row] for row in rows),
            eval_id=eval_id(wait.evaluation.key),
            decided_seq=why.decided_seq,
        )


def _wake_conditions(
    state: State, wait: JobWait, wait_class: str, reach: dict[tuple[int, ...], int]
) -> tuple[str, ...]:
    blocked = None if wait.evaluation is None else wait.evaluation.blocked
    if blocked is None:
        return (f"capacity for job {wait.behind!r}",)
    if wait_class in UNSATISFIABLE_CLASSES:
        larger = ("a larger node",) if wait_class == "never_fits" else ()
        return (*larger, "a node of another class")
    classes = blocked.classes
    if classes not in reach:
        fleet = state.fleet
        live = fleet.live[: fleet.size]
        reach[classes] = int((np.isin(fleet.class_of[: fleet.size], classes) & live).sum())
    return (f"released capacity on any of {reach[classes]} nodes", "a node of another class")
