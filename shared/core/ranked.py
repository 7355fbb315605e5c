"""Ranked: the key of the next allocation on every row, kept from one cut to the next of the same shape.

Decides only what must be computed anew: the rows whose use is not what it was. What is kept is compared with what it
was made of at every call, all of it or, where a trail names the rows that changed since (`trail.py`), these; so a cut
gives the same with and without it, whatever happened in between. Must not know masks, jobs or plans: keys are of the
fit alone, of all rows, and a cut takes those of the rows that are open to it. Next: `cut.py`.
"""

from typing import Final

import numpy as np

from shared.core.heads import ROW_BITS, Demand, Heads, Mask, marginal_scores
from shared.core.scores import CPU, DISK, MEMORY, RESOURCES, Int64s, fit_score
from shared.core.trail import Trail

#: The key of a row where one more does not fit: behind all others.
NO_KEY: Final = int(np.iinfo(np.int64).max)
#: Shapes kept, and bytes of them.
_SHAPES_MAX: Final = 64
_BYTES_MAX: Final = 64 << 20
#: As many rows are computed one by one: vectors have their price.
_FEW: Final = 3
#: Where more than one of so many rows may have changed, all are compared.
_SPARSE: Final = 4
#: Rows computed at a time: columns that stay in the cache.
_BLOCK: Final = 1 << 14


class _Kept:
    """Keys of one shape, and the columns that they were made of. Shapes: (N,), (N, 3)."""

    __slots__ = ("at", "capacity", "keys", "trail", "used")

    def __init__(self, capacity: Int64s) -> None:
        self.capacity = capacity
        self.used = np.full(capacity.shape, -1, np.int64, order="F")
        self.keys = np.full(len(capacity), NO_KEY, np.int64)
        #: whose use it was, and how far that had come; None: it is not told.
        self.trail: Trail | None = None
        self.at = 0

    def changed(self, used: Int64s, trail: Trail | None) -> list[int] | Int64s:
        """Rows whose use may be another than before."""
        found = None
        if trail is not None:
            if self.trail is not None:
                found = trail.since(self.trail, self.at)
            self.at = len(trail)
        self.trail = trail
        if found is not None and len(found) <= _FEW:
            return found
        if found is not None and len(found) * _SPARSE <= len(used):
            rows = np.array(found, dtype=np.intp)
            return rows.compress(_differs(used.take(rows, axis=0), self.used.take(rows, axis=0)))
        return _differs(used, self.used).nonzero()[0]


def _differs(used: Int64s, seen: Int64s) -> Mask:
    """Say which rows are not equal. Shapes: (R, 3), result (R,)."""
    differs: Mask = used[:, 0] != seen[:, 0]
    for at in range(1, len(RESOURCES)):
        differs |= used[:, at] != seen[:, at]
    return differs


class Ranked:
    """Keys by shape; the shape that was not asked for longest goes first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keys(
        self, demand: Demand, capacity: Int64s, used: Int64s, trail: Trail | None = None
    ) -> Int64s:
        """Return the key of the next allocation on each row, by its fit alone. Shape: (N,). Do not write to it.

        `capacity` is taken to be the same as long as it is the same array. `trail`: where `used` changed.
        """
        shape = (demand.ask, demand.algorithm)
        kept = self._kept.pop(shape, None)
        if kept is None or kept.capacity is not capacity:
            kept = self._make_room(capacity)
        # At the end: it was asked for last.
        self._kept[shape] = kept
        _refresh(kept, demand, used, kept.changed(used, trail))
        return kept.keys

    def _make_room(self, capacity: Int64s) -> _Kept:
        """Begin a shape; the others may have to go."""
        room = max(min(_SHAPES_MAX, _BYTES_MAX // max(len(capacity) * 32, 1)), 1)
        while len(self._kept) >= room:
            del self._kept[next(iter(self._kept))]
        return _Kept(capacity)


def _refresh(kept: _Kept, demand: Demand, used: Int64s, changed: list[int] | Int64s) -> None:
    """Compute the keys of rows whose use is another than before."""
    seen = kept.used
    if len(changed) <= _FEW:
        rows = changed if isinstance(changed, list) else changed.tolist()
        for row in rows:
            now_on = used[row].tolist()
            seen[row] = now_on
            kept.keys[row] = key_of(demand, row, kept.capacity[row].tolist(), now_on)
        return
    rows = np.asarray(changed, dtype=np.intp)
    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        free = []
        # Column by column: that is how they lie in memory.
        for at in range(len(RESOURCES)):
            now = used[:, at].take(some)
            seen[:, at][some] = now
            free.append(kept.capacity[:, at].take(some) - now)
        kept.keys[some] = _keys_of(demand, some, kept.capacity, free)


def key_of(demand: Demand, row: int, capacity: list[int], used: list[int]) -> int:
    """Make the key of one row, as `_keys_of` does."""
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
    """Make the keys of some rows. Shapes: rows and each column of what is free (R,)."""
    heads = Heads(
        rows,
        free[CPU],
        free[MEMORY],
        np.maximum(capacity[:, CPU].take(rows), 1),
        np.maximum(capacity[:, MEMORY].take(rows), 1),
        None,
        None,
        None,
    )
    keys = rows - (marginal_scores(demand, heads, 0) << ROW_BITS)
    for left, ask in zip(free, demand.ask, strict=True):
        keys[left < ask] = NO_KEY
    return keys
