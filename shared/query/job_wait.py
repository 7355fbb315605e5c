"""The wait of a job at a state: the one account that all answers about it derive from.

Lists, status commands, SQL, what-if and the HTTP API differ in what they show of it, not in what they say.
"""

from typing import Final

import msgspec

from schemas.base import EvalKey, JobId
from schemas.evaluation_answers import QueuedWait
from shared.core.scheduling.reservations.wait_shapes import (
    QueueOrder,
    WaitShape,
    new_job_shape,
    queue_order,
)
from shared.core.state.state import State
from shared.core.state.tables.evaluations import Evaluation
from shared.core.state.tables.jobs import Job
from shared.query.blocked_shapes import BlockedShapes

#: The last decision about it found no room for some of it, or for any; nothing has woken it since.
BLOCKED: Final = "blocked"
#: Undecided, behind a blocked job that waits for the same.
PARKED: Final = "parked"
#: It was blocked, or waited for a time, and is to be decided again: in no queue until then.
WOKEN: Final = "woken"
#: It is to be decided.
PENDING: Final = "pending"
#: Class of what is parked: an equal request is ahead of it.
PARKED_CLASS: Final = "priority"


class JobWait(msgspec.Struct, frozen=True, eq=False):
    """What a job waits for. `kind`: empty where it waits for nothing; `behind`: the job that it is parked behind.

    `groups`: of a blocked or parked one, in the order of the job; those that its newest version has no more come last,
    until it is decided again.
    """

    kind: str = ""
    evaluation: Evaluation | None = None
    groups: dict[str, QueuedWait] = {}
    behind: JobId = JobId("")


def job_wait(state: State, job: Job, shapes: BlockedShapes | None = None) -> JobWait:
    """Tell the wait of a job. `shapes`: kept beside the state; None: all that is blocked is looked at once."""
    table = state.evaluations
    key = table.blocked_of.get(job.id)
    if key is not None and table.by_key[key].blocked is not None:
        return JobWait(BLOCKED, table.by_key[key], _decided(job, table.by_key[key]))
    found = _pending(state, job)
    if found is None:
        return JobWait()
    place = undecided_place(state, job.id) if table.blocked_of else None
    if place is None:
        return JobWait(WOKEN if found.reason else PENDING, found)
    first = (BlockedShapes(state) if shapes is None else shapes).first(place.shape)
    if first is None or first >= place.order:
        return JobWait(PENDING, found)
    why = QueuedWait(wait_class=PARKED_CLASS, reasons=(behind_reason(first[2]),))
    groups = {group.name: msgspec.structs.replace(why, n=group.count) for group in job.groups}
    return JobWait(PARKED, found, groups, first[2])


class UndecidedPlace(msgspec.Struct, frozen=True):
    """Where a job stands that nothing was decided about: what it waits for, its order there, its evaluation."""

    shape: WaitShape
    order: QueueOrder
    key: EvalKey


def undecided_place(state: State, job_id: JobId) -> UndecidedPlace | None:
    """The place of a job that is parked wherever a blocked one is ahead of it; None: it cannot be parked."""
    job, table = state.jobs.by_id.get(job_id), state.evaluations
    found = None if job is None or job_id in table.blocked_of else _pending(state, job)
    if job is None or found is None or found.reason:
        return None
    shape = new_job_shape(job)
    return None if shape is None else UndecidedPlace(shape, queue_order(job), found.key)


def _pending(state: State, job: Job) -> Evaluation | None:
    """The first evaluation of a job that is to be decided, apart from those whose time has not come."""
    table = state.evaluations
    mine = (table.by_key[one] for one in table.open_of.get(job.id, ()))
    return next((one for one in mine if one.status == "pending" and not one.wait_until_ns), None)


def evaluation_wait(
    state: State, evaluation: Evaluation, shapes: BlockedShapes | None = None
) -> JobWait:
    """Tell the wait of the job of an evaluation, where it is this evaluation that waits."""
    job = state.jobs.by_id.get(evaluation.job_id) if evaluation.is_open else None
    found = JobWait() if job is None else job_wait(state, job, shapes)
    return found if found.evaluation is evaluation else JobWait()


def behind_reason(job_id: str) -> str:
    """Describe the job ahead in the queue."""
    return f"job {job_id!r} is ahead of it in the queue for the same resources"


def _decided(job: Job, evaluation: Evaluation) -> dict[str, QueuedWait]:
    """What was decided last, by group."""
    assert evaluation.blocked is not None
    waiting = evaluation.blocked.waiting
    names = [group.name for group in job.groups if group.name in waiting]
    return {
        name: QueuedWait(
            decided_seq=evaluation.modify_seq,
            n=waiting[name].count,
            wait_class=waiting[name].wait_class,
            reasons=waiting[name].reasons,
        )
        for name in dict.fromkeys((*names, *sorted(waiting)))
    }
