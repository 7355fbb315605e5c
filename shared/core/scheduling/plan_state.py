"""Plan state: what one plan under way has placed, holds and evicts. The stages read it and commit to it.

Order matters: `used` may drop the dirty rows, so selection calls it before it reads `usage.dirty_rows`, and the seed of
a sample depends on the number of placements committed before.
"""

from collections.abc import Sequence

import numpy as np

from schemas.jobs import GroupSpec
from schemas.plans import GroupPlacement
from shared.core.columns import Int64s, Mask, Rows
from shared.core.resources.asks import extra_asks_of, holdings_of
from shared.core.resources.held import HeldResources
from shared.core.scheduling.model import LaneDraw, PlacedPart, Snapshot
from shared.core.scheduling.preemption.eviction import Evictor
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.scoring.scores import Algorithm
from shared.core.scheduling.selection.candidates import Placement, ask_columns
from shared.core.scheduling.selection.greedy_coupled import STEPS_MAX
from shared.core.scheduling.usage.tentative_usage import TentativeUsage
from shared.core.state.tables.jobs import Job


class PlanState:
    """One plan under way: its inputs, and what has been placed so far."""

    def __init__(
        self, snapshot: Snapshot, job: Job, stopping: Sequence[Rows], draw: LaneDraw
    ) -> None:
        state, fleet = snapshot.state, snapshot.state.fleet
        self.state = state
        self.fleet = fleet
        self.job = job
        self.policy = policy = state.policy.policy
        #: the placement policy of the node pool, else of the cluster.
        self._default_algorithm = policy.pool_algorithms.get(job.node_pool, "") or policy.algorithm
        self.caches = snapshot.caches
        self.size = fleet.size
        self.capacity = snapshot.caches.capacity(fleet)
        self.offers = fleet.offers
        self.ready = fleet.ready()
        self.draw = draw
        #: allocation rows evicted by earlier plans of the worker.
        self.evicted = snapshot.evicted
        self.usage = TentativeUsage(snapshot.held, snapshot.dirty_rows, fleet.size)
        self.placed: list[Placement] = []
        #: number of allocations that were assigned slots or ports.
        self.assigned = 0
        #: steps left.
        self.steps = STEPS_MAX
        #: made by the first request that may evict.
        self.evictor: Evictor | None = None
        self._stopping = stopping
        #: allocations of the job on each row: those that stay, and those of this plan; None: not needed yet.
        self._on_job: Int64s | None = None
        #: recorded placements of this plan, by group.
        self._recorded: dict[str, list[Placement]] = {}
        #: placements of requests for single indexes, by group: allocations of its other indexes count them.
        self.of_index: dict[str, list[Placement]] = {}

    @property
    def held(self) -> HeldResources:
        """The resources held, this plan included. May be written to."""
        return self.usage.held

    def used(self) -> Int64s:
        """The three columns held, reserved cores included. Shape: (N, 3). Do not write to it."""
        held = self.usage.seen()
        used = held.columns(self.size)
        if not held.has_cores:
            return used
        # The dirty rows do not cover changes of reserved cores.
        self.usage.dirty_rows = None
        return used + self.fleet.core_correction(held)

    def commit(self, group: GroupSpec, placement: Placement) -> None:
        """Add a placement to the plan: its steps, its columns, the counts of the job."""
        self.placed.append(placement)
        self.steps -= placement.steps
        if placement.placed:
            self.usage.put(group, placement)
            if self._on_job is not None:
                np.add.at(self._on_job, placement.rows, placement.counts)

    def count_on_job(self, node: int, count: int) -> None:
        """Count allocations of the job that a preemption places on a node."""
        if self._on_job is not None:
            self._on_job[node] += count

    def record(
        self, group: GroupSpec, recorded: GroupPlacement, *, is_same_request: bool = True
    ) -> None:
        """Add a recorded placement of this plan, as if the stages had placed it.

        Only allocations of the same request keep away from one another.
        """
        rows, counts = np.array(recorded.rows, np.int32), np.array(recorded.counts, np.int32)
        placement = Placement(rows, counts, int(counts.sum()))
        self.usage.put(group, placement)
        extras = extra_asks_of(group)
        if extras is not None:
            nodes = np.repeat(rows, counts).tolist()
            for node, holding in zip(nodes, holdings_of(extras, recorded), strict=True):
                self.held.add(node, None, holding)
        if is_same_request:
            self._recorded.setdefault(group.name, []).append(placement)
        self.placed.append(placement)

    def on_group(self, request: PlacementRequest) -> Int64s | None:
        """Count the group's allocations that stay or are recorded, by row. Shape: (N,); None: none."""
        recorded = self._recorded.get(request.group.name) if self._recorded else None
        if self.of_index:
            recorded = [*(recorded or ()), *self.of_index.get(request.group.name, ())]
        if not len(request.staying) and not recorded:
            return None
        nodes = self.state.allocations.node[request.staying]
        counts = np.bincount(nodes, minlength=self.size).astype(np.int64)
        for placement in recorded or ():
            np.add.at(counts, placement.rows, placement.counts)
        return counts

    def on_group_with(self, request: PlacementRequest, placed: Sequence[PlacedPart]) -> Int64s:
        """Count the group's allocations by row, the placed parts of the request included. Shape: (N,)."""
        counts = counted(self, self.on_group(request))
        for part in placed:
            np.add.at(counts, part.placement.rows, part.placement.counts)
        return counts

    def on_job(self) -> Int64s:
        """Count all allocations of the job that stay or are placed by this plan, by row. Shape: (N,)."""
        if self._on_job is None:
            table = self.state.allocations
            rows = table.rows_of(self.job.id)
            rows = rows[table.is_wanted(rows)]
            if self._stopping:
                rows = rows[~np.isin(rows, np.concatenate(self._stopping))]
            counts = np.bincount(table.node[rows], minlength=self.size).astype(np.int64)
            for placement in self.placed:
                np.add.at(counts, placement.rows, placement.counts)
            self._on_job = counts
        return self._on_job

    @property
    def victims(self) -> Sequence[int]:
        """Allocation rows that this plan evicts."""
        return self.evictor.victims if self.evictor is not None else ()

    @property
    def is_over_budget(self) -> bool:
        """Tell whether this plan used up its steps and has placed something."""
        exhausted = self.evictor is not None and self.evictor.is_over_budget
        return (exhausted or self.steps < 0) and any(one.placed for one in self.placed)

    def policy_of(self, group: GroupSpec) -> str:
        """Name the placement policy: the group's, else the node pool's, else the cluster's."""
        return group.algorithm or self._default_algorithm

    def algorithm(self, group: GroupSpec) -> Algorithm:
        """Name the fit score that ranks nodes."""
        policy = group.algorithm or self._default_algorithm
        return "spread" if policy == "spread" else "binpack"


def fits_in_place_of(plan: PlanState, group: GroupSpec, rows: Rows, usable: Mask) -> Mask:
    """Which rows let one of the group fit on their node, where that is usable, by their end. Shapes: (N,) and (R,)."""
    table = plan.state.allocations
    nodes = table.node[rows]
    free = plan.capacity[nodes] - plan.used()[nodes] + table.groups.ask[table.group[rows]]
    fits: Mask = usable[nodes] & (free >= ask_columns(group)).all(axis=1)
    return fits


def counted(plan: PlanState, on_rows: Int64s | None) -> Int64s:
    """Return `on_rows`, or zeros where it is None. Shape: (N,)."""
    return np.zeros(plan.size, np.int64) if on_rows is None else on_rows
