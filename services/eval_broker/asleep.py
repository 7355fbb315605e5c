"""Evaluations asleep until a time of the log's clock.

Decides which of them shall wake. Must not know how they are woken (that is a command, and the log's word). Next:
`requests.py`.
"""

from heapq import heappop, heappush

from schemas.base import EvalKey


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
