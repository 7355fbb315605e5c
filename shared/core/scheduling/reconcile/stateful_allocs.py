"""Stateful allocations: of these an index of a group is one instance at the most, whatever becomes of its node.

Decides which rows are such, and of which node the state knows for certain that nothing runs there any more. Silence
proves nothing: a node that is out of reach may run what it ran. Scheduler and plan applier both use this module.
"""

from collections.abc import Sequence

import numpy as np

from schemas.plans import GroupPlacement
from shared.core.columns import Mask, Rows
from shared.core.state.name_runs import expand_runs
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL
from shared.core.state.tables.jobs import Job


def is_stateful(state: State, rows: Rows) -> Mask:
    """Which of these rows are of a stateful group, in their version or in the newest. Shapes: rows, result (R,)."""
    groups = state.allocations.groups
    if not groups.stateful or not len(rows):
        return np.zeros(len(rows), dtype=bool)
    refs, where = np.unique(state.allocations.group[rows], return_inverse=True)
    found: Mask = np.array([_is_stateful(state, ref) for ref in refs.tolist()], dtype=bool)[where]
    return found


def _is_stateful(state: State, ref: int) -> bool:
    groups = state.allocations.groups
    if ref in groups.stateful:
        return True
    job = state.jobs.by_id.get(groups.job_ids[ref])
    found = job.groups if job is not None else ()
    return any(one.stateful for one in found if one.name == groups.names[ref])


def has_stateful(state: State, job: Job | None, rows: Rows) -> bool:
    """Tell whether a job wants stateful groups, or has allocations of one."""
    stateful = state.allocations.groups.stateful
    if not stateful:
        return False
    if job is not None and any(group.stateful for group in job.groups):
        return True
    return any(ref in stateful for ref in np.unique(state.allocations.group[rows]).tolist())


def is_surely_gone(state: State, rows: Rows) -> Mask:
    """Which of these rows surely run no more: their node is confirmed dead, or forgotten. Shapes: rows, result (R,)."""
    fleet = state.fleet
    nodes = state.allocations.node[rows]
    gone: Mask = ~fleet.live[nodes]
    if fleet.confirmed_dead:
        dead = np.fromiter(fleet.confirmed_dead, dtype=np.int32, count=len(fleet.confirmed_dead))
        gone |= np.isin(nodes, dead)
    return gone


def second_instance(
    state: State, job: Job, placements: Sequence[GroupPlacement], lost: frozenset[int]
) -> tuple[str, int] | None:
    """The first group and index of which placements would make a second instance; None: they make none.

    `lost`: rows that the same plan declares lost. Every other one that has not ended may run, wanted or not.
    """
    stateful = frozenset(one.name for one in job.groups if one.stateful)
    table = state.allocations
    rows = table.rows_of(job.id)
    rows = rows[~TERMINAL[table.client[rows]]]
    seen = {
        (table.groups.names[table.group[row]], int(table.index[row]))
        for row in rows.tolist()
        if row not in lost
    }
    for placement in placements:
        if placement.group not in stateful:
            continue
        for index in expand_runs(placement.names).tolist():
            if (placement.group, index) in seen:
                return placement.group, index
            seen.add((placement.group, index))
    return None


def holds_stateful(state: State, node: int) -> bool:
    """Tell whether something stateful may run on a fleet row, and no one has confirmed that the node is dead."""
    if not state.allocations.groups.stateful or node in state.fleet.confirmed_dead:
        return False
    rows = state.allocations.on_nodes(np.asarray([node], dtype=np.int32))
    rows = rows[~TERMINAL[state.allocations.client[rows]]]
    return bool(is_stateful(state, rows).any())
