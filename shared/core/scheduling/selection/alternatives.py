"""Alternatives of a group: place by the first as far as possible, the rest by the next, and assign slots and ports."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from shared.core.resources.asks import ExtraAsks, Holding, extra_asks_of
from shared.core.resources.assign import ResourceAssigner, steps_of
from shared.core.resources.headroom import HeadroomQuery, cluster_pools, headroom_of
from shared.core.scheduling.feasibility.node_limits import NodeLimits
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.plan_state import PlanState, counted
from shared.core.scheduling.selection.candidates import Placement
from shared.core.scheduling.selection.select import placer_for, select


def place_group(
    plan: PlanState,
    group: GroupSpec,
    count: int,
    limits: NodeLimits,
    *,
    positions: NDArray[np.intp] | None = None,
) -> list[PlacedPart]:
    """Place up to `count` of a group. `positions` (count,): which of the request they are; None: the first ones."""
    extras = extra_asks_of(group)
    if extras is not None:
        return _place_alternatives(plan, group, extras, count, limits=limits, positions=positions)
    placement = select(plan, group, count, limits, placer=placer_for(plan, group, None, 0))
    if not placement.placed:
        return []
    if positions is None:
        return [PlacedPart(placement)]
    assert limits.on_rows is not None
    np.add.at(limits.on_rows, placement.rows, placement.counts)
    return [PlacedPart(placement, positions[: placement.placed])]


def _place_alternatives(
    plan: PlanState,
    group: GroupSpec,
    extras: ExtraAsks,
    count: int,
    *,
    limits: NodeLimits,
    positions: NDArray[np.intp] | None,
) -> list[PlacedPart]:
    on_rows = counted(plan, limits.on_rows)
    limits = msgspec.structs.replace(limits, on_rows=on_rows)
    parts: list[PlacedPart] = []
    done = 0
    for variant in range(len(extras.alternatives)):
        free = plan.capacity[:, 0] - plan.used()[:, 0]
        query = HeadroomQuery(extras, variant, limits.usable, free, group.cpu_mhz, count - done)
        pools = cluster_pools(plan.offers, plan.held, query.asks)
        wanted = min([count - done, *(pool.room for pool in pools)])
        if wanted <= 0:
            continue
        affordable = max(plan.steps // steps_of(extras, variant), 1)
        room = headroom_of(plan.offers, plan.held, query)
        placer = placer_for(plan, group, extras, variant)
        most = min(wanted, affordable)
        placement = select(plan, group, most, limits, room=room, asks=query.asks, placer=placer)
        if placement.placed == affordable < wanted:
            placement = msgspec.structs.replace(placement, stopped=True)
        if placement.placed:
            np.add.at(on_rows, placement.rows, placement.counts)
            if limits.per_node is not None:
                np.subtract.at(limits.per_node, placement.rows, placement.counts)
            filled = np.arange(done, done + placement.placed)
            done += placement.placed
            if placer is None:
                holdings = assign_resources(plan, placement, extras, variant)
            else:
                holdings = tuple(placer.holdings)
                plan.assigned += len(holdings)
            filled = filled if positions is None else positions[filled]
            parts.append(PlacedPart(placement, filled, variant, holdings))
        if placement.stopped or done == count:
            break
    return parts


def assign_resources(
    plan: PlanState, placement: Placement, extras: ExtraAsks, variant: int
) -> tuple[Holding, ...]:
    """Assign slots and ports to each allocation of a placement, and hold them."""
    assigner = ResourceAssigner(plan.offers, plan.held, plan.draw.seed)
    holdings = []
    for row, count in zip(placement.rows.tolist(), placement.counts.tolist(), strict=True):
        for _ in range(count):
            holding = assigner.assign(row, extras, variant, nth=plan.assigned)
            assert holding is not None, f"row {row} has less room than was counted"
            plan.assigned += 1
            plan.held.add(row, None, holding)
            holdings.append(holding)
    plan.steps -= len(holdings) * steps_of(extras, variant)
    return tuple(holdings)
