"""Freed capacity: the node classes and amounts that a CapacityFreed event names, as far as they are cheap to compute.

The eval broker decides which evaluations wake.
"""

from collections.abc import Iterable

import numpy as np

from schemas.nodes import CapacityFreed
from shared.core.columns import Rows
from shared.core.state.state import State
from shared.core.state.tables.allocations import EVICT, TERMINAL


def freed_by_allocations(state: State, ended: Rows) -> list[CapacityFreed]:
    """Say what nodes have to give once these allocations end, one fact a class: no node of it has more than that."""
    table, fleet = state.allocations, state.fleet
    ends = ended[~TERMINAL[table.client[ended]] & (table.desired[ended] != EVICT)]
    if table.holdings:
        held = (table.holdings.get(row) for row in ends.tolist())
        if any(one is not None and one.is_of_cluster for one in held):
            return [freed_on_all_classes(state)]
    nodes, at = np.unique(table.node[ended], return_inverse=True)
    room = fleet.capacity[nodes] - table.used(fleet.size)[nodes]
    where = at[np.flatnonzero(np.isin(ended, ends))] if len(ends) < len(ended) else at
    np.add.at(room, where, table.groups.ask[table.group[ends]])
    classes = fleet.class_of[nodes]
    return [
        CapacityFreed(
            classes=(one,), room=tuple(np.maximum(room[classes == one].max(axis=0), 0).tolist())
        )
        for one in np.unique(classes).tolist()
    ]


def freed_on_nodes(state: State, nodes: Iterable[int]) -> list[CapacityFreed]:
    """Say that there may be room on these fleet rows; nothing where there are none."""
    size = state.fleet.size
    rows = sorted({node for node in nodes if 0 <= node < size})
    if not rows:
        return []
    classes = np.unique(state.fleet.class_of[np.asarray(rows, dtype=np.intp)])
    return [CapacityFreed(classes=tuple(classes.tolist()))]


def freed_on_all_classes(state: State, *, grown: bool = False) -> CapacityFreed:
    """Say that there may be room anywhere, on nodes of every class."""
    return CapacityFreed(classes=tuple(range(len(state.fleet.classes))), grown=grown)
