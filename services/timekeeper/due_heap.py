"""Due times: a heap of (time, key), where a later entry for a key replaces the earlier one.

Times are ns of the wall clock, as the log has them. `DueSource` is one kind of deadline: a table that says when what is
due. A further kind is one more source of the role, with a heap of its own.
"""

import heapq
from collections.abc import Hashable, Iterable
from typing import Protocol

import msgspec

from schemas.base import Event
from schemas.envelope import AnyCommand
from shared.core.state.state import State

#: After an instance began to lead: what was sent before, a report or the reading of a gauge, may be on its way.
GRACE_NS = 15_000_000_000
#: Unique within its kind, and ordered among the keys of it.
DueKey = Hashable


class DueTime(msgspec.Struct, frozen=True, gc=False):
    """The time of a step, ns: of this machine's clock, and of the log."""

    wall_ns: int
    log_ns: int


class DueSource(Protocol):
    """One kind of deadline. Reads the state alone; what is due follows from it and from the time."""

    #: tables that it reads.
    tables: frozenset[str]
    #: events that may change what is due.
    events: frozenset[type[Event]]
    #: a command is sent again until the log shows something else; otherwise the next one says what holds then.
    is_told_again: bool
    #: its times are compared with log time, as they count from records; otherwise with this machine's clock.
    is_log_time: bool
    #: only the leader sends its commands. Otherwise a standby may, too, what has no grace (`patience.py`).
    needs_lease: bool

    def keys(self, state: State) -> Iterable[DueKey]:
        """Return every key that something may be due of, in order."""
        ...

    def changed(self, state: State, event: Event) -> Iterable[DueKey]:
        """Return the keys of which an event, which the state includes, changed what is due."""
        ...

    def due_ns(self, state: State, key: DueKey, at: DueTime) -> int:
        """Return when the next thing of a key is due; 0: nothing is."""
        ...

    def grace_ns(self, state: State, key: DueKey) -> int:
        """Return how long nothing is said of a key after this instance began to lead, or was cut off, ns.

        What would have met the deadline may be on its way.
        """
        ...

    def command(self, state: State, key: DueKey, at: DueTime) -> AnyCommand | None:
        """Say that what was due of a key has come; None: it has not."""
        ...


class DueHeap:
    """Deadlines of one source by key."""

    def __init__(self) -> None:
        self._due: dict[DueKey, int] = {}
        self._heap: list[tuple[int, DueKey]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: DueKey) -> bool:
        return key in self._due

    def is_due(self, key: DueKey, now_ns: int) -> bool:
        """Tell whether a key is due by now."""
        return 0 < self._due.get(key, 0) <= now_ns

    def put(self, key: DueKey, due_ns: int) -> None:
        """Have a key due at a time; 0: not at all."""
        if not due_ns:
            self._due.pop(key, None)
        elif self._due.get(key) != due_ns:
            self._due[key] = due_ns
            heapq.heappush(self._heap, (due_ns, key))

    def take_due(self, now_ns: int, most: int) -> list[DueKey]:
        """Take out the keys that are due by now, the earliest first, at most `most`."""
        found: list[DueKey] = []
        while len(found) < most and 0 < self.earliest_ns() <= now_ns:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            found.append(key)
        return found

    def earliest_ns(self) -> int:
        """Return when the first is due; 0: none."""
        heap = self._heap
        while heap:
            due_ns, key = heap[0]
            if self._due.get(key) == due_ns:
                return due_ns
            heapq.heappop(heap)
        return 0

    def clear(self) -> None:
        """Forget all."""
        self._due.clear()
        self._heap.clear()
