"""Queues of blocked evaluations, one for each wait shape: which evaluation is retried, and when.

Evaluations with the same *wait shape* (`shared/core/scheduling/reservations/wait_shapes.py`) fit on the same nodes, so
if one of them finds no room, none does. They share a queue, ordered by priority, then age.
A queue holds blocked evaluations, for which the log records that no room was found, and parked ones: pending
evaluations behind a blocked one, whose try would fail in the same way. When capacity is freed that could help, only the
head is tried. A try that finds room allows two more, so that the rate doubles while there is room; a try that
finds none stops the queue. So an event costs one try for each queue, and the number of failed tries is at most the
number of evaluations just placed, plus one.

A new shape starts with a few tries: ten thousand jobs of one shape that fits nowhere cost a handful of evaluations.

This module decides nothing about nodes. Its state is derived from the tables and can be rebuilt at any time. A head
whose snapshot is older than the last room freed on its classes is tried at once, so no freed capacity is missed between
a snapshot and its block, or between two brokers. Next: `delay_queue.py`.
"""

from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush

import msgspec

from schemas.base import EvalKey, JobId
from schemas.evaluations import Blocked
from schemas.nodes import CapacityFreed
from services.eval_broker.wakeup_index import WakeupIndex
from shared.core.scheduling.reservations.wait_shapes import MinimumAsk, WaitShape

#: Tries that a new shape starts with.
FIRST_TRIES = 4
#: Concurrent tries of one queue: the number of leases that a single worker may hold.
TRIES_MAX = 256
#: A queue that finds room holds lower priorities back until its next tries are sent, at most this long.
STALL_TIMEOUT_NS = 250_000_000
#: Minus priority, age of the job, job id, key.
QueueOrder = tuple[int, int, JobId, EvalKey]
#: Wait classes that freed capacity cannot resolve.
UNFIXABLE_BY_CAPACITY = frozenset({"misconfigured", "never_fits"})


class PlacementNeed(msgspec.Struct, frozen=True, gc=False):
    """What an evaluation waits for, and its place in the queue. `asks`: one must fit; empty: any room may help."""

    job_id: JobId
    shape: WaitShape
    priority: int
    age: int
    asks: tuple[MinimumAsk, ...] = ()


class QueuedEvaluation(msgspec.Struct, eq=False, gc=False):
    """One evaluation of a queue: it waits, or is being tried. `blocked` is None for a parked one."""

    order: QueueOrder
    queue: "ShapeQueue"
    blocked: Blocked | None
    waits: bool


class ShapeQueue(msgspec.Struct, eq=False):
    """All evaluations of one wait shape. Times are steady ns."""

    shape: WaitShape
    #: serial number of the queue: a cheaper key than the shape.
    number: int
    #: seq of the log from which on it has seen every event that freed room on the classes it waits for.
    heard_seq: int = 0
    #: seq of the last event that freed room which could help.
    freed_seq: int = 0
    #: number of tries that may be started now.
    credit: int = 0
    #: no try has failed yet, or the last try found room.
    is_running: bool = True
    moved_ns: int = 0
    #: number that wait, and number being tried.
    waiting: int = 0
    trying: int = 0
    #: positions of waiting evaluations: `ordered` those that arrived in order, `heap` all others. A position whose
    #: evaluation no longer waits is skipped.
    ordered: deque[QueueOrder] = msgspec.field(default_factory=deque[QueueOrder])
    heap: list[QueueOrder] = []
    #: the most recent block record: the classes it names wake the queue.
    blocked: Blocked | None = None
    asks: tuple[MinimumAsk, ...] = ()


class BlockedQueues:
    """All queues. `freed_seq` and `grown_seq` are the evaluation table's, by computed class."""

    def __init__(self, freed_seq: Mapping[int, int], grown_seq: Mapping[int, int]) -> None:
        self._freed_seq = freed_seq
        self._grown_seq = grown_seq
        self._queues: dict[WaitShape, ShapeQueue] = {}
        self._members: dict[EvalKey, QueuedEvaluation] = {}
        #: parked evaluations by job; read by the role.
        self.parked_by_job: dict[JobId, tuple[EvalKey, ...]] = {}
        #: of those that `ready` returned last, those of a queue of which some have found no room.
        self.scarce: set[EvalKey] = set()
        self._wakes = WakeupIndex()
        #: blocked evaluations to wake.
        self._due: list[QueueOrder] = []
        self._ready: list[EvalKey] = []
        #: queues that find room and have more waiting, by number.
        self._running: dict[int, ShapeQueue] = {}
        self._blocked = 0
        self._numbered = 0

    def gauges(self) -> dict[str, int]:
        """Return the numbers of blocked evaluations, parked evaluations, and shapes with a queue."""
        return {
            "blocked_evaluations": self._blocked,
            "parked_evaluations": sum(map(len, self.parked_by_job.values())),
            "shapes": len(self._queues),
        }

    @property
    def waiting_for_workers(self) -> int:
        """Number of evaluations in running queues without a failed try: they wait for workers, not for nodes."""
        return sum(queue.waiting for queue in self._running.values() if queue.blocked is None)

    # ---- members ----

    def block(self, key: EvalKey, need: PlacementNeed, blocked: Blocked, now: "StepTime") -> None:
        """Add an evaluation that is blocked according to the log; room may have appeared since its snapshot."""
        if key in self._members:
            return
        queue = self._queue_of(need, now)
        queue.credit = 0
        queue.is_running = False
        self._enter(key, need, queue, blocked)
        self._blocked += 1
        if queue.blocked is None or blocked.snapshot_seq >= queue.blocked.snapshot_seq:
            queue.blocked = blocked
            queue.asks = need.asks
            if self._wakes.put(queue.shape, blocked):
                queue.heard_seq = now.seq
        self._settle(queue)

    def park(self, key: EvalKey, need: PlacementNeed, now: "StepTime") -> None:
        """Add a pending evaluation that only adds allocations; `ready` returns it once it may be leased."""
        if key in self._members:
            return
        queue = self._queue_of(need, now)
        if queue.credit and not queue.waiting and queue.trying < TRIES_MAX:
            # The queue is empty: the usual case.
            order = (-need.priority, need.age, need.job_id, key)
            self._members[key] = QueuedEvaluation(order, queue, None, waits=False)
            queue.trying += 1
            queue.credit -= 1
            self._ready.append(key)
            return
        self._enter(key, need, queue, None)
        self.parked_by_job[need.job_id] = (*self.parked_by_job.get(need.job_id, ()), key)
        self._settle(queue)

    def is_in_trial(self, key: EvalKey) -> bool:
        """Return whether an evaluation of a queue is being tried."""
        member = self._members.get(key)
        return member is not None and not member.waits

    def mark_woken(self, key: EvalKey, now: "StepTime") -> bool:
        """Drop a blocked evaluation that is pending now; returns whether it was here."""
        member = self._members.get(key)
        if member is None or member.blocked is None:
            return False
        self._blocked -= 1
        member.blocked = None
        queue = member.queue
        if member.waits:
            member.waits = False
            queue.waiting -= 1
            queue.trying += 1
        queue.moved_ns = now.ns
        self._settle(queue)
        return True

    def leave(
        self,
        key: EvalKey,
        now: "StepTime",
        *,
        was_tried: bool = False,
        after: EvalKey | None = None,
    ) -> bool:
        """Remove an evaluation that ended or belongs to no queue any more. Returns whether it was here.

        `was_tried`: its plan is in the log. The plan found room for everything, unless the blocked evaluation that it
        left (`after`) is in the same queue.
        """
        member = self._members.pop(key, None)
        if member is None:
            return False
        queue = member.queue
        if member.blocked is not None:
            self._blocked -= 1
        if member.waits:
            queue.waiting -= 1
            self._unpark(member.order)
        else:
            left = self._members.get(after) if after is not None else None
            queue.trying -= 1
            found = (left is None or left.queue is not queue) if was_tried else None
            self._learn(queue, now, found=found)
        if queue.waiting or queue.number in self._running:
            self._settle(queue)
        if not queue.waiting and not queue.trying:
            del self._queues[queue.shape]
            self._wakes.drop(queue.shape)
        return True

    # ---- tries ----

    def free(self, event: CapacityFreed, seq: int, now: "StepTime") -> None:
        """Record freed capacity; at most one evaluation of each queue that it can help becomes due."""
        for shape in self._wakes.touched(event.classes):
            queue = self._queues[shape]
            if _may_help(queue, event):
                queue.freed_seq = seq
                if not queue.trying:
                    queue.credit = max(queue.credit, 1)
                    queue.moved_ns = now.ns
                    self._settle(queue)

    def take(self, limit: int, now_ns: int) -> list[EvalKey]:
        """Take out blocked evaluations to wake, by priority, then age."""
        keys: list[EvalKey] = []
        floor = self.floor(now_ns) if self._due else 0
        while self._due and len(keys) < limit and -self._due[0][0] >= floor:
            key = heappop(self._due)[3]
            member = self._members.get(key)
            if member is not None and member.blocked is not None and not member.waits:
                keys.append(key)
        return keys

    def ready(self) -> list[EvalKey]:
        """Return parked evaluations that may be leased now; each is returned once, and stays until `leave`."""
        if not self._ready:
            return []
        keys, self._ready = [key for key in self._ready if self.is_in_trial(key)], []
        self.scarce = {key for key in keys if self._members[key].queue.blocked is not None}
        return keys

    def floor(self, now_ns: int) -> int:
        """Return the lowest priority that may be handed out now; 0: any.

        While a queue finds room, evaluations of lower priority must not take it before the next one of the queue.
        """
        return max((self._priority(queue, now_ns) for queue in self._running.values()), default=0)

    def due_ns(self, now_ns: int) -> int:
        """When a stalled queue stops holding lower priorities back; 0: none does."""
        ends = [queue.moved_ns + STALL_TIMEOUT_NS for queue in self._running.values()]
        return min((end for end in ends if end > now_ns), default=0)

    def _priority(self, queue: ShapeQueue, now_ns: int) -> int:
        is_moving = queue.waiting and now_ns < queue.moved_ns + STALL_TIMEOUT_NS
        return -self._head(queue).order[0] if is_moving else 0

    def _queue_of(self, need: PlacementNeed, now: "StepTime") -> ShapeQueue:
        queue = self._queues.get(need.shape)
        if queue is None:
            self._numbered += 1
            queue = ShapeQueue(need.shape, self._numbered, credit=FIRST_TRIES, moved_ns=now.ns)
            self._queues[need.shape] = queue
        return queue

    def _enter(
        self, key: EvalKey, need: PlacementNeed, queue: ShapeQueue, blocked: Blocked | None
    ) -> None:
        order = (-need.priority, need.age, need.job_id, key)
        self._members[key] = QueuedEvaluation(order, queue, blocked, waits=True)
        queue.waiting += 1
        # Most arrive in order of the queue: appending needs no search.
        if not queue.ordered or queue.ordered[-1] < order:
            queue.ordered.append(order)
        else:
            heappush(queue.heap, order)

    def _head(self, queue: ShapeQueue) -> QueuedEvaluation:
        """Return the first waiting evaluation; at least one must wait."""
        ordered, heap = queue.ordered, queue.heap
        first = late = None
        while ordered and (first := self._waiting_at(ordered[0])) is None:
            ordered.popleft()
        while heap and (late := self._waiting_at(heap[0])) is None:
            heappop(heap)
        if first is None or (late is not None and late.order < first.order):
            first = late
        assert first is not None, (queue.shape, queue.waiting)
        return first

    def _waiting_at(self, order: QueueOrder) -> QueuedEvaluation | None:
        member = self._members.get(order[3])
        is_there = member is not None and member.waits and member.order == order
        return member if is_there else None

    def _unpark(self, order: QueueOrder) -> None:
        job_id, key = order[2], order[3]
        keys = self.parked_by_job.get(job_id)
        if keys is None or key not in keys:
            return
        if len(keys) == 1:
            del self.parked_by_job[job_id]
        else:
            self.parked_by_job[job_id] = tuple(one for one in keys if one != key)

    def _learn(self, queue: ShapeQueue, now: "StepTime", *, found: bool | None) -> None:
        """Adjust the credit: two more tries after one that found room, none after one that found none."""
        if found is None:
            queue.credit += 1
            return
        queue.is_running = found
        queue.moved_ns = now.ns
        queue.credit = min(queue.credit + 2, TRIES_MAX) if found else 0

    def _settle(self, queue: ShapeQueue) -> None:
        """Start the tries that the credit allows. The head of an idle queue was tried after the last freed room."""
        if queue.waiting and not queue.trying and not queue.credit:
            queue.credit = int(self._is_due(queue, self._head(queue)))
        while queue.waiting and queue.credit and queue.trying < TRIES_MAX:
            head = self._head(queue)
            head.waits = False
            queue.credit -= 1
            queue.waiting -= 1
            queue.trying += 1
            if head.blocked is not None:
                heappush(self._due, head.order)
            else:
                self._unpark(head.order)
                self._ready.append(head.order[3])
        if queue.waiting and queue.trying and queue.is_running:
            self._running[queue.number] = queue
        else:
            self._running.pop(queue.number, None)

    def _is_due(self, queue: ShapeQueue, head: QueuedEvaluation) -> bool:
        """Return whether a head was never tried, or room appeared after the snapshot on which it found none."""
        blocked = head.blocked
        if blocked is None:
            return True
        since = blocked.snapshot_seq
        if since >= queue.heard_seq:
            # The queue has seen every event since then, amounts included.
            return queue.freed_seq > since
        freed = self._grown_seq if needs_new_nodes(blocked) else self._freed_seq
        return any(freed.get(one, 0) > since for one in blocked.classes) or any(
            seq > since for one, seq in freed.items() if one >= blocked.seen_classes
        )


class StepTime(msgspec.Struct, frozen=True, gc=False):
    """Time of a step: steady ns, and the seq of the log."""

    ns: int
    seq: int


def needs_new_nodes(blocked: Blocked) -> bool:
    """Return whether no waiting group fits any current node, so that only new or changed nodes can help."""
    waiting = blocked.waiting
    return bool(waiting) and all(
        one.wait_class in UNFIXABLE_BY_CAPACITY for one in waiting.values()
    )


def _may_help(queue: ShapeQueue, event: CapacityFreed) -> bool:
    if queue.blocked is not None and needs_new_nodes(queue.blocked):
        return event.grown
    if not event.room or not queue.asks:
        return True
    return any(all(a <= b for a, b in zip(ask, event.room, strict=True)) for ask in queue.asks)
