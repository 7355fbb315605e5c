"""Reconcile of jobs that run on every node: system and sysbatch.

Every feasible node that is ready and eligible gets `count` allocations of each group (1 for a system job).

Differences from service jobs: a name belongs to its node, so the same name exists once on each node; a lost allocation
is not replaced elsewhere; a node that left the datacenters or the pool, or became infeasible (except for a driver that
is unavailable), loses its allocation; an ineligible node keeps its allocation until the job changes. An ended system
allocation is placed again by the next evaluation, but does not cause one; an ended sysbatch allocation stays done,
however it ended, until another version.
Source: Nomad scheduler/reconciler, reconcile_node.go.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from schemas.plans import GroupSize
from shared.core.columns import Mask, Rows
from shared.core.scheduling.reconcile.drained_allocs import is_stop_requested
from shared.core.scheduling.reconcile.duplicate_allocs import ScoreOf
from shared.core.scheduling.reconcile.paced_jobs import JOB_CHANGED, NOT_PROMOTED, Pace, pace_of
from shared.core.scheduling.reconcile.service_jobs import (
    GroupRows,
    PlacementRequest,
    Reconciler,
    ReconcileResult,
    reconcile_groups,
)
from shared.core.scheduling.reconcile.started_again import is_before_stop
from shared.core.scheduling.reconcile.update_limits import (
    Progress,
    changeable_count,
    missing_canaries,
    percent_canaries,
    replaceable_count,
)
from shared.core.scheduling.selection.candidates import Placement
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    COMPLETE,
    EVICT,
    FAILED,
    LOST,
    PENDING,
    RUN,
    TERMINAL,
    UNHEALTHY,
)
from shared.core.state.tables.deployments import Deployment, GroupProgress
from shared.core.state.tables.jobs import Job

#: Allocations of one group that one plan places; another plan continues with the rest.
PLACED_MAX = 50_000
_NONE: Rows = np.empty(0, dtype=np.int32)


def reconcile_system(
    state: State,
    job: Job,
    rows: Rows,
    mask_of: Callable[[GroupSpec], Mask],
    *,
    deployment: Deployment | None = None,
) -> ReconcileResult:
    """Compare a system or sysbatch job with its allocation rows. `mask_of` returns a group's feasible nodes."""
    out = SystemReconciler(state, job, mask_of, lambda _, nodes: [0] * len(nodes))
    out.deployment_of_job = deployment
    if len(rows):
        reconcile_groups(out, rows, out.compare)
    elif out.is_live:
        for group in job.groups:
            out.compare(job, group, _NONE, np.zeros(0, dtype=bool))
    return replace(out.result(), sizes=tuple(out.sizes))


class SystemReconciler(Reconciler):
    """A comparison node by node."""

    deployment_of_job: Deployment | None = None

    def __init__(
        self, state: State, job: Job | None, mask_of: Callable[[GroupSpec], Mask], score_of: ScoreOf
    ) -> None:
        super().__init__(state, job, mask_of, score_of)
        self.sizes: list[GroupSize] = []

    def compare(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask) -> None:
        """Compare the rows of one group, and request what its nodes miss. Shapes: rows, lost (R,)."""
        state = self.state
        table, fleet = state.allocations, state.fleet
        pace = None if self.deployment_of_job is None else pace_of(self.deployment_of_job, group)
        self.deployment = pace.key if pace is not None and pace.is_active else 0
        usable = self.mask_of(group) & fleet.ready()
        at = self._sort(job, group, rows, lost)
        if pace is not None:
            at = self._without_strays(at, pace)
        alive, nodes = at.alive & ~at.moved, table.node[at.rows]
        fits = self._fits(group, nodes, alive)
        if group.distinct_properties and not at.current[alive].all():
            # Each node has its own: distinct hosts say nothing.
            rules = replace(group, distinct_hosts="")
            fits &= ~self._beyond_rules(
                job, rules, at.rows, stays=alive & at.same & fits, current=at.current
            )
        keep = (alive & at.same & fits) | at.done
        kept = _one_of_each(table.index[at.rows], nodes, keep, group.count)
        self.update(job, group, at.rows[kept & at.alive & ~at.current])
        self.stop(at.rows[alive & ~fits], "node is not feasible any more")
        changed, open_ = alive & fits & ~at.same, usable[nodes]
        self.stop(at.rows[changed & ~open_], "job changed, and its node takes nothing new")
        self.stop(at.rows[alive & fits & at.same & ~kept], "not needed")
        over = ~at.alive & ~at.lost & ~at.done & open_
        self.stop(at.rows[over], "replaced")
        side = NodeRows(
            rows=at.rows,
            kept=kept,
            standing=kept & at.alive,
            old=changed & open_,
            over=over,
            again=(over & (table.client[at.rows] != COMPLETE)) | at.moved,
            unreplaced=at.unreplaced,
            touched=nodes_with(rows, table.node, len(usable)),
        )
        if group.update is None:
            self._replace_on(group, usable, side, side.old)
        elif pace is None:
            limit = self._batch_limit(group, side) if job.job_type == "sysbatch" else len(rows)
            self._replace_on(group, usable, side, _first(side.old, limit))
        else:
            self._roll_on(job, group, usable, side, pace=pace)

    def _sort(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask) -> GroupRows:
        """Say what is the matter with each row; what an operator stopped goes into its bucket."""
        table = self.state.allocations
        desired, client = table.desired[rows], table.client[rows]
        evicted = (desired == EVICT) & ~TERMINAL[client] & ~lost
        unreplaced = rows[evicted | table.predecessors.holds(table.key[rows])]
        final = table.is_final(rows)
        wanted = (desired == RUN) | final
        rows, lost, final = rows[wanted], (lost & ~final)[wanted], final[wanted]
        client = table.client[rows]
        same, current = self.versions(job, group, rows)
        ended = TERMINAL[client] | final
        alive = ~ended & ~lost
        moved = self.displace(rows, alive, job)
        if job.job_type == "sysbatch":
            completed = (client == COMPLETE) & same & is_before_stop(self.state, job, rows) & ~final
            self.update(job, group, rows[completed])
            current |= completed
            done = ended & current & ((client != LOST) | final)
            # The drain ends them.
            done |= moved & current & ~is_stop_requested(self.state, rows)
        else:
            done = np.zeros(len(rows), dtype=bool)
        failed = np.equal(client, FAILED) & ~final
        return GroupRows(rows, lost, alive, failed, same, current, moved, done, unreplaced)

    def _fits(self, group: GroupSpec, nodes: Rows, alive: Mask) -> Mask:
        """Which allocations may continue where they are. A driver may be unavailable for a while."""
        fits: Mask = self.mask_of(group)[nodes]
        if group.drivers and (alive & ~fits).any():
            fits = self.mask_of(replace(group, drivers=()))[nodes]
        return fits

    def _without_strays(self, at: GroupRows, pace: Pace) -> GroupRows:
        """Stop canaries that will never be promoted."""
        table = self.state.allocations
        canary = table.canary[at.rows]
        if not canary.any():
            return at
        stray = canary & ~((table.deployment[at.rows] == pace.key) & pace.is_active)
        self.stop(at.rows[stray & at.alive & ~at.moved], NOT_PROMOTED)
        rest = ~stray
        return GroupRows(
            at.rows[rest],
            lost=at.lost[rest],
            alive=at.alive[rest],
            failed=at.failed[rest],
            same=at.same[rest],
            current=at.current[rest],
            moved=at.moved[rest],
            done=at.done[rest],
            unreplaced=at.unreplaced,
        )

    # ---- pace ----

    def _batch_limit(self, group: GroupSpec, side: "NodeRows") -> int:
        """How many more nodes a sysbatch job begins again on: it has no health, so that running is enough."""
        assert group.update is not None
        if not group.update.max_parallel:
            return len(side.rows)
        started = side.rows[side.standing]
        waiting = np.count_nonzero(self.state.allocations.client[started] == PENDING)
        return changeable_count(group.update.max_parallel, Progress(unready=int(waiting)))

    def _roll_on(
        self, job: Job, group: GroupSpec, usable: Mask, side: "NodeRows", *, pace: Pace
    ) -> None:
        """Replace old allocations at the pace of the deployment, canaries first."""
        assert group.update is not None
        assert self.deployment_of_job is not None
        progress = self.deployment_of_job.group(group.name)
        assert progress is not None
        table = self.state.allocations
        canary = table.canary[side.rows] & (side.standing | side.over)
        nodes = int(side.old.sum()) + int(canary.sum())
        percent = 0 if progress.promoted else group.update.canary
        wanted = percent_canaries(percent, nodes, pace.max_parallel)
        canaries = progress.desired_canaries if progress.promoted else wanted
        total = int(usable.sum()) * group.count
        self._size(progress, pace, total=total, canaries=canaries)
        if wanted:
            self._hold_on(job, group, usable, side, canary=canary, wanted=wanted, pace=pace)
            return
        limit = changeable_count(
            pace.max_parallel, self._progress_of(side, pace), is_running=pace.is_running
        )
        vacated = self._missing(group, usable & side.touched, side.kept | side.old, side.rows)
        some = replaceable_count(limit, old=int(side.old.sum()), missing=int(vacated.sum()))
        self._replace_on(group, usable, side, _first(side.old, some))

    def _progress_of(self, side: "NodeRows", pace: Pace) -> Progress:
        table = self.state.allocations
        mine = side.rows[side.standing & (table.deployment[side.rows] == pace.key)]
        return Progress(
            unready=int(np.count_nonzero(table.health[mine] == 0)),
            unhealthy=int(np.count_nonzero(table.health[mine] == UNHEALTHY)),
        )

    def _size(self, progress: GroupProgress, pace: Pace, *, total: int, canaries: int) -> None:
        """Say where the deployment has other numbers."""
        if pace.is_active and (progress.desired_total, progress.desired_canaries) != (
            total,
            canaries,
        ):
            size = GroupSize(group=progress.name, desired_total=total, desired_canaries=canaries)
            self.sizes.append(size)

    def _hold_on(
        self,
        job: Job,
        group: GroupSpec,
        usable: Mask,
        side: "NodeRows",
        *,
        canary: Mask,
        wanted: int,
        pace: Pace,
    ) -> None:
        """Bring up canaries; fill empty nodes; leave the others alone."""
        if not pace.is_active:
            self._restore(job, group, usable, side)
            return
        node = self.state.allocations.node
        failed = canary & side.over
        more = missing_canaries(
            wanted, standing=int((canary & side.standing).sum() + failed.sum()), most=wanted
        )
        chosen = _first(side.old, more if pace.is_running else 0)
        on_canary = nodes_with(side.rows[chosen | failed], node, len(usable))
        self._replace_on(group, usable & ~on_canary, side, np.zeros(len(chosen), dtype=bool))
        first = len(self.requests)
        self._replace_on(group, usable & on_canary, side, chosen)
        self.requests[first:] = [replace(one, canaries=True) for one in self.requests[first:]]

    def _restore(self, job: Job, group: GroupSpec, usable: Mask, side: "NodeRows") -> None:
        """Fill nodes in the version that the others run: the new one failed before its promotion."""
        groups, of_row = self.state.allocations.groups, self.state.allocations.group
        versions = [groups.versions[ref] for ref in np.unique(of_row[side.rows[side.old]]).tolist()]
        older = self.state.jobs.job_at(job.id, max(versions)) if versions else None
        for spec in older.groups if older is not None else ():
            if spec.name == group.name:
                first = len(self.requests)
                self._replace_on(spec, usable, side, np.zeros(len(side.rows), dtype=bool))
                self.requests[first:] = [replace(one, job=older) for one in self.requests[first:]]

    def _replace_on(self, group: GroupSpec, usable: Mask, side: "NodeRows", chosen: Mask) -> None:
        """Stop the chosen old allocations, and request what usable nodes miss then; the others stay."""
        self.stop(side.rows[chosen], JOB_CHANGED)
        taken = side.kept | (side.old & ~chosen)
        missing = self._missing(group, usable, taken, side.rows)
        total = int(missing.sum())
        if not total:
            return
        self.requests.append(
            PlacementRequest(
                group,
                min(total, PLACED_MAX),
                np.empty(0, dtype=np.int64),
                side.rows[side.standing | (side.old & ~chosen)],
                per_node=missing,
                taken=side.rows[taken],
                replaced=np.concatenate((side.rows[side.again | chosen], side.unreplaced)),
                deployment=self.deployment,
            )
        )

    def _missing(
        self, group: GroupSpec, usable: Mask, taken: Mask, rows: Rows
    ) -> NDArray[np.int64]:
        """How many allocations each usable node misses. Shape: (N,)."""
        held = np.bincount(self.state.allocations.node[rows[taken]], minlength=len(usable))
        missing: NDArray[np.int64] = np.where(usable, np.maximum(group.count - held, 0), 0)
        return missing.astype(np.int64)


class NodeRows(msgspec.Struct, frozen=True, eq=False):
    """The rows of one group of a job that runs on every node. Shapes: all but the last two (R,)."""

    rows: Rows
    #: their names are taken on their nodes.
    kept: Mask
    #: those of `kept` that run, or will.
    standing: Mask
    #: they run another text, on nodes that take the new one.
    old: Mask
    #: ended, and replaced.
    over: Mask
    #: allocations that new ones succeed.
    again: Mask
    #: as in `GroupRows`.
    unreplaced: Rows
    #: (N,) nodes that have or had allocations of the group.
    touched: Mask


def nodes_with(rows: Rows, node: NDArray[np.int32], size: int) -> Mask:
    """Mask of the nodes of these rows. Shape: (size,)."""
    mask = np.zeros(size, dtype=bool)
    mask[node[rows]] = True
    return mask


def _first(some: Mask, most: int) -> Mask:
    """The first of these rows."""
    first = np.zeros(len(some), dtype=bool)
    first[np.flatnonzero(some)[:most]] = True
    return first


def _one_of_each(index: NDArray[np.int32], nodes: Rows, keep: Mask, count: int) -> Mask:
    """Keep the first row of each name on a node, and no name beyond the count. Shapes: all (R,)."""
    names = nodes.astype(np.int64) * max(count, 1) + index
    positions = np.flatnonzero(keep & (index < count))
    _, firsts = np.unique(names[positions], return_index=True)
    kept = np.zeros(len(keep), dtype=bool)
    kept[positions[firsts]] = True
    return kept


def assign_names(
    state: State, request: PlacementRequest, placements: Sequence[Placement]
) -> PlacementRequest:
    """Assign names to placements, in order: on each node the lowest free names, and what they replace there."""
    assert request.per_node is not None
    nodes = [np.repeat(one.rows, one.counts) for one in placements]
    where = np.concatenate([*nodes, _NONE]).astype(np.int64)
    names = _free_names(state, request, where)
    previous = _previous(state, request, where, names)
    return replace(request, names=names, previous=previous)


def _free_names(
    state: State, request: PlacementRequest, where: NDArray[np.int64]
) -> NDArray[np.int64]:
    if request.group.count == 1:
        return np.zeros(len(where), dtype=np.int64)
    order = np.argsort(where, kind="stable")
    starts = np.flatnonzero(np.diff(where[order], prepend=-1))
    counts = np.diff(starts, append=len(where))
    nth = np.arange(len(where)) - np.repeat(starts, counts)
    table = state.allocations
    held: dict[int, list[int]] = {}
    for row in request.taken.tolist():
        held.setdefault(int(table.node[row]), []).append(int(table.index[row]))
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        taken = held.get(int(where[order[start]]))
        if taken is not None:
            free = np.setdiff1d(np.arange(count + len(taken)), taken)
            nth[start : start + count] = free[:count]
    names = np.empty(len(where), dtype=np.int64)
    names[order] = nth
    return names


def _previous(
    state: State, request: PlacementRequest, where: NDArray[np.int64], names: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Key of the newest replaced allocation of the same name on the same node, 0: none. Shape: (count,)."""
    if not len(request.replaced):
        return None
    table = state.allocations
    of_name = {
        (int(table.node[row]), int(table.index[row])): int(table.key[row])
        for row in sorted(request.replaced.tolist(), key=lambda row: int(table.key[row]))
    }
    keys = [of_name.get(pair, 0) for pair in zip(where.tolist(), names.tolist(), strict=True)]
    return np.asarray(keys, dtype=np.int64)
