"""The ready queue: which evaluation is handed out next, and that each job has at most one out.

Decides the order: priority, then age. Must not know workers, leases' deadlines or why an evaluation is pending.
A job's evaluations stand in line behind one head; only heads are in the heap, so taking the next one never looks at
an evaluation that must wait. Next: `lines.py`.
"""

from heapq import heappop, heappush

from schemas.base import EvalKey, JobId


class ReadyQueue:
    """Evaluations that may be decided now, those handed out included."""

    def __init__(self) -> None:
        #: job, and minus priority.
        self._entries: dict[EvalKey, tuple[JobId, int]] = {}
        self._heads: dict[JobId, EvalKey] = {}
        #: those behind the head of their job.
        self._behind: dict[JobId, list[EvalKey]] = {}
        self._out: dict[EvalKey, None] = {}
        #: heads as (minus priority, key); an entry that is no head any more, or is out, is passed over.
        self._heap: list[tuple[int, EvalKey]] = []

    @property
    def ready(self) -> int:
        """Number of evaluations that `take` would give out."""
        return len(self._heads) - len(self._out)

    @property
    def behind(self) -> int:
        """Number of evaluations that wait for another one of their job."""
        return len(self._entries) - len(self._heads)

    def add(self, key: EvalKey, job_id: JobId, priority: int) -> int:
        """Put an evaluation in; one that is known stays where it is.

        Returns how many of its job wait, 0 where it is the only one.
        """
        if key in self._entries:
            return 0
        self._entries[key] = (job_id, -priority)
        head = self._heads.get(job_id)
        if head is None:
            self._heads[job_id] = key
            heappush(self._heap, (-priority, key))
            return 0
        is_out = head in self._out
        line = self._behind.setdefault(job_id, [])
        if is_out or (-priority, key) > (self._entries[head][1], head):
            line.append(key)
        else:
            line.append(head)
            self._lead(job_id, key)
        return len(line) + (not is_out)

    def drop(self, key: EvalKey) -> bool:
        """Forget an evaluation, handed out or not; the next of its job moves up. Returns whether it was known."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._out.pop(key, None)
        job_id = entry[0]
        if self._heads[job_id] == key:
            del self._heads[job_id]
            self._move_up(job_id)
            return True
        self._behind[job_id].remove(key)
        if not self._behind[job_id]:
            del self._behind[job_id]
        return True

    def take(self, limit: int, floor: int = 0) -> list[EvalKey]:
        """Hand out the next evaluations, at most `limit`, none of a priority below `floor`."""
        heap, entries, out, heads = self._heap, self._entries, self._out, self._heads
        keys: list[EvalKey] = []
        while heap and len(keys) < limit and -heap[0][0] >= floor:
            key = heappop(heap)[1]
            entry = entries.get(key)
            if entry is not None and key not in out and heads[entry[0]] == key:
                out[key] = None
                keys.append(key)
        return keys

    def give_back(self, key: EvalKey) -> None:
        """Let an evaluation that was handed out, and is still pending, be handed out again."""
        if key not in self._out:
            return
        del self._out[key]
        job_id = self._entries[key][0]
        del self._heads[job_id]
        self._behind.setdefault(job_id, []).append(key)
        self._move_up(job_id)

    def waiting_of(self, job_id: JobId) -> list[EvalKey]:
        """Evaluations of a job that are not handed out, in no order; empty where only its head waits."""
        behind = self._behind.get(job_id)
        if behind is None:
            return []
        head = self._heads[job_id]
        return list(behind) if head in self._out else [*behind, head]

    def next_of(self, job_id: JobId) -> EvalKey | None:
        """The evaluation of a job that is handed out next; None: nothing of it waits."""
        head = self._heads.get(job_id)
        if head is None or head not in self._out:
            return head
        behind = self._behind.get(job_id, ())
        return min(behind, key=lambda one: (self._entries[one][1], one), default=None)

    def __contains__(self, key: EvalKey) -> bool:
        """Whether an evaluation is known, handed out or not."""
        return key in self._entries

    def _lead(self, job_id: JobId, key: EvalKey) -> None:
        self._heads[job_id] = key
        heappush(self._heap, (self._entries[key][1], key))

    def _move_up(self, job_id: JobId) -> None:
        line = self._behind.get(job_id)
        if line is None:
            return
        key = min(line, key=lambda one: (self._entries[one][1], one))
        line.remove(key)
        if not line:
            del self._behind[job_id]
        self._lead(job_id, key)
