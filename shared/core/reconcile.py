"""Reconcile: what a job wants against what there is, as buckets of rows and a list of wants.

Decides, for service and batch jobs, which allocations stop, which go on under a new version, which are lost, and how
many must be placed under which names. Must not know nodes' room or scores: place.py finds the nodes.

Order, after Nomad's reconciler: everything of a stopped job or a removed group stops; what runs on a node that is
down is lost and replaced; failed ones are replaced when their reschedule time has come; another digest replaces,
the same digest of another version goes on in place; then the count decides, highest names leaving first.
Source: reference semantics of Nomad 2.5 (scheduler/reconciler).
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from schemas.plans import InPlace, Stops
from shared.core.columns import Rows
from shared.core.state import State
from shared.core.tables.allocations import COMPLETE, FAILED, RUN, STOP, TERMINAL, AllocationTable
from shared.core.tables.fleet import DOWN
from shared.core.tables.jobs import Job

Mask = NDArray[np.bool_]
_NONE: Rows = np.empty(0, dtype=np.int32)


class Want(msgspec.Struct, frozen=True, eq=False):
    """Allocations of one group to place. Shapes: names, previous, reschedules, avoid (count,).

    `previous` is the key that each replaces (0: none) and `avoid` the node row it just failed on (-1: none).
    Replacements come first.
    """

    group: GroupSpec
    count: int
    names: NDArray[np.int64]
    previous: NDArray[np.int64]
    reschedules: NDArray[np.int64]
    avoid: NDArray[np.int64]
    #: rows of the group that stay on their nodes: what anti-affinity counts.
    staying: Rows


class Reconciled(msgspec.Struct, frozen=True, eq=False):
    """What a plan for the job must do."""

    stops: tuple[Stops, ...]
    updates: tuple[InPlace, ...]
    wants: tuple[Want, ...]


class _Buckets:
    """Rows of one plan by what happens to them."""

    def __init__(self) -> None:
        self.stops: list[tuple[Rows, str, str]] = []
        self.updates: list[InPlace] = []
        self.wants: list[Want] = []

    def stop(self, rows: Rows, reason: str, client_status: str = "") -> None:
        """Put rows into a stop bucket."""
        if len(rows):
            self.stops.append((rows, reason, client_status))

    def result(self) -> Reconciled:
        """Freeze."""
        stops = tuple(
            Stops(rows=tuple(rows.tolist()), reason=reason, client_status=status)
            for rows, reason, status in self.stops
        )
        return Reconciled(stops, tuple(self.updates), tuple(self.wants))


def reconcile(
    state: State, job: Job | None, rows: Rows, mask_of: Callable[[GroupSpec], Mask]
) -> Reconciled:
    """Compare a job with its allocation rows. `mask_of` gives a group's feasible nodes, ready or not."""
    out = _Buckets()
    if not len(rows):
        if job is not None and not job.stopped:
            for group in job.groups:
                _want(out, group, group.count, _NONE, _NONE, state)
        return out.result()
    allocations = state.allocations
    rows, gone = _lose(state, rows, out, replace=job is not None and not job.stopped)
    if job is None or job.stopped:
        out.stop(_unstopped(allocations, rows[~gone]), "job stopped")
        return out.result()
    names = allocations.groups.names
    of_name = {group.name: index for index, group in enumerate(job.groups)}
    refs, inverse = np.unique(allocations.group[rows], return_inverse=True)
    group_of_row = np.array([of_name.get(names[ref], -1) for ref in refs.tolist()])[inverse]
    removed = (group_of_row < 0) & ~gone
    out.stop(_unstopped(allocations, rows[removed]), "group removed")
    for index, group in enumerate(job.groups):
        _reconcile_group(state, job, group, rows[group_of_row == index], mask_of, out)
    return out.result()


def _unstopped(allocations: AllocationTable, rows: Rows) -> Rows:
    return rows[(allocations.desired[rows] == RUN) & ~TERMINAL[allocations.client[rows]]]


def _lose(state: State, rows: Rows, out: _Buckets, *, replace: bool) -> tuple[Rows, Mask]:
    """Bucket what runs on nodes that are down as lost.

    Returns the rows that matter further on, and which of them are lost: these are replaced, unless they were to stop.
    """
    allocations, fleet = state.allocations, state.fleet
    nodes = allocations.node[rows]
    lost = (fleet.status[nodes] == DOWN) | ~fleet.live[nodes]
    lost &= ~TERMINAL[allocations.client[rows]]
    out.stop(rows[lost], "node is down", "lost")
    matters = ~lost | (allocations.desired[rows] == RUN) if replace else ~lost
    return rows[matters], lost[matters]


def _reconcile_group(
    state: State,
    job: Job,
    group: GroupSpec,
    rows: Rows,
    mask_of: Callable[[GroupSpec], Mask],
    out: _Buckets,
) -> None:
    allocations, fleet = state.allocations, state.fleet
    rows = rows[allocations.desired[rows] != STOP]
    client = allocations.client[rows]
    ended = TERMINAL[client]
    nodes = allocations.node[rows]
    lost = ~ended & ((fleet.status[nodes] == DOWN) | ~fleet.live[nodes])
    refs = allocations.group[rows]
    digests, versions = allocations.groups.digests, allocations.groups.versions
    distinct, inverse = np.unique(refs, return_inverse=True)
    same = np.array([digests[r] == group.digest for r in distinct.tolist()], dtype=bool)[inverse]
    current = np.array([versions[r] == job.version for r in distinct.tolist()], dtype=bool)[inverse]
    due = _due(state, rows, client)
    # A failed one of the present digest waits for its time or for ever; under another digest it makes room.
    failed_stays = (client == FAILED) & same & ~due
    done = (client == COMPLETE) & current if job.job_type == "batch" else np.zeros(len(rows), bool)
    alive = ~ended & ~lost
    if not current[alive].all():
        infeasible = alive & ~current & ~mask_of(group)[nodes]
        same &= ~infeasible
    keep = (alive & same) | failed_stays | done
    replaced = lost | (alive & ~same) | ((client == FAILED) & ~failed_stays)
    kept = _cap(allocations, rows, keep & ~done, group.count - int(done.sum()), out)
    _update(allocations, job, group, rows[kept & alive & ~current], out)
    out.stop(rows[alive & ~same], "job changed")
    out.stop(rows[(client == FAILED) & ~failed_stays], "replaced")
    missing = group.count - int(kept.sum()) - int(done.sum())
    if missing > 0:
        _want(out, group, missing, rows[kept | done], rows[replaced], state)


def _due(state: State, rows: Rows, client: NDArray[np.int8]) -> Mask:
    """Failed rows whose reschedule time has come, by log time."""
    due = np.zeros(len(rows), dtype=bool)
    at_ns = state.allocations.reschedule_at_ns
    for position in np.flatnonzero(client == FAILED).tolist():
        when = at_ns.get(int(rows[position]), 0)
        due[position] = 0 < when <= state.t_ns
    return due


def _cap(allocations: AllocationTable, rows: Rows, keep: Mask, count: int, out: _Buckets) -> Mask:
    """Keep at most `count`, lowest names first; the rest stops."""
    excess = int(keep.sum()) - max(count, 0)
    if excess <= 0:
        return keep
    positions = np.flatnonzero(keep)
    by_name = positions[np.lexsort((rows[positions], allocations.index[rows[positions]]))]
    leaving = by_name[len(by_name) - excess :]
    kept = keep.copy()
    kept[leaving] = False
    out.stop(rows[np.sort(leaving)], "not needed")
    return kept


def _update(
    allocations: AllocationTable, job: Job, group: GroupSpec, rows: Rows, out: _Buckets
) -> None:
    if len(rows):
        update = InPlace(rows=tuple(rows.tolist()), group=group.name, version=job.version)
        out.updates.append(update)


def _want(
    out: _Buckets, group: GroupSpec, missing: int, staying: Rows, replaced: Rows, state: State
) -> None:
    """Ask for `missing` allocations: replacements first, under their old names where those are below the count."""
    if missing <= 0:
        return
    allocations = state.allocations
    taken = np.zeros(group.count, dtype=bool)
    held = allocations.index[staying]
    taken[held[held < group.count]] = True
    replaced = replaced[np.lexsort((replaced, allocations.index[replaced]))][:missing]
    names = np.full(missing, -1, dtype=np.int64)
    for position, name in enumerate(allocations.index[replaced].tolist()):
        if name < group.count and not taken[name]:
            names[position] = name
            taken[name] = True
    unnamed = np.flatnonzero(names < 0)
    names[unnamed] = np.flatnonzero(~taken)[: len(unnamed)]
    failed = allocations.client[replaced] == FAILED
    pad = missing - len(replaced)
    previous = np.pad(allocations.key[replaced], (0, pad))
    counted = allocations.reschedules[replaced].astype(np.int64) + failed
    avoid = np.where(failed, allocations.node[replaced], -1)
    out.wants.append(
        Want(
            group=group,
            count=missing,
            names=names,
            previous=previous,
            reschedules=np.pad(counted, (0, pad)),
            avoid=np.pad(avoid, (0, pad), constant_values=-1).astype(np.int64),
            staying=staying[~TERMINAL[allocations.client[staying]]],
        )
    )
