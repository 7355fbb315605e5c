"""Drained allocations: which ones an operator moves off their node, by name or by draining the node.

Decided by the stop requests of allocations and the drain deadlines of nodes, in log time. Before the deadline services
leave at the pace of their `migrate` block, each once its replacement is placed. service_jobs.py replaces them.
"""

import numpy as np

from shared.core.columns import Mask, Rows
from shared.core.scheduling.reconcile.update_limits import movable_count
from shared.core.state.state import State
from shared.core.state.tables.allocations import HEALTHY, TERMINAL

STOPPED = "stopped by an operator"
DRAINED = "its node is drained"
#: Jobs of this type leave a drained node last, when nothing else runs there.
DRAINED_LAST = "system"


def is_stop_requested(state: State, rows: Rows) -> Mask:
    """Which of these rows an operator asked to stop. Shapes: rows, result (R,)."""
    marks = state.allocations.displaced
    if not marks:
        return np.zeros(len(rows), dtype=bool)
    return np.isin(rows, np.fromiter(marks, dtype=np.int32, count=len(marks)))


def is_drained(state: State, rows: Rows, job_type: str) -> Mask:
    """Which of these rows, of a job of that type, a drain stops now. Shapes: rows, result (R,).

    At the deadline all; system jobs leave last, as soon as nothing else runs on the node.
    """
    fleet = state.fleet
    if not fleet.drains:
        return np.zeros(len(rows), dtype=bool)
    due = drain_due_nodes(state)
    if job_type == DRAINED_LAST:
        due = [
            node
            for node in sorted(fleet.drains)
            if not fleet.ignores_system(node) and not has_other_allocs(state, node)
        ]
    if not due:
        return np.zeros(len(rows), dtype=bool)
    return np.isin(state.allocations.node[rows], np.asarray(due, dtype=np.int32))


def is_draining(state: State, rows: Rows) -> Mask:
    """Which of these rows are on draining nodes. Shapes: rows, result (R,)."""
    draining = np.asarray(sorted(state.fleet.drains), dtype=np.int32)
    return np.isin(state.allocations.node[rows], draining)


def movable_rows(state: State, standing: Rows, count: int, max_parallel: int) -> Rows:
    """Which of a group's standing rows may leave draining nodes now, lowest names first."""
    table = state.allocations
    alive: Rows = standing[~TERMINAL[table.client[standing]]]
    leaving = alive[is_draining(state, alive)]
    if not len(leaving):
        return leaving
    healthy = int(np.count_nonzero(table.health[alive] == HEALTHY))
    some = movable_count(count, max_parallel, healthy=healthy, drainable=len(leaving))
    chosen: Rows = leaving[np.lexsort((leaving, table.index[leaving]))][:some]
    return chosen


def drain_due_nodes(state: State) -> list[int]:
    """List the fleet rows whose drain has reached its deadline."""
    drains = state.fleet.drains
    return sorted(row for row, at_ns in drains.items() if 0 < at_ns <= state.t_ns)


def has_other_allocs(state: State, node: int, ended: frozenset[int] = frozenset()) -> bool:
    """Tell whether a node runs anything besides jobs of the last type, once these rows have `ended`."""
    table = state.allocations
    rows = table.on_nodes(np.asarray([node], dtype=np.int32))
    alive: Rows = rows[~TERMINAL[table.client[rows]]]
    return any(
        row not in ended and not _is_last(state, int(table.group[row])) for row in alive.tolist()
    )


def _is_last(state: State, ref: int) -> bool:
    job = state.jobs.by_id.get(state.allocations.groups.job_ids[ref])
    return job is not None and job.job_type == DRAINED_LAST
