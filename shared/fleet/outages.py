"""Which nodes of a fleet are away, and when they return: by the failures of the profile."""

from collections.abc import Iterator

import numpy as np

from shared.core.columns import Rows, grown
from shared.fleet.distributions import NEVER_NS
from shared.fleet.due_queue import DueQueue
from shared.fleet.profile import NodeProfile


class Outages:
    """When each node fails and returns. Nodes are numbers."""

    def __init__(self, node_profile: NodeProfile, seed: int, nodes: int = 0) -> None:
        self._node_profile = node_profile
        self._seed = seed
        #: outages of each node so far.
        self._nth = np.zeros(nodes, dtype=np.int64)
        self._away: dict[int, None] = {}
        self._falls, self._returns = DueQueue(), DueQueue()

    def __len__(self) -> int:
        """How many nodes are away."""
        return len(self._away)

    def begin(self, now_ns: int) -> None:
        """Draw the first failure of every node."""
        if self._node_profile.has_failures:
            self._draw(np.arange(len(self._nth), dtype=np.int32), now_ns)

    def add(self, node: int, now_ns: int) -> None:
        """Draw the first failure of a node that joins."""
        self._nth = grown(self._nth, node + 1)
        self._draw(np.asarray([node], dtype=np.int32), now_ns)

    def is_away(self, node: int) -> bool:
        """Return whether a node is away now."""
        return node in self._away

    def next_ns(self) -> int:
        """When the next node fails or returns; 0: never."""
        times = [at for at in (self._falls.next_ns(), self._returns.next_ns()) if at]
        return min(times, default=0)

    def take_failed(self, now_ns: int) -> list[int]:
        """Take the nodes that have failed by now."""
        at, rows = self._falls.pop(now_ns)
        if len(rows):
            away = self._node_profile.outage_times_ns(
                self._seed, rows.astype(np.int64), self._nth[rows]
            )
            boot = self._node_profile.boot_times_ns(
                self._seed, rows.astype(np.int64), self._nth[rows]
            )
            self._returns.push(np.minimum(at + away + boot, NEVER_NS), rows)
            self._nth[rows] += 1
            self._away.update(dict.fromkeys(rows.tolist()))
        failed: list[int] = rows.tolist()
        return failed

    def returned(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Take the nodes that have booted by now, each with the number of its boot."""
        at, rows = self._returns.pop(now_ns)
        for row in rows.tolist():
            del self._away[row]
            yield row, int(self._nth[row])
        if len(rows):
            self._draw(rows, int(at[-1]))

    def _draw(self, rows: Rows, now_ns: int) -> None:
        after = self._node_profile.times_to_failure_ns(
            self._seed, rows.astype(np.int64), self._nth[rows]
        )
        self._falls.push(np.minimum(after, NEVER_NS - now_ns) + now_ns, rows)
