"""Ranked: the key of the next allocation on every row, kept from one cut to the next of the same shape.

Decides only what must be computed anew: the rows whose use is not what it was. What is kept is compared with what it
was made of at every call, so a cut gives the same with and without it, whatever happened in between. Must not know
masks, jobs or plans: keys are of the fit alone, of all rows, and a cut takes those of the rows that are open to it.
Next: `cut.py`.
"""

from typing import Final

import numpy as np

from shared.core.heads import ROW_BITS, Demand, Heads, marginal_scores
from shared.core.scores import CPU, MEMORY, RESOURCES, Int64s, fit_score

#: The key of a row where one more does not fit: behind all others.
NO_KEY: Final = np.iinfo(np.int64).max
#: Shapes kept, and bytes of them.
_SHAPES_MAX: Final = 64
_BYTES_MAX: Final = 64 << 20
#: As many rows are computed one by one: vectors have their price.
_FEW: Final = 3
#: Rows computed at a time: columns that stay in the cache.
_BLOCK: Final = 1 << 14


class _Kept:
    """Keys of one shape, and the columns that they were made of. Shapes: (N,), (N, 3)."""

    __slots__ = ("capacity", "keys", "used")

    def __init__(self, capacity: Int64s) -> None:
        self.capacity = capacity
        self.used = np.full(capacity.shape, -1, np.int64, order="F")
        self.keys = np.full(len(capacity), NO_KEY, np.int64)


class Ranked:
    """Keys by shape; the shape that was not asked for longest goes first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keys(self, demand: Demand, capacity: Int64s, used: Int64s) -> Int64s:
        """Return the key of the next allocation on each row, by its fit alone. Shape: (N,). Do not write to it.

        `capacity` is taken to be the same as long as it is the same array.
        """
        shape = (demand.ask, demand.algorithm)
        kept = self._kept.pop(shape, None)
        if kept is None or kept.capacity is not capacity:
            kept = _Kept(capacity)
        self._kept[shape] = kept
        room = _BYTES_MAX // max(len(capacity) * 32, 1)
        while len(self._kept) > max(min(_SHAPES_MAX, room), 1):
            del self._kept[next(iter(self._kept))]
        _refresh(kept, demand, used)
        return kept.keys


def _refresh(kept: _Kept, demand: Demand, used: Int64s) -> None:
    """Compute the keys of rows whose use is another than before."""
    seen = kept.used
    differs = used[:, 0] != seen[:, 0]
    for at in range(1, len(RESOURCES)):
        differs |= used[:, at] != seen[:, at]
    rows = differs.nonzero()[0]
    if len(rows) <= _FEW:
        for row in rows.tolist():
            now_on = used[row].tolist()
            seen[row] = now_on
            kept.keys[row] = _key_of(demand, row, kept.capacity[row].tolist(), now_on)
        return
    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        free = []
        # Column by column: that is how they lie in memory.
        for at in range(len(RESOURCES)):
            now = used[:, at].take(some)
            seen[:, at][some] = now
            free.append(kept.capacity[:, at].take(some) - now)
        kept.keys[some] = _keys_of(demand, some, kept.capacity, free)


def _key_of(demand: Demand, row: int, capacity: list[int], used: list[int]) -> int:
    """Make the key of one row, as `_keys_of` does."""
    after = [have + ask for have, ask in zip(used, demand.ask, strict=True)]
    if any(much > most for much, most in zip(after, capacity, strict=True)):
        return int(NO_KEY)
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
