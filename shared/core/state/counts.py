"""How much a state holds, for people: `query.cluster` and `caravan replay` print it."""

import numpy as np

from schemas.allocations import CLIENT_STATUSES
from schemas.answers import Counts
from shared.core.state.state import State


def count_state(state: State) -> Counts:
    """Count jobs, live nodes, allocations by client status (all six statuses) and evaluations."""
    allocations = state.allocations
    client = allocations.client[allocations.live_rows()]
    tally = np.bincount(client, minlength=len(CLIENT_STATUSES)).tolist()
    return Counts(
        jobs=len(state.jobs.by_id),
        nodes=len(state.fleet.row_of),
        allocations=dict(zip(CLIENT_STATUSES, tally, strict=True)),
        evaluations=len(state.evaluations.by_key),
    )
