"""Purge: a job stopped with purge is removed in the transaction in which its last allocation ended.

What it misses (an allocation lost with its node, more rows than one event names) the next
pass of garbage.py collects.
"""

from collections.abc import Collection

import numpy as np

from schemas.base import Event, JobId
from schemas.evaluations import EvaluationEnded
from schemas.jobs import JobsCollected
from shared.core.decide.capacity_freed import freed_by_jobs
from shared.core.decide.garbage import PASS_MAX, allocations_collected
from shared.core.decide.reservations import reserve
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL

REASON = "the job was purged"


def purge_job(state: State, job_id: JobId, ending: Collection[int] = ()) -> list[Event]:
    """Forget a job, its allocations and open evaluations if everything of it ended; [] if not yet.

    `ending`: rows that end in this very transaction.
    """
    table = state.allocations
    rows = table.rows_of(job_id)
    alive = rows[~TERMINAL[table.client[rows]]]
    if len(rows) > PASS_MAX or not np.isin(alive, sorted(ending)).all():
        return []
    events: list[Event] = [
        EvaluationEnded(key=key, status="canceled", reason=REASON)
        for key in state.evaluations.open_of.get(job_id, ())
    ]
    if len(rows):
        events.append(allocations_collected(rows))
    freed = freed_by_jobs(state, (job_id,))
    return [*events, *reserve(state, job_id, ()), *freed, JobsCollected(job_ids=(job_id,))]
