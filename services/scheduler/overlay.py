"""The overlay: what a worker's own plans hold that the log does not show yet.

Decides what counts as used when the next plan is made: the replayed use, plus every allocation that this worker has
proposed and whose fate the log has not told, less what these plans evict. Without it most plans would pick the same
nodes again and be refused. It must not know why a plan was made or how it is sent. Stops free nothing here: a stopped
allocation holds its resources until its client says that it ended.

It can be rebuilt from the log alone: at the decision of plan k on a snapshot, it holds the worker's plans below k
that the log shows, committed or refused, only after that snapshot.
"""

import numpy as np
from numpy.typing import NDArray

from schemas.base import JobId
from schemas.plans import Evictions, GroupPlacement
from shared.core.columns import Rows, grown
from shared.core.resources.asks import Holding, holdings_of
from shared.core.resources.held import Held
from shared.core.state import State
from shared.core.trail import Trail

Matrix = NDArray[np.int64]
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)
#: fleet rows (P,), what is held of the three columns there (P, 3), and of everything else, by allocation; or one row
#: and what is held there (3,).
_Part = tuple[NDArray[np.intp] | int, Matrix, list[tuple[int, Holding]]]


class Overlay:
    """Resources held by unconfirmed plans. Shapes: N fleet rows, resources in the order of the fleet's columns."""

    def __init__(self) -> None:
        self._delta: Matrix = np.zeros((0, 3), dtype=np.int64)
        #: by plan number and part.
        self._parts: dict[tuple[int, int], _Part] = {}
        #: plan number and part -> victims, as (row, key).
        self._evictions: dict[tuple[int, int], list[tuple[int, int]]] = {}
        #: allocations in all parts.
        self.allocations = 0
        self._counts: dict[tuple[int, int], int] = {}
        #: the last sum, and the seq of the state that it holds for.
        self._sum: Held | None = None
        self._sum_seq = 0
        #: where the sum that was given last changed since it was made; None: no sum was needed.
        self.trail: Trail | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def held(self, state: State) -> Held:
        """What is held on every fleet row, unconfirmed plans included. Do not write to it.

        Brought up to date by `add`; the whole is summed once for each seq at which it is asked for.
        """
        size = state.fleet.size
        replayed = state.allocations.held
        if not self._parts:
            self.trail = None
            return replayed
        if self._sum is None or self._sum_seq != state.seq or len(self._sum.used) != size:
            self._delta = grown(self._delta, size)
            used = np.array(replayed.columns(size), order="F")
            used += self._delta[:size]
            self._sum = replayed.with_columns(used)
            for _, _, extras in self._parts.values():
                for row, holding in extras:
                    self._sum.add(row, None, holding)
            for row in self.evicted(state).tolist():
                self._sum.remove(*state.allocations.held_by(row))
            self._sum_seq, self.trail = state.seq, Trail()
        return self._sum

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
        """Hold what a part of a plan asks for, by the asks of its groups in `state`; what it evicts holds nothing."""
        if len(placements) == 1 and len(placements[0].rows) == 1 and not evictions:
            self._add_one((number, part), state, job_id, placements[0])
            return
        groups = state.allocations.groups
        extras: list[tuple[int, Holding]] = []
        count = 0
        for placement in placements:
            more = groups.extras[groups.ref(job_id, placement.version, placement.group)]
            if more is not None:
                nodes = np.repeat(placement.rows, placement.counts).tolist()
                extras += zip(nodes, holdings_of(more, placement), strict=True)
            count += sum(placement.counts)
            assert min(placement.rows, default=0) >= 0, "a row that is no node"
            assert max(placement.rows, default=-1) < state.fleet.size, "a row that is no node"
        if not (count or evictions):
            return
        if evictions:
            keys = state.allocations.key
            gone = [row for one in evictions for row in one.rows]
            self._evictions[number, part] = [(row, int(keys[row])) for row in gone]
            self._sum = None
        rows: list[NDArray[np.intp]] = []
        held: list[Matrix] = []
        for placement in placements:
            ask = groups.ask[groups.ref(job_id, placement.version, placement.group)]
            rows.append(np.array(placement.rows, dtype=np.intp))
            held.append(np.array(placement.counts, dtype=np.int64)[:, None] * ask)
        if not count:
            rows, held = [np.empty(0, np.intp)], [np.empty((0, 3), np.int64)]
        # Nearly every plan is one placement.
        entry = (
            (rows[0], held[0]) if len(rows) == 1 else (np.concatenate(rows), np.concatenate(held))
        )
        self._delta = grown(self._delta, state.fleet.size)
        for at in range(self._delta.shape[1]):
            np.add.at(self._delta[:, at], entry[0], entry[1][:, at])
        if self._sum is not None and self.trail is not None:
            self._sum.add_columns(*entry)
            for row, holding in extras:
                self._sum.add(row, None, holding)
            self.trail.note_all(entry[0].tolist())
        self._parts[number, part] = (*entry, extras)
        self._counts[number, part] = count
        self.allocations += count

    def _add_one(
        self, at: tuple[int, int], state: State, job_id: JobId, placement: GroupPlacement
    ) -> None:
        """Hold what goes to one node: nearly every plan of a small job."""
        groups = state.allocations.groups
        ref = groups.ref(job_id, placement.version, placement.group)
        row, count = placement.rows[0], placement.counts[0]
        assert 0 <= row < state.fleet.size, "a row that is no node"
        amount: Matrix = groups.ask[ref] * count
        more = groups.extras[ref]
        extras = [] if more is None else [(row, one) for one in holdings_of(more, placement)]
        if row >= len(self._delta):
            self._delta = grown(self._delta, state.fleet.size)
        self._delta[row] += amount
        if self._sum is not None and self.trail is not None:
            self._sum.used[row] += amount
            for node, holding in extras:
                self._sum.add(node, None, holding)
            self.trail.note(row)
        self._parts[at] = (row, amount, extras)
        self._counts[at] = count
        self.allocations += count

    def settle(self, number: int, part: int) -> None:
        """Let go of a part: the log told its fate."""
        entry = self._parts.pop((number, part), None)
        if entry is None:
            return
        self._sum = None
        if isinstance(entry[0], int):
            self._delta[entry[0]] -= entry[1]
        else:
            for at in range(self._delta.shape[1]):
                np.subtract.at(self._delta[:, at], entry[0], entry[1][:, at])
        self._evictions.pop((number, part), None)
        self.allocations -= self._counts.pop((number, part))
