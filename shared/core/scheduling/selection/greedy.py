"""Greedy selection: where the next `count` allocations of one group go.

The result equals scalar greedy, held placement for placement by tests/property/test_greedy.py: while something fits,
take the row whose next allocation scores highest, the lowest row among equals.

It is computed by one selection of keys. The k-th allocation on a row has a score that depends on that row alone (its
marginal score), so greedy is a merge of sequences by their heads. An element that is not below the minimum of its own
sequence so far is taken right after its predecessor; so greedy order is the order of (minimum of the row's marginal
scores so far, descending; row; index). The minimum and the row are one int64 key. Equal keys are consecutive
allocations on one row and need no index: a count is placed by selecting the `count` smallest keys and sorting those.

- Rising scores (binpack without anti-affinity): a row's minimum is its first score; rows fill up in turn.
- Otherwise rows are opened in blocks of doubling depth, below a bound that only tightens: the
  `count`-th smallest key seen. Rows whose minimum falls behind it are done.

Greedy has no memory, so a large count is placed in rounds of `_ROUND_MAX` keys: memory depends on what fits, not on the
count. A round takes about 10 ms.
"""

from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from shared.core.columns import Int64s, Mask
from shared.core.scheduling.scoring.score_cache import NO_KEY, ScoreCache
from shared.core.scheduling.scoring.scores import Algorithm
from shared.core.scheduling.selection.candidates import (
    EMPTY,
    ONE,
    ROW_BITS,
    ROW_MASK,
    CandidateRows,
    Demand,
    NodeColumns,
    Placement,
    find_candidates,
    gather_candidates,
    join_placements,
    marginal_scores,
    room_of,
    runs_of,
    with_placement,
)
from shared.core.scheduling.selection.coupling import Coupling, Tally
from shared.core.scheduling.selection.greedy_coupled import STEPS_MAX, place_coupled
from shared.core.scheduling.selection.greedy_small import SMALL_COUNT_MAX, place_small
from shared.core.scheduling.selection.sampled import Sampling, place_sampled
from shared.core.scheduling.usage.dirty_rows import DirtyRows
from shared.core.splitmix import splitmix64_array

#: Run counts are int32.
_COUNT_MAX: Final = (1 << 31) - 1
#: The most allocations placed by one round of keys: 2 MiB of them.
_ROUND_MAX: Final = 1 << 18
#: How many of the best rows are sorted first when scores rise.
_BEST_ROWS: Final = 512
#: Rows scored at a time.
_BLOCK: Final = 1 << 14


class SelectionOptions(msgspec.Struct, frozen=True, eq=False):
    """Options of a selection besides the nodes; arguments as of `place_count`."""

    coupling: Coupling | None = None
    sampling: Sampling | None = None
    steps: int = STEPS_MAX
    lane: int = 0
    lanes: int = 1
    score_cache: ScoreCache | None = None
    #: where `used` changed, for `score_cache`.
    dirty_rows: DirtyRows | None = None


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
    score_cache: ScoreCache | None = None,
) -> Placement:
    """Place up to `count` allocations of one group; equal to scalar greedy.

    A row is open where `mask` is set and `used + ask <= capacity` in every dimension. With `lanes` > 1 the
    rows with `splitmix64(row) % lanes == lane` are filled first, until nothing fits there, then the others.

    Shapes: capacity, used (N, 3), ask (3,) in `RESOURCES` order, column order ("F") preferred;
    mask, collisions, penalised, affinity, limit (N,). `collisions` counts the allocations of this job and
    group on a row, None where there are none; `limit` is how many more a row takes. With a
    `coupling` (spread, distinct property) rows depend on each other and are taken value by value. A
    `sampling` considers a few rows only, and is not greedy. Both stop after about `steps` steps (`Placement.stopped`).
    `score_cache` keeps scores for the next selection; it does not change the result.
    Scores and the bounds on capacity are those of scores.py. No argument is changed. `count` is limited to
    2**31 - 1.
    Raises: ValueError when the ask is negative.
    """
    demand = Demand(tuple(ask.tolist()), desired_count, algorithm, anti_affinity)
    nodes = NodeColumns(capacity, used, mask, collisions, penalised, affinity, limit)
    how = SelectionOptions(
        coupling, sampling, steps=steps, lane=lane, lanes=lanes, score_cache=score_cache
    )
    return select_nodes(demand, nodes, count, how)


def select_nodes(
    demand: Demand, nodes: NodeColumns, count: int, how: SelectionOptions
) -> Placement:
    """Place up to `count` as `place_count` says. Raises: ValueError when the ask is negative."""
    if min(demand.ask) < 0:
        msg = f"ask {demand.ask} is negative"
        raise ValueError(msg)
    count = min(count, _COUNT_MAX)
    tally = None if how.coupling is None else how.coupling.begin()
    if how.lanes <= 1:
        return _place_on_mask(demand, nodes, count, how, tally=tally)
    own = lane_rows(len(nodes.mask), how.lane, how.lanes)
    first = _place_on_mask(demand, nodes.only(own), count, how, tally=tally)
    if first.placed >= count or first.stopped:
        return first
    rest = _place_on_mask(demand, nodes.only(~own), count - first.placed, how, tally=tally)
    return join_placements([first, rest])


@lru_cache(maxsize=16)
def lane_rows(n: int, lane: int, lanes: int) -> Mask:
    """Return the rows of a lane; cached, because the fleet's size rarely changes."""
    own: Mask = splitmix64_array(np.arange(n, dtype=np.uint64)) % np.uint64(lanes) == lane
    own.setflags(write=False)
    return own


def _place_on_mask(
    demand: Demand, nodes: NodeColumns, count: int, how: SelectionOptions, *, tally: Tally | None
) -> Placement:
    """Place on the rows of the mask, by the algorithm that the options need."""
    if how.sampling is not None and how.sampling.candidates != "all":
        return place_sampled(demand, nodes, how.sampling, tally, count=count, steps=how.steps)
    if tally is not None:
        return place_coupled(demand, nodes, tally, count=count, steps=how.steps)
    return _place(demand, nodes, count, how)


def _place(demand: Demand, nodes: NodeColumns, count: int, how: SelectionOptions) -> Placement:
    """Place on the rows of the mask, round by round until the count is reached or nothing fits."""
    part = _place_round(demand, nodes, count, how) if count > 0 else EMPTY
    if part.placed < _ROUND_MAX:
        return part
    parts = [part]
    # The dirty rows do not cover the rounds before.
    how = msgspec.structs.replace(how, dirty_rows=None)
    while part.placed >= _ROUND_MAX and count > part.placed:
        count -= part.placed
        nodes = with_placement(demand, nodes, part)
        part = _place_round(demand, nodes, count, how)
        parts.append(part)
    return join_placements(parts)


def _place_round(
    demand: Demand, nodes: NodeColumns, count: int, how: SelectionOptions
) -> Placement:
    """Place by one selection of keys: as many as fit, or at least `_ROUND_MAX`."""
    candidates: CandidateRows | None = None
    is_alone = _is_fit_alone(demand, nodes)
    if how.score_cache is not None and (
        is_alone or (count <= SMALL_COUNT_MAX and _is_plain(nodes))
    ):
        keys = how.score_cache.keys(demand, nodes.capacity, nodes.used, how.dirty_rows)
        if count == 1 and is_alone and nodes.limit is None:
            return _place_one(keys, nodes.mask)
        if count <= SMALL_COUNT_MAX:
            return place_small(demand, nodes, count, keys)
        keys = _open_keys(keys, nodes)
    else:
        keys, candidates = _keys(demand, nodes)
    if not len(keys):
        return EMPTY
    if count == 1:
        return Placement(np.array([int(keys.min()) & ROW_MASK], np.int32), ONE, 1)
    if demand.scores_never_fall or len(keys) == 1:
        return _fill_rows(demand, nodes, keys, count)
    return _take_smallest_keys(demand, nodes, candidates, keys, count=min(count, _ROUND_MAX))


def _is_fit_alone(demand: Demand, nodes: NodeColumns) -> bool:
    """Tell whether the fit is the only scorer that applies to the next allocation, on every row."""
    if not _is_plain(nodes):
        return False
    if nodes.collisions is None or not demand.anti_affinity:
        return True
    return not np.count_nonzero(nodes.collisions)


def _is_plain(nodes: NodeColumns) -> bool:
    """Tell whether no scorer but fit and anti-affinity applies to any row."""
    return nodes.penalised is None and nodes.affinity is None


def _place_one(keys: Int64s, mask: Mask) -> Placement:
    """Place one allocation on the open row with the least key."""
    if not len(keys):
        return EMPTY
    # The best of all rows is the best of the open ones if it is open itself.
    row = int(keys.argmin())
    best = int(keys[row] if mask[row] else keys.compress(mask).min(initial=NO_KEY))
    return EMPTY if best == NO_KEY else Placement(np.array([best & ROW_MASK], np.int32), ONE, 1)


def _open_keys(keys: Int64s, nodes: NodeColumns) -> Int64s:
    """Return the keys of the rows that can take one more."""
    found = keys.compress(nodes.mask if nodes.limit is None else nodes.mask & (nodes.limit > 0))
    return found.compress(found != NO_KEY) if len(found) and found.max() == NO_KEY else found


def _keys(demand: Demand, nodes: NodeColumns) -> tuple[Int64s, CandidateRows | None]:
    """Return the key of the next allocation on each row that can take one; also the candidates, if scored in one block.

    A large fleet is scored in blocks: columns stay in the CPU cache, and memory is reused.
    """
    size = len(nodes.mask)
    if size <= _BLOCK:
        candidates = find_candidates(demand, nodes)
        return candidates.rows - (marginal_scores(demand, candidates, 0) << ROW_BITS), candidates
    parts = []
    for start in range(0, size, _BLOCK):
        candidates = find_candidates(demand, nodes.part(start, start + _BLOCK))
        if len(candidates.rows):
            parts.append(
                (candidates.rows + start) - (marginal_scores(demand, candidates, 0) << ROW_BITS)
            )
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), None


def _fill_rows(demand: Demand, nodes: NodeColumns, keys: Int64s, count: int) -> Placement:
    """Fill row after row in the order of their keys: with rising scores a row is filled before the next."""
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


def _take_smallest_keys(
    demand: Demand,
    nodes: NodeColumns,
    candidates: CandidateRows | None,
    keys: Int64s,
    *,
    count: int,
) -> Placement:
    """Select the `count` smallest keys of all marginal scores, opening rows only as deep as needed."""
    found, bound = _best(keys, count)
    index = (keys < bound).nonzero()[0]
    last = keys.take(index)
    candidates = (
        gather_candidates(demand, nodes, last & ROW_MASK)
        if candidates is None
        else candidates.take(index)
    )
    room = room_of(demand, nodes, candidates.rows, count)
    depth, width = 1, 1
    while True:
        index = ((last < bound) & (room > depth)).nonzero()[0]
        if not len(index):
            return runs_of(np.sort(found) & ROW_MASK)
        candidates, last, room = candidates.take(index), last.take(index), room.take(index)
        block = _open(demand, candidates, last, depth=depth, width=width)
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


def _open(
    demand: Demand, candidates: CandidateRows, last: Int64s, *, depth: int, width: int
) -> Int64s:
    """Return the keys of the next `width` allocations on each candidate, given the last key: (width, H).

    A row's smallest score so far is its largest key so far. Entries beyond a row's room are garbage,
    and sort after all valid ones.
    """
    levels = np.arange(depth, depth + width).reshape(-1, 1)
    block = candidates.rows - (marginal_scores(demand, candidates, levels) << ROW_BITS)
    np.maximum(block[0], last, out=block[0])
    return np.maximum.accumulate(block, axis=0, out=block) if width > 1 else block
