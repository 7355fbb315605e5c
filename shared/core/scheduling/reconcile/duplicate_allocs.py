"""Duplicate allocations: live allocations of one name, after a node returned whose work was replaced. One stays.

The group's `reconcile` strategy decides which. Source: Nomad's disconnect block. Nomad's best_score compares the scores
of the two placements; here both nodes are scored as they are now, by the same formulas.
"""

from collections.abc import Callable, Sequence

import numpy as np

from schemas.jobs import GroupSpec
from shared.core.columns import Mask, Rows
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUNNING, TERMINAL

#: Scores one more allocation of a group on each of these fleet rows.
ScoreOf = Callable[[GroupSpec, Sequence[int]], Sequence[int]]


def duplicates_to_stop(
    state: State, group: GroupSpec, rows: Rows, keep: Mask, *, score_of: ScoreOf
) -> Mask:
    """Which of the rows to keep must stop, so that every name runs once. Shapes: rows, keep, result (R,)."""
    out = np.zeros(len(rows), dtype=bool)
    positions = np.flatnonzero(keep)
    names = state.allocations.index[rows[positions]]
    if len(positions) < 2 or int(np.bincount(names).max()) < 2:
        return out
    found, counts = np.unique(names, return_counts=True)
    for name in found[counts > 1].tolist():
        rivals = positions[names == name]
        stays = _kept_position(state, group, rows[rivals], score_of)
        out[rivals] = True
        out[rivals[stays]] = False
    return out


def _kept_position(state: State, group: GroupSpec, rows: Rows, score_of: ScoreOf) -> int:
    """Position of the one that stays: live before failed, then by strategy, then the older."""
    table = state.allocations
    keys, client = table.key[rows].tolist(), table.client[rows]
    strategy = group.disconnect.reconcile
    order: Sequence[int] = keys
    if strategy == "keep_replacement":
        order = [-key for key in keys]
    elif strategy == "longest_running":
        order = np.not_equal(client, RUNNING).astype(int).tolist()
    elif strategy != "keep_original":
        order = [-score for score in score_of(group, table.node[rows].tolist())]
    ended = TERMINAL[client].tolist()
    return min(range(len(rows)), key=lambda at: (ended[at], order[at], keys[at]))
