"""The overlay: what a worker's own plans hold that the log does not show yet.

Decides what counts as used when the next plan is made: the replayed use, plus every allocation that this worker has
proposed and whose fate the log has not told, less what these plans evict. Without it most plans would pick the same
nodes again and be refused. It must not know why a plan was made or how it is sent. Stops free nothing here: a stopped
allocation holds its resources until its client says that it ended.

It can be rebuilt from the log alone: at the decision of plan k on a snapshot, it holds the worker's plans below k
that the log shows, committed or refused, only after that snapshot.
"""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from schemas.base import JobId
from schemas.jobs import GroupSpec
from schemas.plans import Evictions, GroupPlacement
from shared.core.columns import Rows, grown
from shared.core.resources.asks import Holding, extras_of, holdings_of
from shared.core.resources.held import Held
from shared.core.state import State
from shared.core.trail import Trail
from shared.core.waiting import ask_of

Matrix = NDArray[np.int64]
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)
#: Plan number and part.
_At = tuple[int, int]
#: What allocations on one row hold beside the three columns.
_Extras = list[tuple[int, Holding]]
#: fleet rows (P,), what is held of the three columns there (P, 3), and of everything else, by allocation.
_Part = tuple[NDArray[np.intp], Matrix, _Extras]


class Overlay:
    """Resources held by unconfirmed plans. Shapes: N fleet rows, resources in the order of the fleet's columns."""

    def __init__(self) -> None:
        #: sum of `_parts`.
        self._delta: Matrix = np.zeros((0, 3), dtype=np.int64)
        self._parts: dict[_At, _Part] = {}
        #: parts that go to one node: its row and what is held of the three columns there; most plans of small jobs.
        self._ones: dict[_At, tuple[int, int, int, int]] = {}
        #: what these hold of everything else, where there is any.
        self._extras_of_ones: dict[_At, _Extras] = {}
        #: victims, as (row, key).
        self._evictions: dict[_At, list[tuple[int, int]]] = {}
        self._counts: dict[_At, int] = {}
        #: allocations in all parts.
        self.allocations = 0
        #: the last sum, and the seq of the state that it holds for.
        self._sum: Held | None = None
        self._sum_seq = 0
        #: where the sum that was given last changed since it was made; None: no sum was needed.
        self.trail: Trail | None = None

    def __len__(self) -> int:
        return len(self._counts)

    def held(self, state: State) -> Held:
        """What is held on every fleet row, unconfirmed plans included. Do not write to it.

        Brought up to date by `add`; the whole is summed once for each seq at which it is asked for.
        """
        if not self._counts:
            self.trail = None
            return state.allocations.held
        if (
            self._sum is None
            or self._sum_seq != state.seq
            or len(self._sum.used) != state.fleet.size
        ):
            self._sum, self._sum_seq, self.trail = self._summed(state), state.seq, Trail()
        return self._sum

    def _summed(self, state: State) -> Held:
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
        """Allocations that unconfirmed plans evict and that hold something as far as the log shows, ascending."""
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
        """Hold what a part of a plan for a job asks for, by its groups in `state`; what it evicts holds nothing."""
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

    def _hold_one(self, at: _At, group: GroupSpec, placement: GroupPlacement) -> _Extras:
        # Nothing is written before all of it is known to be sound: what `settle` does not know of, nobody lets go.
        extras = _extras(group, placement)
        row, count = placement.rows[0], placement.counts[0]
        cpu_mhz, memory_mib, disk_mib = group.cpu_mhz, group.memory_mib, group.disk_mib
        self._ones[at] = (row, count * cpu_mhz, count * memory_mib, count * disk_mib)
        if self._sum is not None and self.trail is not None:
            self._sum.used[row] += (count * cpu_mhz, count * memory_mib, count * disk_mib)
            self.trail.note(row)
        if extras:
            self._extras_of_ones[at] = extras
        return extras

    def _hold(self, at: _At, placed: list[tuple[GroupSpec, GroupPlacement]]) -> _Extras:
        extras = [one for group, placement in placed for one in _extras(group, placement)]
        rows = [np.empty(0, np.intp), *(np.array(one.rows, dtype=np.intp) for _, one in placed)]
        amounts = [np.empty((0, 3), np.int64)]
        amounts += [
            np.array(one.counts, dtype=np.int64)[:, None] * ask_of(group) for group, one in placed
        ]
        where, much = np.concatenate(rows), np.concatenate(amounts)
        for column in range(self._delta.shape[1]):
            np.add.at(self._delta[:, column], where, much[:, column])
        if self._sum is not None and self.trail is not None:
            self._sum.add_columns(where, much)
            self.trail.note_all(where.tolist())
        self._parts[at] = (where, much, extras)
        return extras

    def settle(self, number: int, part: int) -> None:
        """Let go of a part: the log told its fate."""
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
    """How many allocations there are; all of them on rows below `size`."""
    count = 0
    for placement in placements:
        rows = placement.rows
        if len(rows) == 1:
            count += placement.counts[0]
            assert 0 <= rows[0] < size, "a row that is no node"
        elif rows:
            count += sum(placement.counts)
            assert 0 <= min(rows) <= max(rows) < size, "a row that is no node"
    return count


def _group(groups: tuple[GroupSpec, ...], placement: GroupPlacement) -> GroupSpec:
    """The group that a placement is of."""
    for group in groups:
        if group.name == placement.group:
            return group
    raise AssertionError(placement.group)


def _extras(group: GroupSpec, placement: GroupPlacement) -> _Extras:
    """What each of its allocations holds beside the three columns, by row."""
    extras = extras_of(group)
    if extras is None:
        return []
    nodes = np.repeat(placement.rows, placement.counts).tolist()
    return list(zip(nodes, holdings_of(extras, placement), strict=True))
