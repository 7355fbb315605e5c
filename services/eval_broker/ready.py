"""The ready queue: which evaluation is handed out next, and that each job has at most one out.

Decides the order: priority, then age. Must not know workers, leases' deadlines or why an evaluation is pending.
A job's evaluations stand in line behind one head; only heads are in the heap, so taking the next one never looks at
an evaluation that must wait. Next: `lines.py`.
"""

from collections.abc import Container
from heapq import heappop, heappush

import msgspec

from schemas.base import EvalKey, JobId


class Entry(msgspec.Struct, eq=False, gc=False):
    """One evaluation that may be decided now, or is out. `order`: minus priority."""

    job_id: JobId
    order: int
    #: steady time since which it may be handed out; 0: it was, once, since it came.
    since_ns: int
    is_out: bool = False


class ReadyQueue:
    """Evaluations that may be decided now, those handed out included."""

    def __init__(self) -> None:
        self._entries: dict[EvalKey, Entry] = {}
        self._heads: dict[JobId, EvalKey] = {}
        #: those behind the head of their job.
        self._behind: dict[JobId, list[EvalKey]] = {}
        self._out = 0
        #: heads as (minus priority, key); an entry that is no head any more, or is out, is passed over.
        self._heap: list[tuple[int, EvalKey]] = []

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
        """All of them, handed out or not."""
        return self._entries

    def add(self, key: EvalKey, job_id: JobId, priority: int, now_ns: int) -> int:
        """Put an evaluation in; one that is known stays where it is. `now_ns` is steady time.

        Returns how many of its job wait, 0 where it is the only one.
        """
        entry = self._entries.get(key)
        if entry is not None:
            entry.since_ns = now_ns
            return 0
        self._entries[key] = Entry(job_id, -priority, now_ns)
        head = self._heads.setdefault(job_id, key)
        if head == key:
            heappush(self._heap, (-priority, key))
            return 0
        first = self._entries[head]
        line = self._behind.setdefault(job_id, [])
        if first.is_out or (-priority, key) > (first.order, head):
            line.append(key)
        else:
            line.append(head)
            self._lead(job_id, key)
        return len(line) + (not first.is_out)

    def drop(self, key: EvalKey) -> bool:
        """Forget an evaluation, handed out or not; the next of its job moves up. Returns whether it was known."""
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

    def take(self, limit: int, floor: int, now_ns: int) -> tuple[list[EvalKey], list[int]]:
        """Hand out the next evaluations, at most `limit`, none of a priority below `floor`. `now_ns` is steady time.

        Returns them, and how long each could have been handed out; 0 for what was out before.
        """
        heap, entries, heads = self._heap, self._entries, self._heads
        keys: list[EvalKey] = []
        waited_ns: list[int] = []
        while heap and len(keys) < limit and -heap[0][0] >= floor:
            key = heappop(heap)[1]
            entry = entries.get(key)
            if entry is not None and not entry.is_out and heads[entry.job_id] == key:
                entry.is_out = True
                keys.append(key)
                waited_ns.append(now_ns - (entry.since_ns or now_ns))
                entry.since_ns = 0
        self._out += len(keys)
        return keys, waited_ns

    def give_back(self, key: EvalKey) -> None:
        """Let an evaluation that was handed out, and is still pending, be handed out again."""
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
        """Evaluations of a job that are not handed out, in no order; empty where only its head waits."""
        behind = self._behind.get(job_id)
        if behind is None:
            return []
        head = self._heads[job_id]
        return list(behind) if self._entries[head].is_out else [*behind, head]

    def next_of(self, job_id: JobId) -> EvalKey | None:
        """The evaluation of a job that is handed out next; None: nothing of it waits."""
        head = self._heads.get(job_id)
        if head is None or not self._entries[head].is_out:
            return head
        return min(self._behind.get(job_id, ()), key=self._place, default=None)

    def _place(self, key: EvalKey) -> tuple[int, EvalKey]:
        return self._entries[key].order, key

    def _lead(self, job_id: JobId, key: EvalKey) -> None:
        self._heads[job_id] = key
        heappush(self._heap, (self._entries[key].order, key))

    def _move_up(self, job_id: JobId) -> None:
        line = self._behind.get(job_id)
        if line is None:
            return
        key = min(line, key=self._place)
        line.remove(key)
        if not line:
            del self._behind[job_id]
        self._lead(job_id, key)
