"""The wait queue: what waits, why, at which position, and what would unblock it (docs/concepts.md, "Waiting").

Lists blocked evaluations, and parked ones: pending behind a blocked evaluation of the same shape. Reads only the tables
that the eval broker acts on.
"""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from schemas.base import JobId
from schemas.evaluation_answers import QueuedWait, QueueLine
from schemas.evaluations import Blocked
from schemas.job_answers import WaitingLine
from shared.core.scheduling.reservations.wait_shapes import (
    QueueOrder,
    WaitShape,
    blocked_shape,
    new_job_shape,
    queue_order,
)
from shared.core.state.ids import eval_id
from shared.core.state.state import State
from shared.core.state.tables.evaluations import Evaluation
from shared.core.state.tables.jobs import Job

#: Nothing that is given back helps these: they have no place in the queue.
UNSATISFIABLE_CLASSES = frozenset({"misconfigured", "never_fits"})
#: job -> log time since when it waits, 0 if unknown.
WaitingSince = Callable[[JobId], int]


class _WaitingJob(msgspec.Struct, frozen=True, eq=False):
    """A job that waits. `behind`: the job ahead of it with the same shape; empty: it is blocked itself."""

    job: Job
    evaluation: Evaluation
    blocked: Blocked | None
    behind: str = ""


def waiting_lines(state: State, since: WaitingSince) -> list[QueueLine]:
    """List all that wait, a line a group, the first of each pool first."""
    items = {queue_order(item.job): item for item in _items(state)}
    reach: dict[tuple[int, ...], int] = {}
    places: dict[str, int] = {}
    lines: list[QueueLine] = []
    for order in sorted(items):
        item = items[order]
        at = 0
        if not _is_unsatisfiable(item):
            at = places[item.job.node_pool] = places.get(item.job.node_pool, 0) + 1
        lines += _lines(state, item, position=at, since_ns=since(item.job.id), reach=reach)
    return lines


def undecided_evaluation(state: State, job: Job) -> Evaluation | None:
    """The evaluation by which a job that nothing was planned of may be parked: its first pending one.

    One that was woken has been decided before, and is decided again.
    """
    table = state.evaluations
    if job.id in table.blocked_of or new_job_shape(job) is None:
        return None
    mine = (table.by_key[key] for key in table.open_of.get(job.id, ()))
    found = next((one for one in mine if one.status == "pending" and not one.wait_until_ns), None)
    return None if found is None or found.reason else found


def parked_behind(state: State, evaluation: Evaluation) -> JobId:
    """Name the job that waits for the same before a pending evaluation; empty: none does."""
    table, jobs = state.evaluations, state.jobs.by_id
    job = jobs.get(evaluation.job_id)
    if job is None or undecided_evaluation(state, job) is not evaluation:
        return JobId("")
    shape = new_job_shape(job)
    before = []
    for job_id, key in table.blocked_of.items():
        other, blocked = jobs.get(job_id), table.by_key[key].blocked
        if other is not None and blocked is not None and queue_order(other) < queue_order(job):
            before += [queue_order(other)] if blocked_shape(other, blocked) == shape else []
    return min(before)[2] if before else JobId("")


def queued_waits(state: State, job: Job) -> dict[str, QueuedWait]:
    """What the queue holds of each group of a job that waits: as decided last, or parked."""
    item = _item_of(state, job)
    return {} if item is None else _waits_of(item)


def job_waits(state: State, job: Job) -> tuple[WaitingLine, ...]:
    """The same, for the status of the job."""
    item = _item_of(state, job)
    if item is None:
        return ()
    return tuple(
        WaitingLine(
            group=name,
            n=one.n,
            wait_class=one.wait_class,
            reasons=one.reasons,
            eval_id=eval_id(item.evaluation.key),
            decided_seq=one.decided_seq,
        )
        for name, one in _waits_of(item).items()
    )


def _item_of(state: State, job: Job) -> _WaitingJob | None:
    table = state.evaluations
    key = table.blocked_of.get(job.id)
    if key is not None and (blocked := table.by_key[key].blocked) is not None:
        return _WaitingJob(job, table.by_key[key], blocked)
    evaluation = undecided_evaluation(state, job)
    behind = parked_behind(state, evaluation) if evaluation is not None else ""
    return _WaitingJob(job, evaluation, None, behind) if evaluation and behind else None


def _waits_of(item: _WaitingJob) -> dict[str, QueuedWait]:
    """By group, in the order of the job: why it waits, and at which seq that was decided."""
    if item.blocked is None:
        reasons = (behind_reason(item.behind),)
        return {
            group.name: QueuedWait(n=group.count, wait_class="priority", reasons=reasons)
            for group in item.job.groups
        }
    waiting = item.blocked.waiting
    return {
        group.name: QueuedWait(
            decided_seq=item.evaluation.modify_seq,
            n=waiting[group.name].count,
            wait_class=waiting[group.name].wait_class,
            reasons=waiting[group.name].reasons,
        )
        for group in item.job.groups
        if group.name in waiting
    }


def _items(state: State) -> Iterator[_WaitingJob]:
    table = state.evaluations
    first: dict[WaitShape, QueueOrder] = {}
    jobs = state.jobs.by_id
    for job_id, key in table.blocked_of.items():
        job, blocked = jobs.get(job_id), table.by_key[key].blocked
        if job is None or blocked is None:
            continue
        shape = blocked_shape(job, blocked)
        first[shape] = min(first.get(shape, queue_order(job)), queue_order(job))
        yield _WaitingJob(job, table.by_key[key], blocked)
    for key in table.open:
        evaluation = table.by_key[key]
        job = jobs.get(evaluation.job_id)
        # Only then is its shape of interest: most of those open are pending for a moment.
        if not first or evaluation.status != "pending" or job is None:
            continue
        if undecided_evaluation(state, job) is not evaluation:
            continue
        before = first.get(new_job_shape(job) or ())
        if before is not None and before < queue_order(job):
            yield _WaitingJob(job, evaluation, None, before[2])


def _is_unsatisfiable(item: _WaitingJob) -> bool:
    waiting = item.blocked.waiting if item.blocked is not None else {}
    return bool(waiting) and all(
        one.wait_class in UNSATISFIABLE_CLASSES for one in waiting.values()
    )


def _lines(
    state: State,
    item: _WaitingJob,
    *,
    position: int,
    since_ns: int,
    reach: dict[tuple[int, ...], int],
) -> Iterator[QueueLine]:
    job = item.job
    held = state.reservations.by_job.get(job.id)
    for name, why in _waits_of(item).items():
        rows = [
            row
            for hold in (held.holds if held is not None else ())
            for row in hold.rows
            if hold.group == name
        ]
        wait_class = "" if item.blocked is None else why.wait_class
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
            wakes=_wake_conditions(state, item, wait_class, reach),
            nodes=tuple(state.fleet.ids[row] for row in rows),
            eval_id=eval_id(item.evaluation.key),
            decided_seq=why.decided_seq,
        )


def behind_reason(job_id: str) -> str:
    """Describe the job ahead in the queue."""
    return f"job {job_id!r} is ahead of it in the queue for the same resources"


def _wake_conditions(
    state: State, item: _WaitingJob, wait_class: str, reach: dict[tuple[int, ...], int]
) -> tuple[str, ...]:
    if item.blocked is None:
        return (f"capacity for job {item.behind!r}",)
    if wait_class in UNSATISFIABLE_CLASSES:
        larger = ("a larger node",) if wait_class == "never_fits" else ()
        return (*larger, "a node of another class")
    classes = item.blocked.classes
    if classes not in reach:
        fleet = state.fleet
        live = fleet.live[: fleet.size]
        reach[classes] = int((np.isin(fleet.class_of[: fleet.size], classes) & live).sum())
    return (f"released capacity on any of {reach[classes]} nodes", "a node of another class")
