"""Freed capacity: the node classes and amounts that a CapacityFreed event names, as far as they are cheap to compute.

The eval broker decides which evaluations wake.
"""

from collections.abc import Collection, Iterable

import numpy as np

from schemas.base import JobId
from schemas.nodes import CapacityFreed
from shared.core.columns import Rows
from shared.core.state.state import State
from shared.core.state.tables.allocations import EVICT, TERMINAL
from shared.core.state.tables.claims import IndexKey


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


def freed_by_claims(state: State, keys: Iterable[IndexKey]) -> list[CapacityFreed]:
    """Say on which nodes volumes are free once the claims of these indexes end: others may wait for them."""
    claims = state.claims.by_index
    found = {one.node_id for key in keys for one in claims.get(key, {}).values()}
    # A node that left comes back with room of its own.
    rows = (state.fleet.row_of.get(node_id, -1) for node_id in found)
    return freed_on_nodes(state, rows)


def freed_by_jobs(state: State, job_ids: Collection[JobId]) -> list[CapacityFreed]:
    """Say on which nodes volumes are free once these jobs are forgotten."""
    if not state.claims.by_index:
        return []
    gone = frozenset(job_ids)
    return freed_by_claims(state, [key for key in state.claims.by_index if key[0] in gone])


def freed_on_all_classes(state: State, *, grown: bool = False) -> CapacityFreed:
    """Say that there may be room anywhere, on nodes of every class."""
    return CapacityFreed(classes=tuple(range(len(state.fleet.classes))), grown=grown)
