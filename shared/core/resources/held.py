"""What allocations hold of everything: the three columns, sums, slots, ports, and what belongs to the cluster.

Only adds and removes; it does not know what is offered. The allocation table keeps one as the truth; a hypothetical
state (a plan under construction, evicted victims, unconfirmed plans) takes a `copy()` and adds and removes there:

    trial = snapshot.held.copy()
    trial.remove(node_row, ask, holding)      # as if that allocation were gone
    trial.add(node_row, ask, holding)         # and back

`table.held_by(row)` of the allocation table gives the three arguments for an allocation. A copy shares what it does
not change: it must not outlive the next change of the original.
"""

import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s, grown
from shared.core.resources.asks import CORES, OF_CLUSTER, OF_NODE, WHOLE, Holding
from shared.core.resources.offers import Slots, column_of_size, grow_matrix
from shared.core.resources.ports import HeldPorts

_NO_USE: Int64s = np.zeros((0, 3), np.int64)
_NO_CORES: Int64s = np.zeros(0, np.int64)


class HeldResourcesView:
    """What is held, to be read. Shapes: N fleet rows; resources of `used` in the order of the fleet's columns.

    Amounts in 1/10,000.
    """

    def __init__(self, used: Int64s = _NO_USE, ports: HeldPorts | None = None) -> None:
        #: (N, 3) MHz, MiB, MiB; reserved cores' MHz are not in it (`correction`).
        self.used = used
        self.ports = HeldPorts() if ports is None else ports
        self._sums: dict[str, Int64s] = {}
        self._slots: dict[str, Slots] = {}
        self._cluster: dict[str, int] = {}
        #: (N,) cores that are reserved.
        self._cores: Int64s = _NO_CORES
        #: arrays that are shared with the one this was copied from.
        self._shared: set[tuple[str, str]] = set()

    @property
    def has_cores(self) -> bool:
        """Tell whether cores were ever reserved."""
        return len(self._cores) > 0

    def columns(self, size: int) -> Int64s:
        """The three columns of the first `size` rows: a view, do not write to it. Shape: (size, 3)."""
        self.used = grown(self.used, size)
        return self.used[:size]

    def sum_of(self, name: str, size: int) -> Int64s:
        """What is held of a sum. Shape: (size,)."""
        return column_of_size(self._sums.get(name), size)

    def slots_of(self, name: str, size: int, width: int) -> Slots:
        """What is held of each slot. Shape: (size, width)."""
        held = self._slots.get(name)
        if held is None:
            return np.zeros((size, width), np.int32)
        return grow_matrix(held, size, width)[:size, :width]

    def slots_at(self, name: str, rows: NDArray[np.intp], width: int) -> Slots:
        """What is held of each slot of some rows. Shapes: rows (R,), result (R, width)."""
        held = self._slots.get(name)
        found = np.zeros((len(rows), width), np.int32)
        if held is not None:
            known = rows < len(held)
            found[known, : held.shape[1]] = held[rows[known], :width]
        return found

    def slots_on(self, row: int, name: str, width: int) -> list[int]:
        """What is held of each slot of one row."""
        held = self._slots.get(name)
        found = held[row].tolist() if held is not None and row < len(held) else []
        return (found + [0] * (width - len(found)))[: max(width, len(found))]

    def sum_on(self, row: int, name: str) -> int:
        """What is held of a sum on one row."""
        column = self._sums.get(name)
        return int(column[row]) if column is not None and row < len(column) else 0

    def of_cluster(self, name: str) -> int:
        """What is held of something that the cluster as a whole has."""
        return self._cluster.get(name, 0)

    def cores(self, size: int) -> Int64s:
        """How many cores are reserved. Shape: (size,)."""
        return column_of_size(self._cores, size)

    def names(self) -> dict[str, list[str]]:
        """Pools of which anything was ever held, by kind, sorted."""
        return {
            "sum": sorted(self._sums),
            "slot": sorted(self._slots),
            "cluster": sorted(self._cluster),
        }


class HeldResources(HeldResourcesView):
    """What is held, and what changes it."""

    def copy(self, size: int = 0) -> "HeldResources":
        """Return one to try things out on; `size` rows of the three columns, column by column in memory."""
        self._grow(size)
        return self.with_columns(self.columns(size or len(self.used)).copy(order="F"))

    def _grow(self, size: int) -> None:
        """Make arrays long enough, so that no copy has to; what they say stays the same."""
        for name, column in self._sums.items():
            self._sums[name] = grown(column, size)
        for name, matrix in self._slots.items():
            self._slots[name] = grown(matrix, size)
        if len(self._cores):
            self._cores = grown(self._cores, size)
        self.ports.grow(size)

    def with_columns(self, used: Int64s) -> "HeldResources":
        """Return a copy that holds `used` (N, 3) of the three columns."""
        twin = HeldResources(used, self.ports.copy())
        twin._sums, twin._slots = dict(self._sums), dict(self._slots)
        twin._cluster = dict(self._cluster)
        twin._cores = self._cores
        twin._shared = {("cores", "")}
        if self._sums or self._slots:
            twin._shared |= {("sum", name) for name in self._sums}
            twin._shared |= {("slot", name) for name in self._slots}
        return twin

    def add_columns(self, rows: NDArray[np.integer], amounts: Int64s) -> None:
        """Hold of the three columns on many rows, which may repeat. Shapes: (P,), (P, 3)."""
        if len(rows):
            self.used = grown(self.used, int(rows.max()) + 1)
            # Column by column: several times as fast, however they lie in memory.
            for at in range(self.used.shape[1]):
                np.add.at(self.used[:, at], rows, amounts[:, at])

    def add_counts(
        self, rows: NDArray[np.integer], counts: NDArray[np.integer], ask: Int64s
    ) -> None:
        """Hold so many of one ask on each of these rows, which are there and may repeat. Shapes: (P,), (P,), (3,)."""
        if len(rows) == 1:
            self.used[rows[0]] += int(counts[0]) * ask
            return
        # Column by column: that is how a copy lies in memory.
        for at, amount in enumerate(ask.tolist()):
            np.add.at(self.used[:, at], rows, counts.astype(np.int64) * amount)

    def add(self, row: int, ask: Int64s | None, holding: Holding | None) -> None:
        """Hold what one allocation takes on a row. `ask` (3,); None: nothing of that."""
        if ask is not None:
            if row >= len(self.used):
                self.used = grown(self.used, row + 1)
            self.used[row] += ask
        if holding is not None:
            self._move(row, holding, 1)
            self.ports.add(row, static=holding.static_ports, picked=holding.ports)

    def remove(self, row: int, ask: Int64s | None, holding: Holding | None) -> None:
        """Let go of what one allocation takes on a row."""
        if ask is not None:
            self.used[row] -= ask
        if holding is not None:
            self._move(row, holding, -1)
            self.ports.remove(row, static=holding.static_ports, picked=holding.ports)

    def _move(self, row: int, holding: Holding, sign: int) -> None:
        for name, slot, amount in holding.parts:
            if slot == OF_CLUSTER:
                self._cluster[name] = self._cluster.get(name, 0) + sign * amount
            elif slot == OF_NODE:
                self._own_sum(name, row)[row] += sign * amount
            else:
                self._own_slots(name, row, slot)[row, slot] += sign * amount
                if name == CORES:
                    self._own_cores(row)[row] += sign * (amount // WHOLE)

    def _own_sum(self, name: str, row: int) -> Int64s:
        column = self._sums.get(name, np.zeros(0, np.int64))
        if ("sum", name) in self._shared:
            self._shared.discard(("sum", name))
            column = column.copy()
        self._sums[name] = column = grown(column, row + 1)
        return column

    def _own_slots(self, name: str, row: int, slot: int) -> Slots:
        matrix = self._slots.get(name, np.zeros((0, 0), np.int32))
        if ("slot", name) in self._shared:
            self._shared.discard(("slot", name))
            matrix = matrix.copy()
        self._slots[name] = matrix = grow_matrix(matrix, row + 1, max(slot + 1, matrix.shape[1]))
        return matrix

    def _own_cores(self, row: int) -> Int64s:
        if ("cores", "") in self._shared:
            self._shared.discard(("cores", ""))
            self._cores = self._cores.copy()
        self._cores = grown(self._cores, row + 1)
        return self._cores
