"""Absent: which allocations nobody will hear of again, and which are only out of sight.

Decides from a node's status, the log's time and the `disconnect` block of the group in its newest version. Read by
both sides, the worker who declares them lost and the applier who checks it, so that they cannot differ. Must not know
what becomes of them (reconcile.py).

A node that is down, or forgotten, takes everything along. One that is disconnected keeps what ran there and may come
back: that is unknown until `lost_after`. With `replace = false` what is unknown keeps its place for as long as the
node is known at all.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import Disconnect
from shared.core.columns import Rows
from shared.core.state import State
from shared.core.tables.allocations import RUN, RUNNING, UNKNOWN
from shared.core.tables.fleet import DISCONNECTED, DOWN

Mask = NDArray[np.bool_]
_DEFAULT = Disconnect()


def is_gone(state: State, rows: Rows) -> Mask:
    """Which of these rows, where they did not end, are lost by the state's log time. Shapes: rows, result (R,)."""
    fleet, table = state.fleet, state.allocations
    nodes = table.node[rows]
    live, status = fleet.live[nodes], fleet.status[nodes]
    gone: Mask = ~live | np.equal(status, DOWN) | np.equal(status, DISCONNECTED)
    unknown = gone & live & np.equal(table.client[rows], UNKNOWN)
    if unknown.any():
        for ref in np.unique(table.group[rows[unknown]]).tolist():
            of_ref = unknown & (table.group[rows] == ref)
            gone[of_ref] = _is_expired(state, disconnect_of(state, ref), rows[of_ref])
    return gone


def _is_expired(state: State, block: Disconnect, rows: Rows) -> Mask:
    """Which unknown rows of one group nobody waits for any more."""
    fleet, table = state.fleet, state.allocations
    nodes = table.node[rows]
    since = [fleet.silent_ns.get(node, 0) for node in nodes.tolist()]
    due = np.asarray(since, dtype=np.int64) + block.lost_after_ns <= state.t_ns
    expired: Mask = due | np.equal(fleet.status[nodes], DOWN)
    if not block.replace:
        expired &= table.desired[rows] != RUN
    return expired


def disconnect_of(state: State, ref: int) -> Disconnect:
    """The `disconnect` block of a group, as the newest version of its job has it."""
    groups = state.allocations.groups
    job = state.jobs.by_id.get(groups.job_ids[ref])
    for group in job.groups if job is not None else ():
        if group.name == groups.names[ref]:
            return group.disconnect
    return _DEFAULT


def waits(state: State, rows: Rows) -> Mask:
    """Which of these rows become unknown, and not lost, when their nodes fall silent. Shapes: rows, result (R,)."""
    table = state.allocations
    may = _by_group(state, rows, lambda block: bool(block.lost_after_ns) or not block.replace)
    seen = np.isin(table.client[rows], (RUNNING, UNKNOWN))
    waiting: Mask = may & table.is_wanted(rows) & seen
    return waiting


def holds_node(state: State, rows: Rows, since_ns: NDArray[np.int64]) -> Mask:
    """Which of these rows keep their node from being down. `since_ns`: when it fell silent. Shapes: all (R,)."""
    table = state.allocations
    refs, where = np.unique(table.group[rows], return_inverse=True)
    waits_ns = [disconnect_of(state, ref).lost_after_ns for ref in refs.tolist()]
    until = since_ns + np.asarray(waits_ns, dtype=np.int64)[where]
    holding: Mask = waits(state, rows) & (until > state.t_ns)
    return holding


def is_irreplaceable(state: State, rows: Rows) -> Mask:
    """Which of these rows nobody stands in for, also when their node is down. Shapes: rows, result (R,)."""
    return _by_group(state, rows, lambda block: not block.replace)


def _by_group(state: State, rows: Rows, says: Callable[[Disconnect], bool]) -> Mask:
    refs, where = np.unique(state.allocations.group[rows], return_inverse=True)
    found = [says(disconnect_of(state, ref)) for ref in refs.tolist()]
    return np.asarray(found, dtype=bool)[where]
