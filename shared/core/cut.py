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

from shared.core.coupled import STEPS_MAX, place_coupled
from shared.core.coupling import Coupling, Tally
from shared.core.few import FEW, place_few
from shared.core.heads import (
    EMPTY,
    ONE,
    ROW_BITS,
    ROW_MASK,
    Demand,
    Heads,
    Mask,
    Nodes,
    Placement,
    heads_at,
    heads_of,
    join,
    loaded,
    marginal_scores,
    room_of,
    runs_of,
)
from shared.core.ranked import NO_KEY, Ranked
from shared.core.sampled import Sampling, place_sampled
from shared.core.scores import Algorithm, Int64s
from shared.core.splitmix import splitmix64_array
from shared.core.trail import Trail

#: Run counts are int32.
_COUNT_MAX: Final = (1 << 31) - 1
#: The most allocations placed by one round of keys: 2 MiB of them.
_SLICE: Final = 1 << 18
#: How many of the best rows a rising cut sorts at first.
_BEST_ROWS: Final = 512
#: Rows scored at a time.
_BLOCK: Final = 1 << 14


class How(msgspec.Struct, frozen=True, eq=False):
    """What there is beside the nodes that a count is placed by; arguments as of `place_count`."""

    coupling: Coupling | None = None
    sampling: Sampling | None = None
    steps: int = STEPS_MAX
    lane: int = 0
    lanes: int = 1
    ranked: Ranked | None = None
    #: where `used` changed, for `ranked`.
    trail: Trail | None = None


def place_count(
    *,
    capacity: Int64s,
    used: Int64s,
    mask: Mask,
    ask: Int64s,
    count: int,
    collisions: Int64s | None,
    desired_count: int,
    algorithm: Algorithm,
    anti_affinity: bool,
    penalised: Mask | None = None,
    affinity: Int64s | None = None,
    limit: Int64s | None = None,
    coupling: Coupling | None = None,
    sampling: Sampling | None = None,
    steps: int = STEPS_MAX,
    lane: int = 0,
    lanes: int = 1,
    ranked: Ranked | None = None,
) -> Placement:
    """Place up to `count` allocations of one group; equal to scalar greedy.

    A row is open where `mask` is set and `used + ask <= capacity` in every dimension. With `lanes` > 1 the
    rows with `splitmix64(row) % lanes == lane` are filled first, until nothing fits there, then the others.

    Shapes: capacity, used (N, 3), ask (3,) in `RESOURCES` order, column order ("F") preferred;
    mask, collisions, penalised, affinity, limit (N,). `collisions` counts the allocations of this job and
    group on a row, None where there are none; `limit` is how many more a row may take at most. With a
    `coupling` (spread, distinct property) rows depend on each other and are taken value by value. A
    `sampling` looks at a few rows only, and is not greedy. Both stop after about `steps` steps (`Placement.stopped`).
    `ranked` keeps what the next cut may need again; nothing of the result depends on it.
    Scores and the bounds on capacity are those of scores.py. Nothing is changed. `count` beyond
    2**31 - 1 is cut to it.
    Raises: ValueError when the ask is negative.
    """
    demand = Demand(tuple(ask.tolist()), desired_count, algorithm, anti_affinity)
    nodes = Nodes(capacity, used, mask, collisions, penalised, affinity, limit)
    how = How(coupling, sampling, steps=steps, lane=lane, lanes=lanes, ranked=ranked)
    return place_on(demand, nodes, count, how)


def place_on(demand: Demand, nodes: Nodes, count: int, how: How) -> Placement:
    """Place up to `count` as `place_count` says. Raises: ValueError when the ask is negative."""
    if min(demand.ask) < 0:
        msg = f"ask {demand.ask} is negative"
        raise ValueError(msg)
    count = min(count, _COUNT_MAX)
    tally = None if how.coupling is None else how.coupling.begin()
    if how.lanes <= 1:
        return _part(demand, nodes, count, how, tally=tally)
    own = own_rows(len(nodes.mask), how.lane, how.lanes)
    first = _part(demand, nodes.only(own), count, how, tally=tally)
    if first.placed >= count or first.stopped:
        return first
    rest = _part(demand, nodes.only(~own), count - first.placed, how, tally=tally)
    return join([first, rest])


@lru_cache(maxsize=16)
def own_rows(n: int, lane: int, lanes: int) -> Mask:
    """Say which rows are of a lane; kept, because a fleet keeps its size over many evaluations."""
    own: Mask = splitmix64_array(np.arange(n, dtype=np.uint64)) % np.uint64(lanes) == lane
    own.setflags(write=False)
    return own


def _part(demand: Demand, nodes: Nodes, count: int, how: How, *, tally: Tally | None) -> Placement:
    """Place on the rows of the mask, in the way that there is for it."""
    if how.sampling is not None and how.sampling.candidates != "all":
        return place_sampled(demand, nodes, how.sampling, tally, count=count, steps=how.steps)
    if tally is not None:
        return place_coupled(demand, nodes, tally, count=count, steps=how.steps)
    return _place(demand, nodes, count, how)


def _place(demand: Demand, nodes: Nodes, count: int, how: How) -> Placement:
    """Place on the rows of the mask, round by round until the count is reached or nothing fits."""
    part = _place_round(demand, nodes, count, how) if count > 0 else EMPTY
    if part.placed < _SLICE:
        return part
    parts = [part]
    # What the rounds before have taken is on no trail.
    how = msgspec.structs.replace(how, trail=None)
    while part.placed >= _SLICE and count > part.placed:
        count -= part.placed
        nodes = loaded(demand, nodes, part)
        part = _place_round(demand, nodes, count, how)
        parts.append(part)
    return join(parts)


def _place_round(demand: Demand, nodes: Nodes, count: int, how: How) -> Placement:
    """Place by one cut: as many as fit, or at least `_SLICE`."""
    heads: Heads | None = None
    is_alone = _is_fit_alone(demand, nodes)
    if how.ranked is not None and (is_alone or (count <= FEW and _is_plain(nodes))):
        keys = how.ranked.keys(demand, nodes.capacity, nodes.used, how.trail)
        if count == 1 and is_alone and nodes.limit is None:
            return _one(keys, nodes.mask)
        if count <= FEW:
            return place_few(demand, nodes, count, keys)
        keys = _open_keys(keys, nodes)
    else:
        keys, heads = _keys(demand, nodes)
    if not len(keys):
        return EMPTY
    if count == 1:
        return Placement(np.array([int(keys.min()) & ROW_MASK], np.int32), ONE, 1)
    if demand.is_rising or len(keys) == 1:
        return _fill(demand, nodes, keys, count)
    return _cut(demand, nodes, heads, keys, count=min(count, _SLICE))


def _is_fit_alone(demand: Demand, nodes: Nodes) -> bool:
    """Tell whether the fit is the only scorer that applies to the next allocation, on every row."""
    if not _is_plain(nodes):
        return False
    if nodes.collisions is None or not demand.anti_affinity:
        return True
    return not np.count_nonzero(nodes.collisions)


def _is_plain(nodes: Nodes) -> bool:
    """Tell whether nothing but fit and anti-affinity can apply to any row."""
    return nodes.penalised is None and nodes.affinity is None


def _one(keys: Int64s, mask: Mask) -> Placement:
    """Place one allocation on the open row with the least key."""
    if not len(keys):
        return EMPTY
    # The best of all is the best of those that are open, as long as it is open itself.
    row = int(keys.argmin())
    best = int(keys[row] if mask[row] else keys.compress(mask).min(initial=NO_KEY))
    return EMPTY if best == NO_KEY else Placement(np.array([best & ROW_MASK], np.int32), ONE, 1)


def _open_keys(keys: Int64s, nodes: Nodes) -> Int64s:
    """Return the keys of the rows that can take one more."""
    found = keys.compress(nodes.mask if nodes.limit is None else nodes.mask & (nodes.limit > 0))
    return found.compress(found != NO_KEY) if len(found) and found.max() == NO_KEY else found


def _keys(demand: Demand, nodes: Nodes) -> tuple[Int64s, Heads | None]:
    """Return the key of the next allocation on each row that can take one; heads too, if that was one piece.

    A large fleet is scored in blocks: columns that stay in the cache, and memory that is used again.
    """
    size = len(nodes.mask)
    if size <= _BLOCK:
        heads = heads_of(demand, nodes)
        return heads.rows - (marginal_scores(demand, heads, 0) << ROW_BITS), heads
    parts = []
    for start in range(0, size, _BLOCK):
        heads = heads_of(demand, nodes.part(start, start + _BLOCK))
        if len(heads.rows):
            parts.append((heads.rows + start) - (marginal_scores(demand, heads, 0) << ROW_BITS))
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), None


def _fill(demand: Demand, nodes: Nodes, keys: Int64s, count: int) -> Placement:
    """Fill row after row in the order of their keys: rising scores never give a row up."""
    width = min(_BEST_ROWS, count)
    while True:
        best = np.sort(np.partition(keys, width)[:width] if width < len(keys) else keys)
        rows = best & ROW_MASK
        total = np.cumsum(room_of(demand, nodes, rows, count))
        if total[-1] >= count or len(best) == len(keys):
            break
        width *= 8
    runs = min(int(total.searchsorted(count)) + 1, len(rows))
    counts = np.diff(total[:runs], prepend=0).astype(np.int32)
    counts[-1] -= max(int(total[runs - 1]) - count, 0)
    return Placement(rows[:runs].astype(np.int32), counts, min(int(total[-1]), count))


def _cut(
    demand: Demand, nodes: Nodes, heads: Heads | None, keys: Int64s, *, count: int
) -> Placement:
    """Select the `count` smallest keys of all marginal scores, opening rows only as deep as needed."""
    found, bound = _best(keys, count)
    index = (keys < bound).nonzero()[0]
    last = keys.take(index)
    heads = heads_at(demand, nodes, last & ROW_MASK) if heads is None else heads.take(index)
    room = room_of(demand, nodes, heads.rows, count)
    depth, width = 1, 1
    while True:
        index = ((last < bound) & (room > depth)).nonzero()[0]
        if not len(index):
            return runs_of(np.sort(found) & ROW_MASK)
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
        return keys, NO_KEY
    if len(keys) > count:
        keys = np.partition(keys, count - 1)[:count]
        return keys, int(keys[-1])
    return keys, int(keys.max())


def _open(demand: Demand, heads: Heads, last: Int64s, *, depth: int, width: int) -> Int64s:
    """Return the keys of the next `width` allocations on each head, given the last key: (width, H).

    A row's smallest score so far is its largest key so far. Entries beyond a row's room are garbage,
    and come after all that are not.
    """
    levels = np.arange(depth, depth + width).reshape(-1, 1)
    block = heads.rows - (marginal_scores(demand, heads, levels) << ROW_BITS)
    np.maximum(block[0], last, out=block[0])
    return np.maximum.accumulate(block, axis=0, out=block) if width > 1 else block
