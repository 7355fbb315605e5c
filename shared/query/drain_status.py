"""How far the drain of a node has got: what is left on it, and what each group waits for.

Read from the tables alone, by the rule that the scheduler follows (shared/core/scheduling/reconcile/update_limits.py).
"""

import numpy as np

from schemas.jobs import FINITE_JOB_TYPES, GroupSpec
from schemas.node_answers import DrainEnded, DrainShown, DrainWait
from shared.core.columns import Rows
from shared.core.scheduling.reconcile.drained_allocs import DRAINED_LAST, is_draining
from shared.core.scheduling.reconcile.update_limits import movable_count
from shared.core.state.state import State
from shared.core.state.tables.allocations import HEALTHY, RUN, TERMINAL
from shared.core.state.tables.jobs import Job
from shared.query.deployments import NAMED_MAX
from shared.query.job_wait import job_wait


def drain_status(state: State, node: int) -> DrainShown | None:
    """Describe the drain of a fleet row; None: it does not drain."""
    fleet, table = state.fleet, state.allocations
    if node not in fleet.drains:
        return None
    terms = fleet.terms_of(node)
    rows = table.on_nodes(np.asarray([node], dtype=np.int32))
    rows = rows[~TERMINAL[table.client[rows]]]
    stopping = int(np.count_nonzero(table.desired[rows] != RUN))
    waits = []
    wanted = rows[table.desired[rows] == RUN]
    by_group: dict[tuple[str, str], list[int]] = {}
    for row in wanted.tolist():
        ref = int(table.group[row])
        by_group.setdefault((table.groups.job_ids[ref], table.groups.names[ref]), []).append(row)
    for (job_id, group), held in sorted(by_group.items()):
        waits.append(
            DrainWait(
                job_id=job_id,
                group=group,
                allocations=len(held),
                why=_why(state, node, held[0]),
                names=_names(state, held),
            )
        )
    return DrainShown(
        deadline_ns=fleet.drains[node],
        started_ns=terms.started_ns,
        ignore_system=terms.ignore_system,
        message=terms.message,
        left=len(rows),
        stopping=stopping,
        waits=tuple(waits),
    )


def drain_end(state: State, node: int) -> DrainEnded | None:
    """Describe the complete drain of a fleet row; None: there is none."""
    end = state.fleet.drained.get(node)
    if end is None:
        return None
    return DrainEnded(deadline_reached=end.deadline_reached, closed=end.closed)


def _names(state: State, rows: list[int]) -> tuple[str, ...]:
    table = state.allocations
    groups = table.groups
    return tuple(
        f"{groups.job_ids[ref]}.{groups.names[ref]}[{int(table.index[row])}]"
        for row in rows[:NAMED_MAX]
        for ref in (int(table.group[row]),)
    )


def _why(state: State, node: int, row: int) -> str:
    """What the allocations of a row's group wait for before they leave the node."""
    table = state.allocations
    ref = int(table.group[row])
    job = state.jobs.by_id.get(table.groups.job_ids[ref])
    if job is None:
        return "the job no longer exists"
    if job.job_type == DRAINED_LAST:
        ignored = state.fleet.ignores_system(node)
        return "system jobs stay" if ignored else "system jobs leave last"
    until = "runs until the deadline" if state.fleet.drains[node] else "runs until it ends"
    if job.job_type in FINITE_JOB_TYPES:
        return until + (", and is not replaced" if state.fleet.drains[node] else "")
    name = table.groups.names[ref]
    for group in job.groups:
        if group.name == name and group.migrate is not None and group.migrate.max_parallel:
            return _pace(state, job, group, group.migrate.max_parallel)
    return until


def _pace(state: State, job: Job, group: GroupSpec, max_parallel: int) -> str:
    table = state.allocations
    rows: Rows = table.rows_of(job.id)
    rows = rows[table.is_wanted(rows) & ~table.canary[rows]]
    names = table.groups.names
    rows = rows[[names[ref] == group.name for ref in table.group[rows].tolist()]]
    healthy = int(np.count_nonzero(table.health[rows] == HEALTHY))
    leaving = int(np.count_nonzero(is_draining(state, rows)))
    movable = movable_count(group.count, max_parallel, healthy=healthy, drainable=leaving)
    stays = max(group.count - max_parallel, 0)
    if movable:
        if _is_blocked(state, job, group.name):
            return f"{movable} may leave: no other node has room for them yet"
        return f"{movable} may leave next"
    text = f"{healthy} of {group.count} healthy, {stays} must stay healthy"
    others = _names(state, rows[table.health[rows] != HEALTHY].tolist())
    return f"{text}; not healthy: {', '.join(others)}" if others else text


def _is_blocked(state: State, job: Job, group: str) -> bool:
    """Tell whether the last decision about a job found no place for allocations of a group."""
    return group in job_wait(state, job).groups
