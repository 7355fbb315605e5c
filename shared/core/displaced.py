"""Displaced: which allocations an operator wants gone from where they are, by name or with the whole node.

Decides from the marks of single allocations and from the drains of nodes, by the log's time: a drain says when what
runs there is stopped. Must not know what takes their place (reconcile.py).
"""

import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Rows
from shared.core.state import State
from shared.core.tables.allocations import TERMINAL

Mask = NDArray[np.bool_]
STOPPED = "stopped by an operator"
DRAINED = "its node is drained"
#: Jobs of this type leave a drained node when nothing else is left there.
LAST = "system"


def is_marked(state: State, rows: Rows) -> Mask:
    """Which of these rows an operator stopped. Shapes: rows, result (R,)."""
    marks = state.allocations.displaced
    if not marks:
        return np.zeros(len(rows), dtype=bool)
    return np.isin(rows, np.asarray(sorted(marks), dtype=np.int32))


def is_drained(state: State, rows: Rows, job_type: str) -> Mask:
    """Which of these rows, of a job of that type, stand on nodes whose drain is due. Shapes: rows, result (R,)."""
    due = due_nodes(state)
    if job_type == LAST:
        due = [node for node in due if not holds_others(state, node)]
    if not due:
        return np.zeros(len(rows), dtype=bool)
    return np.isin(state.allocations.node[rows], np.asarray(due, dtype=np.int32))


def due_nodes(state: State) -> list[int]:
    """List the fleet rows where a drain has come to its deadline."""
    drains = state.fleet.drains
    return sorted(row for row, at_ns in drains.items() if 0 < at_ns <= state.t_ns)


def holds_others(state: State, node: int, ended: frozenset[int] = frozenset()) -> bool:
    """Tell whether anything lives on a node beside jobs of the last type, once these rows have `ended`."""
    table = state.allocations
    rows = table.on_nodes(np.asarray([node], dtype=np.int32))
    alive: Rows = rows[~TERMINAL[table.client[rows]]]
    return any(
        row not in ended and not _is_last(state, int(table.group[row])) for row in alive.tolist()
    )


def _is_last(state: State, ref: int) -> bool:
    job = state.jobs.by_id.get(state.allocations.groups.job_ids[ref])
    return job is not None and job.job_type == LAST
