"""Few: a handful of allocations, maybe beside others of their group: small jobs, and what replaces a lost node's.

Decides their rows one after another, as scalar greedy does, by keys that are known already: of the fit alone, of all
rows (`ranked.py`). They hold wherever the group has nothing. Where it has something, anti-affinity applies, too, and at
best halves the score: so these rows are only scored where that could still win. Must not know who is looked for.
"""

from typing import Final

import numpy as np

from shared.core.heads import (
    EMPTY,
    ROW_BITS,
    Demand,
    Mask,
    Nodes,
    Placement,
    heads_of,
    marginal_scores,
    runs_of,
)
from shared.core.ranked import NO_KEY, key_of
from shared.core.scores import Int64s, anti_affinity_score

#: Up to this count.
FEW: Final = 8


def place_few(demand: Demand, nodes: Nodes, count: int, by_fit: Int64s) -> Placement:
    """Place up to `count`; neither a penalty nor an affinity applies to any row. `by_fit` (N,): see `ranked.py`."""
    collisions = nodes.collisions
    if collisions is None:
        collisions = np.zeros(len(by_fit), np.int64)
    is_open = nodes.mask if nodes.limit is None else nodes.mask & (nodes.limit > 0)
    crowded = is_open & (collisions > 0) if demand.anti_affinity else np.zeros_like(is_open)
    keys = np.where(is_open & ~crowded, by_fit, NO_KEY)
    # The least that the key of a crowded row could be; beyond it they must be looked at.
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
    """Say below which key no row is that has one of the group, if `best` is the best of their keys by fit alone."""
    if best == NO_KEY:
        return NO_KEY
    fit = -(best >> ROW_BITS)
    score = (fit + anti_affinity_score(1, demand.desired_count)) >> 1
    return -(score << ROW_BITS)


def _crowded_keys(demand: Demand, nodes: Nodes, crowded: Mask) -> Int64s:
    """Return the keys of the crowded rows that can take one more. Shape: (N,)."""
    heads = heads_of(demand, nodes.only(crowded))
    keys = np.full(len(crowded), NO_KEY, np.int64)
    keys[heads.rows] = heads.rows - (marginal_scores(demand, heads, 0) << ROW_BITS)
    return keys


def _next_key(demand: Demand, nodes: Nodes, row: int, *, collisions: int, placed: int) -> int:
    """Return the key of the next allocation on a row that took some."""
    if nodes.limit is not None and nodes.limit[row] <= placed:
        return NO_KEY
    used = nodes.used[row].tolist()
    used = [have + placed * ask for have, ask in zip(used, demand.ask, strict=True)]
    key = key_of(demand, row, nodes.capacity[row].tolist(), used)
    if key == NO_KEY or not demand.anti_affinity:
        return key
    score = (row - key) >> ROW_BITS
    score = (score + anti_affinity_score(collisions + placed, demand.desired_count)) >> 1
    return row - (score << ROW_BITS)
