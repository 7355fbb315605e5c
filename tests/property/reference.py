"""Scalar greedy: what placing a count means. cut.py must equal it, placement for placement.

It knows nothing of vectors: one node and one allocation at a time, with the scalar twins of scores.py.
"""

from typing import Final

from shared.core.cut import Mask
from shared.core.scores import Algorithm, Int64s, mean_score, node_scores
from shared.core.splitmix import splitmix64

#: Below every score: does not fit.
_NO_ROOM: Final = -(1 << 62)


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
    lane: int = 0,
    lanes: int = 1,
) -> list[int]:
    """Return the row of each allocation, in the order of placement; arguments as of `place_count`."""
    room, load, same, need = capacity.tolist(), used.tolist(), collisions.tolist(), ask.tolist()

    def score(row: int) -> int:
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
            heads[best] = score(best)
    return placed
