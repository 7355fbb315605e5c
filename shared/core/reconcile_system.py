"""Reconcile of jobs that run on every node: system and sysbatch.

Decides which of their allocations stop, go on or are lost, and on which nodes one is missing. Every feasible node that
is ready and eligible has `count` of each group (1 of a system job). Must not know room: where a node has none, place.py
tells it.

What differs from services: a name belongs to its node, so the same name is there once a node; what is lost is not
replaced elsewhere; a node that left the datacenters or the pool, or became infeasible (but for a driver that is away),
loses its allocation; one that takes nothing new keeps the one it has until the job changes. What ended of a system job
is placed again with the next evaluation, though none is made for it; what ended of a sysbatch job stays done, however
it ended, until another version.
Source: Nomad scheduler/reconciler, reconcile_node.go.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from shared.core.columns import Rows
from shared.core.heads import Placement
from shared.core.reconcile import Mask, Pass, Reconciled, Want, walk
from shared.core.state import State
from shared.core.tables.allocations import COMPLETE, EVICT, LOST, RUN, TERMINAL
from shared.core.tables.jobs import Job

TYPES = frozenset({"system", "sysbatch"})
#: Allocations that one plan places of a group; what is missing beyond goes on in the next plan.
PLACED_MAX = 50_000
_NONE: Rows = np.empty(0, dtype=np.int32)


def reconcile_system(
    state: State, job: Job, rows: Rows, mask_of: Callable[[GroupSpec], Mask]
) -> Reconciled:
    """Compare a system or sysbatch job with its allocation rows. `mask_of` gives a group's feasible nodes."""
    out = Pass(state, job, mask_of, lambda _, nodes: [0] * len(nodes))
    if len(rows):
        walk(out, rows, partial(_compare, out=out))
    elif out.is_live:
        for group in job.groups:
            _compare(job, group, _NONE, np.zeros(0, dtype=bool), out=out)
    return out.result()


def _compare(job: Job, group: GroupSpec, rows: Rows, lost: Mask, *, out: Pass) -> None:
    """Bucket the rows of one group, and want what its nodes miss. Shapes: rows, lost (R,)."""
    state = out.state
    table, fleet = state.allocations, state.fleet
    feasible = out.mask_of(group)
    usable = feasible & fleet.ready()
    evicted = rows[(table.desired[rows] == EVICT) & ~TERMINAL[table.client[rows]] & ~lost]
    wanted = table.desired[rows] == RUN
    rows, lost = rows[wanted], lost[wanted]
    client, nodes = table.client[rows], table.node[rows]
    same, current = out.versions(job, group, rows)
    ended = TERMINAL[client]
    alive = ~ended & ~lost
    moved = out.displace(rows, alive, job)
    alive &= ~moved
    done = ended & current & (client != LOST)
    if job.job_type != "sysbatch":
        done = np.zeros(len(rows), dtype=bool)
    fits = feasible[nodes]
    if group.drivers and (alive & ~fits).any():
        # A driver's engine comes and goes; what runs there goes on meanwhile.
        fits = out.mask_of(msgspec.structs.replace(group, drivers=()))[nodes]
    kept = _one_of_each(table.index[rows], nodes, (alive & same & fits) | done, group.count)
    out.update(job, group, rows[kept & alive & ~current])
    out.stop(rows[alive & ~fits], "node is not feasible any more")
    changed, open_ = alive & fits & ~same, usable[nodes]
    out.stop(rows[changed & open_], "job changed")
    out.stop(rows[changed & ~open_], "job changed, and its node takes nothing new")
    out.stop(rows[alive & fits & same & ~kept], "not needed")
    over = ended & ~done & open_
    out.stop(rows[over], "replaced")
    staying, again = rows[kept & alive], (over & (client != COMPLETE)) | changed | moved
    replaced = np.concatenate((rows[again], evicted))
    _want(out, group, usable, taken=rows[kept], staying=staying, replaced=replaced)


def _one_of_each(index: NDArray[np.int32], nodes: Rows, keep: Mask, count: int) -> Mask:
    """Of each name on a node keep the first row, and no name beyond the count. Shapes: all (R,)."""
    names = nodes.astype(np.int64) * max(count, 1) + index
    positions = np.flatnonzero(keep & (index < count))
    _, firsts = np.unique(names[positions], return_index=True)
    kept = np.zeros(len(keep), dtype=bool)
    kept[positions[firsts]] = True
    return kept


def _want(
    out: Pass, group: GroupSpec, usable: Mask, *, taken: Rows, staying: Rows, replaced: Rows
) -> None:
    """Want what usable nodes miss."""
    held = np.bincount(out.state.allocations.node[taken], minlength=len(usable))
    missing = np.where(usable, np.maximum(group.count - held, 0), 0).astype(np.int64)
    total = int(missing.sum())
    if not total:
        return
    out.wants.append(
        Want(
            group,
            min(total, PLACED_MAX),
            np.empty(0, dtype=np.int64),
            staying,
            per_node=missing,
            taken=taken,
            replaced=replaced,
        )
    )


def named(state: State, want: Want, placements: Sequence[Placement]) -> Want:
    """Name what was placed, in order: on each node the lowest free names, and whom it replaces there."""
    assert want.per_node is not None
    nodes = [np.repeat(one.rows, one.counts) for one in placements]
    where = np.concatenate([*nodes, _NONE]).astype(np.int64)
    names = _free_names(state, want, where)
    previous = _previous(state, want, where, names)
    return msgspec.structs.replace(want, names=names, previous=previous)


def _free_names(state: State, want: Want, where: NDArray[np.int64]) -> NDArray[np.int64]:
    if want.group.count == 1:
        return np.zeros(len(where), dtype=np.int64)
    order = np.argsort(where, kind="stable")
    starts = np.flatnonzero(np.diff(where[order], prepend=-1))
    counts = np.diff(starts, append=len(where))
    nth = np.arange(len(where)) - np.repeat(starts, counts)
    table = state.allocations
    held: dict[int, list[int]] = {}
    for row in want.taken.tolist():
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
    state: State, want: Want, where: NDArray[np.int64], names: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Key of the newest replaced allocation of the same name on the same node, 0: none. Shape: (count,)."""
    if not len(want.replaced):
        return None
    table = state.allocations
    of_name = {
        (int(table.node[row]), int(table.index[row])): int(table.key[row])
        for row in sorted(want.replaced.tolist(), key=lambda row: int(table.key[row]))
    }
    keys = [of_name.get(pair, 0) for pair in zip(where.tolist(), names.tolist(), strict=True)]
    return np.asarray(keys, dtype=np.int64)
