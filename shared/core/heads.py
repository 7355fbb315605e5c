"""Heads: the rows that can take one more allocation of a group, and what its next ones would score there.

Decides fit and marginal scores of one demand on columns of the fleet: the score of the k-th allocation on a row,
as far as that row alone tells. Must not know in which order rows are taken: cut.py, coupled.py and sampled.py do.
"""

from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.scores import CPU, MEMORY, Algorithm, Int64s, fit_of_free, mean_scores, sum_scores

Mask = NDArray[np.bool_]
A = TypeVar("A", bound=np.generic)

#: Rows stand in the low half of a key. Scores need 31 bits of the high one.
ROW_BITS: Final = 32
ROW_MASK: Final = (1 << ROW_BITS) - 1


class Placement(msgspec.Struct, frozen=True, eq=False):
    """Where allocations went: `counts[i]` of them on `rows[i]`, run after run in greedy order.

    Neighbouring runs have different rows; a row may come back later. Shapes: rows, counts int32 (runs,).
    """

    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    #: The sum of `counts`; less than asked for when the rest fits nowhere.
    placed: int
    #: It ended for the time it took, not for want of room: ask again for the rest.
    stopped: bool = False
    #: how much was looked at, in offers (coupled.py).
    steps: int = 0


class Demand(msgspec.Struct, frozen=True, eq=False):
    """What is placed."""

    ask: tuple[int, ...]
    desired_count: int
    algorithm: Algorithm
    anti_affinity: bool

    @property
    def is_rising(self) -> bool:
        """Does no row ever score lower with one more on it?"""
        return self.algorithm == "binpack" and not self.anti_affinity


class Nodes(msgspec.Struct, frozen=True, eq=False):
    """Where it may be placed; shapes as of `place_count`."""

    capacity: Int64s
    used: Int64s
    mask: Mask
    #: None: none anywhere.
    collisions: Int64s | None = None
    penalised: Mask | None = None
    #: score by node affinity, 0 where none applies.
    affinity: Int64s | None = None
    #: how many more a row may take for reasons other than room.
    limit: Int64s | None = None

    def only(self, mask: Mask) -> "Nodes":
        """Return the same nodes, open where `mask` is set too."""
        return msgspec.structs.replace(self, mask=self.mask & mask)

    def part(self, start: int, end: int) -> "Nodes":
        """Return the nodes of some rows, as views; their rows count from 0."""
        return Nodes(
            self.capacity[start:end],
            self.used[start:end],
            self.mask[start:end],
            None if self.collisions is None else self.collisions[start:end],
            None if self.penalised is None else self.penalised[start:end],
            None if self.affinity is None else self.affinity[start:end],
            None if self.limit is None else self.limit[start:end],
        )


class Heads(msgspec.Struct, frozen=True, eq=False):
    """The rows that can take one more, ascending, and what their marginal scores depend on.

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

    def take(self, index: NDArray[np.intp]) -> "Heads":
        """Return only the heads at `index`."""
        return Heads(
            self.rows.take(index),
            self.free_cpu_mhz.take(index),
            self.free_memory_mib.take(index),
            self.capacity_cpu_mhz.take(index),
            self.capacity_memory_mib.take(index),
            None if self.collisions is None else self.collisions.take(index),
            None if self.penalised is None else self.penalised.take(index),
            None if self.affinity is None else self.affinity.take(index),
        )


def heads_of(demand: Demand, nodes: Nodes) -> Heads:
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


def heads_at(demand: Demand, nodes: Nodes, rows: NDArray[np.intp]) -> Heads:
    """Gather the columns of rows that are known to have room. Shapes: rows (H,)."""
    cpu, memory = (
        nodes.capacity[:, at].take(rows) - nodes.used[:, at].take(rows) for at in (CPU, MEMORY)
    )
    return _gathered(demand, nodes, rows, (cpu, memory))


def _gathered(
    demand: Demand,
    nodes: Nodes,
    rows: NDArray[np.intp],
    free: tuple[Int64s, Int64s],
    *,
    is_all: bool = False,
) -> Heads:
    """Gather columns; where the rows are all there are, the columns themselves are it."""

    def at_rows(column: NDArray[A]) -> NDArray[A]:
        return column if is_all else column.take(rows)

    collisions = None
    if demand.anti_affinity:
        # What an allocation of the group meets there soon are those placed before it.
        on_rows = nodes.collisions
        collisions = np.zeros(len(rows), np.int64) if on_rows is None else at_rows(on_rows)
    penalised = None if nodes.penalised is None else at_rows(nodes.penalised)
    affinity = None if nodes.affinity is None else at_rows(nodes.affinity)
    return Heads(
        rows,
        *free,
        np.maximum(at_rows(nodes.capacity[:, CPU]), 1),
        np.maximum(at_rows(nodes.capacity[:, MEMORY]), 1),
        None if collisions is None else collisions.astype(np.int64, copy=False),
        None if penalised is None or not penalised.any() else penalised,
        None if affinity is None or not affinity.any() else affinity,
    )


def marginal_scores(demand: Demand, heads: Heads, index: int | Int64s) -> Int64s:
    """Score the allocation number `index` (from 0) on each head; a column of indexes gives a block."""
    return mean_scores(
        _marginal_fit(demand, heads, index),
        collisions=_collisions(heads, index),
        desired_count=demand.desired_count,
        penalised=heads.penalised,
        affinity=heads.affinity,
    )


def marginal_sums(demand: Demand, heads: Heads, index: int = 0) -> tuple[Int64s, Int64s]:
    """Return the sum of the scorers for allocation number `index` (from 0) on each head, and how many apply.

    Shapes: (H,).
    """
    total, scorers = sum_scores(
        _marginal_fit(demand, heads, index),
        collisions=_collisions(heads, index),
        desired_count=demand.desired_count,
        penalised=heads.penalised,
        affinity=heads.affinity,
    )
    return total, np.ones(len(heads.rows), np.int64) if scorers is None else scorers + 1


def _marginal_fit(demand: Demand, heads: Heads, index: int | Int64s) -> Int64s:
    return fit_of_free(
        heads.free_cpu_mhz - (index + 1) * demand.ask[CPU],
        heads.free_memory_mib - (index + 1) * demand.ask[MEMORY],
        heads.capacity_cpu_mhz,
        heads.capacity_memory_mib,
        algorithm=demand.algorithm,
    )


def _collisions(heads: Heads, index: int | Int64s) -> Int64s | None:
    collisions = heads.collisions
    if collisions is None:
        return None
    if isinstance(index, int) and not np.count_nonzero(collisions):
        # A group that is nowhere yet, the common case: the scorer applies to no head.
        return collisions + index if index else None
    return collisions + index


def room_of(demand: Demand, nodes: Nodes, rows: NDArray[np.intp], count: int) -> Int64s:
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


def loaded(demand: Demand, nodes: Nodes, part: Placement) -> Nodes:
    """Return the nodes with `part` on them."""
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
    """Turn one row an allocation, in order, into runs of equal rows."""
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


def starts_of(values: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return where runs of equal values begin. Shape: (runs,)."""
    is_start = np.empty(len(values), np.bool_)
    is_start[:1] = True
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start.nonzero()[0]


def join(parts: list[Placement]) -> Placement:
    """Chain placements; runs of one row that meet at a seam become one."""
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
