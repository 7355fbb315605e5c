"""Hold: which nodes to reserve for a request that found no room.

Proposed are the few nodes that must free the least; a node reserved already counts half, so that a proposal does not
change with every allocation that ends elsewhere. The eval broker decides which proposals become reservations.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.evaluations import Hold
from schemas.jobs import FINITE_JOB_TYPES, SYSTEM_JOB_TYPES, GroupSpec, ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.resources.headroom import cluster_pools
from shared.core.resources.held import HeldResources
from shared.core.scheduling.feasibility.node_limits import distinct_filters
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.plan_state import PlanState
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.reservations.amounts import (
    first_alternative,
    how_many_fit,
    need_of,
    totals_of,
    used_of,
)
from shared.core.scheduling.reservations.gap import reservations_ahead
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.core.state.tables.jobs import Job

#: Nodes reserved for one group at the same time; placing there makes way for the next.
HOLDS_MAX = 8
#: At most one of so many of the nodes that the group may run on, but at least one.
HOLDS_SHARE = 16
#: Nodes whose running allocations are examined.
EXAMINED_MAX = 64


def hold_for(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    count: int,
    *,
    placed: Sequence[PlacedPart],
) -> Hold | None:
    """Propose nodes to reserve for `count` of a request that were not placed; None: there are none."""
    if plan.job.job_type in SYSTEM_JOB_TYPES:
        return None
    usable = mask & plan.ready
    for rule in distinct_filters(plan, request, placed):
        usable = usable & rule.mask
    return propose_hold(plan.state, plan.held, plan.job, request.group, usable=usable, count=count)


def propose_hold(
    state: State, held: HeldResources, job: Job, group: GroupSpec, *, usable: Mask, count: int
) -> Hold | None:
    """Propose nodes to reserve for `count` more of a group; None: no node can make room for one by itself.

    `usable` (N,): nodes that it may run on. Excluded are nodes reserved for jobs ahead in the queue, and nodes where
    allocations that do not end (services) leave too little room.
    """
    if not state.policy.policy.reservations_max:
        return None
    rows = np.flatnonzero(usable).astype(np.intp)
    taken = [
        row for one in reservations_ahead(state, job) for hold in one.holds for row in hold.rows
    ]
    if taken:
        rows = rows[~np.isin(rows, taken)]
    asks = first_alternative(state, group, rows)
    if any(one.room < 1 for one in cluster_pools(state.fleet.offers, held, asks)):
        # A cluster-wide pool is exhausted: freeing a node does not help.
        return None
    need = need_of(group, asks)
    total = totals_of(state, asks, rows)
    fits = how_many_fit(total, need)
    rows, total, fits = rows[fits > 0], total[fits > 0], fits[fits > 0]
    if not len(rows):
        return None
    lacking = np.maximum(need - (total - used_of(state, held, asks, rows)), 0)
    cost = ((lacking << 20) // np.maximum(total, 1)).sum(axis=1)
    mine = state.reservations.by_job.get(job.id)
    if mine is not None:
        own = [row for hold in mine.holds if hold.group == group.name for row in hold.rows]
        cost = np.where(np.isin(rows, own), cost // 2, cost)
    best = np.lexsort((rows, cost))[:EXAMINED_MAX]
    lasting = _service_alloc_rows(state, rows[best])
    spare = total[best] - _held_by(state, lasting, asks, rows[best])
    best = best[
        (spare >= need).all(axis=1) & ~_static_port_taken(state, lasting, group, rows[best])
    ]
    best = best[: max(1, min(HOLDS_MAX, len(rows) // HOLDS_SHARE))]
    if not len(best):
        return None
    enough = int(np.searchsorted(np.cumsum(fits[best]), count)) + 1
    chosen = tuple(sorted(rows[best[:enough]].tolist()))
    return Hold(group=group.name, rows=chosen, count=count)


def _service_alloc_rows(state: State, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Allocation rows on these nodes that do not end by themselves, or whose room is kept. Shape: rows (R,)."""
    table, jobs = state.allocations, state.jobs.by_id
    of_these = np.zeros(state.fleet.size, dtype=bool)
    of_these[rows] = True
    size = table.size
    there = np.flatnonzero(of_these[table.node[:size]] & (table.key[:size] != 0))
    lasts = ~TERMINAL[table.client[there]] & (table.desired[there] == RUN)
    at = there.astype(np.int32)
    replaced = table.predecessors.holds(table.key[at]) & table.is_holding(at)
    there, replaced = there[lasts | replaced], replaced[lasts | replaced]
    refs = np.unique(table.group[there]).tolist()
    owners = {ref: jobs.get(table.groups.job_ids[ref]) for ref in refs}
    services = [
        ref
        for ref, job in owners.items()
        if job is not None and job.job_type not in FINITE_JOB_TYPES
    ]
    found: NDArray[np.intp] = there[replaced | np.isin(table.group[there], services)]
    return found


def _held_by(
    state: State, there: NDArray[np.intp], asks: Sequence[ResourceAsk], rows: NDArray[np.intp]
) -> Int64s:
    """Amounts that these allocations hold on these nodes. Shapes: there (A,), rows (R,), result (R, 3 + asks)."""
    table = state.allocations
    found = np.zeros((len(rows), 3 + len(asks)), dtype=np.int64)
    at = {row: n for n, row in enumerate(rows.tolist())}
    where = np.array([at[row] for row in table.node[there].tolist()], dtype=np.intp)
    np.add.at(found[:, :3], where, table.groups.ask[table.group[there]])
    if asks:
        columns = {one.pool: 3 + n for n, one in enumerate(asks)}
        for row, n in zip(there.tolist(), where.tolist(), strict=True):
            holding = table.holdings.get(row)
            for pool, _, amount in holding.parts if holding is not None else ():
                if pool in columns:
                    found[n, columns[pool]] += amount
    return found


def _static_port_taken(
    state: State, there: NDArray[np.intp], group: GroupSpec, rows: NDArray[np.intp]
) -> Mask:
    """Nodes where these allocations, or the node itself, occupy a static port. Shapes: as above, result (R,)."""
    ports, table = set(group.static_ports), state.allocations
    nodes = {row for port in ports for row in state.fleet.offers.reserved.get(port, ())}
    for row in there.tolist() if ports else ():
        holding = table.holdings.get(row)
        if holding is not None and not ports.isdisjoint((*holding.static_ports, *holding.ports)):
            nodes.add(int(table.node[row]))
    return np.isin(rows, sorted(nodes))
