"""Placement probe: what one more allocation of a group would find, on a snapshot or in the middle of a recorded plan.

It builds the plan state of the stages and reads it by plan_view.py. Reconcile uses only the scores.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.evaluations import Waiting
from schemas.jobs import SYSTEM_JOB_TYPES, GroupSpec
from schemas.plans import GroupPlacement, Origin, Stops
from shared.core.columns import Rows
from shared.core.scheduling.explain.plan_view import (
    availability,
    explain_waiting,
    filter_report,
    score_rows,
    with_refusals,
)
from shared.core.scheduling.explain.shortages import NodeAvailability, RankedNode, Scores, ranking
from shared.core.scheduling.feasibility.filters import FilterReport, NodeFilter, filters_of
from shared.core.scheduling.model import LaneDraw, Snapshot
from shared.core.scheduling.plan_state import PlanState
from shared.core.scheduling.preemption.make_room import make_room, other_evictions
from shared.core.scheduling.preemption.search import ChosenNode, cost_of_rows
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.selection.spread_quotas import has_quotas
from shared.core.splitmix import splitmix64
from shared.core.state.tables.allocations import FAILED
from shared.core.state.tables.jobs import Job


class GroupTurn(msgspec.Struct, frozen=True, eq=False):
    """A plan of a job as it stood when the first request of a group had its turn, and the requests of the group."""

    plan: PlanState
    requests: tuple[PlacementRequest, ...]


class PlacementProbe:
    """One group of a job. `origin`: the recorded plan to explain; None: a new plan.

    `turn`: the plan that decides the job, which the probe takes over; None: one in which nothing was placed before.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        job: Job,
        group: GroupSpec,
        *,
        stops: Sequence[Stops] = (),
        origin: Origin | None = None,
        turn: GroupTurn | None = None,
    ) -> None:
        self._turn = () if turn is None else turn.requests
        if self._turn:
            # A deployment may place allocations of an older version, too.
            group, job = self._turn[0].group, self._turn[0].job or job
        self.group = group
        self._job = job
        self._origin = origin
        self._policy = snapshot.state.policy.policy
        self._state = snapshot.state
        self._fleet = snapshot.state.fleet
        self._mask = snapshot.caches.mask(self._fleet, job, group)
        self._table = snapshot.state.allocations
        self._avoided: tuple[int, ...] = ()
        if turn is not None:
            self._plan, self._request = turn.plan, turn.requests[0]
            if self._request.avoid is not None:
                self._avoided = tuple(self._request.avoid[self._request.avoid >= 0].tolist())
            return
        stopping = [np.asarray(stop.rows, dtype=np.int32) for stop in stops]
        draw = LaneDraw() if origin is None else LaneDraw(origin.seed, origin.lane, origin.lanes)
        self._plan = PlanState(snapshot, job, stopping, draw)
        self._request = request_one_more(snapshot, job, group, stopping)

    def take(self, recorded: GroupPlacement, *, is_same_request: bool = True) -> None:
        """Add a recorded placement of the same plan; of another request it holds resources alone."""
        group = next((one for one in self._job.groups if one.name == recorded.group), None)
        if group is not None:
            self._plan.record(group, recorded, is_same_request=is_same_request)

    def avoid(self, previous: Sequence[int]) -> None:
        """Avoid the nodes that these allocations (keys) failed on; lost ones do not count."""
        keys = np.asarray([key for key in previous if key], dtype=np.int64)
        rows = np.flatnonzero(np.isin(self._table.key[: self._table.size], keys))
        rows = rows[self._table.client[rows] == FAILED]
        self._avoided = tuple(self._table.node[rows].tolist())

    def standing(self) -> NodeAvailability:
        """Show the resources available now. Valid until the plan changes."""
        found = availability(self._plan, self._request, self._mask)
        if self._origin is None and self._job.job_type in SYSTEM_JOB_TYPES:
            found = msgspec.structs.replace(found, rules=(self._missing(), *found.rules))
        return with_refusals(self._plan, found, self._mask)

    def _missing(self) -> NodeFilter:
        """Close the nodes of a system job that already have their allocations."""
        missing = np.zeros(self._plan.size, dtype=bool)
        for request in self._turn:
            if request.per_node is not None:
                missing |= request.per_node > 0
        return NodeFilter("existing allocation of the job", missing)

    def scores(self, rows: Sequence[int], variant: int = 0) -> list[Scores]:
        """Name the scorers of one more allocation on each of these rows, and their values (2**-20)."""
        return self._scores(rows, variant)[0]

    def ranking(self, rows: Sequence[int], variant: int = 0) -> list[RankedNode]:
        """Rank these rows as placing does."""
        return ranking(rows, *self._scores(rows, variant))

    def _scores(self, rows: Sequence[int], variant: int) -> tuple[list[Scores], list[int]]:
        return score_rows(self._plan, self._request, rows, avoided=self._avoided, variant=variant)

    def report(self, *rules: NodeFilter) -> FilterReport:
        """Say which filters refuse which nodes, these rules last; what none refuses can only lack room."""
        return filter_report(self._plan, self._request, (*self.standing().refusals, *rules))

    def refusal(self, standing: NodeAvailability, row: int) -> str:
        """Name the first filter that refuses a node; empty: none does, or it is too small even empty."""
        for one in filters_of(self._fleet, self._job, self.group):
            if not one.mask[row]:
                return f"{one.name} excludes the node"
        closed = {one.name for one in standing.closed}
        rules = {one.name for one in standing.rules}
        for one in standing.refusals:
            if not one.mask[row]:
                if one.name in closed:
                    return f"the node is {one.name}"
                return f"{one.name} excludes the node" if one.name in rules else ""
        return ""

    def explain(self) -> Waiting:
        """Say why one more allocation finds no room."""
        return explain_waiting(self._plan, self._request, self._mask, 1)

    def evict(self) -> tuple[int, Sequence[int]] | None:
        """Return the row where one more makes room, and the victims; None: it may not evict, or no eviction helps.

        Call it last: it changes the plan.
        """
        if not getattr(self._policy.preemption, self._job.job_type):
            return None
        made = make_room(self._plan, _first_of(self._request), self._mask, ())
        return (int(made[0].placement.rows[0]), self._plan.victims) if made else None

    def other_evictions(
        self, node: int, victims: Sequence[int], *, gone: Sequence[int] = (), most: int
    ) -> tuple[ChosenNode, list[ChosenNode]]:
        """Return a choice of victims with its cost, and what could have been chosen instead, cheapest first."""
        rows = tuple(victims)
        chosen = ChosenNode(node, 1, rows, cost_of_rows(self._state, rows))
        others = other_evictions(
            self._plan, self._request, self._mask, chosen, gone=gone, most=most
        )
        return chosen, others

    def is_first(self, row: int) -> bool:
        """Tell whether a row is in the lane that the plan's worker fills first."""
        origin = self._origin
        return origin is None or origin.lanes <= 1 or splitmix64(row) % origin.lanes == origin.lane

    def passed_over_reason(self) -> str:
        """Say why a node with a better score was passed over."""
        if self._policy.spread_targets == "exact" and has_quotas(self.group):
            return "the targets of its spread take their shares of the count before scores decide"
        if self._policy.candidates != "all":
            return f"only nodes drawn by {self._policy.candidates} were considered"
        if self._origin is not None and self._origin.lanes > 1:
            return f"nodes of lane {self._origin.lane} of {self._origin.lanes} come first"
        return "the whole count was placed in one pass, and these nodes came later in it"


def _first_of(request: PlacementRequest) -> PlacementRequest:
    """The first allocation of a request that may evict: what replaces an evicted one does not."""
    at = 0 if request.evicted is None else int(np.argmin(request.evicted))
    columns = {
        name: None if (column := getattr(request, name)) is None else column[at : at + 1]
        for name in ("names", "previous", "reschedules", "avoid", "evicted")
    }
    return msgspec.structs.replace(
        request, count=1, tied=request.tied[:0], tied_reasons=(), **columns
    )


def request_one_more(
    snapshot: Snapshot, job: Job, group: GroupSpec, stopping: Sequence[Rows] = ()
) -> PlacementRequest:
    """Request one more allocation of a group than it has now, stopping ones not counted."""
    table = snapshot.state.allocations
    rows = table.rows_of(job.id)
    refs = [ref for ref, name in enumerate(table.groups.names) if name == group.name]
    rows = rows[np.isin(table.group[rows], refs) & table.is_wanted(rows)]
    if stopping:
        rows = rows[~np.isin(rows, np.concatenate(stopping))]
    return PlacementRequest(group, 1, np.zeros(1, dtype=np.int64), rows)


def score_nodes(
    snapshot: Snapshot, job: Job, group: GroupSpec, rows: Sequence[int]
) -> list[Scores]:
    """Name the scorers of one more allocation of a group on each of these rows, and their values (2**-20)."""
    return PlacementProbe(snapshot, job, group).scores(rows)
