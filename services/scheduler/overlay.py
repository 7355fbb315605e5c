"""Overlay: resources held by a worker's own plans that the log does not show yet.

Used resources are the replayed ones, plus every allocation that this worker has proposed without a known outcome, less
what these plans evict. Without it most plans would choose the same nodes again and be refused. Stops free nothing: a
stopped allocation holds its resources until its client reports its end.

The log alone suffices to rebuild it: for plan k on a snapshot, it holds the worker's plans below k that the log shows,
committed or refused, only after that snapshot.
"""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from schemas.base import JobId
from schemas.jobs import GroupSpec
from schemas.plans import Evictions, GroupPlacement
from shared.core.columns import Rows, grown
from shared.core.resources.asks import Holding, extra_asks_of, holdings_of
from shared.core.resources.held import HeldResources
from shared.core.scheduling.selection.candidates import ask_columns
from shared.core.scheduling.usage.dirty_rows import DirtyRows
from shared.core.state.state import State

Matrix = NDArray[np.int64]
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)
#: Plan number and part.
_PartKey = tuple[int, int]
#: Holdings of allocations on one row besides the three columns.
_Extras = list[tuple[int, Holding]]
#: fleet rows (P,), the three columns held there (P, 3), and all other holdings, by allocation.
_PartUsage = tuple[NDArray[np.intp], Matrix, _Extras]


class Overlay:
    """Resources held by unconfirmed plans. Shapes: N fleet rows, resources in the order of the fleet's columns."""

    def __init__(self) -> None:
        #: sum of `_parts`.
        self._delta: Matrix = np.zeros((0, 3), dtype=np.int64)
        self._parts: dict[_PartKey, _PartUsage] = {}
        #: parts on a single node: its row and the three columns; most plans of small jobs.
        self._ones: dict[_PartKey, tuple[int, int, int, int]] = {}
        #: their other holdings, if any.
        self._extras_of_ones: dict[_PartKey, _Extras] = {}
        #: victims, as (row, key).
        self._evictions: dict[_PartKey, list[tuple[int, int]]] = {}
        self._counts: dict[_PartKey, int] = {}
        #: allocations in all parts.
        self.allocations = 0
        #: the last sum, and the seq of its state.
        self._sum: HeldResources | None = None
        self._sum_seq = 0
        #: rows where that sum changed since it was made; None: no sum was needed.
        self.dirty_rows: DirtyRows | None = None

    def __len__(self) -> int:
        return len(self._counts)

    def held(self, state: State) -> HeldResources:
        """The resources held on every fleet row, unconfirmed plans included. Do not write to it.

        Updated by `add`; summed again once for each seq of the state.
        """
        if not self._counts:
            self.dirty_rows = None
            return state.allocations.held
        if (
            self._sum is None
            or self._sum_seq != state.seq
            or len(self._sum.used) != state.fleet.size
        ):
            self._sum, self._sum_seq, self.dirty_rows = self._summed(state), state.seq, DirtyRows()
        return self._sum

    def _summed(self, state: State) -> HeldResources:
        size, replayed = state.fleet.size, state.allocations.held
        used = np.array(replayed.columns(size), order="F")
        if self._parts:
            self._delta = grown(self._delta, size)
            used += self._delta[:size]
        if self._ones:
            numbers = chain.from_iterable(self._ones.values())
            ones = np.fromiter(numbers, np.int64, 4 * len(self._ones)).reshape(-1, 4)
            for at in range(used.shape[1]):
                np.add.at(used[:, at], ones[:, 0], ones[:, at + 1])
        held = replayed.with_columns(used)
        extras = [one for _, _, some in self._parts.values() for one in some]
        extras += [one for some in self._extras_of_ones.values() for one in some]
        for row, holding in extras:
            held.add(row, None, holding)
        for row in self.evicted(state).tolist():
            held.remove(*state.allocations.held_by(row))
        return held

    def evicted(self, state: State) -> Rows:
        """Allocations that unconfirmed plans evict and that still hold resources in the log, ascending."""
        if not self._evictions:
            return _NO_ROWS
        pairs = sorted({pair for some in self._evictions.values() for pair in some})
        rows = np.array([row for row, _ in pairs], dtype=np.int32)
        keys = np.array([key for _, key in pairs], dtype=np.int64)
        table = state.allocations
        still: Rows = rows[(table.key[rows] == keys) & table.is_holding(rows)]
        return still

    def add(
        self,
        state: State,
        job_id: JobId,
        placements: tuple[GroupPlacement, ...],
        *,
        number: int,
        part: int,
        evictions: tuple[Evictions, ...] = (),
    ) -> None:
        """Hold what a part of a plan for a job places; its victims hold nothing."""
        at = (number, part)
        count = _count(placements, state.fleet.size)
        if not (count or evictions):
            return
        groups = state.jobs.by_id[job_id].groups
        if len(placements) == 1 and len(placements[0].rows) == 1:
            extras = self._hold_one(at, _group(groups, placements[0]), placements[0])
        else:
            self._delta = grown(self._delta, state.fleet.size)
            extras = self._hold(at, [(_group(groups, one), one) for one in placements])
        if extras and self._sum is not None:
            for row, holding in extras:
                self._sum.add(row, None, holding)
        if evictions:
            keys = state.allocations.key
            gone = [row for one in evictions for row in one.rows]
            self._evictions[at] = [(row, int(keys[row])) for row in gone]
            self._sum = None
        self._counts[at] = count
        self.allocations += count

    def _hold_one(self, at: _PartKey, group: GroupSpec, placement: GroupPlacement) -> _Extras:
        # Validate everything before writing: `settle` cannot release a part that failed half-way.
        extras = _extras(group, placement)
        row, count = placement.rows[0], placement.counts[0]
        cpu_mhz, memory_mib, disk_mib = group.cpu_mhz, group.memory_mib, group.disk_mib
        self._ones[at] = (row, count * cpu_mhz, count * memory_mib, count * disk_mib)
        if self._sum is not None and self.dirty_rows is not None:
            self._sum.used[row] += (count * cpu_mhz, count * memory_mib, count * disk_mib)
            self.dirty_rows.note(row)
        if extras:
            self._extras_of_ones[at] = extras
        return extras

    def _hold(self, at: _PartKey, placed: list[tuple[GroupSpec, GroupPlacement]]) -> _Extras:
        extras = [one for group, placement in placed for one in _extras(group, placement)]
        rows = [np.empty(0, np.intp), *(np.array(one.rows, dtype=np.intp) for _, one in placed)]
        amounts = [np.empty((0, 3), np.int64)]
        amounts += [
            np.array(one.counts, dtype=np.int64)[:, None] * ask_columns(group)
            for group, one in placed
        ]
        where, much = np.concatenate(rows), np.concatenate(amounts)
        for column in range(self._delta.shape[1]):
            np.add.at(self._delta[:, column], where, much[:, column])
        if self._sum is not None and self.dirty_rows is not None:
            self._sum.add_columns(where, much)
            self.dirty_rows.note_all(where.tolist())
        self._parts[at] = (where, much, extras)
        return extras

    def settle(self, number: int, part: int) -> None:
        """Release a part: the log shows its outcome."""
        at = (number, part)
        count = self._counts.pop(at, None)
        if count is None:
            return
        self._sum = None
        self.allocations -= count
        if self._ones.pop(at, None) is not None:
            if self._extras_of_ones:
                self._extras_of_ones.pop(at, None)
        else:
            where, much, _ = self._parts.pop(at)
            for column in range(self._delta.shape[1]):
                np.subtract.at(self._delta[:, column], where, much[:, column])
        if self._evictions:
            self._evictions.pop(at, None)


def _count(placements: tuple[GroupPlacement, ...], size: int) -> int:
    """Count the allocations; asserts that all rows are below `size`."""
    count = 0
    for placement in placements:
        rows = placement.rows
        if len(rows) == 1:
            count += placement.counts[0]
            assert 0 <= rows[0] < size, "a row without a node"
        elif rows:
            count += sum(placement.counts)
            assert 0 <= min(rows) <= max(rows) < size, "a row without a node"
    return count


def _group(groups: tuple[GroupSpec, ...], placement: GroupPlacement) -> GroupSpec:
    """The group that a placement is of."""
    for group in groups:
        if group.name == placement.group:
            return group
    raise AssertionError(placement.group)


def _extras(group: GroupSpec, placement: GroupPlacement) -> _Extras:
    """Holdings of its allocations besides the three columns, by row."""
    extras = extra_asks_of(group)
    if extras is None:
        return []
    nodes = np.repeat(placement.rows, placement.counts).tolist()
    return list(zip(nodes, holdings_of(extras, placement), strict=True))
