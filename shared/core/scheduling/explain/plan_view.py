"""Views of a plan under way: what the next allocation would find, the scores of nodes, why a request waits."""

from collections.abc import Sequence

import numpy as np

from schemas.evaluations import Waiting
from shared.core.columns import Mask
from shared.core.resources.asks import extra_asks_of
from shared.core.scheduling.explain.shortages import NodeAvailability
from shared.core.scheduling.explain.wait_reasons import QueueAhead, explain_wait
from shared.core.scheduling.feasibility.filters import (
    FilterReport,
    NodeFilter,
    filters_of,
    report_of,
)
from shared.core.scheduling.feasibility.node_limits import distinct_filters, reserved_limit
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.packing.gpu_packing import FRAGMENTATION, GpuPacker
from shared.core.scheduling.plan_state import PlanState, counted
from shared.core.scheduling.preemption.search import held_by_higher_priority
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.reservations.gap import reservations_ahead
from shared.core.scheduling.scoring.scores import node_scores
from shared.core.scheduling.selection.candidates import ask_columns
from shared.core.scheduling.selection.coupling import CLOSED_BELOW
from shared.core.scheduling.selection.coupling_blocks import coupling_of, is_job_wide
from shared.core.scheduling.selection.select import placer_for


def availability(plan: PlanState, request: PlacementRequest, mask: Mask) -> NodeAvailability:
    """Show what the next allocation of a request would find. Valid until the plan changes."""
    group = request.group
    reserved = reserved_limit(plan, group, group.alternatives[0] if group.alternatives else ())
    rules = tuple(distinct_filters(plan, request, ()))
    if reserved is not None:
        rules += (NodeFilter("reservation for a job ahead of it in the queue", reserved > 0),)
    return _availability(plan, request, mask, rules)


def _availability(
    plan: PlanState, request: PlacementRequest, mask: Mask, rules: tuple[NodeFilter, ...]
) -> NodeAvailability:
    return NodeAvailability(
        group=request.group,
        capacity=plan.capacity,
        used=plan.used(),
        held=plan.held,
        offers=plan.offers,
        feasible=mask,
        ready=plan.ready,
        rules=rules,
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


def filter_report(plan: PlanState, request: PlacementRequest) -> FilterReport:
    """Say which filter refuses which nodes, the job's other allocations considered."""
    own = filters_of(plan.fleet, plan.job, request.group)
    return report_of(plan.fleet, (*own, *distinct_filters(plan, request, ())))


def explain_waiting(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    count: int,
    *,
    placed: Sequence[PlacedPart] = (),
) -> Waiting:
    """Say why `count` of a request were not placed; `placed`: the parts that were."""
    above = (
        held_by_higher_priority(plan.state, plan.job, plan.size)
        if request.evicted is not None
        else None
    )
    names = tuple(one.job_id for one in reservations_ahead(plan.state, plan.job))
    return explain_wait(
        _availability(plan, request, mask, tuple(distinct_filters(plan, request, placed))),
        count,
        nodes=int(plan.fleet.live.sum()),
        report=lambda: filter_report(plan, request),
        queue=QueueAhead(names, lambda group, asks: reserved_limit(plan, group, asks), above),
    )
