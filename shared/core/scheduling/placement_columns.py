"""Placement columns: a subset of a placement's allocations, and two parts merged."""

from itertools import compress

import numpy as np
from numpy.typing import NDArray

from schemas.plans import GroupPlacement
from shared.core.state.name_runs import expand_runs, pack_runs


def subset_placement(placement: GroupPlacement, mask: NDArray[np.bool_]) -> GroupPlacement:
    """Keep the allocations where `mask` is set, in their order. Shape: mask (sum(counts),).

    All allocations of a placement hold the same number of ports, and of instances.
    """
    rows = np.repeat(np.asarray(placement.rows, dtype=np.int64), placement.counts)[mask]
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    names = expand_runs(placement.names)[mask]
    return GroupPlacement(
        group=placement.group,
        version=placement.version,
        rows=tuple(rows[starts].tolist()),
        counts=tuple(np.diff(starts, append=len(rows)).tolist()),
        names=pack_runs(names),
        previous=_pick(placement.previous, mask),
        reschedules=_pick(placement.reschedules, mask),
        variant=placement.variant,
        ports=_pick(placement.ports, mask),
        instances=_pick(placement.instances, mask),
        deployment=placement.deployment,
        canaries=placement.canaries,
    )


def _pick(values: tuple[int, ...], mask: NDArray[np.bool_]) -> tuple[int, ...]:
    if not values:
        return ()
    return tuple(compress(values, np.repeat(mask, len(values) // max(len(mask), 1)).tolist()))


def merge_placements(one: GroupPlacement, other: GroupPlacement) -> GroupPlacement:
    """Merge two parts of one placement, by name. They replace nothing."""
    names = np.concatenate((expand_runs(one.names), expand_runs(other.names)))
    order = np.argsort(names, kind="stable")
    rows = np.repeat((*one.rows, *other.rows), (*one.counts, *other.counts))[order]
    return GroupPlacement(
        group=one.group,
        version=one.version,
        rows=tuple(rows.tolist()),
        counts=(1,) * len(rows),
        names=pack_runs(names[order]),
        variant=one.variant,
        ports=_ordered((*one.ports, *other.ports), order),
        instances=_ordered((*one.instances, *other.instances), order),
        deployment=one.deployment,
        canaries=one.canaries,
    )


def _ordered(values: tuple[int, ...], order: NDArray[np.intp]) -> tuple[int, ...]:
    """Reorder a column of one width per allocation."""
    if not values:
        return ()
    table = np.asarray(values, dtype=np.int64).reshape(len(order), -1)
    return tuple(table[order].ravel().tolist())
