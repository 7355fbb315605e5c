"""Coupled greedy: counts whose placements change what other nodes score, taken value by value.

Decides the rows of a count under spread blocks and distinct properties. Must not know what a value means: coupling.py
keeps counts and boosts. cut.py calls this where there is a coupling.

Nodes of one combination of values share one boost at any time. Among those of them that as many scorers apply to, the
best is the one with the highest sum of its own scorers, whatever the boost. So heads lie in buckets by (combination,
number of scorers), in levels of equal sums, lowest row first. A mean is a floor, which can make a slightly lower sum
an equal score: of a divisor d the d - 1 sums below the best may reach the same mean, and are looked up one by one.

Each combination offers its best head; a heap holds the offers. A placement changes one head, and the boosts of what
shares a value with it; where least or most of an even spread moves, all combinations offer anew.
"""

from bisect import bisect_right
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import neg
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shared.core.coupling import Tally
from shared.core.heads import (
    EMPTY,
    ROW_BITS,
    ROW_MASK,
    Demand,
    Heads,
    Nodes,
    Placement,
    heads_of,
    marginal_sums,
    room_of,
    runs_of,
)
from shared.core.pow10 import POW10, SCALE, STEPS_LOG2
from shared.core.scores import CPU, MEMORY, Int64s

#: Up to this count one vector pass a placement is cheaper than buckets.
_FEW: Final = 6
#: Scorers beside spread are at most this many (fit, anti-affinity, penalty, affinity); a power of two.
_SCORERS: Final = 8
#: More than the sum of all scorers of a node but spread.
_SUM_MAX: Final = 8 * SCALE
_CLOSED: Final = -(1 << 62)
_NO_OFFER: Final = 1 << 62
#: Up to this many combinations the least offer is looked for, beyond a heap holds them.
_FEW_OFFERS: Final = 64


def place_coupled(demand: Demand, nodes: Nodes, tally: Tally, count: int) -> Placement:
    """Place up to `count`, equal to scalar greedy. `tally` keeps what was placed."""
    heads = heads_of(demand, nodes)
    if not len(heads.rows) or count <= 0:
        return EMPTY
    of_head = tally.combine(heads.rows)
    if count == 1:
        return _take_one(demand, heads, tally, of_head)
    room = room_of(demand, nodes, heads.rows, count)
    if count <= _FEW:
        taken = _take_few(demand, heads, tally, of_head=of_head, room=room, count=count)
    else:
        taken = _Buckets(demand, heads, tally, of_head=of_head, room=room).take(count)
    return runs_of(heads.rows[taken]) if taken else EMPTY


def _take_one(demand: Demand, heads: Heads, tally: Tally, of_head: NDArray[np.intp]) -> Placement:
    """Place a single allocation: one pass."""
    sums, scorers = marginal_sums(demand, heads)
    best = _best(sums, scorers, tally, of_head)
    if best < 0:
        return EMPTY
    tally.take(int(of_head[best]))
    return runs_of(heads.rows[best : best + 1])


def _best(sums: Int64s, scorers: Int64s, tally: Tally, of_head: NDArray[np.intp]) -> int:
    """Return the head with the highest mean, the lowest of equals; -1: all are closed."""
    boosts = np.array([_CLOSED if one is None else one for one in tally.boosts], np.int64)
    scores = sums + boosts.take(of_head)
    scores //= scorers + (boosts != 0).take(of_head)
    best = int(scores.argmax())
    # A closed combination stays far below every score, whatever it is divided by.
    return -1 if scores[best] < _CLOSED // (2 * _SCORERS) else best


def _take_few(
    demand: Demand,
    heads: Heads,
    tally: Tally,
    *,
    of_head: NDArray[np.intp],
    room: Int64s,
    count: int,
) -> list[int]:
    """Score all heads anew for each placement."""
    sums, scorers = marginal_sums(demand, heads)
    marginal = Marginal(demand, heads)
    taken: list[int] = []
    left: dict[int, int] = {}
    while True:
        best = _best(sums, scorers, tally, of_head)
        if best < 0:
            return taken
        taken.append(best)
        if len(taken) == count:
            return taken
        tally.take(int(of_head[best]))
        left[best] = left.get(best, int(room[best])) - 1
        if left[best]:
            sums[best], scorers[best] = marginal.score(best, int(room[best]) - left[best])
        else:
            sums[best] = _CLOSED


@lru_cache(maxsize=1)
def _powers() -> list[int]:
    """The table of powers as a list: one look-up costs a fifth of numpy's."""
    powers: list[int] = POW10.tolist()
    return powers


class Marginal:
    """Sum and number of the scorers of one head's k-th allocation, one at a time."""

    def __init__(self, demand: Demand, heads: Heads) -> None:
        self._ask_cpu, self._ask_memory = demand.ask[CPU], demand.ask[MEMORY]
        self._binpack = demand.algorithm == "binpack"
        self._desired = max(demand.desired_count, 1)
        self._heads = heads
        self._powers = _powers()
        #: head -> its columns as plain numbers.
        self._seen: dict[int, tuple[int, int, int, int, int, int, int]] = {}

    def score(self, head: int, index: int) -> tuple[int, int]:
        """Score the allocation number `index` (from 0) on a head."""
        seen = self._seen.get(head)
        if seen is None:
            seen = self._seen[head] = self._read(head)
        free_cpu, free_memory, cpu, memory, collisions, total, scorers = seen
        free_cpu -= (index + 1) * self._ask_cpu
        free_memory -= (index + 1) * self._ask_memory
        # A head has room, so what is left free lies between nothing and all.
        powers = (
            self._powers[(free_cpu << STEPS_LOG2) // cpu]
            + self._powers[(free_memory << STEPS_LOG2) // memory]
        )
        total += (20 * SCALE - powers if self._binpack else powers - 2 * SCALE) // 18
        if collisions >= 0 and collisions + index > 0:
            same = collisions + index + 1
            total += -SCALE * same // self._desired if same < self._desired else -SCALE
            scorers += 1
        return total, scorers

    def _read(self, head: int) -> tuple[int, int, int, int, int, int, int]:
        """Columns of a head; collisions -1: the scorer is off. Sum and number of what never changes."""
        heads = self._heads
        affinity = 0 if heads.affinity is None else int(heads.affinity[head])
        penalty = heads.penalised is not None and bool(heads.penalised[head])
        return (
            int(heads.free_cpu_mhz[head]),
            int(heads.free_memory_mib[head]),
            int(heads.capacity_cpu_mhz[head]),
            int(heads.capacity_memory_mib[head]),
            -1 if heads.collisions is None else int(heads.collisions[head]),
            affinity - SCALE * penalty,
            1 + (affinity != 0) + penalty,
        )


class _Bucket:
    """Heads of one combination that as many scorers apply to, in levels of equal sums."""

    __slots__ = ("at", "end", "head", "is_near", "levels", "number", "scorers", "top", "tops")

    def __init__(self, number: int, scorers: int, at: int = 0, end: int = 0) -> None:
        #: the combination.
        self.number = number
        self.scorers = scorers
        #: heads not looked at yet, as a range of the sorted ones.
        self.at = at
        self.end = end
        #: sum -> heads, a heap each.
        self.levels: dict[int, list[int]] = {}
        #: a heap of negated sums; some are stale.
        self.tops: list[int] = []
        #: the highest sum, the lowest head that has it, and whether another sum is so near that a floor may
        #: make it equal. No head: -1.
        self.top = 0
        self.head = -1
        self.is_near = False

    def offer(self, boost: int) -> int:
        """Return the best head under a boost as a key, least first."""
        divisor = self.scorers + 1 if boost else self.scorers
        score = (self.top + boost) // divisor
        head = self.head
        if self.is_near:
            levels = self.levels
            for lower in range(score * divisor - boost, self.top):
                if lower in levels and levels[lower][0] < head:
                    head = levels[lower][0]
        return (-score << ROW_BITS) + head


class _Buckets:
    """All heads, and what each combination offers."""

    def __init__(
        self,
        demand: Demand,
        heads: Heads,
        tally: Tally,
        *,
        of_head: NDArray[np.intp],
        room: Int64s,
    ) -> None:
        self._tally = tally
        self._marginal = Marginal(demand, heads)
        sums, scorers = marginal_sums(demand, heads)
        # Stable: heads of one level stay in the order of their rows.
        bucket_of = of_head * _SCORERS + scorers
        order = ((bucket_of << ROW_BITS) + (_SUM_MAX - sums)).argsort(kind="stable")
        self._sorted_heads: list[int] = order.tolist()
        self._sorted_sums: list[int] = sums.take(order).tolist()
        self._sum_of: list[int] = sums.tolist()
        self._room: list[int] = room.tolist()
        self._taken_of: list[int] = [0] * len(room)
        #: combination -> its buckets, by their number of scorers.
        self._buckets: list[dict[int, _Bucket]] = [{} for _ in tally.boosts]
        self._bucket_of = self._fill(bucket_of, order)

    def _fill(self, bucket_of: NDArray[np.intp], order: NDArray[np.intp]) -> list[_Bucket]:
        """Make the buckets. Returns the bucket of each head."""
        ordered = bucket_of.take(order)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        made = []
        for at, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            number, scorers = divmod(int(ordered[at]), _SCORERS)
            bucket = self._buckets[number][scorers] = _Bucket(number, scorers, at, end)
            self._settle(bucket)
            made.append(bucket)
        index = np.searchsorted(ordered[starts], bucket_of)
        return [made[at] for at in index.tolist()]

    def take(self, count: int) -> list[int]:
        """Return up to `count` heads in greedy order."""
        tally, bucket_of, move = self._tally, self._bucket_of, self._move
        offers = self._offers()
        is_few = len(offers) <= _FEW_OFFERS
        heap = self._heap(offers)
        taken: list[int] = []
        while True:
            offer = min(offers) if is_few else _first(heap, offers, bucket_of)
            if offer == _NO_OFFER:
                return taken
            head = offer & ROW_MASK
            taken.append(head)
            if len(taken) == count:
                return taken
            number = bucket_of[head].number
            move(head)
            touched = tally.take(number)
            if touched is None:
                offers = self._offers()
                heap = self._heap(offers)
                continue
            for one in touched:
                offers[one] = offer = self._offer(one)
                if not is_few:
                    heappush(heap, offer)

    def _offers(self) -> list[int]:
        return [self._offer(number) for number in range(len(self._buckets))]

    def _heap(self, offers: list[int]) -> list[int]:
        if len(offers) <= _FEW_OFFERS:
            return []
        heap = offers.copy()
        heapify(heap)
        return heap

    def _offer(self, number: int) -> int:
        """Return the best head of a combination as a key, least first."""
        boost = self._tally.boosts[number]
        best = _NO_OFFER
        if boost is not None:
            for bucket in self._buckets[number].values():
                if bucket.head >= 0:
                    offer = bucket.offer(boost)
                    if offer < best:  # noqa: PLR1730 - the hottest line; min() costs three times as much.
                        best = offer
        return best

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
        # The second of a heap is one of its next two; a stale one only costs time.
        near, size = _SCORERS - top, len(tops)
        bucket.is_near = (size > 1 and tops[1] < near) or (size > 2 and tops[2] < near)

    def _lay_out(self, bucket: _Bucket) -> None:
        tops, levels, sums = bucket.tops, bucket.levels, self._sorted_sums
        at, end = bucket.at, bucket.end
        while at < end and (not tops or sums[at] > -tops[0] - _SCORERS):
            start, level = at, sums[at]
            # A level of thousands of equal heads is one slice.
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
        """Take one allocation off a head: it comes back with its next score, if it has room."""
        bucket, level = self._bucket_of[head], self._sum_of[head]
        heap = bucket.levels[level]
        heappop(heap)
        if heap:
            bucket.head = heap[0] if level == bucket.top else bucket.head
        else:
            del bucket.levels[level]
            if level == bucket.top:
                self._settle(bucket)
        self._taken_of[head] = index = self._taken_of[head] + 1
        if index >= self._room[head]:
            return
        level, scorers = self._marginal.score(head, index)
        self._sum_of[head] = level
        if scorers != bucket.scorers:
            buckets = self._buckets[bucket.number]
            if scorers not in buckets:
                buckets[scorers] = _Bucket(bucket.number, scorers)
            self._bucket_of[head] = bucket = buckets[scorers]
        found = bucket.levels.get(level)
        if found is not None:
            heappush(found, head)
            if level == bucket.top:
                bucket.head = found[0]
            return
        bucket.levels[level] = [head]
        heappush(bucket.tops, -level)
        if bucket.head < 0 or level > bucket.top - _SCORERS:
            self._settle(bucket)


def _first(heap: list[int], offers: list[int], bucket_of: list[_Bucket]) -> int:
    """Return the least offer that still stands."""
    while True:
        offer = heap[0]
        if offer == _NO_OFFER or offers[bucket_of[offer & ROW_MASK].number] == offer:
            return offer
        heappop(heap)
