"""Room that appears: whom the fact that says so may help, as closely as it is cheap to say.

Decides classes and amounts of CapacityFreed. Must not know who waits: the eval broker wakes.
"""

from collections.abc import Iterable

import numpy as np

from schemas.nodes import CapacityFreed
from shared.core.state import State
from shared.core.tables.allocations import EVICT, TERMINAL


def freed_on(state: State, node: int, ended: Iterable[int]) -> CapacityFreed:
    """Say what a node has to give once these allocation rows of it end."""
    table, fleet = state.allocations, state.fleet
    room = fleet.capacity[node] - table.used(fleet.size)[node]
    for row in ended:
        if TERMINAL[table.client[row]] or table.desired[row] == EVICT:
            continue
        _, ask, holding = table.held_by(row)
        room = room + ask
        if holding is not None and holding.is_of_cluster:
            return freed_everywhere(state)
    amounts = tuple(np.maximum(room, 0).tolist())
    return CapacityFreed(classes=(int(fleet.class_of[node]),), room=amounts)


def freed_on_nodes(state: State, nodes: Iterable[int]) -> list[CapacityFreed]:
    """Say that there may be room on these fleet rows; nothing where there are none."""
    size = state.fleet.size
    rows = sorted({node for node in nodes if 0 <= node < size})
    if not rows:
        return []
    classes = np.unique(state.fleet.class_of[np.asarray(rows, dtype=np.intp)])
    return [CapacityFreed(classes=tuple(classes.tolist()))]


def freed_everywhere(state: State, *, grown: bool = False) -> CapacityFreed:
    """Say that there may be room anywhere, on nodes of every class."""
    return CapacityFreed(classes=tuple(range(len(state.fleet.classes))), grown=grown)
