"""Selection of one count: builds the demand, the node columns and the options, and runs the algorithm that fits."""

from typing import Final

from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.resources.ask_shape import ask_shape_of
from shared.core.resources.asks import ExtraAsks
from shared.core.resources.assign import ResourceAssigner
from shared.core.scheduling.feasibility.node_limits import (
    NodeLimits,
    bounds,
    close_reserved_nodes,
    reserved_limit,
)
from shared.core.scheduling.packing.gpu_packing import (
    FRAGMENTATION,
    GpuPacker,
    PackingContext,
    gpu_ask,
    is_packed,
)
from shared.core.scheduling.plan_state import PlanState
from shared.core.scheduling.selection.candidates import Demand, NodeColumns, Placement
from shared.core.scheduling.selection.device_affinity import DeviceAffinity, has_device_affinity
from shared.core.scheduling.selection.greedy import SelectionOptions, lane_rows, select_nodes
from shared.core.scheduling.selection.greedy_stepwise import StepwisePlacer
from shared.core.scheduling.selection.sampled import CandidateSampling, Sampling, scan_width
from shared.core.scheduling.selection.spread_quotas import has_quotas, place_by_quotas

_SAMPLED: Final[dict[str, CandidateSampling]] = {"two_choices": "two_choices", "log2": "log2"}


def select(
    plan: PlanState,
    group: GroupSpec,
    count: int,
    limits: NodeLimits,
    *,
    room: Int64s | None = None,
    asks: tuple[ResourceAsk, ...] = (),
    placer: StepwisePlacer | None = None,
) -> Placement:
    """Place up to `count` of a group, and commit it to the plan. `room` (N,): how many more pools and ports allow."""
    reserved = None
    if plan.state.reservations.by_job:
        limits, reserved = close_reserved_nodes(limits, reserved_limit(plan, group, asks), count)
    limit, coupling = bounds(plan, group, limits, (room, reserved))
    affinity = plan.caches.affinity(plan.fleet, group.affinities)
    used, draw = plan.used(), plan.draw
    nodes = NodeColumns(
        plan.capacity, used, limits.usable, limits.on_rows, limits.penalised, affinity, limit
    )
    ask = (group.cpu_mhz, group.memory_mib, group.disk_mib)
    demand = Demand(ask, group.count, plan.algorithm(group), plan.policy.anti_affinity)
    steps = max(plan.steps, 0)
    if placer is not None:
        own = lane_rows(plan.size, draw.lane, draw.lanes) if draw.lanes > 1 else None
        placement = placer.place(demand, nodes, coupling, count=count, steps=steps, own=own)
    else:
        sampling = None if limits.per_node is not None else _sampling(plan, group, limits.usable)
        known = (plan.caches.scores, plan.usage.dirty_rows)
        options = SelectionOptions(coupling, sampling, steps, draw.lane, draw.lanes, *known)
        by_quotas = group.spreads and limits.per_node is None and _counts_exactly(plan, group)
        place = place_by_quotas if by_quotas else select_nodes
        placement = place(demand, nodes, count, options)
    plan.commit(group, placement)
    return placement


def placer_for(
    plan: PlanState, group: GroupSpec, extras: ExtraAsks | None, variant: int
) -> GpuPacker | DeviceAffinity | None:
    """Make the stepwise placer that an alternative needs; None: the scores of nodes alone decide."""
    asks = () if extras is None else extras.alternatives[variant]
    if extras is not None and has_device_affinity(asks):
        assigner = ResourceAssigner(plan.offers, plan.held, plan.draw.seed)
        return DeviceAffinity(plan.offers, assigner, extras, variant, nth=plan.assigned)
    if plan.policy_of(group) != FRAGMENTATION or not is_packed(plan.offers, group, asks):
        return None
    shape = ask_shape_of(group, asks)
    assert shape is not None
    prices = plan.caches.gpu_prices.prices(plan.state.allocations.workload, plan.offers)
    assigner = ResourceAssigner(plan.offers, plan.held, plan.draw.seed)
    ask = gpu_ask(plan.offers, shape)
    return GpuPacker(
        PackingContext(plan.offers, assigner, ask, prices, extras, variant, plan.assigned)
    )


def _counts_exactly(plan: PlanState, group: GroupSpec) -> bool:
    return plan.policy.spread_targets == "exact" and has_quotas(group)


def _sampling(plan: PlanState, group: GroupSpec, usable: Mask) -> Sampling | None:
    candidates = _SAMPLED.get(plan.policy.candidates)
    if candidates is None:
        return None
    width = scan_width(
        int(usable.sum()),
        is_batch=plan.job.job_type == "batch",
        is_wide=bool(group.affinities or group.spreads),
        count=group.count,
    )
    # Each selection of a plan draws a new sample.
    return Sampling(candidates, plan.draw.seed + (len(plan.placed) << 32), width)
