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

from functools import lru_cache
from heapq import heapify, heappop, heappush
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
from shared.core.pow10 import POW10, SCALE, STEPS, STEPS_LOG2
from shared.core.scores import CPU, MEMORY, Int64s

#: Up to this count one vector pass a placement is cheaper than buckets.
_FEW: Final = 6
#: Scorers beside spread are at most this many (fit, anti-affinity, penalty, affinity); a power of two.
_SCORERS: Final = 8
#: More than the sum of all scorers of a node but spread.
_SUM_MAX: Final = 8 * SCALE
_CLOSED: Final = -(1 << 62)
_NO_OFFER: Final = 1 << 62


def place_coupled(demand: Demand, nodes: Nodes, tally: Tally, count: int) -> Placement:
    """Place up to `count`, equal to scalar greedy. `tally` keeps what was placed."""
    heads = heads_of(demand, nodes)
    if not len(heads.rows) or count <= 0:
        return EMPTY
    of_head = tally.combine(heads.rows)
    room = room_of(demand, nodes, heads.rows, count)
    if count <= _FEW:
        taken = _take_few(demand, heads, tally, of_head=of_head, room=room, count=count)
    else:
        taken = _Buckets(demand, heads, tally, of_head=of_head, room=room).take(count)
    return runs_of(heads.rows[taken]) if taken else EMPTY


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
        boosts = np.array([_CLOSED if one is None else one for one in tally.boosts], np.int64)
        boost = boosts.take(of_head)
        scores = (sums + boost) // (scorers + (boost != 0))
        # A closed combination stays far below every score, whatever it is divided by.
        best = int(scores.argmax())
        if scores[best] < _CLOSED // (2 * _SCORERS):
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
    return POW10.tolist()


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
        powers = (
            self._powers[min(max((free_cpu << STEPS_LOG2) // cpu, 0), STEPS)]
            + self._powers[min(max((free_memory << STEPS_LOG2) // memory, 0), STEPS)]
        )
        total += (20 * SCALE - powers if self._binpack else powers - 2 * SCALE) // 18
        if collisions >= 0 and collisions + index > 0:
            total += max(-SCALE * (collisions + index + 1) // self._desired, -SCALE)
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

    __slots__ = ("at", "end", "levels", "scorers", "tops")

    def __init__(self, scorers: int, at: int = 0, end: int = 0) -> None:
        self.scorers = scorers
        #: heads not looked at yet, as a range of the sorted ones.
        self.at = at
        self.end = end
        #: sum -> heads, a heap each.
        self.levels: dict[int, list[int]] = {}
        #: a heap of negated sums; some are stale.
        self.tops: list[int] = []


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
        self._of_head: list[int] = of_head.tolist()
        self._sum_of: list[int] = sums.tolist()
        self._scorers_of: list[int] = scorers.tolist()
        self._room: list[int] = room.tolist()
        self._taken_of: list[int] = [0] * len(room)
        #: combination -> its buckets.
        self._buckets: list[list[_Bucket]] = [[] for _ in tally.boosts]
        ordered = bucket_of.take(order)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1)).tolist()
        for at, end in zip(starts, [*starts[1:], len(order)], strict=True):
            combination, number = divmod(int(ordered[at]), _SCORERS)
            self._buckets[combination].append(_Bucket(number, at, end))

    def take(self, count: int) -> list[int]:
        """Return up to `count` heads in greedy order."""
        offers = [self._offer(number) for number in range(len(self._buckets))]
        heap = offers.copy()
        heapify(heap)
        taken: list[int] = []
        of_head, take_one, tally = self._of_head, self._take_head, self._tally.take
        while True:
            offer = heap[0]
            if offer == _NO_OFFER:
                return taken
            head = offer & ROW_MASK
            number = of_head[head]
            if offers[number] != offer:
                heappop(heap)
                continue
            taken.append(head)
            if len(taken) == count:
                return taken
            take_one(head, number)
            touched = tally(number)
            if touched is None:
                offers = [self._offer(one) for one in range(len(offers))]
                heap = offers.copy()
                heapify(heap)
                continue
            for one in touched:
                offer = self._offer(one)
                if offer != offers[one]:
                    offers[one] = offer
                    heappush(heap, offer)

    def _offer(self, number: int) -> int:
        """Return the best head of a combination as a key, least first."""
        boost = self._tally.boosts[number]
        best = _NO_OFFER
        if boost is None:
            return best
        for bucket in self._buckets[number]:
            top = self._top(bucket)
            if top is None:
                continue
            levels = bucket.levels
            divisor = bucket.scorers + 1 if boost else bucket.scorers
            score = (top + boost) // divisor
            head = levels[top][0]
            for lower in range(score * divisor - boost, top):
                if lower in levels and levels[lower][0] < head:
                    head = levels[lower][0]
            offer = (-score << ROW_BITS) + head
            best = min(best, offer)
        return best

    def _top(self, bucket: _Bucket) -> int | None:
        """Return the highest sum of a bucket, with all levels near it laid out; None: it is empty."""
        tops, levels = bucket.tops, bucket.levels
        while tops and -tops[0] not in levels:
            heappop(tops)
        at, end = bucket.at, bucket.end
        sums = self._sorted_sums
        while at < end and (not tops or sums[at] > -tops[0] - _SCORERS):
            start, level = at, sums[at]
            at += 1
            while at < end and sums[at] == level:
                at += 1
            bucket.at = at
            more = self._sorted_heads[start:at]
            if level in levels:
                levels[level] += more
                heapify(levels[level])
            else:
                levels[level] = more
                heappush(tops, -level)
        return -tops[0] if tops else None

    def _take_head(self, head: int, number: int) -> None:
        """Take one allocation off a head: it comes back with its next score, if it has room."""
        scorers, level = self._scorers_of[head], self._sum_of[head]
        buckets = self._buckets[number]
        for bucket in buckets:
            if bucket.scorers == scorers:
                heap = bucket.levels[level]
                heappop(heap)
                if not heap:
                    del bucket.levels[level]
                break
        self._taken_of[head] = index = self._taken_of[head] + 1
        if index >= self._room[head]:
            return
        level, scorers = self._marginal.score(head, index)
        self._sum_of[head], self._scorers_of[head] = level, scorers
        for bucket in buckets:
            if bucket.scorers == scorers:
                break
        else:
            bucket = _Bucket(scorers)
            buckets.append(bucket)
        heap = bucket.levels.get(level)
        if heap is None:
            bucket.levels[level] = [head]
            heappush(bucket.tops, -level)
        else:
            heappush(heap, head)
