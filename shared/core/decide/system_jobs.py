"""System jobs: evaluations of the jobs that run on every node, when a node registers or changes.

Decides which of them must look again. One evaluation of a job that is not handed out yet sees every node that came
before it is decided; so where one is pending none is created, and the plan that ends it says what it saw: for a node
that came after that, another one follows in the same transaction (`has_newer_node`), and so where it is canceled. A
thousand nodes that register in one burst are a handful of evaluations of a job, and the last of them sees the last
node.

Only datacenter and node pool are checked here; the scheduler decides which nodes are feasible.
"""

from collections.abc import Collection, Sequence

import numpy as np

from schemas.base import EvalKey, Event, JobId
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from shared.core.columns import Rows
from shared.core.scheduling.feasibility.constraint_masks import ALL_POOLS, glob_matches
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job

#: Evaluations that one command creates here; the newest jobs beyond are looked at with their next evaluation.
SYSTEM_EVALUATIONS_MAX = 700
#: Datacenter and node pool.
NodeLocation = tuple[str, str]


def evaluate_system_jobs(
    state: State, places: Collection[NodeLocation], but: Collection[JobId] = ()
) -> list[Event]:
    """Evaluate the system and sysbatch jobs that may want a node in one of these places; not those in `but`."""
    new: list[NewEvaluation] = []
    for job_id in state.jobs.everywhere:
        job = state.jobs.by_id[job_id]
        if job_id in but or not any(targets_location(job, place) for place in places):
            continue
        if len(new) < SYSTEM_EVALUATIONS_MAX and not is_pending(state, job_id):
            new.append(node_evaluation(job))
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []


def has_newer_node(state: State, job: Job, seen_seq: int) -> bool:
    """Tell whether a node that the job may want came or changed after `seen_seq`."""
    if job.id not in state.jobs.everywhere:
        return False
    fleet = state.fleet
    newer = fleet.ready() & (fleet.modify_seq[: fleet.size] > seen_seq)
    rows: Sequence[int] = np.flatnonzero(newer).tolist()
    if any(targets_location(job, node_location(state, row)) for row in rows):
        return True
    table = state.allocations
    held = table.rows_of(job.id)
    return bool(rows) and bool(newer[table.node[held[table.is_wanted(held)]]].any())


def targets_location(job: Job, place: NodeLocation) -> bool:
    """Tell whether a job wants nodes of a datacenter and a node pool."""
    datacenter, pool = place
    if job.node_pool not in (ALL_POOLS, pool):
        return False
    return any(glob_matches(pattern, datacenter) for pattern in job.datacenters)


def node_location(state: State, row: int) -> NodeLocation:
    """Datacenter and node pool of a fleet row."""
    spec = state.fleet.specs[row]
    return spec.datacenter, spec.node_pool


def node_evaluation(
    job: Job, triggered_by: str = "node-update", wait_until_ns: int = 0
) -> NewEvaluation:
    """An evaluation of a job, because of a node."""
    return NewEvaluation(
        job_id=job.id,
        priority=job.priority,
        job_type=job.job_type,
        triggered_by=triggered_by,
        wait_until_ns=wait_until_ns,
    )


def is_pending(state: State, job_id: JobId, but: Collection[EvalKey] = ()) -> bool:
    """Tell whether an evaluation of the job, not one of `but`, will be decided or canceled, now."""
    table = state.evaluations
    entries = (table.by_key[key] for key in table.open_of.get(job_id, ()) if key not in but)
    return any(one.status == "pending" and not one.wait_until_ns for one in entries)


def job_ids_of(state: State, rows: Rows) -> list[JobId]:
    """Return the ids of the jobs of these allocations, sorted; jobs that have been removed are left out."""
    table = state.allocations
    refs = np.unique(table.group[rows]).tolist()
    job_ids = {table.groups.job_ids[ref] for ref in refs}
    return sorted(job_id for job_id in job_ids if job_id in state.jobs.by_id)
