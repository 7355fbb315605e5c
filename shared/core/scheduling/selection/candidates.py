"""Candidates: the rows that can take one more allocation of a group, and their marginal scores.

The marginal score of the k-th allocation on a row depends on that row alone. greedy.py, greedy_coupled.py and
sampled.py decide the order in which rows are taken.
"""

from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from shared.core.columns import Int64s, Mask
from shared.core.scheduling.scoring.scores import (
    CPU,
    MEMORY,
    Algorithm,
    fit_of_free,
    mean_scores,
    sum_scores,
)

A = TypeVar("A", bound=np.generic)

#: The row is the low half of a key. Scores need 31 bits of the high half.
ROW_BITS: Final = 32
ROW_MASK: Final = (1 << ROW_BITS) - 1


class Placement(msgspec.Struct, frozen=True, eq=False):
    """Placed allocations: `counts[i]` of them on `rows[i]`, run after run in greedy order.

    Neighbouring runs have different rows; a row may recur. Shapes: rows, counts int32 (runs,).
    """

    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    #: The sum of `counts`; less than the count requested if the rest fits nowhere.
    placed: int
    #: Stopped for its budget, not for want of room: the rest may still fit.
    stopped: bool = False
    #: steps used, in offers (greedy_coupled.py).
    steps: int = 0


class Demand(msgspec.Struct, frozen=True, eq=False):
    """The allocations to place."""

    ask: tuple[int, ...]
    desired_count: int
    algorithm: Algorithm
    anti_affinity: bool

    @property
    def scores_never_fall(self) -> bool:
        """Tell whether another allocation never lowers the score of a row."""
        return self.algorithm == "binpack" and not self.anti_affinity


class NodeColumns(msgspec.Struct, frozen=True, eq=False):
    """The nodes to place on; shapes as of `place_count`."""

    capacity: Int64s
    used: Int64s
    mask: Mask
    #: None: zero on all rows.
    collisions: Int64s | None = None
    penalised: Mask | None = None
    #: score by node affinity, 0 where it does not apply.
    affinity: Int64s | None = None
    #: how many more a row takes by rules other than room.
    limit: Int64s | None = None

    def only(self, mask: Mask) -> "NodeColumns":
        """Return the same nodes, open only where `mask` is set too."""
        return msgspec.structs.replace(self, mask=self.mask & mask)

    def part(self, start: int, end: int) -> "NodeColumns":
        """Return a range of rows, as views; its rows count from 0."""
        return NodeColumns(
            self.capacity[start:end],
            self.used[start:end],
            self.mask[start:end],
            None if self.collisions is None else self.collisions[start:end],
            None if self.penalised is None else self.penalised[start:end],
            None if self.affinity is None else self.affinity[start:end],
            None if self.limit is None else self.limit[start:end],
        )


class CandidateRows(msgspec.Struct, frozen=True, eq=False):
    """The rows that can take one more, ascending, and the columns their marginal scores depend on.

    Shapes: all (H,). `free` before the next allocation; capacities at least 1.
    """

    rows: NDArray[np.intp]
    free_cpu_mhz: Int64s
    free_memory_mib: Int64s
    capacity_cpu_mhz: Int64s
    capacity_memory_mib: Int64s
    collisions: Int64s | None
    penalised: Mask | None
    affinity: Int64s | None

    def take(self, index: NDArray[np.intp]) -> "CandidateRows":
        """Return only the candidates at `index`."""
        return CandidateRows(
            self.rows.take(index),
            self.free_cpu_mhz.take(index),
            self.free_memory_mib.take(index),
            self.capacity_cpu_mhz.take(index),
            self.capacity_memory_mib.take(index),
            None if self.collisions is None else self.collisions.take(index),
            None if self.penalised is None else self.penalised.take(index),
            None if self.affinity is None else self.affinity.take(index),
        )


def ask_columns(group: GroupSpec) -> Int64s:
    """Amounts that one allocation asks for. Shape: (3,), in the order of the fleet's columns."""
    return np.array((group.cpu_mhz, group.memory_mib, group.disk_mib), dtype=np.int64)


def find_candidates(demand: Demand, nodes: NodeColumns) -> CandidateRows:
    """Find the rows where one more fits, and gather their columns."""
    capacity, fits = nodes.capacity, nodes.mask
    if nodes.limit is not None:
        fits = fits & (nodes.limit > 0)
    free = [capacity[:, d] - nodes.used[:, d] for d in range(len(demand.ask))]
    for left, ask in zip(free, demand.ask, strict=True):
        fits = fits & (left >= ask)
    rows = np.flatnonzero(fits)
    if len(rows) == len(fits):
        return _gathered(demand, nodes, rows, (free[CPU], free[MEMORY]), is_all=True)
    return _gathered(demand, nodes, rows, (free[CPU].take(rows), free[MEMORY].take(rows)))


def gather_candidates(demand: Demand, nodes: NodeColumns, rows: NDArray[np.intp]) -> CandidateRows:
    """Gather the columns of rows that are known to have room. Shapes: rows (H,)."""
    cpu, memory = (
        nodes.capacity[:, at].take(rows) - nodes.used[:, at].take(rows) for at in (CPU, MEMORY)
    )
    return _gathered(demand, nodes, rows, (cpu, memory))


def _gathered(
    demand: Demand,
    nodes: NodeColumns,
    rows: NDArray[np.intp],
    free: tuple[Int64s, Int64s],
    *,
    is_all: bool = False,
) -> CandidateRows:
    """Gather columns; if the rows are all rows, return the columns themselves."""

    def at_rows(column: NDArray[A]) -> NDArray[A]:
        return column if is_all else column.take(rows)

    collisions = None
    if demand.anti_affinity:
        # The first allocation may meet none of its group, later ones meet those placed before.
        on_rows = nodes.collisions
        collisions = np.zeros(len(rows), np.int64) if on_rows is None else at_rows(on_rows)
    penalised = None if nodes.penalised is None else at_rows(nodes.penalised)
    affinity = None if nodes.affinity is None else at_rows(nodes.affinity)
    return CandidateRows(
        rows,
        *free,
        np.maximum(at_rows(nodes.capacity[:, CPU]), 1),
        np.maximum(at_rows(nodes.capacity[:, MEMORY]), 1),
        None if collisions is None else collisions.astype(np.int64, copy=False),
        None if penalised is None or not penalised.any() else penalised,
        None if affinity is None or not affinity.any() else affinity,
    )


def marginal_scores(demand: Demand, candidates: CandidateRows, index: int | Int64s) -> Int64s:
    """Score allocation number `index` (from 0) on each candidate; a column of indexes gives a block."""
    return mean_scores(
        _marginal_fit(demand, candidates, index),
        collisions=_collisions(candidates, index),
        desired_count=demand.desired_count,
        penalised=candidates.penalised,
        affinity=candidates.affinity,
    )


def marginal_sums(
    demand: Demand, candidates: CandidateRows, index: int = 0
) -> tuple[Int64s, Int64s]:
    """Return the sum of the scorers for allocation number `index` (from 0) on each candidate, and how many apply.

    Shapes: (H,).
    """
    total, scorers = sum_scores(
        _marginal_fit(demand, candidates, index),
        collisions=_collisions(candidates, index),
        desired_count=demand.desired_count,
        penalised=candidates.penalised,
        affinity=candidates.affinity,
    )
    return total, np.ones(len(candidates.rows), np.int64) if scorers is None else scorers + 1


def _marginal_fit(demand: Demand, candidates: CandidateRows, index: int | Int64s) -> Int64s:
    return fit_of_free(
        candidates.free_cpu_mhz - (index + 1) * demand.ask[CPU],
        candidates.free_memory_mib - (index + 1) * demand.ask[MEMORY],
        candidates.capacity_cpu_mhz,
        candidates.capacity_memory_mib,
        algorithm=demand.algorithm,
    )


def _collisions(candidates: CandidateRows, index: int | Int64s) -> Int64s | None:
    collisions = candidates.collisions
    if collisions is None:
        return None
    if isinstance(index, int) and not np.count_nonzero(collisions):
        # A group without allocations, the common case: the scorer applies to no candidate.
        return collisions + index if index else None
    return collisions + index


def room_of(demand: Demand, nodes: NodeColumns, rows: NDArray[np.intp], count: int) -> Int64s:
    """Return how many more fit on each of `rows`, at most `count`."""
    room = np.full(len(rows), count, np.int64)
    for d, ask in enumerate(demand.ask):
        if ask:
            free = nodes.capacity[:, d].take(rows)
            free -= nodes.used[:, d].take(rows)
            if int(free.min(initial=0)) >= ask * count:
                continue
            free //= ask
            np.minimum(room, free, out=room)
    if nodes.limit is not None:
        np.minimum(room, nodes.limit.take(rows), out=room)
    return room


def with_placement(demand: Demand, nodes: NodeColumns, part: Placement) -> NodeColumns:
    """Return the nodes after placing `part`."""
    used, on_rows = nodes.used.copy(order="K"), nodes.collisions
    collisions = np.zeros(len(used), np.int64) if on_rows is None else on_rows.copy()
    np.add.at(collisions, part.rows, part.counts)
    for at, ask in enumerate(demand.ask):
        np.add.at(used[:, at], part.rows, part.counts.astype(np.int64) * ask)
    limit = nodes.limit
    if limit is not None:
        limit = limit.copy()
        np.subtract.at(limit, part.rows, part.counts)
    return msgspec.structs.replace(nodes, used=used, collisions=collisions, limit=limit)


def runs_of(rows: NDArray[np.integer]) -> Placement:
    """Turn a list of rows, one for each allocation, into runs of equal rows."""
    each = rows.astype(np.int32)
    if len(each) == 1:
        return Placement(each, ONE, 1)
    starts = starts_of(each)
    if len(starts) == len(each):
        return Placement(each, np.ones(len(each), np.int32), len(each))
    counts = np.empty(len(starts), np.int32)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1], casting="unsafe")
    counts[-1] = len(each) - starts[-1]
    return Placement(each.take(starts), counts, len(each))


def taken_runs(
    rows: NDArray[np.intp], taken: list[int], *, steps: int, stopped: bool = False
) -> Placement:
    """Turn the positions of rows taken one by one into a placement. Shapes: rows (H,)."""
    placement = runs_of(rows[taken]) if taken else EMPTY
    return msgspec.structs.replace(placement, steps=steps, stopped=stopped)


def starts_of(values: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return where runs of equal values begin. Shape: (runs,)."""
    is_start = np.empty(len(values), np.bool_)
    is_start[:1] = True
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start.nonzero()[0]


def join_placements(parts: list[Placement]) -> Placement:
    """Concatenate placements; runs of the same row at a seam are merged."""
    parts = [part for part in parts if part.placed]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY
    rows = np.concatenate([part.rows for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    starts = starts_of(rows)
    return Placement(
        rows[starts],
        np.add.reduceat(counts, starts),
        sum(part.placed for part in parts),
        any(part.stopped for part in parts),
        sum(part.steps for part in parts),
    )


ONE: Final = np.ones(1, np.int32)
EMPTY: Final = Placement(np.empty(0, np.int32), np.empty(0, np.int32), 0)
for _constant in (ONE, EMPTY.rows, EMPTY.counts):
    _constant.setflags(write=False)
