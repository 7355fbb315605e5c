"""Parked jobs as facts: who leads the queue of a wait shape, and which jobs are parked behind those that lead it.

No record says that a job is parked: it follows from what is blocked (`shared/query/wait_queue.py`). So a record costs a
look at the jobs that it is about, not at all that are parked. A job is noted once, when something of its shape first
waits ahead of it or behind it, and once when it is decided; each change of the first blocked one is noted once for all
behind it. `views.py` joins the two.
"""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from schemas.base import Event, JobId
from schemas.envelope import ENCODER
from shared.archive.table_buffers import EventPosition, TableBuffer
from shared.core.scheduling.reservations.wait_shapes import QueueOrder, WaitShape
from shared.core.state.ids import eval_id
from shared.core.state.state import State
from shared.query.blocked_shapes import BlockedShapes, jobs_of
from shared.query.job_wait import UndecidedPlace, undecided_place


class _ShapeQueue(msgspec.Struct, eq=False):
    """The undecided jobs of one shape, and those not noted: nothing of the shape waited while they were undecided."""

    undecided: dict[JobId, None] = {}
    unnoted: dict[JobId, None] = {}
    #: who was noted to lead it.
    lead: QueueOrder | None = None


class ParkedWaits:
    """Follows the state, record by record."""

    def __init__(self, state: State, buffers: dict[str, TableBuffer]) -> None:
        self._state = state
        self._leads = buffers["leads"]
        self._parked = buffers["parked"]
        self._places: dict[JobId, UndecidedPlace] = {}
        self._queues: dict[WaitShape, _ShapeQueue] = {}
        self._blocked = BlockedShapes(state)
        self._blocked.build()
        #: jobs that were noted as undecided, and shapes whose queues changed.
        self._noted: set[JobId] = set()
        self._changed: dict[WaitShape, None] = {}
        #: jobs of the record under way.
        self._touched: dict[JobId, None] = {}

    def restore(self) -> None:
        """Take what the state says, without noting it: the facts before have it.

        An undecided job may have been noted while something led its queue: its end is noted in any case.
        """
        self._places, self._queues, self._noted = {}, {}, set()
        self._blocked.begin_at(self._state)
        table = self._state.evaluations
        for job_id in dict.fromkeys(table.by_key[key].job_id for key in table.open):
            self._changed.update(dict.fromkeys(self._blocked.changing(job_id)))
            self._move(job_id)
        for shape in self._changed:
            queue = self._queues.setdefault(shape, _ShapeQueue())
            queue.lead = self._blocked.first(shape)
            self._noted.update(queue.undecided)
            if queue.lead is not None:
                queue.unnoted = {}
        self._changed = {}

    def before(self, event: Event) -> None:
        """Take the jobs that an event is about, from the state before it."""
        self._touched.update(dict.fromkeys(jobs_of(self._state, event)))

    def note(self, at: EventPosition) -> None:
        """Note what a record changed, behind its last event."""
        touched, self._touched = self._touched, {}
        for job_id in touched:
            self._changed.update(dict.fromkeys(self._blocked.changing(job_id)))
            self._blocked.move(job_id)
            if self._move(job_id) and job_id in self._noted:
                self._noted.discard(job_id)
                self._parked.add_event(at, key=0, job_id=job_id, shape=0, rank=0, age=0)
        for shape in self._changed:
            self._note_lead(shape, at)
        for shape in self._changed:
            queue = self._queues[shape]
            if queue.lead is None and not queue.undecided:
                del self._queues[shape]
        self._changed = {}

    def _move(self, job_id: JobId) -> bool:
        """Put a job among the undecided where the state has it so; returns whether that is another place."""
        old, new = self._places.get(job_id), undecided_place(self._state, job_id)
        if old == new:
            return False
        if old is not None:
            queue = self._queues[old.shape]
            queue.undecided.pop(job_id, None)
            queue.unnoted.pop(job_id, None)
            self._changed[old.shape] = None
            del self._places[job_id]
        if new is not None:
            queue = self._queues.setdefault(new.shape, _ShapeQueue())
            self._places[job_id] = new
            queue.undecided[job_id] = queue.unnoted[job_id] = None
            self._changed[new.shape] = None
        return True

    def _note_lead(self, shape: WaitShape, at: EventPosition) -> None:
        queue = self._queues.setdefault(shape, _ShapeQueue())
        first = self._blocked.first(shape)
        if first != queue.lead:
            queue.lead = first
            rank, age, job_id = first or (0, 0, None)
            self._leads.add_event(at, shape=shape_number(shape), rank=rank, age=age, job_id=job_id)
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
            shape=shape_number(place.shape),
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
