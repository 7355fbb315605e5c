"""Evaluations asleep: blocked ones until room appears where they may run, delayed ones until their time.

Decides which of them shall wake, and in which order. Must not know how they are woken (that is a command, and the
log's word). A blocked evaluation is touched only by room on a class that it may use: those that wait for the same
classes share one entry of the index, and leave it once they are due. Next: `requests.py`.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from schemas.base import EvalKey
from schemas.evaluations import Blocked

Classes = tuple[int, ...]


class BlockedIndex:
    """Blocked evaluations by what wakes them.

    One is due when, on a computed class that it names or that was unknown when it was blocked, room appeared after
    the snapshot on which it found none. `freed_seq` is the evaluation table's, as it stands at construction.
    """

    def __init__(self, freed_seq: Mapping[int, int]) -> None:
        self._freed_seq = freed_seq
        self._newest_freed = max(freed_seq.values(), default=0)
        #: not due yet: classes, seen_classes, minus priority.
        self._waiting: dict[EvalKey, tuple[Classes, int, int]] = {}
        self._due: dict[EvalKey, None] = {}
        self._due_heap: list[tuple[int, EvalKey]] = []
        #: a set of classes -> who waits for any of them.
        self._by_shape: dict[Classes, dict[EvalKey, None]] = {}
        self._shapes_of: dict[int, dict[Classes, None]] = {}
        #: number of classes known -> who was blocked then, and those numbers in order.
        self._by_seen: dict[int, dict[EvalKey, None]] = {}
        self._seen: list[int] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._due)

    def add(self, key: EvalKey, priority: int, blocked: Blocked) -> None:
        """Take a blocked evaluation in; room may have appeared since its snapshot."""
        if key in self._waiting or key in self._due:
            return
        if self._was_missed(blocked):
            self._due[key] = None
            heappush(self._due_heap, (-priority, key))
            return
        self._waiting[key] = (blocked.classes, blocked.seen_classes, -priority)
        shape = self._by_shape.get(blocked.classes)
        if shape is None:
            shape = self._by_shape[blocked.classes] = {}
            for computed_class in blocked.classes:
                self._shapes_of.setdefault(computed_class, {})[blocked.classes] = None
        shape[key] = None
        seen = self._by_seen.get(blocked.seen_classes)
        if seen is None:
            seen = self._by_seen[blocked.seen_classes] = {}
            insort(self._seen, blocked.seen_classes)
        seen[key] = None

    def drop(self, key: EvalKey) -> bool:
        """Forget an evaluation: it is pending again, or ended. Returns whether it was here."""
        if key in self._waiting:
            self._unlist(key)
            return True
        return self._due.pop(key, 0) is None

    def free(self, classes: Iterable[int], seq: int) -> None:
        """Take note that room appeared on these classes at `seq`."""
        self._newest_freed = seq
        woken: list[EvalKey] = []
        newest_class = -1
        for computed_class in classes:
            newest_class = max(newest_class, computed_class)
            for shape in self._shapes_of.get(computed_class, ()):
                woken += self._by_shape[shape]
        # A class unknown to them: every one of these numbers is at most the highest class.
        for count in self._seen[: bisect_right(self._seen, newest_class)]:
            woken += self._by_seen[count]
        for key in woken:
            if key in self._waiting:
                heappush(self._due_heap, (self._unlist(key), key))
                self._due[key] = None

    def take(self, limit: int) -> list[EvalKey]:
        """Return the next due ones, by priority, then age; they are not returned again, and stay until dropped."""
        keys: list[EvalKey] = []
        while self._due_heap and len(keys) < limit:
            key = heappop(self._due_heap)[1]
            if key in self._due:
                keys.append(key)
        return keys

    def _was_missed(self, blocked: Blocked) -> bool:
        since = blocked.snapshot_seq
        if self._newest_freed <= since:
            return False
        freed = self._freed_seq
        if any(freed.get(computed_class, 0) > since for computed_class in blocked.classes):
            return True
        return any(seq > since for one, seq in freed.items() if one >= blocked.seen_classes)

    def _unlist(self, key: EvalKey) -> int:
        classes, count, order = self._waiting.pop(key)
        shape = self._by_shape[classes]
        del shape[key]
        if not shape:
            del self._by_shape[classes]
            for computed_class in classes:
                of_class = self._shapes_of[computed_class]
                of_class.pop(classes, None)
                if not of_class:
                    del self._shapes_of[computed_class]
        seen = self._by_seen[count]
        del seen[key]
        if not seen:
            del self._by_seen[count]
            self._seen.remove(count)
        return order


class DelayQueue:
    """Evaluations that sleep until a time of the log's clock."""

    def __init__(self) -> None:
        self._until_ns: dict[EvalKey, int] = {}
        self._heap: list[tuple[int, EvalKey]] = []

    def __len__(self) -> int:
        return len(self._until_ns)

    @property
    def next_ns(self) -> int:
        """When the next one is due, wall time; 0: none sleeps."""
        while self._heap and self._until_ns.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else 0

    def add(self, key: EvalKey, until_ns: int) -> None:
        """Let an evaluation sleep."""
        if self._until_ns.get(key) != until_ns:
            self._until_ns[key] = until_ns
            heappush(self._heap, (until_ns, key))

    def drop(self, key: EvalKey) -> bool:
        """Forget an evaluation: it is pending again, or ended. Returns whether it was here."""
        return self._until_ns.pop(key, None) is not None

    def take(self, now_ns: int, limit: int) -> list[EvalKey]:
        """Return those that are due, earliest first; they are not returned again, and stay until dropped."""
        keys: list[EvalKey] = []
        while len(keys) < limit and 0 < self.next_ns <= now_ns:
            keys.append(heappop(self._heap)[1])
        return keys
