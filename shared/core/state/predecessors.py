"""Predecessors: allocations that were stopped to be replaced and are not replaced yet, and the room kept of them.

A part of the table of allocations. Of one that ended of its stop the room is kept for its replacement (ADR 32): it
stays in what is held until the replacement is placed, or the job's plan says that it cannot be. Every scheduler and
the applier read what is held, so that no other job is given that room, whatever the resource.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Mask, Rows


class Predecessors:
    """By key, what was stopped to be replaced; by row, whose room is kept."""

    def __init__(self) -> None:
        #: by key: row, and client status at the stop.
        self.by_key: dict[int, tuple[int, int]] = {}
        #: rows that ended and whose room is kept.
        self.rooms: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.by_key)

    def holds(self, keys: NDArray[np.int64]) -> Mask:
        """Which of these keys are predecessors. Shapes: keys, result (R,)."""
        known = self.by_key
        if not known:
            return np.zeros(len(keys), dtype=bool)
        return np.isin(keys, np.fromiter(known, dtype=np.int64, count=len(known)))

    def has_room(self, rows: Rows) -> Mask:
        """Of which of these rows the room is kept. Shapes: rows, result (R,)."""
        kept = self.rooms
        if not kept:
            return np.zeros(len(rows), dtype=bool)
        return np.isin(rows, np.fromiter(kept, dtype=np.int32, count=len(kept)))

    def status_at_stop(self, key: int) -> int | None:
        """Client status of a predecessor when it was stopped; None: it is none."""
        held = self.by_key.get(key)
        return None if held is None else held[1]

    def add(self, row: int, key: int, status: int) -> bool:
        """Take what is to be replaced, unless it is known. Returns whether its kept room is given up.

        It is where one is stopped once more after it ended: its replacement does not find room there.
        """
        if key not in self.by_key:
            self.by_key[key] = (row, status)
            return False
        if row not in self.rooms:
            return False
        del self.rooms[row]
        return True

    def settle(self, keys: Iterable[int]) -> tuple[list[int], list[int]]:
        """Forget what is replaced, or will not be. Returns the rows, and those whose room is given up."""
        rows, freed = [], []
        for key in keys:
            held = self.by_key.pop(key, None)
            if held is None:
                continue
            rows.append(held[0])
            if held[0] in self.rooms:
                del self.rooms[held[0]]
                freed.append(held[0])
        return rows, freed

    def text(self, row: int, key: int) -> tuple[object, ...] | None:
        """What stands of a row in the table's hash; None: nothing."""
        held = self.by_key.get(key)
        if held is None:
            return None
        return ("predecessor", held[1], "room") if row in self.rooms else ("predecessor", held[1])
