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

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.coupling import CLOSED, CLOSED_BELOW, Rule, Tally
from shared.core.heads import (
    EMPTY,
    ROW_BITS,
    ROW_MASK,
    Demand,
    Heads,
    Nodes,
    Placement,
    heads_at,
    heads_of,
    marginal_sums,
    room_of,
    runs_of,
    starts_of,
)
from shared.core.pow10 import POW10, SCALE, STEPS_LOG2
from shared.core.scores import CPU, MEMORY, Int64s

#: Up to this count one vector pass a placement is cheaper than buckets.
_FEW: Final = 6
#: Scorers beside spread are at most this many (fit, anti-affinity, penalty, affinity); a power of two.
_SCORERS: Final = 8
#: More than the sum of all scorers of a node but spread.
_SUM_MAX: Final = 8 * SCALE
#: Rows scored at a time.
_BLOCK: Final = 1 << 14
#: Steps of one plan: an offer each, or what takes as long. Then it stops, and who asked goes on later. About 40 ms.
STEPS_MAX: Final = 30_000
#: What a placement costs beside its offers.
_STEPS_EACH: Final = 2
#: Heads that one pass scores in the time of one offer.
_HEADS_A_STEP: Final = 50
_NO_OFFER: Final = 1 << 62
#: Up to this many combinations the least offer is looked for, beyond a heap holds them.
_FEW_OFFERS: Final = 64


def place_coupled(
    demand: Demand, nodes: Nodes, tally: Tally, *, count: int, steps: int
) -> Placement:
    """Place up to `count`, equal to scalar greedy, in about so many steps at most. `tally` keeps what was placed."""
    rows, sums, scorers = _scored(demand, nodes)
    if not len(rows) or count <= 0:
        return EMPTY
    if count > _FEW:
        of_head = tally.combine(rows)
        if not tally.is_tangled:
            return _by_buckets(
                demand, nodes, tally, (rows, sums, scorers, of_head), count=count, steps=steps
            )
    if count > 1 and len(rows) > 4 * _BLOCK:
        # A fleet so large that what a count cannot reach is better left out.
        of_head = tally.combine(rows)
        kept = _useful(of_head * _SCORERS + scorers, sums, count)
        rows, sums, scorers = rows[kept], sums[kept], scorers[kept]
    return _by_passes(demand, nodes, tally, (rows, sums, scorers), count=count, steps=steps)


_Scored = tuple[NDArray[np.intp], Int64s, Int64s]


def _by_buckets(
    demand: Demand,
    nodes: Nodes,
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
    buckets = _Buckets(demand, heads_at(demand, nodes, rows), tally, of_head=of_head, room=room)
    taken = buckets.take(count, steps)
    return _placement(
        rows, taken, steps=buckets.steps, stopped=len(taken) < count and buckets.steps > steps
    )


def _by_passes(
    demand: Demand, nodes: Nodes, tally: Tally, scored: _Scored, *, count: int, steps: int
) -> Placement:
    """Score all heads anew for each placement."""
    rows, sums, scorers = scored
    passes = tally.look_at(rows)
    each = 1 + len(rows) // _HEADS_A_STEP
    most = max(steps // each, 1)
    marginal: Marginal | None = None
    room = None
    taken: list[int] = []
    on_head: dict[int, int] = {}
    while len(taken) < min(count, most):
        best = _best(sums, scorers, passes.boosts())
        if best < 0:
            return _placement(rows, taken, steps=each * len(taken))
        taken.append(best)
        passes.take(best)
        if count == 1:
            break
        if marginal is None or room is None:
            marginal = Marginal(demand, heads_at(demand, nodes, rows))
            room = room_of(demand, nodes, rows, count)
        on_head[best] = index = on_head.get(best, 0) + 1
        if index < room[best]:
            sums[best], scorers[best] = marginal.score(best, index)
        else:
            sums[best] = CLOSED
    stopped = len(taken) < count
    return _placement(rows, taken, steps=each * len(taken), stopped=stopped)


def _placement(
    rows: NDArray[np.intp], taken: list[int], *, steps: int, stopped: bool = False
) -> Placement:
    placement = runs_of(rows[taken]) if taken else EMPTY
    return msgspec.structs.replace(placement, steps=steps, stopped=stopped)


def _scored(demand: Demand, nodes: Nodes) -> _Scored:
    """Return the rows that can take one more, the sum of their scorers and how many apply. Shapes: (H,)."""
    if len(nodes.mask) <= _BLOCK:
        heads = heads_of(demand, nodes)
        return (heads.rows, *marginal_sums(demand, heads))
    parts = []
    for start in range(0, len(nodes.mask), _BLOCK):
        heads = heads_of(demand, nodes.part(start, start + _BLOCK))
        parts.append((heads.rows + start, *marginal_sums(demand, heads)))
    rows, sums, scorers = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(sums), np.concatenate(scorers)


def _useful(bucket_of: NDArray[np.intp], sums: Int64s, count: int) -> NDArray[np.intp]:
    """Return the heads that a count may reach: the best `count` of each bucket, and those as good but for a floor."""
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
    """Return the head with the highest mean, the lowest of equals; -1: all are closed."""
    scores = (sums + boosts) // (scorers + (boosts != 0))
    best = int(scores.argmax())
    return best if scores[best] > CLOSED_BELOW else -1


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
        nth, table = index + 1, self._powers
        # A head has room, so what is left free lies between nothing and all.
        powers = (
            table[((free_cpu - nth * self._ask_cpu) << STEPS_LOG2) // cpu]
            + table[((free_memory - nth * self._ask_memory) << STEPS_LOG2) // memory]
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

    def lowest(self, score: int, divisor: int, boost: int) -> int:
        """Return the lowest head whose mean is `score`, among all levels that may reach it."""
        head, levels = self.head, self.levels
        for level in range(score * divisor - boost, self.top):
            if level in levels and levels[level][0] < head:
                head = levels[level][0]
        return head


def _offer(buckets: list[_Bucket], boost: int | None) -> int:
    """Return the best head of a combination as a key, least first. The hottest lines of all."""
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
        #: offers made; more than it might: it stopped before it was done.
        self.steps = 0
        self._tally = tally
        self._alone = tally.alone
        self._marginal = Marginal(demand, heads)
        sums, scorers = marginal_sums(demand, heads)
        # Stable: heads of one level stay in the order of their rows.
        bucket_of = of_head * _SCORERS + scorers
        order = ((bucket_of << ROW_BITS) + (_SUM_MAX - sums)).argsort(kind="stable")
        self._sorted_heads: list[int] = order.tolist()
        self._sorted_sums: list[int] = sums.take(order).tolist()
        self._sum_of: list[int] = sums.tolist()
        self._room: list[int] = room.tolist()
        # Most heads are taken once or twice at the most; the next scores of all cost less than a few one by one.
        second_sums, second_scorers = marginal_sums(demand, heads, 1)
        self._second_sum_of: list[int] = second_sums.tolist()
        self._second_scorers_of: list[int] = second_scorers.tolist()
        self._taken_of: list[int] = [0] * len(room)
        #: combination -> its buckets, one for each number of scorers there is.
        self._buckets: list[list[_Bucket]] = [[] for _ in tally.boosts]
        self._bucket_of = self._fill(bucket_of, order)

    def _fill(self, bucket_of: NDArray[np.intp], order: NDArray[np.intp]) -> list[_Bucket]:
        """Make the buckets. Returns the bucket of each head."""
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
        """Return up to `count` heads in greedy order, making about `steps` offers at most."""
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

    def _take_alone(self, alone: tuple[Rule, list[int]], count: int, steps: int) -> list[int]:
        """`take` where one block has few values, as nearly every job with a spread: the same, with fewer calls."""
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
        """Count one more on a combination; make the offers that changes anew. Returns these; None: all change."""
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
        """Return the bucket of the same combination with another number of scorers, made if need be."""
        buckets = self._buckets[bucket.number]
        for one in buckets:
            if one.scorers == scorers:
                return one
        made = _Bucket(bucket.number, scorers)
        buckets.append(made)
        return made


def _first(heap: list[int], offers: list[int], bucket_of: list[_Bucket]) -> int:
    """Return the least offer that still stands."""
    while True:
        offer = heap[0]
        if offer == _NO_OFFER or offers[bucket_of[offer & ROW_MASK].number] == offer:
            return offer
        heappop(heap)
