"""A node's projection read: from columns on the wire to allocations, one by one or as arrays.

Decides what the columns mean, and which are inconsistent: those are not orders. The other direction, from a state, is
`shared/query/projections.py`.
"""

from collections.abc import Sequence
from typing import TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import DESIRED_STATUSES
from schemas.base import Wire
from schemas.projections import DesiredExtra, NodeProjection
from schemas.remotes import RemoteWanted
from shared.core.columns import Int64s, Rows
from shared.core.state.ids import ALLOC_SALT, alloc_id, shown_ids

RUN, STOP, EVICT = DESIRED_STATUSES
#: More than any node has: a run's length is multiplied out.
ALLOCATIONS_MAX = 5_000_000


class DesiredAlloc(Wire, frozen=True, kw_only=True):
    """One allocation that a node should have, as its agent knows it and keeps it in its journal."""

    key: int
    row: int
    #: shown id, used in paths and environment.
    alloc_id: str
    job_id: str
    version: int
    group: str
    index: int
    #: run, stop, or evict: it stops, and nothing starts before.
    desired: str = "run"
    #: ports that the cluster picked, in the order of the job's labels; static ones are in the job.
    ports: tuple[int, ...] = ()
    #: pool -> ids of the instances that it holds.
    instances: dict[str, tuple[str, ...]] = {}
    #: which of the group's alternatives it takes.
    variant: int = 0
    #: shown id of the allocation that it replaces; empty: none.
    previous: str = ""
    #: of its remote tasks, where it took over their slot, or ends it.
    remote: RemoteWanted | None = None


class DesiredColumns(msgspec.Struct, frozen=True):
    """What a projection wants, as columns that hold together. Shapes: (A,)."""

    keys: Int64s
    rows: Rows
    #: into `NodeProjection.groups`.
    groups_at: Rows
    indexes: Int64s
    #: should run; the others should stop.
    runs: NDArray[np.bool_]


def read_columns(said: NodeProjection) -> DesiredColumns:
    """Read the columns. Raises ValueError: they do not hold together."""
    width = len(said.keys)
    at = said.groups_at or range(width)
    if not len(said.rows) == len(at) == len(said.indexes) == width:
        raise ValueError(f"columns of {width}, {len(said.rows)}, {len(said.indexes)} runs")
    keys = np.array(said.keys, dtype=np.int64)
    rows = np.array(said.rows, dtype=np.int32)
    groups_at = np.array(at, dtype=np.int32)
    indexes = np.array(said.indexes, dtype=np.int64)
    if width and not 0 <= groups_at.min() <= groups_at.max() < len(said.groups):
        raise ValueError("a group is not listed")
    if said.counts:
        keys, rows, groups_at, indexes = _expanded(said, (keys, rows, groups_at, indexes))
    runs = np.ones(len(keys), dtype=np.bool_)
    for positions in (said.stops, said.evicts):
        if positions:
            if not 0 <= min(positions) <= max(positions) < len(keys):
                raise ValueError("a position is beyond the allocations")
            runs[list(positions)] = False
    return DesiredColumns(keys, rows, groups_at, indexes, runs)


def _expanded(
    said: NodeProjection, runs: tuple[Int64s, Rows, Rows, Int64s]
) -> tuple[Int64s, Rows, Rows, Int64s]:
    counts = np.array(said.counts, dtype=np.int64)
    if len(counts) != len(said.keys) or counts.min() < 1 or counts.sum() > ALLOCATIONS_MAX:
        raise ValueError("the lengths of runs are invalid")
    ends = np.cumsum(counts)
    within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    keys, rows, groups_at, indexes = runs
    return (
        np.repeat(keys, counts) + within,
        (np.repeat(rows, counts) + within).astype(np.int32),
        np.repeat(groups_at, counts),
        np.repeat(indexes, counts) + within,
    )


def read_desired_allocs(said: NodeProjection) -> tuple[DesiredAlloc, ...]:
    """List the allocations of a projection, in its order. Raises ValueError: its columns do not hold together."""
    found = read_columns(said)
    extras = {one.at: one for one in said.extras}
    evicts = frozenset(said.evicts)
    groups = said.groups
    return tuple(
        DesiredAlloc(
            key=key,
            row=row,
            alloc_id=shown,
            job_id=groups[ref].job_id,
            version=groups[ref].version,
            group=groups[ref].group,
            index=index,
            desired=RUN if runs else EVICT if at in evicts else STOP,
            **_more(extras.get(at)),
        )
        for at, (key, row, shown, ref, index, runs) in enumerate(
            zip(
                found.keys.tolist(),
                found.rows.tolist(),
                shown_ids(found.keys, ALLOC_SALT),
                found.groups_at.tolist(),
                found.indexes.tolist(),
                found.runs.tolist(),
                strict=True,
            )
        )
    )


class _More(TypedDict, total=False):
    """Fields of DesiredAlloc that are in extras."""

    ports: tuple[int, ...]
    instances: dict[str, tuple[str, ...]]
    variant: int
    previous: str
    remote: RemoteWanted | None


def _more(extra: DesiredExtra | None) -> _More:
    if extra is None:
        return {}
    return {
        "ports": extra.ports,
        "instances": extra.instances,
        "variant": extra.variant,
        "previous": alloc_id(extra.previous) if extra.previous else "",
        "remote": extra.remote,
    }


def is_same_desired(left: NodeProjection, right: NodeProjection) -> bool:
    """Tell whether two projections want the very same allocations."""
    return _columns(left) == _columns(right)


def _columns(said: NodeProjection) -> tuple[Sequence[object], ...]:
    runs = (said.keys, said.rows, said.groups_at, said.indexes, said.counts)
    return (*runs, said.stops, said.evicts, said.groups, said.extras)
