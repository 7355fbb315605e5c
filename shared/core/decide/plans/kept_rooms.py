"""Kept rooms in plans: which of the rooms that are kept for a job's replacements its plan takes or gives up.

A plan takes the room of a predecessor by placing its replacement, here or elsewhere, and gives it up by stopping the
predecessor once more. It does not decide which job gets a room that is given up.
"""

import numpy as np

from schemas.base import Event
from schemas.evaluations import EvaluationsCreated, EvaluationsWoken
from schemas.plans import SubmitPlan
from shared.core.columns import Rows
from shared.core.decide.system_jobs import is_pending, job_ids_of, node_evaluation
from shared.core.state.state import State

_NO_ROWS: Rows = np.empty(0, dtype=np.int32)


def rooms_given_up(state: State, plan: SubmitPlan) -> Rows:
    """Rows whose kept room a plan takes or gives up, ascending."""
    table = state.allocations
    if not table.predecessors.rooms:
        return _NO_ROWS
    rows = table.rows_of(plan.job_id)
    rows = rows[table.predecessors.has_room(rows)]
    if not len(rows):
        return rows
    keys = [key for one in plan.placements for key in one.previous if key]
    stopped = [row for one in plan.stops for row in one.rows]
    given_up: Rows = rows[np.isin(table.key[rows], keys) | np.isin(rows, stopped)]
    return np.sort(given_up)


def has_newer_room(state: State, plan: SubmitPlan) -> bool:
    """Tell whether room is kept for a plan's job that its snapshot did not show, and the plan does not take it."""
    table = state.allocations
    if not table.predecessors.rooms:
        return False
    rows = table.rows_of(plan.job_id)
    rows = rows[table.predecessors.has_room(rows)]
    newer = rows[table.modify_seq[rows] > plan.origin.snapshot_seq]
    return bool(len(np.setdiff1d(newer, rooms_given_up(state, plan))))


def wake_successors(state: State, ended: Rows) -> list[Event]:
    """Have the jobs look whose predecessors ended just now: their room is kept for them alone."""
    events, keys, new = list[Event](), [], []
    for job_id in job_ids_of(state, ended):
        blocked = state.evaluations.blocked_of.get(job_id)
        if blocked is not None:
            keys.append(blocked)
        elif not is_pending(state, job_id):
            new.append(node_evaluation(state.jobs.by_id[job_id], "queued-allocs"))
    if keys:
        events.append(EvaluationsWoken(keys=tuple(keys), reason="its predecessors ended"))
    if new:
        events.append(EvaluationsCreated(evaluations=tuple(new)))
    return events
