"""Greedy selection under coupling: placements that change what other nodes score, taken value by value.

Used for spread blocks and distinct properties; coupling.py keeps counts and boosts.

Nodes of one combination of values always share one boost. Among those with the same number of scorers, the best one
has the highest sum of its own scorers, whatever the boost. So candidates lie in buckets by (combination, number of
scorers), in levels of equal sums, lowest row first. A mean is a floor, which can make a slightly lower sum an equal
score: for a divisor d the d - 1 sums below the best may reach the same mean, and are looked up one by one.

Each combination offers its best candidate; a heap holds the offers. A placement changes one candidate, and the boosts
of combinations that share a value with it; if the minimum or maximum of an even spread changes, all offers are renewed.
"""

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from operator import neg
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.selection.candidates import (
    EMPTY,
    ROW_BITS,
    ROW_MASK,
    CandidateRows,
    Demand,
    NodeColumns,
    Placement,
    find_candidates,
    gather_candidates,
    marginal_sums,
    room_of,
    starts_of,
    taken_runs,
)
from shared.core.scheduling.selection.coupling import CLOSED, CLOSED_BELOW, BlockCounter, Tally
from shared.core.scheduling.selection.marginal_scorer import MarginalScorer

#: Up to this count one vector pass for each placement beats buckets.
_PASSES_COUNT_MAX: Final = 6
#: Maximum number of scorers besides spread (fit, anti-affinity, penalty, affinity); a power of two.
_SCORERS: Final = 8
#: More than the sum of all scorers of a node except spread.
_SUM_MAX: Final = 8 * SCALE
#: Rows scored at a time.
_BLOCK: Final = 1 << 14
#: Step budget of one plan, about 40 ms; an offer is one step. Another plan continues.
STEPS_MAX: Final = 30_000
#: Steps of a placement besides its offers.
_STEPS_EACH: Final = 2
#: Candidates that one pass scores in the time of one offer.
_HEADS_A_STEP: Final = 50
_NO_OFFER: Final = 1 << 62
#: Up to this many combinations the offers are scanned; above, a heap holds them.
_FEW_OFFERS: Final = 64


def place_coupled(
    demand: Demand, nodes: NodeColumns, tally: Tally, *, count: int, steps: int
) -> Placement:
    """Place up to `count`, equal to scalar greedy, in about `steps` steps. `tally` keeps the counts."""
    rows, sums, scorers = _scored(demand, nodes)
    if not len(rows) or count <= 0:
        return EMPTY
    if count > _PASSES_COUNT_MAX:
        of_head = tally.combine(rows)
        if not tally.has_many_combinations:
            return _by_buckets(
                demand, nodes, tally, (rows, sums, scorers, of_head), count=count, steps=steps
            )
    if count > 1 and len(rows) > 4 * _BLOCK:
        # Drop rows that the count cannot reach in a very large fleet.
        of_head = tally.combine(rows)
        kept = _useful(of_head * _SCORERS + scorers, sums, count)
        rows, sums, scorers = rows[kept], sums[kept], scorers[kept]
    return _by_passes(demand, nodes, tally, (rows, sums, scorers), count=count, steps=steps)


_Scored = tuple[NDArray[np.intp], Int64s, Int64s]


def _by_buckets(
    demand: Demand,
    nodes: NodeColumns,
    tally: Tally,
    scored: tuple[NDArray[np.intp], Int64s, Int64s, NDArray[np.intp]],
    *,
    count: int,
    steps: int,
) -> Placement:
    rows, sums, scorers, of_head = scored
    if len(rows) > 2 * count:
        kept = _useful(of_head * _SCORERS + scorers, sums, count)
        rows, of_head = rows[kept], of_head[kept]
    room = room_of(demand, nodes, rows, count)
    buckets = _Buckets(
        demand, gather_candidates(demand, nodes, rows), tally, of_head=of_head, room=room
    )
    taken = buckets.take(count, steps)
    return taken_runs(
        rows, taken, steps=buckets.steps, stopped=len(taken) < count and buckets.steps > steps
    )


def _by_passes(
    demand: Demand, nodes: NodeColumns, tally: Tally, scored: _Scored, *, count: int, steps: int
) -> Placement:
    """Score all candidates again for each placement."""
    rows, sums, scorers = scored
    passes = tally.by_row(rows)
    each = 1 + len(rows) // _HEADS_A_STEP
    most = max(steps // each, 1)
    marginal: MarginalScorer | None = None
    room = None
    taken: list[int] = []
    on_head: dict[int, int] = {}
    while len(taken) < min(count, most):
        best = _best(sums, scorers, passes.boosts())
        if best < 0:
            return taken_runs(rows, taken, steps=each * len(taken))
        taken.append(best)
        passes.take(best)
        if count == 1:
            break
        if marginal is None or room is None:
            marginal = MarginalScorer(demand, gather_candidates(demand, nodes, rows))
            room = room_of(demand, nodes, rows, count)
        on_head[best] = index = on_head.get(best, 0) + 1
        if index < room[best]:
            sums[best], scorers[best] = marginal.score(best, index)
        else:
            sums[best] = CLOSED
    stopped = len(taken) < count
    return taken_runs(rows, taken, steps=each * len(taken), stopped=stopped)


def _scored(demand: Demand, nodes: NodeColumns) -> _Scored:
    """Return the rows that can take one more, the sum of their scorers and how many apply. Shapes: (H,)."""
    if len(nodes.mask) <= _BLOCK:
        candidates = find_candidates(demand, nodes)
        return (candidates.rows, *marginal_sums(demand, candidates))
    parts = []
    for start in range(0, len(nodes.mask), _BLOCK):
        candidates = find_candidates(demand, nodes.part(start, start + _BLOCK))
        parts.append((candidates.rows + start, *marginal_sums(demand, candidates)))
    rows, sums, scorers = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(sums), np.concatenate(scorers)


def _useful(bucket_of: NDArray[np.intp], sums: Int64s, count: int) -> NDArray[np.intp]:
    """Return the candidates that a count may reach: the best `count` of each bucket, and near equals."""
    order = bucket_of.argsort(kind="stable")
    ordered = bucket_of.take(order)
    starts = starts_of(ordered).tolist()
    kept = np.ones(len(order), np.bool_)
    for at, end in zip(starts, [*starts[1:], len(order)], strict=True):
        if end - at > count:
            inside = order[at:end]
            found = sums.take(inside)
            least = np.partition(found, end - at - count)[end - at - count]
            kept[inside] = found > least - _SCORERS
    return np.flatnonzero(kept)


def _best(sums: Int64s, scorers: Int64s, boosts: Int64s) -> int:
    """Return the candidate with the highest mean, the lowest row among equals; -1: all are closed."""
    scores = (sums + boosts) // (scorers + (boosts != 0))
    best = int(scores.argmax())
    return best if scores[best] > CLOSED_BELOW else -1


class _Bucket:
    """Candidates of one combination with the same number of scorers, in levels of equal sums."""

    __slots__ = ("at", "end", "head", "is_near", "levels", "number", "scorers", "top", "tops")

    def __init__(self, number: int, scorers: int, at: int = 0, end: int = 0) -> None:
        #: the combination.
        self.number = number
        self.scorers = scorers
        #: candidates not laid out yet, as a range of the sorted ones.
        self.at = at
        self.end = end
        #: sum -> candidates, a heap each.
        self.levels: dict[int, list[int]] = {}
        #: a heap of negated sums; some are stale.
        self.tops: list[int] = []
        #: the highest sum, the lowest candidate that has it, and whether another sum is so near that a floor may
        #: make it equal. No candidate: -1.
        self.top = 0
        self.head = -1
        self.is_near = False

    def lowest(self, score: int, divisor: int, boost: int) -> int:
        """Return the lowest candidate whose mean is `score`, among all levels that may reach it."""
        head, levels = self.head, self.levels
        for level in range(score * divisor - boost, self.top):
            if level in levels and levels[level][0] < head:
                head = levels[level][0]
        return head


def _offer(buckets: list[_Bucket], boost: int | None) -> int:
    """Return the best candidate of a combination as a key, least first. The hottest code of the module."""
    best = _NO_OFFER
    if boost is None:
        return best
    for bucket in buckets:
        head = bucket.head
        if head < 0:
            continue
        divisor = bucket.scorers + 1 if boost else bucket.scorers
        score = (bucket.top + boost) // divisor
        if bucket.is_near:
            head = bucket.lowest(score, divisor, boost)
        offer = (-score << ROW_BITS) + head
        if offer < best:  # noqa: PLR1730 - min() costs three times as much.
            best = offer
    return best


class _Buckets:
    """All candidates in buckets, and the offer of each combination."""

    def __init__(
        self,
        demand: Demand,
        candidates: CandidateRows,
        tally: Tally,
        *,
        of_head: NDArray[np.intp],
        room: Int64s,
    ) -> None:
        #: offers made; above the budget: stopped early.
        self.steps = 0
        self._tally = tally
        self._alone = tally.alone
        self._marginal = MarginalScorer(demand, candidates)
        sums, scorers = marginal_sums(demand, candidates)
        # A stable sort keeps candidates of one level in row order.
        bucket_of = of_head * _SCORERS + scorers
        order = ((bucket_of << ROW_BITS) + (_SUM_MAX - sums)).argsort(kind="stable")
        self._sorted_heads: list[int] = order.tolist()
        self._sorted_sums: list[int] = sums.take(order).tolist()
        self._sum_of: list[int] = sums.tolist()
        self._room: list[int] = room.tolist()
        # Most candidates are taken at most twice: computing all second scores at once beats single ones.
        second_sums, second_scorers = marginal_sums(demand, candidates, 1)
        self._second_sum_of: list[int] = second_sums.tolist()
        self._second_scorers_of: list[int] = second_scorers.tolist()
        self._taken_of: list[int] = [0] * len(room)
        #: combination -> its buckets, one for each number of scorers.
        self._buckets: list[list[_Bucket]] = [[] for _ in tally.boosts]
        self._bucket_of = self._fill(bucket_of, order)

    def _fill(self, bucket_of: NDArray[np.intp], order: NDArray[np.intp]) -> list[_Bucket]:
        """Make the buckets. Returns the bucket of each candidate."""
        ordered = bucket_of.take(order)
        starts = starts_of(ordered)
        made = []
        for at, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            number, scorers = divmod(int(ordered[at]), _SCORERS)
            bucket = _Bucket(number, scorers, at, end)
            self._buckets[number].append(bucket)
            self._settle(bucket)
            made.append(bucket)
        index = np.searchsorted(ordered[starts], bucket_of)
        return [made[at] for at in index.tolist()]

    def take(self, count: int, steps: int) -> list[int]:
        """Return up to `count` candidates in greedy order, making at most about `steps` offers."""
        if self._alone is not None and len(self._buckets) <= _FEW_OFFERS:
            return self._take_alone(self._alone, count, steps)
        bucket_of, move = self._bucket_of, self._move
        offers = self._offers()
        is_few = len(offers) <= _FEW_OFFERS
        heap = self._heap(offers)
        taken: list[int] = []
        made = 0
        while True:
            offer = min(offers) if is_few else _first(heap, offers, bucket_of)
            if offer == _NO_OFFER:
                break
            head = offer & ROW_MASK
            taken.append(head)
            if len(taken) == count or made > steps:
                break
            move(head)
            changed = self._count_one(bucket_of[head].number, offers)
            if changed is None:
                made += _STEPS_EACH + len(offers)
                offers = self._offers()
                heap = self._heap(offers)
                continue
            made += _STEPS_EACH + len(changed)
            if not is_few:
                for offer in changed:
                    heappush(heap, offer)
        self.steps = made
        return taken

    def _take_alone(
        self, alone: tuple[BlockCounter, list[int]], count: int, steps: int
    ) -> list[int]:
        """`take` for one block with few values, the usual job with a spread: equal results with fewer calls."""
        rule, codes = alone
        buckets, bucket_of, move, count_on = self._buckets, self._bucket_of, self._move, rule.take
        pairs = list(zip(buckets, codes, strict=True))
        whole = _STEPS_EACH + len(pairs)
        offers = self._offers()
        taken: list[int] = []
        made = 0
        while True:
            offer = min(offers)
            if offer == _NO_OFFER:
                break
            head = offer & ROW_MASK
            taken.append(head)
            if len(taken) == count or made > steps:
                break
            number = bucket_of[head].number
            move(head)
            code = codes[number]
            if count_on(code):
                made += whole
                boosts = rule.boosts
                offers = [_offer(some, boosts[one]) for some, one in pairs]
            else:
                made += _STEPS_EACH + 1
                offers[number] = _offer(buckets[number], rule.boosts[code])
        self.steps = made
        return taken

    def _count_one(self, number: int, offers: list[int]) -> list[int] | None:
        """Count one more on a combination, and renew the offers that changed. Returns these; None: all changed."""
        buckets = self._buckets
        if self._alone is not None:
            # Nearly every job with a spread has one block.
            rule, codes = self._alone
            code = codes[number]
            if rule.take(code):
                return None
            offers[number] = offer = _offer(buckets[number], rule.boosts[code])
            return [offer]
        touched = self._tally.take(number)
        if touched is None:
            return None
        boosts = self._tally.boosts
        for one in touched:
            offers[one] = _offer(buckets[one], boosts[one])
        return [offers[one] for one in touched]

    def _offers(self) -> list[int]:
        if self._alone is not None:
            rule, codes = self._alone
            boosts = rule.boosts
            return [_offer(self._buckets[at], boosts[code]) for at, code in enumerate(codes)]
        return [
            _offer(buckets, boost)
            for buckets, boost in zip(self._buckets, self._tally.boosts, strict=True)
        ]

    def _heap(self, offers: list[int]) -> list[int]:
        if len(offers) <= _FEW_OFFERS:
            return []
        heap = offers.copy()
        heapify(heap)
        return heap

    def _settle(self, bucket: _Bucket) -> None:
        """Find the top of a bucket, and lay out all levels near it."""
        tops, levels = bucket.tops, bucket.levels
        while tops and -tops[0] not in levels:
            heappop(tops)
        if bucket.at < bucket.end:
            self._lay_out(bucket)
        if not tops:
            bucket.head = -1
            return
        bucket.top = top = -tops[0]
        bucket.head = levels[top][0]
        # The second of a heap is one of the next two; a stale one only costs time.
        near, size = _SCORERS - top, len(tops)
        bucket.is_near = (size > 1 and tops[1] < near) or (size > 2 and tops[2] < near)

    def _lay_out(self, bucket: _Bucket) -> None:
        tops, levels, sums = bucket.tops, bucket.levels, self._sorted_sums
        at, end = bucket.at, bucket.end
        while at < end and (not tops or sums[at] > -tops[0] - _SCORERS):
            start, level = at, sums[at]
            # A level of thousands of equal candidates is one slice.
            at = bisect_right(sums, -level, start, end, key=neg)
            more = self._sorted_heads[start:at]
            if level in levels:
                levels[level] += more
                heapify(levels[level])
            else:
                levels[level] = more
                heappush(tops, -level)
        bucket.at = at

    def _move(self, head: int) -> None:
        """Take one allocation on a candidate: it gets its next score if it has room."""
        bucket, level = self._bucket_of[head], self._sum_of[head]
        heap = bucket.levels[level]
        heappop(heap)
        is_stale = False
        if not heap:
            del bucket.levels[level]
            is_stale = level == bucket.top
        elif level == bucket.top:
            bucket.head = heap[0]
        self._taken_of[head] = index = self._taken_of[head] + 1
        if index < self._room[head]:
            if index == 1:
                level, scorers = self._second_sum_of[head], self._second_scorers_of[head]
            else:
                level, scorers = self._marginal.score(head, index)
            self._sum_of[head] = level
            if scorers != bucket.scorers:
                if is_stale:
                    self._settle(bucket)
                    is_stale = False
                self._bucket_of[head] = bucket = self._beside(bucket, scorers)
            found = bucket.levels.get(level)
            if found is None:
                bucket.levels[level] = [head]
                heappush(bucket.tops, -level)
                is_stale = is_stale or bucket.head < 0 or level > bucket.top - _SCORERS
            else:
                heappush(found, head)
                if level == bucket.top:
                    bucket.head = found[0]
        if is_stale:
            self._settle(bucket)

    def _beside(self, bucket: _Bucket, scorers: int) -> _Bucket:
        """Return the bucket of the same combination with another number of scorers; make it if needed."""
        buckets = self._buckets[bucket.number]
        for one in buckets:
            if one.scorers == scorers:
                return one
        made = _Bucket(bucket.number, scorers)
        buckets.append(made)
        return made


def _first(heap: list[int], offers: list[int], bucket_of: list[_Bucket]) -> int:
    """Return the least offer that is still valid."""
    while True:
        offer = heap[0]
        if offer == _NO_OFFER or offers[bucket_of[offer & ROW_MASK].number] == offer:
            return offer
        heappop(heap)
