"""The workload as seen so far: how often each shape was asked for, in arrival order, from an empty log.

Decides what is remembered, what is forgotten, and when prices are recomputed. Every replica counts the same asks in the
same order, so it has the same counts at the same seq. hole_values.py is next.

Counts halve when they sum up to `WINDOW`, so that what a cluster ran long ago fades away, and their
number is bounded.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Shape = TypeVar("Shape", bound=Hashable)

#: Asks remembered at the most; at this many all counts halve.
WINDOW: Final = 65_536


class AskWorkload(Generic[Shape]):
    """Counts by shape. `generation` moves on when the counts have grown by half since it last did, or halved."""

    def __init__(self) -> None:
        self.counts: dict[Shape, int] = {}
        #: the counts as they were when `generation` last moved on: what prices of it are made of, whenever that is.
        self.settled: dict[Shape, int] = {}
        self.generation = 0
        self._total = 0
        self._due = 0

    def saw(self, ask: Shape, times: int = 1) -> None:
        """Count asks of one shape that arrived together, placed or not."""
        self.counts[ask] = self.counts.get(ask, 0) + times
        self._total += times
        while self._total >= WINDOW:
            self.counts = {shape: count // 2 for shape, count in self.counts.items() if count > 1}
            self._total = sum(self.counts.values())
            self._due = self._total
        if self._total >= self._due:
            self.generation += 1
            self.settled = dict(self.counts)
            self._due = self._total + self._total // 2 + 1
