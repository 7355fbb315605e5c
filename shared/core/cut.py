"""The cut: where the next `count` allocations of one group go.

Decides: the rows a count is placed on, and in which order. Must not know: what a job, a plan or a
worker is; why a row is masked. scores.py gives the numbers, feasibility.py the mask; place.py calls this.

The meaning is scalar greedy, held placement for placement by tests/property/test_cut.py: as long as
something fits, take the row whose next allocation scores highest, the lowest row among equals.

The way is one cut. The k-th allocation on a row has a score that depends on that row alone (its
marginal scores), so greedy is a merge of sequences by their heads. Whatever follows a head and is not
below everything its own row has shown so far is taken at once; so greedy order is the order of
(minimum of the row's marginal scores so far, descending; row; index). The minimum and the row are one
int64 key. Equal keys are consecutive allocations on one row and need no index: a count is placed by
selecting the `count` smallest keys and sorting those.

- Rising scores (binpack without anti-affinity): a row's minimum is its first score; rows fill up in turn.
- Otherwise rows are opened in blocks of doubling depth, below a bound that only tightens: the
  `count`-th smallest key seen. Rows whose minimum falls behind it are done.

Greedy has no memory, so a large count is cut in rounds of `_SLICE`: memory follows what fits, not the
count. So does time, about 10 ms a round; who must answer sooner asks for less and comes back.
"""

from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.scores import CPU, MEMORY, Algorithm, Int64s, fit_of_free, mean_scores
from shared.core.splitmix import splitmix64_array

Mask = NDArray[np.bool_]

#: Rows stand in the low half of a key. Scores need 22 bits of the high one.
_ROW_BITS: Final = 32
_ROW_MASK: Final = (1 << _ROW_BITS) - 1
_NO_KEY: Final = np.iinfo(np.int64).max
#: Run counts are int32.
_COUNT_MAX: Final = (1 << 31) - 1
#: The most allocations placed by one round of keys: 2 MiB of them.
_SLICE: Final = 1 << 18
#: How many of the best rows a rising cut sorts at first.
_BEST_ROWS: Final = 512


class Placement(msgspec.Struct, frozen=True, eq=False):
    """Where allocations went: `counts[i]` of them on `rows[i]`, run after run in greedy order.

    Neighbouring runs have different rows; a row may come back later. Shapes: rows, counts int32 (runs,).
    """

    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    #: The sum of `counts`; less than asked for when the rest fits nowhere.
    placed: int


class _Demand(msgspec.Struct, frozen=True, eq=False):
    """What is placed."""

    ask: tuple[int, ...]
    desired_count: int
    algorithm: Algorithm
    anti_affinity: bool

    @property
    def is_rising(self) -> bool:
        """Does no row ever score lower with one more on it?"""
        return self.algorithm == "binpack" and not self.anti_affinity


class _Nodes(msgspec.Struct, frozen=True, eq=False):
    """Where it may be placed; shapes as of `place_count`."""

    capacity: Int64s
    used: Int64s
    mask: Mask
    collisions: Int64s
    penalised: Mask | None


class _Heads(msgspec.Struct, frozen=True, eq=False):
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

    def take(self, index: NDArray[np.intp]) -> "_Heads":
        """Return only the heads at `index`."""
        return _Heads(
            self.rows.take(index),
            self.free_cpu_mhz.take(index),
            self.free_memory_mib.take(index),
            self.capacity_cpu_mhz.take(index),
            self.capacity_memory_mib.take(index),
            None if self.collisions is None else self.collisions.take(index),
            None if self.penalised is None else self.penalised.take(index),
        )


def place_count(
    *,
    capacity: Int64s,
    used: Int64s,
    mask: Mask,
    ask: Int64s,
    count: int,
    collisions: Int64s,
    desired_count: int,
    algorithm: Algorithm,
    anti_affinity: bool,
    penalised: Mask | None = None,
    lane: int = 0,
    lanes: int = 1,
) -> Placement:
    """Place up to `count` allocations of one group; equal to scalar greedy.

    A row is open where `mask` is set and `used + ask <= capacity` in every dimension. With `lanes` > 1 the
    rows with `splitmix64(row) % lanes == lane` are filled first, until nothing fits there, then the others.

    Shapes: capacity, used (N, 3), ask (3,) in `RESOURCES` order, column order ("F") preferred;
    mask, collisions, penalised (N,). `collisions` counts the allocations of this job and group on a row.
    Scores and the bounds on capacity are those of scores.py. Nothing is changed. `count` beyond
    2**31 - 1 is cut to it.
    Raises: ValueError when the ask is negative.
    """
    demand = _Demand(tuple(ask.tolist()), desired_count, algorithm, anti_affinity)
    if min(demand.ask) < 0:
        msg = f"ask {demand.ask} is negative"
        raise ValueError(msg)
    count = min(count, _COUNT_MAX)
    if lanes <= 1:
        return _place(demand, _Nodes(capacity, used, mask, collisions, penalised), count)
    own = _lane_of_rows(len(mask), lanes) == lane
    first = _place(demand, _Nodes(capacity, used, mask & own, collisions, penalised), count)
    if first.placed >= count:
        return first
    others = _Nodes(capacity, used, mask & ~own, collisions, penalised)
    return _join([first, _place(demand, others, count - first.placed)])


@lru_cache(maxsize=8)
def _lane_of_rows(n: int, lanes: int) -> NDArray[np.uint64]:
    """Return the lane of every row; kept, because a fleet keeps its size over many evaluations."""
    table = splitmix64_array(np.arange(n, dtype=np.uint64)) % np.uint64(lanes)
    table.setflags(write=False)
    return table


def _place(demand: _Demand, nodes: _Nodes, count: int) -> Placement:
    """Place on the rows of the mask, round by round until the count is reached or nothing fits."""
    parts = []
    while count > 0:
        part = _place_round(demand, nodes, count)
        parts.append(part)
        count -= part.placed
        if part.placed < _SLICE:
            break
        nodes = _loaded(demand, nodes, part)
    return _join(parts)


def _place_round(demand: _Demand, nodes: _Nodes, count: int) -> Placement:
    """Place by one cut: as many as fit, or at least `_SLICE`."""
    heads = _heads(demand, nodes)
    if not len(heads.rows):
        return _EMPTY
    scores = _marginal_scores(demand, heads, 0)
    if count == 1:
        # argmax takes the first of equals, which is the lowest row.
        return Placement(heads.rows[[scores.argmax()]].astype(np.int32), _ONE, 1)
    keys = heads.rows - (scores << _ROW_BITS)
    if demand.is_rising or len(keys) == 1:
        return _fill(demand, nodes, keys, count)
    return _cut(demand, nodes, heads, keys, count=min(count, _SLICE))


def _loaded(demand: _Demand, nodes: _Nodes, part: Placement) -> _Nodes:
    """Return the nodes with `part` on them."""
    used, collisions = nodes.used.copy(order="K"), nodes.collisions.copy()
    np.add.at(collisions, part.rows, part.counts)
    np.add.at(used, part.rows, part.counts[:, None] * np.array(demand.ask))
    return msgspec.structs.replace(nodes, used=used, collisions=collisions)


def _heads(demand: _Demand, nodes: _Nodes) -> _Heads:
    """Find the rows where one more fits, and gather their columns."""
    capacity, fits = nodes.capacity, nodes.mask
    free = [capacity[:, d] - nodes.used[:, d] for d in range(len(demand.ask))]
    for left, ask in zip(free, demand.ask, strict=True):
        fits = fits & (left >= ask)
    rows = np.flatnonzero(fits)
    collisions = nodes.collisions.take(rows) if demand.anti_affinity else None
    penalised = None if nodes.penalised is None else nodes.penalised.take(rows)
    return _Heads(
        rows,
        free[CPU].take(rows),
        free[MEMORY].take(rows),
        np.maximum(capacity[:, CPU].take(rows), 1),
        np.maximum(capacity[:, MEMORY].take(rows), 1),
        None if collisions is None else collisions.astype(np.int64, copy=False),
        None if penalised is None or not penalised.any() else penalised,
    )


def _marginal_scores(demand: _Demand, heads: _Heads, index: int | Int64s) -> Int64s:
    """Score the allocation number `index` (from 0) on each head; a column of indexes gives a block."""
    collisions = heads.collisions
    if isinstance(index, int) and collisions is not None and not np.count_nonzero(collisions):
        # A group that is nowhere yet, the common case: the scorer applies to no head.
        collisions = None
    fit = fit_of_free(
        heads.free_cpu_mhz - (index + 1) * demand.ask[CPU],
        heads.free_memory_mib - (index + 1) * demand.ask[MEMORY],
        heads.capacity_cpu_mhz,
        heads.capacity_memory_mib,
        algorithm=demand.algorithm,
    )
    return mean_scores(
        fit,
        collisions=None if collisions is None else collisions + index,
        desired_count=demand.desired_count,
        penalised=heads.penalised,
    )


def _room(demand: _Demand, nodes: _Nodes, rows: NDArray[np.intp], count: int) -> Int64s:
    """Return how many more fit on each of `rows`, at most `count`."""
    room = np.full(len(rows), count, np.int64)
    for d, ask in enumerate(demand.ask):
        if ask:
            free = nodes.capacity[:, d].take(rows) - nodes.used[:, d].take(rows)
            np.minimum(room, free // ask, out=room)
    return room


def _fill(demand: _Demand, nodes: _Nodes, keys: Int64s, count: int) -> Placement:
    """Fill row after row in the order of their keys: rising scores never give a row up."""
    width = min(_BEST_ROWS, count)
    while True:
        best = np.sort(np.partition(keys, width)[:width] if width < len(keys) else keys)
        rows = best & _ROW_MASK
        total = np.cumsum(_room(demand, nodes, rows, count))
        if total[-1] >= count or len(best) == len(keys):
            break
        width *= 8
    runs = min(int(total.searchsorted(count)) + 1, len(rows))
    counts = np.diff(total[:runs], prepend=0).astype(np.int32)
    counts[-1] -= max(int(total[runs - 1]) - count, 0)
    return Placement(rows[:runs].astype(np.int32), counts, min(int(total[-1]), count))


def _cut(demand: _Demand, nodes: _Nodes, heads: _Heads, keys: Int64s, *, count: int) -> Placement:
    """Select the `count` smallest keys of all marginal scores, opening rows only as deep as needed."""
    found, bound = _best(keys, count)
    index = np.flatnonzero(keys < bound)
    heads, last = heads.take(index), keys.take(index)
    room = _room(demand, nodes, heads.rows, count)
    depth, width = 1, 1
    while True:
        index = np.flatnonzero((last < bound) & (room > depth))
        if not len(index):
            return _runs(np.sort(found))
        heads, last, room = heads.take(index), last.take(index), room.take(index)
        block = _open(demand, heads, last, depth=depth, width=width)
        levels = np.arange(depth, depth + width).reshape(-1, 1)
        useful = block[(block < bound) & (levels < room)]
        found, bound = _best(np.concatenate((found, useful)), count)
        last = block[-1]
        depth += width
        width = min(2 * width, max(1, 2 * count // len(index)))


def _best(keys: Int64s, count: int) -> tuple[Int64s, int]:
    """Return the `count` smallest keys in no order, and the largest of them if there are that many."""
    if len(keys) < count:
        return keys, _NO_KEY
    if len(keys) > count:
        keys = np.partition(keys, count - 1)[:count]
        return keys, int(keys[-1])
    return keys, int(keys.max())


def _open(demand: _Demand, heads: _Heads, last: Int64s, *, depth: int, width: int) -> Int64s:
    """Return the keys of the next `width` allocations on each head, given the last key: (width, H).

    A row's smallest score so far is its largest key so far. Entries beyond a row's room are garbage,
    and come after all that are not.
    """
    levels = np.arange(depth, depth + width).reshape(-1, 1)
    block = heads.rows - (_marginal_scores(demand, heads, levels) << _ROW_BITS)
    np.maximum(block[0], last, out=block[0])
    return np.maximum.accumulate(block, axis=0, out=block) if width > 1 else block


def _runs(keys: Int64s) -> Placement:
    """Turn sorted keys into runs of equal rows."""
    rows = (keys & _ROW_MASK).astype(np.int32)
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    counts = np.diff(starts, append=len(rows)).astype(np.int32)
    return Placement(rows[starts], counts, len(rows))


def _join(parts: list[Placement]) -> Placement:
    """Chain placements; runs of one row that meet at a seam become one."""
    parts = [part for part in parts if part.placed]
    if len(parts) <= 1:
        return parts[0] if parts else _EMPTY
    rows = np.concatenate([part.rows for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    return Placement(
        rows[starts], np.add.reduceat(counts, starts), sum(part.placed for part in parts)
    )


_ONE: Final = np.ones(1, np.int32)
_EMPTY: Final = Placement(np.empty(0, np.int32), np.empty(0, np.int32), 0)
for _constant in (_ONE, _EMPTY.rows, _EMPTY.counts):
    _constant.setflags(write=False)
