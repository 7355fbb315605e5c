"""Make room: place the rest of a request where evicting allocations of lower priority frees enough."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import SYSTEM_JOB_TYPES, ResourceAsk
from shared.core.columns import Mask
from shared.core.resources.asks import extra_asks_of
from shared.core.scheduling.feasibility.node_limits import open_nodes, reserved_limit
from shared.core.scheduling.model import PlacedPart
from shared.core.scheduling.plan_state import PlanState, counted
from shared.core.scheduling.preemption.eviction import (
    EvictionAsk,
    EvictionContext,
    EvictionRules,
    Evictor,
    preemption_input,
    unreplaced_eviction_nodes,
)
from shared.core.scheduling.preemption.search import ChosenNode, PreemptionSearch
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.reservations.amounts import NO_LIMIT
from shared.core.scheduling.selection.alternatives import assign_resources
from shared.core.scheduling.selection.candidates import ask_columns
from shared.core.scheduling.selection.data_nodes import chosen_positions


def make_room(
    plan: PlanState, request: PlacementRequest, mask: Mask, placed: Sequence[PlacedPart]
) -> list[PlacedPart]:
    """Place what `placed` left of a request by evicting. Replacements of evicted allocations do not evict."""
    rest = _unfilled_positions(request, placed)
    if not len(rest):
        return []
    evictor = _evictor(plan)
    usable = mask & plan.ready
    if request.per_node is not None:
        usable &= ~unreplaced_eviction_nodes(plan.state, plan.job, request.group)
    counts = _RequestCounts(plan, request, placed)
    if counts.open is not None:
        usable &= counts.open
    parts: list[PlacedPart] = []
    for variant, asks in enumerate(request.group.alternatives or ((),)):
        ask = EvictionAsk(ask_columns(request.group), extra_asks_of(request.group), variant)
        rules = EvictionRules(
            usable, counts.limit_for(asks), counts.add, partial(assign_resources, plan)
        )
        made = evictor.place(ask, len(rest), rules)
        if made is not None:
            plan.placed.append(made.placement)
            positions = chosen_positions(plan.state, request, rest, made.placement)
            parts.append(PlacedPart(made.placement, positions, variant, made.holdings))
            rest = rest[~np.isin(rest, positions)]
    return parts


def other_evictions(
    plan: PlanState,
    request: PlacementRequest,
    mask: Mask,
    chosen: ChosenNode,
    *,
    gone: Sequence[int] = (),
    most: int,
) -> list[ChosenNode]:
    """What one more could evict instead of `chosen`, cheapest first: on other nodes, or other victims on its node.

    `gone`: rows that the plan evicted before. Changes nothing.
    """
    counts = _RequestCounts(plan, request, ())
    usable = mask & plan.ready if counts.open is None else mask & plan.ready & (counts.open > 0)
    held = plan.held.copy(plan.size)
    for row in gone:
        held.remove(*plan.state.allocations.held_by(row))
    context = EvictionContext(plan.state, plan.capacity, held)

    def cheapest(open_: Mask, spared: Sequence[int], variant: int) -> ChosenNode | None:
        asks = (request.group.alternatives or ((),))[variant]
        ask = EvictionAsk(ask_columns(request.group), extra_asks_of(request.group), variant)
        assign = partial(assign_resources, plan)
        rules = EvictionRules(open_, counts.limit_for(asks), counts.add, assign)
        not_these = np.concatenate((plan.evicted, np.array([*gone, *spared], np.int32)))
        search = PreemptionSearch(plan.state, plan.job, not_these)
        return next(search.place(preemption_input(context, ask, rules), 1), None)

    for variant in range(max(len(request.group.alternatives), 1)):
        found: list[ChosenNode] = []
        there = np.zeros(plan.size, dtype=bool)
        there[chosen.node] = usable[chosen.node]
        for row in chosen.victims[:most]:
            other = cheapest(there, (row,), variant)
            if other is not None and other.victims not in {one.victims for one in found}:
                found.append(other)
        elsewhere = usable.copy()
        elsewhere[chosen.node] = False
        # A system job takes every node: no other one was an alternative.
        for _ in range(0 if plan.job.job_type in SYSTEM_JOB_TYPES else most):
            other = cheapest(elsewhere, (), variant)
            if other is None:
                break
            found.append(other)
            elsewhere[other.node] = False
        if found:
            return sorted(found, key=lambda one: (one.cost, one.node))[:most]
    return []


def _evictor(plan: PlanState) -> Evictor:
    # Reading `held` also applies what was placed since the evictor was made.
    held = plan.held
    if plan.evictor is None:
        # The dirty rows do not cover evictions.
        plan.usage.dirty_rows = None
        context = EvictionContext(plan.state, plan.capacity, held)
        plan.evictor = Evictor(context, plan.job, plan.evicted)
    return plan.evictor


class _RequestCounts:
    """The group's allocations by row, and how many more each row takes, while evictions place more."""

    def __init__(
        self, plan: PlanState, request: PlacementRequest, placed: Sequence[PlacedPart]
    ) -> None:
        self._plan = plan
        self._request = request
        self._staying = counted(plan, plan.on_group(request))
        self._on_rows = self._staying.copy()
        for part in placed:
            np.add.at(self._on_rows, part.placement.rows, part.placement.counts)
        #: rows that the distinct rules leave open. Shape: (N,); None: all.
        self.open = open_nodes(plan, request, self._on_rows)

    def add(self, node: int, count: int) -> None:
        """Count allocations placed on a node."""
        self._on_rows[node] += count
        self._plan.count_on_job(node, count)
        self.open = open_nodes(self._plan, self._request, self._on_rows)

    def limit_for(self, asks: Sequence[ResourceAsk]) -> Callable[[int], int]:
        """Return the limit of a node, by one alternative."""
        request = self._request
        reserved = reserved_limit(self._plan, request.group, asks)

        def limit(node: int) -> int:
            if reserved is not None and reserved[node] < NO_LIMIT:
                # Evictions on a reserved node are for the job it is reserved for.
                return 0
            if request.per_node is not None:
                return int(request.per_node[node] - self._on_rows[node] + self._staying[node])
            return NO_LIMIT if self.open is None else int(self.open[node])

        return limit


def _unfilled_positions(
    request: PlacementRequest, placed: Sequence[PlacedPart]
) -> NDArray[np.intp]:
    """Positions of a request that are not placed and may evict. Shape: (R,)."""
    may = np.ones(request.count, dtype=bool)
    for part in placed:
        may[slice(part.placement.placed) if part.positions is None else part.positions] = False
    if request.evicted is not None:
        may &= ~request.evicted[: request.count]
    return np.flatnonzero(may)
