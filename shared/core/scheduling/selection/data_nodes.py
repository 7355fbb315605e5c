"""Data nodes: a replacement with a sticky disk goes to the node that has the data of its predecessor.

Only a hard reason moves it: the node may not run it, takes nothing new, or has no room. Where the only thing in its way
is the predecessor itself, it waits for its end. Source: Nomad 2.0.5, findPreferredNode in scheduler/generic_sched.go;
there a stop of the same plan gives its room at once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s, Mask
from shared.core.scheduling.feasibility.node_limits import NodeLimits, open_nodes
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.plan_state import PlanState, counted, fits_in_place_of
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.reservations.own_rooms import origin_rows
from shared.core.scheduling.selection.alternatives import place_group
from shared.core.scheduling.selection.candidates import Placement
from shared.core.state.state import State
from shared.core.state.tables.allocations import EVICT, TERMINAL

Positions = NDArray[np.intp]


def has_data_nodes(request: PlacementRequest) -> bool:
    """Tell whether any of a request has a predecessor whose data it wants."""
    return request.group.sticky and request.per_node is None and bool(len(request.origins))


def place_on_data_nodes(
    plan: PlanState, request: PlacementRequest, mask: Mask
) -> tuple[list[PlacedPart], Positions]:
    """Place on the nodes of the data as far as there is room.

    Returns what was placed, and the positions to place elsewhere: those that wait for their predecessors' end are not
    among them. Shape: (R,).
    """
    rows = origin_rows(plan.state, request)
    has_origin = rows >= 0
    nodes = np.where(has_origin, plan.state.allocations.node[np.where(has_origin, rows, 0)], -1)
    on_rows = counted(plan, plan.on_group(request))
    per_node = np.bincount(nodes[has_origin], minlength=plan.size).astype(np.int64)
    if request.group.distinct_hosts:
        per_node = np.minimum(per_node, 1)
    usable = _usable(plan, request, mask, on_rows) & (per_node > 0)
    waits = _waits_for_own(plan, request, rows, usable)
    limits = NodeLimits(usable, on_rows, None, per_node)
    total = int(per_node[usable].sum())
    parts = place_group(
        plan, request.group, total, limits, positions=np.arange(total, dtype=np.intp)
    )
    queues: dict[int, list[int]] = {}
    for position in np.flatnonzero(has_origin).tolist():
        queues.setdefault(int(nodes[position]), []).append(position)
    named: list[PlacedPart] = []
    taken = np.zeros(request.count, dtype=bool)
    for part in parts:
        of_part = np.repeat(part.placement.rows, part.placement.counts).tolist()
        positions = np.array([queues[node].pop(0) for node in of_part], dtype=np.intp)
        taken[positions] = True
        named.append(PlacedPart(part.placement, positions, part.variant, part.holdings))
    return named, np.flatnonzero(~taken & ~waits)


def chosen_positions(
    state: State, request: PlacementRequest, open_: Positions, placement: Placement
) -> Positions:
    """Say which of the open positions are placed: on the node of its data each that has one there, else the first.

    Shapes: open_ (R,); result (P,), in the order of the placement's rows.
    """
    if not has_data_nodes(request):
        return open_[: placement.placed]
    rows = origin_rows(state, request)[open_]
    queues: dict[int, list[int]] = {}
    for position, row in zip(open_.tolist(), rows.tolist(), strict=True):
        if row >= 0:
            queues.setdefault(int(state.allocations.node[row]), []).append(position)
    nodes = np.repeat(placement.rows, placement.counts).tolist()
    found = [queues[node].pop(0) if queues.get(node) else -1 for node in nodes]
    taken = frozenset(found)
    left = iter([position for position in open_.tolist() if position not in taken])
    return np.array([next(left) if one < 0 else one for one in found], dtype=np.intp)


def waits_for_data(
    plan: PlanState, request: PlacementRequest, mask: Mask, placed: Sequence[PlacedPart]
) -> int:
    """How many of a request wait for nothing but the end of what they replace, on the node of their data."""
    if not has_data_nodes(request):
        return 0
    usable = _usable(plan, request, mask, plan.on_group_with(request, placed))
    waits = _waits_for_own(plan, request, origin_rows(plan.state, request), usable)
    for part in placed:
        waits[slice(part.placement.placed) if part.positions is None else part.positions] = False
    return int(waits.sum())


def _usable(plan: PlanState, request: PlacementRequest, mask: Mask, on_rows: Int64s) -> Mask:
    open_ = open_nodes(plan, request, on_rows)
    usable: Mask = mask & plan.ready
    return usable if open_ is None else usable & open_


def _waits_for_own(
    plan: PlanState, request: PlacementRequest, rows: NDArray[np.int64], usable: Mask
) -> NDArray[np.bool_]:
    """Which positions have their room once the allocation that they replace has ended. Shape: (count,)."""
    table = plan.state.allocations
    waits = np.zeros(request.count, dtype=bool)
    positions = np.flatnonzero(rows >= 0)
    origins = rows[positions].astype(np.int32)
    runs = ~TERMINAL[table.client[origins]] & (table.desired[origins] != EVICT)
    waits[positions] = runs & fits_in_place_of(plan, request.group, origins, usable)
    return waits
