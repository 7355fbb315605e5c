"""Undecided jobs of a timeline: how many allocations of them are parked, and how many are to be decided.

A job is parked while a blocked one of its shape is ahead of it. Each time that one is woken, all behind it change
class: they are counted together, shape by shape, so that this costs no look at each.
"""

from bisect import bisect_left, insort

import msgspec

from schemas.base import JobId
from shared.core.scheduling.reservations.wait_shapes import QueueOrder, WaitShape
from shared.core.state.state import State
from shared.query.blocked_shapes import BlockedShapes
from shared.query.job_wait import PARKED_CLASS, undecided_place

#: Class of what no worker has decided yet, or decides again.
QUEUED = "queued"


class ClassSpan(msgspec.Struct, frozen=True):
    """`count` allocations of undecided jobs waited, all of one class."""

    wait_class: str
    count: int
    from_ns: int
    to_ns: int


class _Queue(msgspec.Struct, eq=False):
    """The undecided jobs of one shape. `parked`, `queued`: allocations of each class since `from_ns`."""

    from_ns: int
    orders: list[QueueOrder] = []
    counts: dict[QueueOrder, int] = {}
    total: int = 0
    lead: QueueOrder | None = None
    parked: int = 0
    queued: int = 0
    #: by class, jobs that were not seen in it.
    unseen: dict[str, dict[QueueOrder, None]] = {}


class UndecidedWaits:
    """Follows the jobs of a state about which nothing was decided."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._blocked = BlockedShapes(state)
        self._blocked.build()
        self._queues: dict[WaitShape, _Queue] = {}
        self._place: dict[JobId, tuple[WaitShape, QueueOrder]] = {}
        self._changed: dict[WaitShape, None] = {}
        self.spans: list[ClassSpan] = []
        #: by class, the jobs that waited in it.
        self.jobs: dict[str, set[JobId]] = {}

    def follow_state(self, state: State) -> None:
        """Read another state at the same seq from now on."""
        self._state = state
        self._blocked.follow(state)

    def move(self, job_id: JobId, t_ns: int) -> bool:
        """Put a changed job where the state has it; return whether it is undecided. `settle` follows."""
        for shape in self._blocked.changing(job_id):
            self._touch(shape, t_ns)
        self._blocked.move(job_id)
        found = undecided_place(self._state, job_id)
        old, new = self._place.get(job_id), None if found is None else (found.shape, found.order)
        if old == new:
            return new is not None
        if old is not None:
            queue = self._touch(old[0], t_ns)
            del queue.orders[bisect_left(queue.orders, old[1])]
            queue.total -= queue.counts.pop(old[1])
            for unseen in queue.unseen.values():
                unseen.pop(old[1], None)
            del self._place[job_id]
        if new is not None:
            queue = self._touch(new[0], t_ns)
            insort(queue.orders, new[1])
            job = self._state.jobs.by_id[job_id]
            queue.counts[new[1]] = sum(group.count for group in job.groups)
            queue.total += queue.counts[new[1]]
            for name in (PARKED_CLASS, QUEUED):
                queue.unseen.setdefault(name, {})[new[1]] = None
            self._place[job_id] = new
        return new is not None

    def settle(self) -> None:
        """Count anew what changed, at the end of a transaction."""
        for shape in self._changed:
            queue = self._queues[shape]
            queue.lead = self._blocked.first(shape)
            queue.queued = queue.total
            if queue.lead is not None:
                queue.queued = sum(queue.counts[order] for order in self._ahead(queue))
            queue.parked = queue.total - queue.queued
            if not queue.orders:
                del self._queues[shape]
        self._changed.clear()

    def class_of(self, job_id: JobId) -> str:
        """The class of an undecided job now."""
        shape, order = self._place[job_id]
        lead = self._queues[shape].lead
        return PARKED_CLASS if lead is not None and lead < order else QUEUED

    def close(self, t_ns: int) -> None:
        """End: all spans last until then."""
        for queue in self._queues.values():
            self._count(queue, t_ns)

    def detach(self) -> None:
        """Drop the state; what still waits keeps its class."""
        vars(self).update(_state=None, _blocked=None)

    def _touch(self, shape: WaitShape, t_ns: int) -> _Queue:
        """A queue that is about to change: what it was counts until now."""
        queue = self._queues.get(shape)
        if queue is None:
            queue = self._queues[shape] = _Queue(t_ns)
        if shape not in self._changed:
            self._count(queue, t_ns)
            self._changed[shape] = None
        return queue

    def _count(self, queue: _Queue, t_ns: int) -> None:
        if t_ns <= queue.from_ns:
            return
        for name, count in ((PARKED_CLASS, queue.parked), (QUEUED, queue.queued)):
            if count:
                self.spans.append(ClassSpan(name, count, queue.from_ns, t_ns))
                self._see(queue, name)
        queue.from_ns = t_ns

    def _see(self, queue: _Queue, name: str) -> None:
        """Note who is of a class, each once; those ahead of a blocked one are few, for they are decided at once."""
        unseen, lead = queue.unseen[name], queue.lead
        if lead is None:
            seen = list(unseen)
        elif name == PARKED_CLASS:
            seen = [order for order in unseen if lead < order]
        else:
            seen = [order for order in self._ahead(queue) if order in unseen]
        self.jobs.setdefault(name, set()).update(order[2] for order in seen)
        for order in seen:
            del unseen[order]

    @staticmethod
    def _ahead(queue: _Queue) -> list[QueueOrder]:
        """Those that stand before the blocked one."""
        assert queue.lead is not None
        return queue.orders[: bisect_left(queue.orders, queue.lead)]
