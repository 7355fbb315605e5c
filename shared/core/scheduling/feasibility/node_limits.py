"""Node limits: which nodes a request may use, and how many more each may take by rules other than room.

Rules are feasibility, readiness, distinct hosts and properties, the nodes that failed allocations ran on, and nodes
reserved for jobs ahead in the queue.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import SYSTEM_JOB_TYPES, GroupSpec, ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.scheduling.feasibility.filters import NodeFilter
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.plan_state import PlanState, counted
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.reservations.gap import gap_limit
from shared.core.scheduling.selection.coupling import Coupling
from shared.core.scheduling.selection.coupling_blocks import (
    coupling_of,
    distinct_mask,
    has_distinct_rules,
    is_job_wide,
)


class NodeLimits(msgspec.Struct, frozen=True, eq=False):
    """Nodes that a count may use. Shapes: (N,) each. Placing updates `on_rows` and `per_node` in place."""

    usable: Mask
    #: allocations of the group by row; None: none, and not counted.
    on_rows: Int64s | None
    penalised: Mask | None = None
    #: how many more each node takes; None: unlimited.
    per_node: Int64s | None = None


def limits_for(plan: PlanState, request: PlacementRequest, mask: Mask) -> NodeLimits:
    """Return the limits of a request whose allocations avoid no node."""
    per_node = None if request.per_node is None else request.per_node.copy()
    return NodeLimits(mask & plan.ready, plan.on_group(request), None, per_node)


def limits_by_avoidance(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    *,
    open_: NDArray[np.intp],
    placed: Sequence[PlacedPart],
) -> Iterator[tuple[NDArray[np.intp], NodeLimits]]:
    """Split the positions that are open into counts with equal limits: first those that avoid a node, then the others.

    Yields the positions of each count and its limits. All share `on_rows`; `placed` are counted.
    """
    usable = mask & plan.ready
    on_rows = plan.on_group_with(request, placed)
    # Allocations that avoid a node are placed as one count that avoids the nodes of all.
    avoid = None if request.avoid is None else request.avoid[open_]
    avoiding = np.zeros(len(open_), dtype=bool) if avoid is None else avoid >= 0
    if avoid is not None and avoiding.any():
        penalised = np.zeros(plan.size, dtype=bool)
        penalised[avoid[avoiding]] = True
        yield open_[avoiding], NodeLimits(usable, on_rows, penalised=penalised)
    if not avoiding.all():
        yield open_[~avoiding], NodeLimits(usable, on_rows)


def reserved_limit(
    plan: PlanState, group: GroupSpec, asks: Sequence[ResourceAsk] = ()
) -> Int64s | None:
    """How many more of a group each node takes beside the jobs it is reserved for. System jobs ignore reservations."""
    if not plan.state.reservations.by_job or plan.job.job_type in SYSTEM_JOB_TYPES:
        return None
    return gap_limit(plan.state, plan.held, plan.job, group, asks=asks)


def close_reserved_nodes(
    limits: NodeLimits, reserved: Int64s | None, count: int
) -> tuple[NodeLimits, Int64s | None]:
    """Close fully reserved nodes. Returns the limit of the others, None where each takes `count` or more."""
    if reserved is None:
        return limits, None
    usable = limits.usable & (reserved > 0)
    left = reserved if int(reserved[usable].min(initial=count)) < count else None
    return msgspec.structs.replace(limits, usable=usable), left


def bounds(
    plan: PlanState, group: GroupSpec, limits: NodeLimits, others: Sequence[Int64s | None]
) -> tuple[Int64s | None, Coupling | None]:
    """How many more each row takes by rules other than room, (N,), and the coupling between rows."""
    limit, coupling = limits.per_node, None
    if group.distinct_hosts or group.distinct_properties or group.spreads:
        on_rows = counted(plan, limits.on_rows)
        of_job = plan.on_job() if is_job_wide(group) else on_rows
        if group.distinct_hosts and limit is None:
            held = of_job if group.distinct_hosts == "job" else on_rows
            limit = np.equal(held, 0).astype(np.int64)
        coupling = coupling_of(plan.fleet.attributes, group, of_group=on_rows, of_job=of_job)
    for other in others:
        if other is not None:
            limit = other if limit is None else np.minimum(limit, other)
    return limit, coupling


def open_nodes(plan: PlanState, request: PlacementRequest, on_rows: Int64s) -> Mask | None:
    """Nodes that take one more of a group by its distinct rules. Shape: (N,); None: no rule closes any."""
    if request.per_node is not None or not has_distinct_rules(request.group):
        return None
    open_ = np.ones(plan.size, dtype=bool)
    for rule in _distinct_rules(plan, request, on_rows):
        open_ &= rule.mask
    return open_


def distinct_filters(
    plan: PlanState, request: PlacementRequest, placed: Sequence[PlacedPart]
) -> Iterator[NodeFilter]:
    """Name the distinct rules of a group, and the nodes that take one more by each."""
    if has_distinct_rules(request.group):
        yield from _distinct_rules(plan, request, plan.on_group_with(request, placed))


def _distinct_rules(
    plan: PlanState, request: PlacementRequest, on_rows: Int64s
) -> Iterator[NodeFilter]:
    group = request.group
    if group.distinct_hosts and request.per_node is None:
        held = plan.on_job() if group.distinct_hosts == "job" else on_rows
        yield NodeFilter("distinct_hosts", np.equal(held, 0))
    for rule in group.distinct_properties:
        held = plan.on_job() if rule.job_wide else on_rows
        mask = distinct_mask(plan.fleet.attributes, rule, held)
        yield NodeFilter(f"distinct_property {rule.attribute} {rule.limit}", mask)


def lacking(plan: PlanState, request: PlacementRequest, placed: Sequence[PlacedPart]) -> Int64s:
    """How many allocations of a system job found no room on each node that its rules leave open. Shape: (N,)."""
    assert request.per_node is not None
    left = request.per_node.copy()
    for part in placed:
        np.subtract.at(left, part.placement.rows, part.placement.counts)
    for rule in distinct_filters(plan, request, placed):
        left[~rule.mask] = 0
    return left
