"""Proposal columns: a plan's placements as columns, its follow-up evaluations and its decision record."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import DeploymentKey
from schemas.envelope import ENCODER
from schemas.evaluations import Blocked, Hold, NewEvaluation, Waiting
from schemas.jobs import GroupSpec
from schemas.plans import GroupPlacement
from shared.core.columns import Mask
from shared.core.resources.asks import columns_of
from shared.core.scheduling.model import Assignment, PlacedPart
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.scheduling.reconcile.system_jobs import assign_names
from shared.core.state.name_runs import pack_runs
from shared.core.state.state import State
from shared.core.state.tables.fleet import FleetTable
from shared.core.state.tables.jobs import Job

#: Cause of an evaluation that continues a plan that ran over its budget.
PLAN_CONTINUES = "plan-goes-on"
_REASONS_MAX = 8


class WaitingGroups:
    """Groups that found no room: the reasons, the nodes proposed to reserve, and the node classes tried."""

    def __init__(self, fleet: FleetTable) -> None:
        self.by_group: dict[str, Waiting] = {}
        self.holds: tuple[Hold, ...] = ()
        self._fleet = fleet
        #: node classes of the nodes tried, as codes.
        self._classes: set[int] = set()

    def add(self, group: GroupSpec, waiting: Waiting, hold: Hold | None, mask: Mask) -> None:
        """Add a group, and the classes of the nodes in `mask`."""
        known = self.by_group.get(group.name)
        if known is not None and group.stateful:
            # Others of it wait for their turn.
            waiting = _merged(waiting, known)
        elif known is not None and group.volumes:
            waiting = _merged(known, waiting)
        self.by_group[group.name] = waiting
        if hold is not None:
            self.holds += (hold,)
        tried = np.unique(self._fleet.class_of[: self._fleet.size][mask])
        self._classes.update(tried.tolist())

    def add_turn(self, group: GroupSpec, waiting: Waiting) -> None:
        """Add a group of which some wait for their turn, which no node can give them."""
        self.by_group[group.name] = waiting

    def blocked(self, state: State, job: Job) -> Blocked:
        """Say what changes of the cluster wake the evaluation that waits for room."""
        escaped = any(
            "unique." in constraint.left + constraint.right
            for group in job.groups
            if group.name in self.by_group
            for constraint in group.constraints
        )
        # So may a claim on a volume: its node may be away, and come back with any class.
        escaped |= any(
            one.sticky
            for group in job.groups
            if group.name in self.by_group
            for one in group.volumes
        )
        fleet = self._fleet
        # A class without nodes may be feasible once a node of it returns.
        wakes = np.ones(len(fleet.classes), dtype=bool)
        wakes[fleet.class_of[: fleet.size][fleet.live[: fleet.size]]] = False
        wakes[sorted(self._classes)] = True
        return Blocked(
            classes=tuple(np.flatnonzero(wakes).tolist()),
            # A constraint on a unique attribute may be met by any new node, whatever its class.
            seen_classes=0 if escaped else len(fleet.classes),
            snapshot_seq=state.seq,
            waiting=self.by_group,
            candidates=self.holds,
        )

    def decision_record(self) -> msgspec.Raw:
        """Encode what was not placed, and why. The rest of a decision is recomputed from its snapshot."""
        considered = int(self._fleet.live.sum())
        return msgspec.Raw(
            ENCODER.encode({"nodes_considered": considered, "waiting": self.by_group})
        )


def _merged(one: Waiting, other: Waiting) -> Waiting:
    """Add up what waits of two requests of a group; the class is that of the first."""
    reasons = tuple(dict.fromkeys((*one.reasons, *other.reasons)))
    return msgspec.structs.replace(
        one, count=one.count + other.count, reasons=reasons[:_REASONS_MAX]
    )


def group_placements(
    state: State, job: Job, request: PlacementRequest, parts: Sequence[PlacedPart]
) -> list[GroupPlacement]:
    """Convert the placed parts of a request to columns. System jobs get their names here, once the nodes are known."""
    if request.per_node is None:
        return [_group_placement(job, request, part) for part in parts]
    request = assign_names(state, request, [part.placement for part in parts])
    out, end = [], 0
    for part in parts:
        begin, end = end, end + part.placement.placed
        positions = np.arange(begin, end)
        part_ = msgspec.structs.replace(part, positions=positions)
        out.append(_group_placement(job, request, part_))
    return out


def _group_placement(job: Job, request: PlacementRequest, part: PlacedPart) -> GroupPlacement:
    placement, positions = part.placement, part.positions
    which = slice(0, placement.placed) if positions is None else positions
    ports, instances = columns_of(part.holdings) if part.holdings else ((), ())
    return GroupPlacement(
        group=request.group.name,
        version=(request.job or job).version,
        rows=tuple(placement.rows.tolist()),
        counts=tuple(placement.counts.tolist()),
        names=pack_runs(request.names[which]),
        previous=() if request.previous is None else _unless_zero(request.previous, which),
        reschedules=() if request.reschedules is None else _unless_zero(request.reschedules, which),
        variant=part.variant,
        ports=ports,
        instances=instances,
        deployment=DeploymentKey(request.deployment),
        canaries=request.canaries,
    )


def _unless_zero(column: NDArray[np.int64], which: slice | NDArray[np.intp]) -> tuple[int, ...]:
    some = column[which]
    return tuple(some.tolist()) if some.any() else ()


def follow_up(
    job: Job, assignment: Assignment, triggered_by: str, blocked: Blocked | None = None
) -> NewEvaluation:
    """Make the evaluation that continues this one, or that waits for room."""
    return NewEvaluation(
        job_id=job.id,
        priority=job.priority,
        job_type=job.job_type,
        triggered_by=triggered_by,
        blocked=blocked,
        previous=assignment.key,
    )
