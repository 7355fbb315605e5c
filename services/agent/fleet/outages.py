"""Which nodes of a fleet are away, and when they come back: by the profile's failures.

Decides nothing by itself: times are draws of `shared/fleet/profile.py`. Must not know what a node is.
"""

from collections.abc import Iterator

import numpy as np

from shared.fleet.due import DueQueue
from shared.fleet.laws import NEVER_NS
from shared.fleet.profile import Habits


class Outages:
    """When each node fails and returns."""

    def __init__(self, habits: Habits, seed: int, nodes: int) -> None:
        self._habits = habits
        self._seed = seed
        #: outages that each node had.
        self._nth = np.zeros(nodes, dtype=np.int64)
        self._away: dict[int, None] = {}
        self._falls, self._returns = DueQueue(), DueQueue()

    def __len__(self) -> int:
        """How many nodes are away."""
        return len(self._away)

    def begin(self, now_ns: int) -> None:
        """Draw the first failure of every node."""
        if self._habits.has_outages:
            self._draw(np.arange(len(self._nth), dtype=np.int32), now_ns)

    def is_away(self, node: int) -> bool:
        """Tell whether a node is silent now."""
        return node in self._away

    def next_ns(self) -> int:
        """When a node goes or comes next; 0: never."""
        times = [at for at in (self._falls.next_ns(), self._returns.next_ns()) if at]
        return min(times, default=0)

    def fallen(self, now_ns: int) -> list[int]:
        """Take the nodes that fail by now."""
        at, rows = self._falls.pop(now_ns)
        if len(rows):
            away = self._habits.aways_ns(self._seed, rows.astype(np.int64), self._nth[rows])
            boot = self._habits.boots_ns(self._seed, rows.astype(np.int64), self._nth[rows])
            self._returns.push(np.minimum(at + away + boot, NEVER_NS), rows)
            self._nth[rows] += 1
            self._away.update(dict.fromkeys(rows.tolist()))
        fallen: list[int] = rows.tolist()
        return fallen

    def returned(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Take the nodes that boot by now, each with the number of its boot."""
        at, rows = self._returns.pop(now_ns)
        for row in rows.tolist():
            del self._away[row]
            yield row, int(self._nth[row])
        if len(rows):
            self._draw(rows, int(at[-1]))

    def _draw(self, rows: "np.ndarray[tuple[int], np.dtype[np.int32]]", now_ns: int) -> None:
        after = self._habits.outages_after_ns(self._seed, rows.astype(np.int64), self._nth[rows])
        self._falls.push(np.minimum(after, NEVER_NS - now_ns) + now_ns, rows)
