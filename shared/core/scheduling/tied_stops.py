"""Tied stops: old allocations that stop once their replacements are placed, in the same plan.

Where a replacement found no room, the old one keeps running. The exception: a changed allocation whose own room would
do for its replacement stops first, since that may be the only room there is; a deployment's limit counts what is
missing.
"""

from collections.abc import Sequence

import numpy as np

from schemas.plans import Stops
from shared.core.columns import Mask
from shared.core.scheduling.feasibility.node_limits import open_nodes
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.plan_state import PlanState, fits_in_place_of
from shared.core.scheduling.reconcile.drained_allocs import DRAINED
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.selection.coupling_blocks import has_distinct_rules


def tied_stops(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    parts: Sequence[PlacedPart],
    *,
    may_make_room: bool,
) -> tuple[Stops, ...]:
    """The stops of a request's tied rows: those replaced, and with `may_make_room` those in their own way."""
    placed = _is_placed(request, parts)[request.count - len(request.tied) :]
    reasons = request.tied_reasons
    if has_distinct_rules(request.group):
        open_ = open_nodes(plan, request, plan.on_group_with(request, parts))
        mask = mask if open_ is None else mask & open_
    in_the_way = np.zeros(len(placed), dtype=bool)
    if may_make_room and not placed.all():
        in_the_way = fits_in_place_of(plan, request.group, request.tied, mask & plan.ready)
    stops: dict[str, list[int]] = {}
    makes_room: dict[str, list[int]] = {}
    for row, reason, has_new, blocks in zip(
        request.tied.tolist(), reasons, placed.tolist(), in_the_way.tolist(), strict=True
    ):
        if has_new:
            stops.setdefault(reason, []).append(row)
        elif blocks and reason != DRAINED:
            makes_room.setdefault(reason, []).append(row)
    return (
        *(Stops(rows=tuple(rows), reason=reason, tied=True) for reason, rows in stops.items()),
        *(
            Stops(rows=tuple(rows), reason=reason, to_replace=True)
            for reason, rows in makes_room.items()
        ),
    )


def _is_placed(request: PlacementRequest, parts: Sequence[PlacedPart]) -> Mask:
    """Which allocations of a request were placed. Shape: (count,)."""
    placed = np.zeros(request.count, dtype=bool)
    for part in parts:
        if part.positions is None:
            placed[: part.placement.placed] = True
        else:
            placed[part.positions] = True
    return placed
