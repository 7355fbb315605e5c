"""Index of the wait shapes that an event can help, by the computed classes on which room appeared.

Independent of queues, order and amounts. A shape is affected by room on a class named in its last block record, and by
a class that did not exist at that time. Next: `delay_queue.py`.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable

from schemas.evaluations import Blocked
from shared.core.scheduling.reservations.wait_shapes import WaitShape

Classes = tuple[int, ...]


class WakeupIndex:
    """Wait shapes by the computed classes that affect them."""

    def __init__(self) -> None:
        #: shape -> classes, seen_classes.
        self._of: dict[WaitShape, tuple[Classes, int]] = {}
        self._by_class: dict[int, dict[WaitShape, None]] = {}
        #: number of classes known -> shapes, and those numbers in order.
        self._by_seen: dict[int, dict[WaitShape, None]] = {}
        self._seen: list[int] = []

    def put(self, shape: WaitShape, blocked: Blocked) -> bool:
        """Set the classes that affect a shape from a block record; returns whether they changed."""
        entry = (blocked.classes, blocked.seen_classes)
        if self._of.get(shape) == entry:
            return False
        self.drop(shape)
        self._of[shape] = entry
        for computed_class in blocked.classes:
            self._by_class.setdefault(computed_class, {})[shape] = None
        seen = self._by_seen.get(blocked.seen_classes)
        if seen is None:
            seen = self._by_seen[blocked.seen_classes] = {}
            insort(self._seen, blocked.seen_classes)
        seen[shape] = None
        return True

    def drop(self, shape: WaitShape) -> None:
        """Remove a shape."""
        classes, count = self._of.pop(shape, ((), -1))
        for computed_class in classes:
            of_class = self._by_class[computed_class]
            del of_class[shape]
            if not of_class:
                del self._by_class[computed_class]
        seen = self._by_seen.get(count)
        if seen is not None:
            del seen[shape]
            if not seen:
                del self._by_seen[count]
                self._seen.remove(count)

    def touched(self, classes: Iterable[int]) -> list[WaitShape]:
        """Return the shapes that room on these classes may help, each once."""
        found: dict[WaitShape, None] = {}
        newest_class = -1
        for computed_class in classes:
            newest_class = max(newest_class, computed_class)
            found.update(self._by_class.get(computed_class, {}))
        # A class that was created after their block: these counts are at most the highest class.
        for count in self._seen[: bisect_right(self._seen, newest_class)]:
            found.update(self._by_seen[count])
        return list(found)
