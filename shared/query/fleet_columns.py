"""The fleet as columns, one row a node: what the console and `caravan top` draw. Computed in a few vector passes.

Decides what a picture of many nodes holds, and how it is laid out in bytes. A past fleet is the same function of a past
state.
"""

import struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.nodes import NODE_STATUSES
from shared.core.columns import Rows
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL
from shared.query import projections

#: Jobs that have a number of their own in the column `job`; the largest by allocations.
JOBS_SHOWN = 12
OTHER_JOB, NO_JOB = 254, 255
DOWN, DRAINING, INELIGIBLE, DISCONNECTED = 1, 2, 4, 8
#: Versions of the allocations on a node: none there, all of their job's present one, some older, all older.
NOTHING, CURRENT, MIXED, OLDER = range(4)
_WHOLE = 65_535
_ALIGN = 8


class FleetColumns(msgspec.Struct, frozen=True, eq=False):
    """Columns of N nodes, sorted by id. `shares`: use of cpu, memory and disk, 65,535 is the capacity; (3, N) u16."""

    seq: int
    ids: list[str]
    datacenters: list[str]
    classes: list[str]
    jobs: list[str]
    shares: NDArray[np.uint16]
    #: allocations that have not ended, at most 65,535. (N,) u16.
    count: NDArray[np.uint16]
    #: bits DOWN, DRAINING, INELIGIBLE, DISCONNECTED. (N,) u8.
    flags: NDArray[np.uint8]
    #: index in `jobs` of the job with most allocations on the node; OTHER_JOB, NO_JOB. (N,) u8.
    job: NDArray[np.uint8]
    #: NOTHING, CURRENT, MIXED or OLDER. (N,) u8.
    version: NDArray[np.uint8]

    def encode(self) -> bytes:
        """A u32 with the length of a JSON header, the header, then the columns, each at a multiple of 8 bytes."""
        columns = {
            "cpu": self.shares[0],
            "memory": self.shares[1],
            "disk": self.shares[2],
            "count": self.count,
            "flags": self.flags,
            "job": self.job,
            "version": self.version,
        }
        header = msgspec.json.encode(
            {
                "seq": self.seq,
                "nodes": self.ids,
                "datacenters": self.datacenters,
                "classes": self.classes,
                "jobs": self.jobs,
                "columns": [(name, one.dtype.name) for name, one in columns.items()],
            }
        )
        parts = [struct.pack("<I", len(header)), header]
        size = 4 + len(header)
        for one in columns.values():
            parts.append(bytes(-size % _ALIGN))
            raw = one.astype(one.dtype.newbyteorder("<")).tobytes()
            parts.append(raw)
            size += (-size % _ALIGN) + len(raw)
        return b"".join(parts)

    def rows(self, changed: Rows) -> list[list[int]]:
        """Some rows as numbers: row, cpu, memory, disk, count, flags, job, version."""
        columns = (*self.shares, self.count, self.flags, self.job, self.version)
        found = np.stack([changed, *(one[changed].astype(np.int64) for one in columns)], axis=1)
        return list(found.tolist())

    def changed_since(self, older: "FleetColumns") -> Rows | None:
        """Rows that differ from an older picture; None: the nodes or the jobs shown are others."""
        if self.ids != older.ids or self.jobs != older.jobs:
            return None
        differs = (self.shares != older.shares).any(axis=0)
        for name in ("count", "flags", "job", "version"):
            differs |= getattr(self, name) != getattr(older, name)
        return np.flatnonzero(differs).astype(np.int32)


def fleet_columns(state: State) -> FleetColumns:
    """The columns of a state."""
    fleet = state.fleet
    ids = sorted(fleet.row_of)
    rows: Rows = np.asarray([fleet.row_of[one] for one in ids], dtype=np.int32)
    used = state.allocations.used(fleet.size)[rows]
    capacity = fleet.capacity[rows]
    shares = np.minimum(used * _WHOLE // np.maximum(capacity, 1), _WHOLE)
    counts = projections.allocation_counts(state)[rows]
    jobs, job = _leading_jobs(state, rows)
    return FleetColumns(
        seq=state.seq,
        ids=[str(one) for one in ids],
        datacenters=[fleet.specs[row].datacenter for row in rows.tolist()],
        classes=[fleet.specs[row].node_class for row in rows.tolist()],
        jobs=jobs,
        shares=shares.T.astype(np.uint16),
        count=np.minimum(counts, _WHOLE).astype(np.uint16),
        flags=_flags(state, rows),
        job=job,
        version=_versions(state, rows),
    )


def _flags(state: State, rows: Rows) -> NDArray[np.uint8]:
    fleet = state.fleet
    status = fleet.status[rows]
    found = np.where(status == NODE_STATUSES.index("down"), DOWN, 0)
    found |= np.where(status == NODE_STATUSES.index("disconnected"), DISCONNECTED, 0)
    found |= np.where(fleet.eligible[rows], 0, INELIGIBLE)
    drains = np.asarray(sorted(fleet.drains), dtype=np.int32)
    found |= np.where(np.isin(rows, drains), DRAINING, 0)
    return found.astype(np.uint8)


def _live(state: State) -> NDArray[np.int64]:
    """Rows of the allocations that have not ended."""
    table, size = state.allocations, state.allocations.size
    return np.flatnonzero((table.key[:size] != 0) & ~TERMINAL[table.client[:size]])


def _versions(state: State, rows: Rows) -> NDArray[np.uint8]:
    """Whether what is on each node is of its job's present version."""
    table, live, jobs = state.allocations, _live(state), state.jobs.by_id
    known = zip(table.groups.job_ids, table.groups.versions, strict=True)
    present = [(job := jobs.get(one)) is not None and job.version == n for one, n in known]
    is_present = np.asarray(present or [False])[table.group[live]]
    size = state.fleet.size
    nodes = table.node[live]
    count = np.bincount(nodes, minlength=size)[rows]
    older = np.bincount(nodes[~is_present], minlength=size)[rows]
    found = np.where(older == 0, CURRENT, np.where(older < count, MIXED, OLDER))
    return np.where(count == 0, NOTHING, found).astype(np.uint8)


def _leading_jobs(state: State, rows: Rows) -> tuple[list[str], NDArray[np.uint8]]:
    """The largest jobs, and for each row the one with most allocations there; equal ones: the first in the list."""
    table, live = state.allocations, _live(state)
    groups = table.group[live]
    names = table.groups.job_ids
    per_group = np.bincount(groups, minlength=len(names))
    per_job: dict[str, int] = {}
    for ref in np.flatnonzero(per_group).tolist():
        per_job[names[ref]] = per_job.get(names[ref], 0) + int(per_group[ref])
    jobs = sorted(per_job, key=lambda one: (-per_job[one], one))[:JOBS_SHOWN]
    number_of = {one: at for at, one in enumerate(jobs)}
    number = np.asarray([number_of.get(one, len(jobs)) for one in names] or [0], dtype=np.int64)
    width = len(jobs) + 1
    cells = table.node[live].astype(np.int64) * width + number[groups] if len(live) else live
    counts = np.bincount(cells, minlength=state.fleet.size * width)[: state.fleet.size * width]
    by_node = counts.reshape(state.fleet.size, width)[rows]
    best = by_node.argmax(axis=1) if len(rows) else np.zeros(0, dtype=np.int64)
    found = np.where(best == len(jobs), OTHER_JOB, best)
    found = np.where(by_node.sum(axis=1) == 0, NO_JOB, found) if len(rows) else found
    return [str(one) for one in jobs], found.astype(np.uint8)
