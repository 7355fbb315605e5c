"""Jobs that were stopped and run again: which allocations are from before the stop.

What failed before a stop begins anew, and what completed counts in the version that started again, as long as the text
of its group is the same (service_jobs.py, system_jobs.py).
"""

import numpy as np

from shared.core.columns import Mask, Rows
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job

STARTED_AGAIN = "job started again"


def is_before_stop(state: State, job: Job, rows: Rows) -> Mask:
    """Which of these rows are of a version that was stopped and started again since. Shapes: rows, result (R,)."""
    first = _first_since_stop(state, job)
    if first == job.version:
        return np.zeros(len(rows), dtype=bool)
    groups = state.allocations.groups
    refs, inverse = np.unique(state.allocations.group[rows], return_inverse=True)
    older = [first <= groups.versions[ref] < job.version for ref in refs.tolist()]
    return np.array(older, dtype=bool)[inverse]


def _first_since_stop(state: State, job: Job) -> int:
    """The oldest of the versions that were stopped and started again, one after the other, up to the newest."""
    first = job.version
    while first:
        before = state.jobs.version(job.id, first - 1)
        if before is None or before.job is None or not before.job.stopped:
            break
        first -= 1
    return first
