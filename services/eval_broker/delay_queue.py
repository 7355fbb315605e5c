"""Evaluations delayed until a time of the log's clock.

Returns those that are due. The broker wakes them with a command, and the log confirms it.
"""

from heapq import heappop, heappush

from schemas.base import EvalKey


class DelayQueue:
    """Evaluations delayed until a time of the log's clock."""

    def __init__(self) -> None:
        self._until_ns: dict[EvalKey, int] = {}
        self._heap: list[tuple[int, EvalKey]] = []

    def __len__(self) -> int:
        return len(self._until_ns)

    @property
    def next_ns(self) -> int:
        """When the next one is due, wall time; 0: none is delayed."""
        while self._heap and self._until_ns.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else 0

    def add(self, key: EvalKey, until_ns: int) -> None:
        """Delay an evaluation."""
        if self._until_ns.get(key) != until_ns:
            self._until_ns[key] = until_ns
            heappush(self._heap, (until_ns, key))

    def drop(self, key: EvalKey) -> bool:
        """Remove an evaluation that is pending again, or ended. Returns whether it was here."""
        return self._until_ns.pop(key, None) is not None

    def take(self, now_ns: int, limit: int) -> list[EvalKey]:
        """Return those that are due, earliest first; each is returned once, and stays until dropped."""
        keys: list[EvalKey] = []
        while len(keys) < limit and 0 < self.next_ns <= now_ns:
            keys.append(heappop(self._heap)[1])
        return keys
