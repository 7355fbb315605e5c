"""Parts of a placement: the same columns for some of its allocations.

Decides nothing. Must not know why a placement is cut (services/scheduler/parts.py, decide/fit.py).
"""

from itertools import compress

import numpy as np
from numpy.typing import NDArray

from schemas.plans import GroupPlacement
from shared.core.tables.allocations import expand_runs, pack_runs


def subset(placement: GroupPlacement, mask: NDArray[np.bool_]) -> GroupPlacement:
    """Keep the allocations where `mask` is set, in their order. Shape: mask (sum(counts),).

    Every allocation of it holds as many ports, and as many instances, as every other.
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
    )


def _pick(values: tuple[int, ...], mask: NDArray[np.bool_]) -> tuple[int, ...]:
    if not values:
        return ()
    return tuple(compress(values, np.repeat(mask, len(values) // max(len(mask), 1)).tolist()))


def merged(one: GroupPlacement, other: GroupPlacement) -> GroupPlacement:
    """Put two parts of one placement together, by name. They replace nothing."""
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
    )


def _ordered(values: tuple[int, ...], order: NDArray[np.intp]) -> tuple[int, ...]:
    """Put columns of one width an allocation into another order."""
    if not values:
        return ()
    table = np.asarray(values, dtype=np.int64).reshape(len(order), -1)
    return tuple(table[order].ravel().tolist())
