"""Lost allocations: which ones are lost with their node, and which are unknown while it is disconnected.

Decided by the node's status, log time and the group's `disconnect` block in its newest version. The scheduler and the
plan applier both use this module, so they cannot disagree.

Everything on a node that is down or forgotten is lost. On a disconnected node it is unknown until `lost_after`, because
the node may return. With `replace = false` an unknown allocation keeps its place as long as the node exists. What is
stateful is lost only where it surely runs no more (stateful_allocs.py), whether it is to stop or not.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import Disconnect
from shared.core.columns import Mask, Rows
from shared.core.scheduling.reconcile.stateful_allocs import is_stateful, is_surely_gone
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, RUNNING, UNKNOWN
from shared.core.state.tables.fleet import DISCONNECTED, DOWN

_DEFAULT = Disconnect()


def is_lost(state: State, rows: Rows) -> Mask:
    """Which of these rows, unless ended, are lost by the state's log time. Shapes: rows, result (R,)."""
    fleet, table = state.fleet, state.allocations
    nodes = table.node[rows]
    live, status = fleet.live[nodes], fleet.status[nodes]
    gone: Mask = ~live | np.equal(status, DOWN) | np.equal(status, DISCONNECTED)
    away = gone.copy() if table.groups.stateful else gone
    unknown = gone & live & np.equal(table.client[rows], UNKNOWN)
    if unknown.any():
        for ref in np.unique(table.group[rows[unknown]]).tolist():
            of_ref = unknown & (table.group[rows] == ref)
            gone[of_ref] = _is_expired(state, disconnect_of(state, ref), rows[of_ref])
    if table.groups.stateful and away.any():
        held = away & is_stateful(state, rows)
        gone[held] = is_surely_gone(state, rows[held])
    return gone


def _is_expired(state: State, block: Disconnect, rows: Rows) -> Mask:
    """Which unknown rows of one group have passed `lost_after`."""
    fleet, table = state.fleet, state.allocations
    nodes = table.node[rows]
    since = [fleet.silent_ns.get(node, 0) for node in nodes.tolist()]
    due = np.asarray(since, dtype=np.int64) + block.lost_after_ns <= state.t_ns
    expired: Mask = due | np.equal(fleet.status[nodes], DOWN)
    if not block.replace:
        expired &= table.desired[rows] != RUN
    return expired


def disconnect_of(state: State, ref: int) -> Disconnect:
    """The `disconnect` block of a group in the newest version of its job."""
    groups = state.allocations.groups
    job = state.jobs.by_id.get(groups.job_ids[ref])
    for group in job.groups if job is not None else ():
        if group.name == groups.names[ref]:
            return group.disconnect
    return _DEFAULT


def awaits_reconnect(state: State, rows: Rows) -> Mask:
    """Which of these rows become unknown, not lost, when their nodes stop reporting. Shapes: rows, result (R,)."""
    table = state.allocations
    may = _by_group(state, rows, lambda block: bool(block.lost_after_ns) or not block.replace)
    seen = np.isin(table.client[rows], (RUNNING, UNKNOWN))
    waiting: Mask = may & table.is_wanted(rows) & seen
    return waiting


def delays_node_down(state: State, rows: Rows, since_ns: NDArray[np.int64]) -> Mask:
    """Which of these rows keep their node from being down. `since_ns`: its last report. Shapes: all (R,)."""
    table = state.allocations
    refs, where = np.unique(table.group[rows], return_inverse=True)
    waits_ns = [disconnect_of(state, ref).lost_after_ns for ref in refs.tolist()]
    until = since_ns + np.asarray(waits_ns, dtype=np.int64)[where]
    holding: Mask = awaits_reconnect(state, rows) & (until > state.t_ns)
    return holding


def is_irreplaceable(state: State, rows: Rows) -> Mask:
    """Which of these rows are not replaced, even when their node is down. Shapes: rows, result (R,)."""
    return _by_group(state, rows, lambda block: not block.replace)


def _by_group(state: State, rows: Rows, says: Callable[[Disconnect], bool]) -> Mask:
    refs, where = np.unique(state.allocations.group[rows], return_inverse=True)
    found = [says(disconnect_of(state, ref)) for ref in refs.tolist()]
    return np.asarray(found, dtype=bool)[where]
