"""Invariants of deployments: their counters are what the rows say, and a job has one that is active at the most.

A part of `invariants.py`, as slow as the rest of it.
"""

import msgspec
import numpy as np

from schemas.base import JobId
from shared.core.state.state import State
from shared.core.state.tables.allocations import HEALTHY, UNHEALTHY
from shared.core.state.tables.deployments import Deployment, GroupProgress


class Violation(msgspec.Struct, frozen=True):
    """One broken invariant: its name, and what was found where."""

    invariant: str
    detail: str


def check_deployments(state: State) -> list[Violation]:
    """Check the table of deployments against itself and the rows of allocations."""
    table = state.deployments
    found = []
    active: dict[JobId, list[int]] = {}
    for deployment in table.by_key.values():
        if deployment.is_active:
            active.setdefault(deployment.job_id, []).append(deployment.key)
            job = state.jobs.by_id.get(deployment.job_id)
            if job is None or job.version != deployment.version:
                text = f"{deployment.job_id} continues with version {deployment.version}"
                found.append(Violation("deployments", text))
            found += [
                one for group in deployment.groups for one in _group(state, deployment, group)
            ]
        elif deployment.holds:
            found.append(Violation("deployments", f"{deployment.key} ended and is still held"))
        causes = [hold.cause for hold in deployment.holds]
        if causes != sorted(set(causes)):
            found.append(Violation("deployments", f"{deployment.key} is held by {causes}"))
    if active != {job_id: [key] for job_id, key in table.active.items()}:
        found.append(Violation("deployments", f"active are {table.active}, entries say {active}"))
    named = [key for keys in table.keys_of.values() for key in keys]
    if sorted(named) != sorted(table.by_key):
        found.append(Violation("deployments", "those by job are not all"))
    return found


def _group(state: State, deployment: Deployment, group: GroupProgress) -> list[Violation]:
    """Counters are a recount over the rows, except for what was collected meanwhile."""
    table = state.allocations
    rows = table.rows_of(deployment.job_id)
    rows = rows[table.deployment[rows] == deployment.key]
    names = [table.groups.names[ref] for ref in table.group[rows].tolist()]
    rows = rows[np.array([name == group.name for name in names], dtype=bool)]
    counted = (
        len(rows),
        int((table.health[rows] == HEALTHY).sum()),
        int((table.health[rows] == UNHEALTHY).sum()),
    )
    says = (group.placed, group.healthy, group.unhealthy)
    gone = group.placed - len(rows)
    is_equal = gone >= 0 and all(
        there <= said <= there + gone for there, said in zip(counted, says, strict=True)
    )
    where = f"{deployment.job_id}.{group.name} of {deployment.key}"
    found = []
    if not is_equal:
        text = f"{where} says {says}, its rows {counted}"
        found.append(Violation("deployment_counters", text))
    if group.promoted and table.canary[rows].any():
        found.append(Violation("deployment_counters", f"{where} has canaries after its promotion"))
    return found
