"""Parked jobs as facts: who leads the queue of a wait shape, and which jobs are parked behind those that lead it.

No record says that a job is parked: it follows from what is blocked (`shared/query/wait_queue.py`). So a record costs a
look at the jobs that it is about, not at all that are parked. A job is noted once, when something of its shape first
waits ahead of it or behind it, and once when it is decided; each change of the first blocked one is noted once for all
behind it. `views.py` joins the two.
"""

from collections.abc import Iterator
from hashlib import blake2b
from heapq import heappop, heappush

import msgspec

from schemas.base import EvalKey, Event, JobId
from schemas.envelope import ENCODER
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, EvaluationsWoken
from schemas.jobs import JobsCollected
from schemas.plans import PlanCommitted
from shared.archive.table_buffers import EventPosition, TableBuffer
from shared.core.scheduling.reservations.wait_shapes import (
    QueueOrder,
    WaitShape,
    blocked_shape,
    new_job_shape,
    queue_order,
)
from shared.core.state.ids import eval_id
from shared.core.state.state import State
from shared.query.wait_queue import undecided_evaluation


class _Place(msgspec.Struct, frozen=True):
    """Where a job stands: the queue of its shape, its order there, and the evaluation; blocked or undecided."""

    shape: int
    order: QueueOrder
    key: EvalKey
    is_blocked: bool


class _ShapeQueue(msgspec.Struct, eq=False):
    """The jobs of one shape. `heap`: orders of blocked ones, each once; those that are so no more are skipped."""

    blocked: set[QueueOrder] = msgspec.field(default_factory=set[QueueOrder])
    heap: list[QueueOrder] = []
    heaped: set[QueueOrder] = msgspec.field(default_factory=set[QueueOrder])
    #: all undecided ones, and those that were not noted: nothing of the shape waited while they did.
    undecided: dict[JobId, None] = {}
    unnoted: dict[JobId, None] = {}
    #: who was noted to lead it.
    lead: QueueOrder | None = None

    def block(self, order: QueueOrder) -> None:
        """Add a blocked one."""
        self.blocked.add(order)
        if order not in self.heaped:
            self.heaped.add(order)
            heappush(self.heap, order)

    def first(self) -> QueueOrder | None:
        """The first blocked one."""
        while self.heap and self.heap[0] not in self.blocked:
            self.heaped.discard(heappop(self.heap))
        return self.heap[0] if self.heap else None


class ParkedWaits:
    """Follows the state, record by record."""

    def __init__(self, state: State, buffers: dict[str, TableBuffer]) -> None:
        self._state = state
        self._leads = buffers["leads"]
        self._parked = buffers["parked"]
        self._places: dict[JobId, _Place] = {}
        self._queues: dict[int, _ShapeQueue] = {}
        #: jobs that were noted as undecided, and shapes whose blocked ones changed.
        self._noted: set[JobId] = set()
        self._changed: dict[int, None] = {}
        #: jobs of the record under way.
        self._touched: dict[JobId, None] = {}

    def restore(self) -> None:
        """Take what the state says, without noting it: the facts before have it.

        An undecided job may have been noted while something led its queue: its end is noted in any case.
        """
        self._places, self._queues, self._noted = {}, {}, set()
        table = self._state.evaluations
        for job_id in dict.fromkeys(table.by_key[key].job_id for key in table.open):
            self._move(job_id)
        for shape in self._changed:
            queue = self._queues[shape]
            queue.lead = queue.first()
            self._noted.update(queue.undecided)
            if queue.lead is not None:
                queue.unnoted = {}
        self._changed = {}

    def before(self, event: Event) -> None:
        """Take the jobs that an event is about, from the state before it."""
        by_key = self._state.evaluations.by_key
        keys: tuple[EvalKey, ...] = ()
        if isinstance(event, EvaluationsCreated):
            self._touched.update(dict.fromkeys(new.job_id for new in event.evaluations))
        elif isinstance(event, EvaluationsWoken):
            keys = event.keys
        elif isinstance(event, EvaluationEnded):
            keys = (event.key,)
        elif isinstance(event, JobsCollected):
            self._touched.update(dict.fromkeys(event.job_ids))
        elif isinstance(event, PlanCommitted):
            self._touched.update(dict.fromkeys(one.job_id for one in event.evictions))
        self._touched.update(dict.fromkeys(by_key[key].job_id for key in keys if key in by_key))
        job_id = getattr(event, "job_id", None)
        if job_id is not None:
            self._touched[job_id] = None

    def note(self, at: EventPosition) -> None:
        """Note what a record changed, behind its last event."""
        touched, self._touched = self._touched, {}
        for job_id in touched:
            if self._move(job_id) and job_id in self._noted:
                self._noted.discard(job_id)
                self._parked.add_event(at, key=0, job_id=job_id, shape=0, rank=0, age=0)
        for shape in self._changed:
            self._note_lead(shape, at)
        for shape in self._changed:
            queue = self._queues[shape]
            if not queue.blocked and not queue.undecided:
                del self._queues[shape]
        self._changed = {}

    def _move(self, job_id: JobId) -> bool:
        """Put a job where the state has it now; returns whether that is another place."""
        old, new = self._places.get(job_id), self._place_of(job_id)
        if old == new:
            return False
        if old is not None:
            queue = self._queues[old.shape]
            queue.blocked.discard(old.order)
            queue.undecided.pop(job_id, None)
            queue.unnoted.pop(job_id, None)
            self._changed[old.shape] = None
            del self._places[job_id]
        if new is not None:
            queue = self._queues.setdefault(new.shape, _ShapeQueue())
            self._places[job_id] = new
            if new.is_blocked:
                queue.block(new.order)
            else:
                queue.undecided[job_id] = queue.unnoted[job_id] = None
            self._changed[new.shape] = None
        return True

    def _place_of(self, job_id: JobId) -> _Place | None:
        state = self._state
        job = state.jobs.by_id.get(job_id)
        if job is None:
            return None
        key = state.evaluations.blocked_of.get(job_id)
        if key is not None and (blocked := state.evaluations.by_key[key].blocked) is not None:
            shape = shape_number(blocked_shape(job, blocked))
            return _Place(shape, queue_order(job), key, is_blocked=True)
        one = undecided_evaluation(state, job)
        if one is None:
            return None
        shape = shape_number(new_job_shape(job) or ())
        return _Place(shape, queue_order(job), one.key, is_blocked=False)

    def _note_lead(self, shape: int, at: EventPosition) -> None:
        queue = self._queues[shape]
        first = queue.first()
        if first != queue.lead:
            queue.lead = first
            rank, age, job_id = first or (0, 0, None)
            self._leads.add_event(at, shape=shape, rank=rank, age=age, job_id=job_id)
        if first is not None:
            for each in queue.unnoted:
                self._note_parked(each, at)
            queue.unnoted = {}

    def _note_parked(self, job_id: JobId, at: EventPosition) -> None:
        self._noted.add(job_id)
        place = self._places[job_id]
        rank, age, _ = place.order
        groups = list(self._groups(job_id))
        self._parked.add_event(
            at,
            key=place.key,
            job_id=job_id,
            shape=place.shape,
            rank=rank,
            age=age,
            groups=[name for name, _ in groups],
            counts=[str(count) for _, count in groups],
            eval_id=eval_id(place.key),
        )

    def _groups(self, job_id: JobId) -> Iterator[tuple[str, int]]:
        for group in self._state.jobs.by_id[job_id].groups:
            yield group.name, group.count


def shape_number(shape: WaitShape) -> int:
    """A number of a wait shape that is the same in every export: 63 bits of a hash."""
    digest = blake2b(ENCODER.encode(shape), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
