"""Score cache: the key of the next allocation on every row, kept between selections of the same shape.

Recomputes only rows whose usage changed. Every call compares the kept keys with the columns they were computed from:
all rows or, where the dirty rows since then are known (usage/dirty_rows.py), only these. So a selection gives the same
result with and without the cache. Keys hold the fit score alone, of all rows; a selection masks those it may not use.
"""

from typing import Final

import numpy as np

from shared.core.columns import Int64s, Mask
from shared.core.scheduling.scoring.scores import CPU, DISK, MEMORY, RESOURCES, fit_score
from shared.core.scheduling.selection.candidates import (
    ROW_BITS,
    CandidateRows,
    Demand,
    marginal_scores,
)
from shared.core.scheduling.usage.dirty_rows import DirtyRows

#: The key of a row where one more does not fit: greater than all others.
NO_KEY: Final = int(np.iinfo(np.int64).max)
#: Shapes kept, and their bytes.
_SHAPES_MAX: Final = 64
_BYTES_MAX: Final = 64 << 20
#: Up to this many rows a loop beats NumPy.
_FEW: Final = 3
#: If more than one of so many rows may have changed, all are compared.
_SPARSE: Final = 4
#: Rows computed at a time, so that columns stay in the CPU cache.
_BLOCK: Final = 1 << 14


class _CachedKeys:
    """Keys of one shape, and the columns they were computed from. Shapes: (N,), (N, 3)."""

    __slots__ = ("at", "capacity", "dirty_rows", "keys", "used")

    def __init__(self, capacity: Int64s) -> None:
        self.capacity = capacity
        self.used = np.full(capacity.shape, -1, np.int64, order="F")
        self.keys = np.full(len(capacity), NO_KEY, np.int64)
        #: the dirty rows at the last update, and their length then; None: not tracked.
        self.dirty_rows: DirtyRows | None = None
        self.at = 0

    def changed(self, used: Int64s, dirty_rows: DirtyRows | None) -> list[int] | Int64s:
        """Rows whose usage may have changed."""
        found = None
        if dirty_rows is not None:
            if self.dirty_rows is not None:
                found = dirty_rows.since(self.dirty_rows, self.at)
            self.at = len(dirty_rows)
        self.dirty_rows = dirty_rows
        if found is not None and len(found) <= _FEW:
            return found
        if found is not None and len(found) * _SPARSE <= len(used):
            rows = np.array(found, dtype=np.intp)
            return rows.compress(_differs(used.take(rows, axis=0), self.used.take(rows, axis=0)))
        return _differs(used, self.used).nonzero()[0]


def _differs(used: Int64s, seen: Int64s) -> Mask:
    """Which rows differ. Shapes: (R, 3), result (R,)."""
    differs: Mask = used[:, 0] != seen[:, 0]
    for at in range(1, len(RESOURCES)):
        differs |= used[:, at] != seen[:, at]
    return differs


class ScoreCache:
    """Keys by shape; evicts the least recently used shape."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], _CachedKeys] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keys(
        self, demand: Demand, capacity: Int64s, used: Int64s, dirty_rows: DirtyRows | None = None
    ) -> Int64s:
        """Return the key of the next allocation on each row, by its fit alone. Shape: (N,). Do not write to it.

        `capacity` counts as unchanged while it is the same array. `dirty_rows`: where `used` changed.
        """
        shape = (demand.ask, demand.algorithm)
        kept = self._kept.pop(shape, None)
        if kept is None or kept.capacity is not capacity:
            kept = self._make_room(capacity)
        # Most recently used last.
        self._kept[shape] = kept
        _refresh(kept, demand, used, kept.changed(used, dirty_rows))
        return kept.keys

    def _make_room(self, capacity: Int64s) -> _CachedKeys:
        """Add a shape; evict others if needed."""
        room = max(min(_SHAPES_MAX, _BYTES_MAX // max(len(capacity) * 32, 1)), 1)
        while len(self._kept) >= room:
            del self._kept[next(iter(self._kept))]
        return _CachedKeys(capacity)


def _refresh(kept: _CachedKeys, demand: Demand, used: Int64s, changed: list[int] | Int64s) -> None:
    """Recompute the keys of rows whose usage changed."""
    seen = kept.used
    if len(changed) <= _FEW:
        rows = changed if isinstance(changed, list) else changed.tolist()
        for row in rows:
            now_on = used[row].tolist()
            seen[row] = now_on
            kept.keys[row] = row_key(demand, row, kept.capacity[row].tolist(), now_on)
        return
    rows = np.asarray(changed, dtype=np.intp)
    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        free = []
        # Column by column, as they lie in memory.
        for at in range(len(RESOURCES)):
            now = used[:, at].take(some)
            seen[:, at][some] = now
            free.append(kept.capacity[:, at].take(some) - now)
        kept.keys[some] = _keys_of(demand, some, kept.capacity, free)


def row_key(demand: Demand, row: int, capacity: list[int], used: list[int]) -> int:
    """Compute the key of one row, as `_keys_of` does."""
    cpu, memory, disk = demand.ask
    after = (used[CPU] + cpu, used[MEMORY] + memory, used[DISK] + disk)
    if (
        after[CPU] > capacity[CPU]
        or after[MEMORY] > capacity[MEMORY]
        or after[DISK] > capacity[DISK]
    ):
        return NO_KEY
    return row - (fit_score(capacity, after, demand.algorithm) << ROW_BITS)


def _keys_of(demand: Demand, rows: Int64s, capacity: Int64s, free: list[Int64s]) -> Int64s:
    """Compute the keys of some rows. Shapes: rows and each column of what is free (R,)."""
    candidates = CandidateRows(
        rows,
        free[CPU],
        free[MEMORY],
        np.maximum(capacity[:, CPU].take(rows), 1),
        np.maximum(capacity[:, MEMORY].take(rows), 1),
        None,
        None,
        None,
    )
    keys = rows - (marginal_scores(demand, candidates, 0) << ROW_BITS)
    for left, ask in zip(free, demand.ask, strict=True):
        keys[left < ask] = NO_KEY
    return keys
