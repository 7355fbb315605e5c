"""The waiting list: what waits, why, in which place, and what would let it go.

Decides what is shown of the queue (docs/concepts.md, "Waiting"): blocked evaluations, and parked ones, which are
pending but stand behind a blocked one of their shape. All of it is read from the tables; the eval broker, which acts on
the same, is not asked.
"""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from schemas.answers import QueueLine, WaitingLine
from schemas.base import JobId
from schemas.evaluations import Blocked
from shared.core.ids import eval_id
from shared.core.shapes import Order, Shape, order_of, waiting_shape, whole_shape
from shared.core.state import State
from shared.core.tables.evaluations import Evaluation
from shared.core.tables.jobs import Job

#: Nothing that is given back helps these: they stand in no line.
HOPELESS = frozenset({"misconfigured", "never_fits"})
#: job -> log time since when it waits, 0 where nobody knows.
Since = Callable[[JobId], int]


class _Item(msgspec.Struct, frozen=True, eq=False):
    """Somebody who waits. `behind`: the job that waits for the same before it; empty: it is blocked itself."""

    job: Job
    evaluation: Evaluation
    blocked: Blocked | None
    behind: str = ""


def waiting_lines(state: State, since: Since) -> list[QueueLine]:
    """List all that wait, a line a group, the first of each pool first."""
    items = {order_of(item.job): item for item in _items(state)}
    reach: dict[tuple[int, ...], int] = {}
    places: dict[str, int] = {}
    lines: list[QueueLine] = []
    for order in sorted(items):
        item = items[order]
        at = 0
        if not _is_hopeless(item):
            at = places[item.job.node_pool] = places.get(item.job.node_pool, 0) + 1
        lines += _lines(state, item, position=at, since_ns=since(item.job.id), reach=reach)
    return lines


def parked_behind(state: State, evaluation: Evaluation) -> JobId:
    """Name the job that waits for the same before a pending evaluation; empty: none does."""
    table, jobs = state.evaluations, state.jobs.by_id
    job = jobs.get(evaluation.job_id)
    shape = whole_shape(job) if job is not None else None
    if evaluation.status != "pending" or job is None or shape is None:
        return JobId("")
    before = []
    for job_id, key in table.blocked_of.items():
        other, blocked = jobs.get(job_id), table.by_key[key].blocked
        if other is not None and blocked is not None and order_of(other) < order_of(job):
            before += [order_of(other)] if waiting_shape(other, blocked) == shape else []
    return min(before)[2] if before else JobId("")


def parked_lines(state: State, job: Job) -> tuple[WaitingLine, ...]:
    """Say of a job whose evaluation is parked what waits of it; nothing where none is."""
    table = state.evaluations
    return tuple(
        WaitingLine(
            group=group.name,
            n=group.count,
            wait_class="priority",
            reasons=(behind_reason(behind),),
            eval_id=eval_id(key),
        )
        for key in table.open_of.get(job.id, ())
        if (behind := parked_behind(state, table.by_key[key]))
        for group in job.groups
    )


def _items(state: State) -> Iterator[_Item]:
    table = state.evaluations
    first: dict[Shape, Order] = {}
    jobs = state.jobs.by_id
    for job_id, key in table.blocked_of.items():
        job, blocked = jobs.get(job_id), table.by_key[key].blocked
        if job is None or blocked is None:
            continue
        shape = waiting_shape(job, blocked)
        first[shape] = min(first.get(shape, order_of(job)), order_of(job))
        yield _Item(job, table.by_key[key], blocked)
    for key in table.open:
        evaluation = table.by_key[key]
        job = jobs.get(evaluation.job_id)
        if evaluation.status != "pending" or evaluation.wait_until_ns or job is None:
            continue
        if job.id in table.blocked_of:
            continue
        shape_ = whole_shape(job)
        before = first.get(shape_) if shape_ is not None else None
        if before is not None and before < order_of(job):
            yield _Item(job, evaluation, None, before[2])


def _is_hopeless(item: _Item) -> bool:
    waiting = item.blocked.waiting if item.blocked is not None else {}
    return bool(waiting) and all(one.wait_class in HOPELESS for one in waiting.values())


def _lines(
    state: State, item: _Item, *, position: int, since_ns: int, reach: dict[tuple[int, ...], int]
) -> Iterator[QueueLine]:
    job, blocked = item.job, item.blocked
    held = state.reservations.by_job.get(job.id)
    for group in job.groups:
        why = blocked.waiting.get(group.name) if blocked is not None else None
        if blocked is not None and why is None:
            continue
        rows = [
            row
            for hold in (held.holds if held is not None else ())
            for row in hold.rows
            if hold.group == group.name
        ]
        yield QueueLine(
            position=position,
            job=job.id,
            group=group.name,
            n=why.count if why is not None else group.count,
            wait_class=why.wait_class if why is not None else "priority",
            priority=job.priority,
            pool=job.node_pool,
            since_ns=since_ns,
            reasons=why.reasons if why is not None else (_parked(item),),
            wakes=_wakes(state, item, why.wait_class if why is not None else "", reach),
            nodes=tuple(state.fleet.ids[row] for row in rows),
            eval_id=eval_id(item.evaluation.key),
        )


def behind_reason(job_id: str) -> str:
    """Say that another stands before."""
    return f"job {job_id!r} waits for the same before it"


def _parked(item: _Item) -> str:
    return behind_reason(item.behind)


def _wakes(
    state: State, item: _Item, wait_class: str, reach: dict[tuple[int, ...], int]
) -> tuple[str, ...]:
    if item.blocked is None:
        return (f"room for job {item.behind!r}",)
    if wait_class in HOPELESS:
        larger = ("a node that offers more",) if wait_class == "never_fits" else ()
        return (*larger, "a node of another class")
    classes = item.blocked.classes
    if classes not in reach:
        fleet = state.fleet
        live = fleet.live[: fleet.size]
        reach[classes] = int((np.isin(fleet.class_of[: fleet.size], classes) & live).sum())
    return (f"room on any of {reach[classes]} nodes", "a node of another class")
