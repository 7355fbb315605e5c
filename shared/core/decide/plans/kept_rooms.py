"""Kept rooms in plans: which of the rooms that are kept for a job's replacements its plan takes or gives up.

A plan takes the room of a predecessor by placing its replacement, here or elsewhere, and gives it up by stopping the
predecessor once more. It does not decide which job gets a room that is given up.
"""

import numpy as np

from schemas.base import Event, JobId
from schemas.evaluations import EvaluationsCreated, EvaluationsWoken, NewEvaluation
from schemas.plans import SubmitPlan
from shared.core.state.columns import Rows
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
    table, events = state.allocations, list[Event]()
    refs = np.unique(table.group[ended]).tolist()
    keys, new = [], []
    for job_id in sorted({table.groups.job_ids[ref] for ref in refs}):
        blocked = state.evaluations.blocked_of.get(JobId(job_id))
        job = state.jobs.by_id.get(JobId(job_id))
        if blocked is not None:
            keys.append(blocked)
        elif job is not None and not _is_pending(state, JobId(job_id)):
            new.append(
                NewEvaluation(
                    job_id=job.id,
                    priority=job.priority,
                    job_type=job.job_type,
                    triggered_by="queued-allocs",
                )
            )
    if keys:
        events.append(EvaluationsWoken(keys=tuple(keys), reason="its predecessors ended"))
    if new:
        events.append(EvaluationsCreated(evaluations=tuple(new)))
    return events


def _is_pending(state: State, job_id: JobId) -> bool:
    table = state.evaluations
    entries = [table.by_key[key] for key in table.open_of.get(job_id, ())]
    return any(one.status == "pending" and not one.wait_until_ns for one in entries)
