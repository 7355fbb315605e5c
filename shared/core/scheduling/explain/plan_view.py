"""Views of a plan under way: what the next allocation would find, the scores of nodes, why a request waits."""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.evaluations import Waiting
from schemas.jobs import SYSTEM_JOB_TYPES
from shared.core.columns import Mask
from shared.core.resources.asks import CORES, WHOLE, extra_asks_of
from shared.core.resources.offers import column_of_size
from shared.core.scheduling.explain.shortages import NodeAvailability
from shared.core.scheduling.explain.wait_reasons import (
    HeldAbove,
    QueueAhead,
    explain_wait,
    too_small,
)
from shared.core.scheduling.feasibility.filters import (
    FilterReport,
    NodeFilter,
    availability_filters,
    filters_of,
    pool_filters,
    report_of,
)
from shared.core.scheduling.feasibility.node_limits import distinct_filters, reserved_limit
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.packing.gpu_packing import FRAGMENTATION, GpuPacker
from shared.core.scheduling.plan_state import PlanState, counted
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.reservations.gap import reservations_ahead
from shared.core.scheduling.scoring.scores import node_scores
from shared.core.scheduling.selection.candidates import ask_columns
from shared.core.scheduling.selection.coupling import CLOSED_BELOW
from shared.core.scheduling.selection.coupling_blocks import coupling_of, is_job_wide
from shared.core.scheduling.selection.select import placer_for


def availability(
    plan: PlanState, request: PlacementRequest, mask: Mask, placed: Sequence[PlacedPart] = ()
) -> NodeAvailability:
    """Show what the next allocation of a request would find, until the plan changes. `placed`: parts of the request."""
    group = request.group
    feasible = mask
    for one in pool_filters(plan.offers, group.alternatives, plan.size):
        feasible = feasible & one.mask
    return NodeAvailability(
        group=group,
        capacity=plan.capacity,
        used=plan.used(),
        held=plan.held,
        offers=plan.offers,
        feasible=feasible,
        closed=tuple(availability_filters(plan.fleet)),
        rules=tuple(distinct_filters(plan, request, placed)),
    )


def with_refusals(plan: PlanState, standing: NodeAvailability, mask: Mask) -> NodeAvailability:
    """The same, with what the reasons of a wait count beside shortages: nodes too small, and reserved ones.

    `mask`: nodes that constraints allow. A system job waits for nodes that are open to it and miss it.
    """
    group = standing.group
    small = tuple(too_small(standing, mask))
    first = (*standing.closed, *standing.rules)
    is_system = plan.job.job_type in SYSTEM_JOB_TYPES
    return msgspec.structs.replace(
        standing,
        refusals=(*first, *small) if is_system else (*small, *first),
        beside=tuple(reserved_limit(plan, group, asks) for asks in group.alternatives or ((),)),
    )


def score_rows(
    plan: PlanState,
    request: PlacementRequest,
    rows: Sequence[int],
    *,
    avoided: Sequence[int] = (),
    variant: int = 0,
) -> tuple[list[dict[str, int]], list[int]]:
    """Name the scorers of one more allocation on each of these rows, and their values; then the order among equals.

    The `mean_score` of the values ranks the row. `avoided`: rows of nodes that it failed on.
    """
    group = request.group
    on_rows = counted(plan, plan.on_group(request))
    of_job = plan.on_job() if is_job_wide(group) else on_rows
    coupling = coupling_of(plan.fleet.attributes, group, of_group=on_rows, of_job=of_job)
    at = np.asarray(rows, np.intp)
    boosts = np.zeros(len(rows), np.int64)
    if coupling is not None:
        boosts = coupling.begin().by_row(at).boosts()
    affinity = plan.caches.affinity(plan.fleet, group.affinities)
    ask, used = ask_columns(group), plan.used()
    placer = placer_for(plan, group, extra_asks_of(group), variant)
    if isinstance(placer, GpuPacker):
        costs = placer.scores(plan.capacity, used, at).tolist()
        order = placer.order(plan.capacity, used, at).tolist()
        return [{FRAGMENTATION: cost} for cost in costs], order
    bonuses = [0] * len(rows) if placer is None else placer.worth(at).tolist()
    scores = [
        node_scores(
            capacity=plan.capacity[row].tolist(),
            used_after=(used[row] + ask).tolist(),
            collisions=int(on_rows[row]),
            desired_count=group.count,
            algorithm=plan.algorithm(group),
            anti_affinity=plan.policy.anti_affinity,
            penalised=row in avoided,
            affinity=0 if affinity is None else int(affinity[row]),
            spread=max(boost, CLOSED_BELOW),
            devices=bonus,
        )
        for row, boost, bonus in zip(rows, boosts.tolist(), bonuses, strict=True)
    ]
    return scores, list(rows)


def filter_report(
    plan: PlanState, request: PlacementRequest, rules: Sequence[NodeFilter]
) -> FilterReport:
    """Say which nodes each constraint refuses, then each of these rules."""
    return report_of(plan.fleet, (*filters_of(plan.fleet, plan.job, request.group), *rules))


def explain_waiting(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    count: int,
    *,
    placed: Sequence[PlacedPart] = (),
) -> Waiting:
    """Say why `count` of a request were not placed; `placed`: the parts that were."""
    standing = availability(plan, request, mask, placed)
    names = tuple(one.job_id for one in reservations_ahead(plan.state, plan.job))
    was_evicted = request.evicted is not None
    return explain_wait(
        standing,
        count,
        nodes=int(plan.fleet.live.sum()),
        mask=mask,
        report=lambda: filter_report(plan, request, standing.rules),
        queue=QueueAhead(
            names,
            lambda group, asks: reserved_limit(plan, group, asks),
            (lambda: _held_above(plan)) if was_evicted else None,
        ),
    )


def _held_above(plan: PlanState) -> HeldAbove:
    """What allocations of jobs with a higher priority hold, reserved cores' MHz included."""
    table, size = plan.state.allocations, plan.size
    rows = table.live_rows()
    rows = rows[table.groups.priority[table.group[rows]] > plan.job.priority]
    rows = rows[table.is_holding(rows)]
    columns = np.zeros((size, 3), dtype=np.int64)
    np.add.at(columns, table.node[rows], table.groups.ask[table.group[rows]])
    if not table.holdings:
        return HeldAbove(columns)
    core_mhz = column_of_size(plan.offers.core_mhz, size)
    holdings = []
    for row in rows.tolist():
        holding, node = table.holdings.get(row), int(table.node[row])
        if holding is not None:
            cores = sum(amount for name, _, amount in holding.parts if name == CORES)
            columns[node, 0] += cores // WHOLE * int(core_mhz[node])
            holdings.append((node, holding))
    return HeldAbove(columns, tuple(holdings))
