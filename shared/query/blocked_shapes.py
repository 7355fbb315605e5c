"""Blocked jobs by wait shape: which of those that wait for the same is first in the queue.

It decides who is parked behind whom (job_wait.py). Derived from the state, and kept beside it: a record costs a look at
the jobs that it is about, not at all that are blocked or parked. Nothing is built before the first question.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

import msgspec

from schemas.base import EvalKey, Event, JobId
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, EvaluationsWoken
from schemas.jobs import JobsCollected
from schemas.plans import PlanCommitted
from shared.core.scheduling.reservations.wait_shapes import (
    QueueOrder,
    WaitShape,
    blocked_shape,
    queue_order,
)
from shared.core.state.state import State

_Place = tuple[WaitShape, QueueOrder]


class _Line(msgspec.Struct, eq=False):
    """The blocked jobs of one shape. `heap`: their orders, each once; those that are so no more are skipped."""

    blocked: set[QueueOrder] = msgspec.field(default_factory=set[QueueOrder])
    heap: list[QueueOrder] = []
    heaped: set[QueueOrder] = msgspec.field(default_factory=set[QueueOrder])


class BlockedShapes:
    """The first blocked job of each shape. After its first question it must be told of every job that changes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._places: dict[JobId, _Place] = {}
        self._lines: dict[WaitShape, _Line] = {}
        self._is_built = False

    @property
    def is_followed(self) -> bool:
        """Tell whether a changed job may matter: not before the first question, nor while nothing is blocked."""
        return self._is_built and bool(self._places or self._state.evaluations.blocked_of)

    def begin_at(self, state: State) -> None:
        """Read another state from now on: what was known of the one before is dropped."""
        self._state, self._is_built = state, False

    def follow(self, state: State) -> None:
        """Read another state at the same seq from now on."""
        self._state = state

    def first(self, shape: WaitShape) -> QueueOrder | None:
        """The first blocked job of a shape; None: there is none."""
        self.build()
        line = self._lines.get(shape)
        if line is None:
            return None
        while line.heap[0] not in line.blocked:
            line.heaped.discard(heappop(line.heap))
        return line.heap[0]

    def place_of(self, job_id: JobId) -> _Place | None:
        """Shape and order of a job that is blocked now by the state; None: it is not."""
        table = self._state.evaluations
        key, job = table.blocked_of.get(job_id), self._state.jobs.by_id.get(job_id)
        blocked = table.by_key[key].blocked if key is not None else None
        if job is None or blocked is None:
            return None
        return blocked_shape(job, blocked), queue_order(job)

    def changing(self, job_id: JobId) -> Iterator[WaitShape]:
        """The shapes whose first one a changed job may change."""
        self.build()
        if job_id not in self._places and job_id not in self._state.evaluations.blocked_of:
            return
        for place in dict.fromkeys((self._places.get(job_id), self.place_of(job_id))):
            if place is not None:
                yield place[0]

    def move(self, job_id: JobId) -> None:
        """Put a job where the state has it now."""
        if not self.is_followed:
            return
        old, new = self._places.get(job_id), self.place_of(job_id)
        if old == new:
            return
        if old is not None:
            del self._places[job_id]
            line = self._lines[old[0]]
            line.blocked.discard(old[1])
            if not line.blocked:
                del self._lines[old[0]]
        if new is not None:
            self._places[job_id] = new
            line = self._lines.setdefault(new[0], _Line())
            line.blocked.add(new[1])
            if new[1] not in line.heaped:
                line.heaped.add(new[1])
                heappush(line.heap, new[1])

    def build(self) -> None:
        """Take what the state has blocked, unless it was taken already."""
        if self._is_built:
            return
        self._is_built, self._places, self._lines = True, {}, {}
        for job_id in self._state.evaluations.blocked_of:
            self.move(job_id)


def jobs_of(state: State, event: Event) -> Iterable[JobId]:
    """The jobs whose place in a queue an event may change. The state may have the event or not."""
    by_key = state.evaluations.by_key
    keys: tuple[EvalKey, ...] = ()
    if isinstance(event, EvaluationsCreated):
        return [new.job_id for new in event.evaluations]
    if isinstance(event, EvaluationsWoken):
        keys = event.keys
    elif isinstance(event, EvaluationEnded):
        keys = (event.key,)
    elif isinstance(event, JobsCollected):
        return event.job_ids
    found = [by_key[key].job_id for key in keys if key in by_key]
    if isinstance(event, PlanCommitted):
        found += [one.job_id for one in event.evictions]
    job_id: JobId | None = getattr(event, "job_id", None)
    return found if job_id is None else [*found, job_id]
