"""Scalar greedy: what placing a count means. cut.py must equal it, placement for placement.

It knows nothing of vectors: one node and one allocation at a time, with the scalar twins of scores.py.
"""

from typing import Final

from shared.core.columns import Int64s, Mask
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.scoring.scores import (
    Algorithm,
    even_boost,
    mean_score,
    node_scores,
    target_boost,
)
from shared.core.scheduling.selection.coupling import Coupling, DistinctValues, EvenSpread
from shared.core.splitmix import splitmix64

#: Below every score: does not fit.
_NO_ROOM: Final = -(1 << 62)


class Counts:
    """Allocations by value of each coupled attribute, looked at from scratch for each score."""

    def __init__(self, coupling: Coupling | None) -> None:
        self.blocks = () if coupling is None else coupling.blocks
        self.counts = [block.counts.tolist() for block in self.blocks]

    def spread(self, row: int) -> int | None:
        """What the spread blocks give a row; None: a distinct property closes it."""
        boosts = []
        for block, counts in zip(self.blocks, self.counts, strict=True):
            code = int(block.codes[row])
            if isinstance(block, DistinctValues):
                if not code or counts[code] >= block.most:
                    return None
            elif not code:
                boosts.append(-SCALE)
            elif isinstance(block, EvenSpread):
                used = [count for count in counts[1:] if count]
                boosts.append(even_boost(counts[code], used))
            else:
                desired = int(block.percent_counts[code])
                boosts.append(target_boost(counts[code], desired, block.weight, block.weights))
        return sum(boosts)

    def take(self, row: int) -> None:
        for block, counts in zip(self.blocks, self.counts, strict=True):
            counts[int(block.codes[row])] += 1


def greedy(
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
    affinity: Int64s | None = None,
    limit: Int64s | None = None,
    coupling: Coupling | None = None,
    lane: int = 0,
    lanes: int = 1,
) -> list[int]:
    """Return the row of each allocation, in the order of placement; arguments as of `place_count`."""
    room, load, same, need = capacity.tolist(), used.tolist(), collisions.tolist(), ask.tolist()
    left = [1 << 62] * len(mask) if limit is None else limit.tolist()
    counts = Counts(coupling)

    def score(row: int) -> int:
        spread = counts.spread(row)
        if left[row] < 1 or spread is None:
            return _NO_ROOM
        after = [u + a for u, a in zip(load[row], need, strict=True)]
        if any(u > c for u, c in zip(after, room[row], strict=True)):
            return _NO_ROOM
        scores = node_scores(
            capacity=room[row],
            used_after=after,
            collisions=same[row],
            desired_count=desired_count,
            algorithm=algorithm,
            anti_affinity=anti_affinity,
            penalised=penalised is not None and bool(penalised[row]),
            affinity=0 if affinity is None else int(affinity[row]),
            spread=spread,
        )
        return mean_score(list(scores.values()))

    placed: list[int] = []
    for own in (True, False):
        rows = (row for row in range(len(mask)) if (splitmix64(row) % lanes == lane) is own)
        heads = {row: score(row) for row in rows if mask[row]}
        while heads and len(placed) < count:
            best = max(heads, key=heads.__getitem__)  # The first of equals: the lowest row.
            if heads[best] == _NO_ROOM:
                break
            placed.append(best)
            load[best] = [u + a for u, a in zip(load[best], need, strict=True)]
            same[best] += 1
            left[best] -= 1
            counts.take(best)
            # Without a coupling no other row's score changes.
            for row in heads if coupling else (best,):
                heads[row] = score(row)
    return placed
