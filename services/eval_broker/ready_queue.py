"""The ready queue: which evaluation is leased next; at most one of each job is leased at a time.

Decides the order: priority, then age. Independent of workers, deadlines of leases and the reason of an evaluation.
Evaluations of a job queue behind its head; only heads are in the heaps, so `take` never inspects an evaluation that
must wait. Those that waited for room have a heap of their own: they are decided in the order in which they waited, by
one worker at a time. Next: `blocked_queue.py`.
"""

from collections.abc import Container
from heapq import heappop, heappush
from typing import Any

import msgspec

from schemas.base import EvalKey, JobId
from services.eval_broker.blocked_queue import QueueOrder


class ReadyEvaluation(msgspec.Struct, eq=False, gc=False):
    """One evaluation that may be leased, or is leased (`is_out`). `order`: minus priority.

    `place`: where it waited for room; None: it did not wait.
    """

    job_id: JobId
    order: int
    #: steady time since which it may be leased; 0: it was leased before.
    since_ns: int
    place: QueueOrder | None = None
    is_out: bool = False


class ReadyQueue:
    """Evaluations that may be decided now, leased ones included."""

    def __init__(self) -> None:
        self._entries: dict[EvalKey, ReadyEvaluation] = {}
        self._heads: dict[JobId, EvalKey] = {}
        #: evaluations behind the head of their job.
        self._behind: dict[JobId, list[EvalKey]] = {}
        self._out = 0
        #: heads as (minus priority, key); an entry that is not a head any more, or is leased, is skipped.
        self._heap: list[tuple[int, EvalKey]] = []
        #: the same of those that waited for room, by their places.
        self._waited: list[QueueOrder] = []

    @property
    def ready(self) -> int:
        """Number of evaluations that `take` would give out."""
        return len(self._heads) - self._out

    @property
    def behind(self) -> int:
        """Number of evaluations that wait for another one of their job."""
        return len(self._entries) - len(self._heads)

    @property
    def known(self) -> Container[EvalKey]:
        """Keys of all evaluations, leased or not."""
        return self._entries

    @property
    def has_waited(self) -> bool:
        """Tell whether one that waited for room may be there."""
        return bool(self._waited)

    @property
    def highest(self) -> int:
        """Priority that none of those which did not wait exceeds; 0: there are none."""
        return -self._heap[0][0] if self._heap else 0

    def add(
        self,
        key: EvalKey,
        job_id: JobId,
        priority: int,
        now_ns: int,
        *,
        place: QueueOrder | None = None,
    ) -> int:
        """Add an evaluation; a known one keeps its place. `now_ns` is steady time; `place`: where it waited for room.

        Returns how many evaluations of its job wait; 0: it is the only one.
        """
        entry = self._entries.get(key)
        if entry is not None:
            entry.since_ns = now_ns
            return 0
        self._entries[key] = ReadyEvaluation(job_id, -priority, now_ns, place)
        head = self._heads.setdefault(job_id, key)
        if head == key:
            self._push(-priority, key, place)
            return 0
        first = self._entries[head]
        behind = self._behind.setdefault(job_id, [])
        if first.is_out or (-priority, key) > (first.order, head):
            behind.append(key)
        else:
            behind.append(head)
            self._lead(job_id, key)
        return len(behind) + (not first.is_out)

    def drop(self, key: EvalKey) -> bool:
        """Remove an evaluation, leased or not; the next of its job becomes the head. Returns whether it was here."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._out -= entry.is_out
        job_id = entry.job_id
        if self._heads[job_id] == key:
            del self._heads[job_id]
            if self._behind:
                self._move_up(job_id)
            return True
        self._behind[job_id].remove(key)
        if not self._behind[job_id]:
            del self._behind[job_id]
        return True

    def take(
        self, limit: int, floor: int, now_ns: int, *, waited: bool = False
    ) -> tuple[list[EvalKey], list[int]]:
        """Take evaluations to lease, at most `limit`, none of a priority below `floor`. `now_ns` is steady time.

        Those that waited for room, or the others. Returns them, and how long each was ready in ns; 0 for one that was
        leased before.
        """
        heap: list[Any] = self._waited if waited else self._heap
        entries, heads = self._entries, self._heads
        keys: list[EvalKey] = []
        waited_ns: list[int] = []
        while heap and len(keys) < limit and -heap[0][0] >= floor:
            key = heappop(heap)[-1]
            entry = entries.get(key)
            if entry is not None and not entry.is_out and heads[entry.job_id] == key:
                entry.is_out = True
                keys.append(key)
                waited_ns.append(now_ns - (entry.since_ns or now_ns))
                entry.since_ns = 0
        self._out += len(keys)
        return keys, waited_ns

    def give_back(self, key: EvalKey) -> None:
        """Make a leased evaluation that is still pending ready again."""
        entry = self._entries.get(key)
        if entry is None or not entry.is_out:
            return
        entry.is_out = False
        self._out -= 1
        job_id = entry.job_id
        del self._heads[job_id]
        self._behind.setdefault(job_id, []).append(key)
        self._move_up(job_id)

    def waiting_of(self, job_id: JobId) -> list[EvalKey]:
        """Evaluations of a job that are not leased, in no order; empty if only its head waits."""
        behind = self._behind.get(job_id)
        if behind is None:
            return []
        head = self._heads[job_id]
        return list(behind) if self._entries[head].is_out else [*behind, head]

    def next_of(self, job_id: JobId) -> EvalKey | None:
        """The evaluation of a job that is leased next; None: none waits."""
        head = self._heads.get(job_id)
        if head is None or not self._entries[head].is_out:
            return head
        return min(self._behind.get(job_id, ()), key=self._place, default=None)

    def _place(self, key: EvalKey) -> tuple[int, EvalKey]:
        return self._entries[key].order, key

    def _lead(self, job_id: JobId, key: EvalKey) -> None:
        self._heads[job_id] = key
        entry = self._entries[key]
        self._push(entry.order, key, entry.place)

    def _push(self, order: int, key: EvalKey, place: QueueOrder | None) -> None:
        if place is None:
            heappush(self._heap, (order, key))
        else:
            heappush(self._waited, place)

    def _move_up(self, job_id: JobId) -> None:
        behind = self._behind.get(job_id)
        if behind is None:
            return
        key = min(behind, key=self._place)
        behind.remove(key)
        if not behind:
            del self._behind[job_id]
        self._lead(job_id, key)
