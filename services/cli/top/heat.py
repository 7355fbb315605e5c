"""The nodes as a strip of bars, and the use of the cluster over time. Heights carry the meaning, colours repeat it."""

from collections import deque
from typing import NamedTuple

import numpy as np

from schemas.nodes import NODE_STATUSES
from shared.core.state.state import State
from shared.query.fleet_columns import (
    DISCONNECTED,
    DOWN,
    DRAINING,
    INELIGIBLE,
    FleetColumns,
)

BARS = "▁▂▃▄▅▆▇█"
#: Signs of states, the worst first.
SIGNS = ((DOWN, "x"), (DISCONNECTED, "?"), (DRAINING, "d"), (INELIGIBLE, "i"))
_WHOLE = 65_536
_DOWN = NODE_STATUSES.index("down")
_HISTORY = 12


class HeatCell(NamedTuple):
    """One node, or neighbours by name. `level`: 0 to 7, by the scarcest resource; -1: `glyph` is a sign of SIGNS."""

    glyph: str
    level: int


def heat_cells(fleet: FleetColumns, most: int) -> list[HeatCell]:
    """The nodes by name in at most so many cells; a sign stands where half of a cell's nodes are in that state."""
    size = len(fleet.ids)
    count = min(size, max(most, 1))
    if not count:
        return []
    starts = np.arange(count) * size // count
    sizes = np.diff(np.append(starts, size))
    use = fleet.shares.max(axis=0).astype(np.int64)
    levels = (np.add.reduceat(use, starts) // sizes * len(BARS) // _WHOLE).tolist()
    glyphs = [HeatCell(BARS[level], level) for level in levels]
    for bit, sign in reversed(SIGNS):
        marked = np.add.reduceat(((fleet.flags & bit) != 0).astype(np.int64), starts)
        for at in np.flatnonzero(2 * marked >= sizes).tolist():
            glyphs[at] = HeatCell(sign, -1)
    return glyphs


def total_shares(state: State) -> tuple[int, int, int]:
    """Use of CPU, memory and disk by the whole cluster, in percent of what nodes that are not down have."""
    fleet = state.fleet
    rows = np.asarray(
        [row for row in fleet.row_of.values() if fleet.status[row] != _DOWN], dtype=np.int32
    )
    capacity = fleet.capacity[rows].sum(axis=0)
    used = state.allocations.used(fleet.size)[rows].sum(axis=0)
    cpu, memory, disk = (100 * used // np.maximum(capacity, 1)).tolist()
    return cpu, memory, disk


class ShareHistory:
    """Use of the cluster at the moments that were shown."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, tuple[int, int, int]]] = deque(maxlen=_HISTORY)

    def note(self, seq: int, shares: tuple[int, int, int]) -> None:
        """Add the newest moment; going back in time forgets what was after it."""
        while self._kept and self._kept[-1][0] >= seq:
            self._kept.pop()
        self._kept.append((seq, shares))

    def line(self) -> str:
        """The newest value of each resource in percent, behind its course."""
        if not self._kept:
            return ""
        parts = []
        for at, name in enumerate(("CPU", "memory", "disk")):
            values = [shares[at] for _, shares in self._kept]
            course = "".join(BARS[min(one * len(BARS) // 101, len(BARS) - 1)] for one in values)
            parts.append(f"{name} {course:>{_HISTORY}} {values[-1]:>3}%")
        return "  ".join(parts)
