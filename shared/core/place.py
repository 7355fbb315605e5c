"""Place: from one evaluation to a proposed plan. The scheduler, as a pure function.

    reconcile (what is wanted) → feasibility (which nodes may) → scores and the cut (which nodes do) → Proposal

It must not know workers, plan numbers or the bus: services/scheduler/role.py wraps what it returns. The same
snapshot, assignment, seed and lane always give the same proposal, which is what makes a decision replayable.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import EvalKey, JobId
from schemas.envelope import ENCODER
from schemas.evaluations import Blocked, NewEvaluation, Waiting
from schemas.jobs import GroupSpec
from schemas.plans import GroupPlacement, InPlace, Stops
from shared.core.columns import grown
from shared.core.cut import Placement, place_count
from shared.core.feasibility import constraint_mask, datacenter_mask, driver_mask, pool_mask
from shared.core.reconcile import Want, reconcile
from shared.core.state import State
from shared.core.tables.allocations import pack_runs
from shared.core.tables.fleet import FleetTable
from shared.core.tables.jobs import Job

Mask = NDArray[np.bool_]
RESOURCE_NAMES = ("cpu", "memory", "disk")
#: Masks remembered for one state of the fleet.
_MASKS_MAX = 4096


class MaskCache:
    """Feasible nodes by what a group asks for; forgotten whenever the fleet's attributes change."""

    def __init__(self) -> None:
        self._generation = -1
        self._masks: dict[tuple[object, ...], Mask] = {}

    def mask(self, fleet: FleetTable, job: Job, group: GroupSpec) -> Mask:
        """Nodes that the group may run on, whatever their room and status. Shape: (fleet.size,). Do not write to it."""
        if fleet.generation != self._generation or len(self._masks) > _MASKS_MAX:
            self._generation = fleet.generation
            self._masks = {}
        key = (job.datacenters, job.node_pool, group.constraints, group.drivers)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = _feasible(fleet, job, group)
        return mask


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """What a decision sees. `used` (N, 3): held resources, the worker's own unconfirmed plans included."""

    state: State
    used: NDArray[np.int64]
    masks: MaskCache


class Assignment(msgspec.Struct, frozen=True):
    """What is to be decided."""

    key: EvalKey
    job_id: JobId
    triggered_by: str = ""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A plan without worker and number."""

    placements: tuple[GroupPlacement, ...] = ()
    stops: tuple[Stops, ...] = ()
    updates: tuple[InPlace, ...] = ()
    all_at_once: bool = False
    end: str = "complete"
    end_reason: str = ""
    follow_ups: tuple[NewEvaluation, ...] = ()
    decision: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def place(
    snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
) -> Proposal:
    """Decide one evaluation. Pure: reads only its arguments, writes none of them.

    `seed` is reserved for policies that sample; the present ones look at every node.
    """
    del seed
    state = snapshot.state
    job = state.jobs.by_id.get(assignment.job_id)
    if job is not None and job.job_type not in {"service", "batch"} and not job.stopped:
        reason = f"jobs of type {job.job_type} are not scheduled by this release"
        return Proposal(end="failed", end_reason=reason)
    fleet = state.fleet
    rows = state.allocations.rows_of(assignment.job_id)

    def mask_of(group: GroupSpec) -> Mask:
        assert job is not None
        return snapshot.masks.mask(fleet, job, group)

    wanted = reconcile(state, job, rows, mask_of)
    if job is None or not wanted.wants:
        return Proposal(stops=wanted.stops, updates=wanted.updates)
    scratch = _Scratch(snapshot, lane, lanes)
    placements = []
    waiting: dict[str, Waiting] = {}
    classes = np.zeros(len(fleet.classes), dtype=bool)
    for want in wanted.wants:
        mask = mask_of(want.group)
        done = scratch.place(job, want, mask)
        placements.extend(done)
        rest = want.count - sum(sum(part.counts) for part in done)
        if rest:
            waiting[want.group.name] = scratch.explain(want.group, mask, rest)
            classes[np.unique(fleet.class_of[: fleet.size][mask])] = True
    return Proposal(
        placements=tuple(placements),
        stops=wanted.stops,
        updates=wanted.updates,
        all_at_once=job.all_at_once,
        follow_ups=_blocked(state, job, assignment, waiting=waiting, classes=classes),
        decision=_record(fleet, waiting),
    )


def _feasible(fleet: FleetTable, job: Job, group: GroupSpec) -> Mask:
    columns = fleet.attributes
    mask = fleet.live[: fleet.size] & datacenter_mask(columns, job.datacenters)
    mask &= pool_mask(columns, job.node_pool)
    for driver in group.drivers:
        mask &= driver_mask(columns, driver)
    for constraint in group.constraints:
        mask &= constraint_mask(columns, constraint.left, constraint.operator, constraint.right)
    return mask


class _Scratch:
    """What placing changes while a plan is made: a copy of the held resources."""

    def __init__(self, snapshot: Snapshot, lane: int, lanes: int) -> None:
        self._state = snapshot.state
        size = snapshot.state.fleet.size
        self._size = size
        self._capacity = snapshot.state.fleet.capacity[:size]
        self._used = grown(snapshot.used, size)[:size].copy()
        self._ready = snapshot.state.fleet.ready()
        self._lane = lane
        self._lanes = lanes

    def place(self, job: Job, want: Want, mask: Mask) -> list[GroupPlacement]:
        """Place a want as far as there is room: first what avoids a node, then the rest."""
        usable = mask & self._ready
        collisions = self._collisions(want)
        if want.avoid is None:
            placed = self._cut(want.group, want.count, usable=usable, collisions=collisions)
            return [_columns(job, want, placed, None)] if placed.placed else []
        out: list[GroupPlacement] = []
        # Those that avoid a node are placed as one count that avoids all their nodes, then the rest.
        for part in (np.flatnonzero(want.avoid >= 0), np.flatnonzero(want.avoid < 0)):
            if not len(part):
                continue
            avoided = want.avoid[part]
            penalised = np.zeros(self._size, dtype=bool)
            penalised[avoided[avoided >= 0]] = True
            placed = self._cut(
                want.group, len(part), usable=usable, collisions=collisions, penalised=penalised
            )
            if placed.placed:
                out.append(_columns(job, want, placed, part[: placed.placed]))
                np.add.at(collisions, placed.rows, placed.counts)
        return out

    def _cut(
        self,
        group: GroupSpec,
        count: int,
        *,
        usable: Mask,
        collisions: NDArray[np.int64],
        penalised: Mask | None = None,
    ) -> Placement:
        policy = self._state.policy.policy
        ask = _ask(group)
        placed = place_count(
            capacity=self._capacity,
            used=self._used,
            mask=usable,
            ask=ask,
            count=count,
            collisions=collisions,
            desired_count=group.count,
            algorithm="spread" if policy.algorithm == "spread" else "binpack",
            anti_affinity=policy.anti_affinity,
            penalised=penalised,
            lane=self._lane,
            lanes=self._lanes,
        )
        np.add.at(self._used, placed.rows, placed.counts.astype(np.int64)[:, None] * ask)
        return placed

    def _collisions(self, want: Want) -> NDArray[np.int64]:
        if not len(want.staying):
            return np.zeros(self._size, dtype=np.int64)
        nodes = self._state.allocations.node[want.staying]
        return np.bincount(nodes, minlength=self._size).astype(np.int64)

    def explain(self, group: GroupSpec, mask: Mask, count: int) -> Waiting:
        """Say why `count` of a group found no room."""
        ask = _ask(group)
        feasible = int(mask.sum())
        if not feasible:
            reason = f"none of {int(self._state.fleet.live.sum())} nodes satisfies its constraints"
            return Waiting(count=count, wait_class="misconfigured", reasons=(reason,))
        fits_empty = mask & (self._capacity >= ask).all(axis=1)
        if not fits_empty.any():
            reason = f"no feasible node is large enough for {_shown(ask)}, even empty"
            return Waiting(count=count, wait_class="never_fits", reasons=(reason,))
        ready = fits_empty & self._ready
        reasons = [] if ready.any() else [f"none of {feasible} feasible nodes is ready"]
        short = (self._capacity - self._used) < ask
        for dimension, name in enumerate(RESOURCE_NAMES):
            exhausted = int((ready & short[:, dimension]).sum())
            if exhausted:
                reasons.append(f"{name} exhausted on {exhausted} of {int(ready.sum())} nodes")
        return Waiting(count=count, wait_class="capacity", reasons=tuple(reasons))


def _ask(group: GroupSpec) -> NDArray[np.int64]:
    return np.array((group.cpu_mhz, group.memory_mib, group.disk_mib), dtype=np.int64)


def _columns(
    job: Job, want: Want, placed: Placement, part: NDArray[np.intp] | None
) -> GroupPlacement:
    """Write a placement as columns; `part` are the want's positions in order of placement, None: from the first on."""
    which = slice(0, placed.placed) if part is None else part
    names = want.names[which]
    return GroupPlacement(
        group=want.group.name,
        version=job.version,
        rows=tuple(placed.rows.tolist()),
        counts=tuple(placed.counts.tolist()),
        names=pack_runs(names),
        previous=_unless_zero(want.previous, which),
        reschedules=_unless_zero(want.reschedules, which),
    )


def _unless_zero(
    column: NDArray[np.int64] | None, which: slice | NDArray[np.intp]
) -> tuple[int, ...]:
    if column is None or not column[which].any():
        return ()
    return tuple(column[which].tolist())


def _blocked(
    state: State,
    job: Job,
    assignment: Assignment,
    *,
    waiting: dict[str, Waiting],
    classes: Mask,
) -> tuple[NewEvaluation, ...]:
    if not waiting:
        return ()
    escaped = any(
        "unique." in constraint.left + constraint.right
        for group in job.groups
        if group.name in waiting
        for constraint in group.constraints
    )
    blocked = Blocked(
        classes=tuple(np.flatnonzero(classes).tolist()),
        # What a class cannot tell (a node's own name) may be met by any node that comes.
        seen_classes=0 if escaped else len(state.fleet.classes),
        snapshot_seq=state.seq,
        waiting=waiting,
    )
    follow_up = NewEvaluation(
        job_id=job.id,
        priority=job.priority,
        job_type=job.job_type,
        triggered_by="queued-allocs",
        blocked=blocked,
        previous=assignment.key,
    )
    return (follow_up,)


def _record(fleet: FleetTable, waiting: dict[str, Waiting]) -> msgspec.Raw | msgspec.UnsetType:
    """The decision record: by default only what was refused; the rest is recomputed from the snapshot."""
    if not waiting:
        return msgspec.UNSET
    considered = int(fleet.live.sum())
    return msgspec.Raw(ENCODER.encode({"nodes_considered": considered, "waiting": waiting}))


def _shown(ask: Sequence[int] | NDArray[np.int64]) -> str:
    cpu, memory, disk = (int(value) for value in ask)
    return f"{cpu} MHz, {memory} MiB memory, {disk} MiB disk"
