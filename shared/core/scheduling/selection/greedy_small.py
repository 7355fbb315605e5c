"""Greedy selection of a handful of allocations: small jobs, and replacements of a lost node.

Chooses one row after another, as scalar greedy does, by the cached keys of the fit alone (score_cache.py). These hold
for rows without allocations of the group. On the other rows anti-affinity applies, too, and at best halves the score:
these are scored only where they could still win.
"""

from typing import Final

import numpy as np

from shared.core.columns import Int64s, Mask
from shared.core.scheduling.scoring.score_cache import NO_KEY, row_key
from shared.core.scheduling.scoring.scores import anti_affinity_score
from shared.core.scheduling.selection.candidates import (
    EMPTY,
    ROW_BITS,
    Demand,
    NodeColumns,
    Placement,
    find_candidates,
    marginal_scores,
    runs_of,
)

#: Largest count.
SMALL_COUNT_MAX: Final = 8


def place_small(demand: Demand, nodes: NodeColumns, count: int, by_fit: Int64s) -> Placement:
    """Place up to `count`; neither a penalty nor an affinity applies to any row. `by_fit` (N,): see score_cache.py."""
    collisions = nodes.collisions
    if collisions is None:
        collisions = np.zeros(len(by_fit), np.int64)
    is_open = nodes.mask if nodes.limit is None else nodes.mask & (nodes.limit > 0)
    crowded = is_open & (collisions > 0) if demand.anti_affinity else np.zeros_like(is_open)
    keys = np.where(is_open & ~crowded, by_fit, NO_KEY)
    # Lower bound of the keys of crowded rows; above it they must be scored.
    bound = _bound(demand, int(by_fit.min(where=crowded, initial=NO_KEY)))
    taken: list[int] = []
    while len(taken) < count and len(keys):
        row = int(keys.argmin())
        if keys[row] >= bound:
            if bound == NO_KEY:
                break
            keys = np.minimum(keys, _crowded_keys(demand, nodes, crowded))
            bound = NO_KEY
            continue
        taken.append(row)
        keys[row] = _next_key(
            demand, nodes, row, collisions=int(collisions[row]), placed=taken.count(row)
        )
    return runs_of(np.array(taken, np.int64)) if taken else EMPTY


def _bound(demand: Demand, best: int) -> int:
    """Return a lower bound of the keys of crowded rows, if `best` is the best of their keys by fit alone."""
    if best == NO_KEY:
        return NO_KEY
    fit = -(best >> ROW_BITS)
    score = (fit + anti_affinity_score(1, demand.desired_count)) >> 1
    return -(score << ROW_BITS)


def _crowded_keys(demand: Demand, nodes: NodeColumns, crowded: Mask) -> Int64s:
    """Return the keys of the crowded rows that can take one more. Shape: (N,)."""
    candidates = find_candidates(demand, nodes.only(crowded))
    keys = np.full(len(crowded), NO_KEY, np.int64)
    keys[candidates.rows] = candidates.rows - (marginal_scores(demand, candidates, 0) << ROW_BITS)
    return keys


def _next_key(demand: Demand, nodes: NodeColumns, row: int, *, collisions: int, placed: int) -> int:
    """Return the key of the next allocation on a row that took some."""
    if nodes.limit is not None and nodes.limit[row] <= placed:
        return NO_KEY
    used = nodes.used[row].tolist()
    used = [have + placed * ask for have, ask in zip(used, demand.ask, strict=True)]
    key = row_key(demand, row, nodes.capacity[row].tolist(), used)
    if key == NO_KEY or not demand.anti_affinity:
        return key
    score = (row - key) >> ROW_BITS
    score = (score + anti_affinity_score(collisions + placed, demand.desired_count)) >> 1
    return row - (score << ROW_BITS)
