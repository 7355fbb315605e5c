"""The fleet as columns, one row a node: what the console and `caravan top` draw. Computed in a few vector passes.

Who is there is read node by node, and taken over from another picture of the same log where no node came, changed or
left in between.

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

#: Jobs that have a number of their own in the column `job`; the largest by allocations.
JOBS_SHOWN = 12
OTHER_JOB, NO_JOB = 254, 255
DOWN, DRAINING, INELIGIBLE, DISCONNECTED = 1, 2, 4, 8
#: Versions of the allocations on a node: none there, all of their job's present one, some older, all older.
NOTHING, CURRENT, MIXED, OLDER = range(4)
_WHOLE = 65_535
_ALIGN = 8


class FleetMembers(msgspec.Struct, frozen=True, eq=False):
    """Who is in the fleet, sorted by id. `generation`: of the fleet's table; `rows`: in that table, (N,) i32."""

    generation: int
    rows: Rows
    ids: list[str]
    datacenters: list[str]
    classes: list[str]


class FleetColumns(msgspec.Struct, frozen=True, eq=False):
    """Columns of N nodes, sorted by id. `shares`: use of cpu, memory and disk, 65,535 is the capacity; (3, N) u16."""

    seq: int
    members: "FleetMembers"
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

    @property
    def ids(self) -> list[str]:
        """Ids of the nodes."""
        return self.members.ids

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
                "nodes": self.members.ids,
                "datacenters": self.members.datacenters,
                "classes": self.members.classes,
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
        is_same = self.members is older.members or self.ids == older.ids
        if not is_same or self.jobs != older.jobs:
            return None
        differs = (self.shares != older.shares).any(axis=0)
        for name in ("count", "flags", "job", "version"):
            differs |= getattr(self, name) != getattr(older, name)
        return np.flatnonzero(differs).astype(np.int32)


def fleet_columns(state: State, known: FleetMembers | None = None) -> FleetColumns:
    """The columns of a state. `known`: the members at any seq of the same log."""
    fleet, table = state.fleet, state.allocations
    members = known
    if members is None or members.generation != fleet.generation:
        members = _members(state)
    rows = members.rows
    used, capacity = table.used(fleet.size)[rows], fleet.capacity[rows]
    shares = np.minimum(used * _WHOLE // np.maximum(capacity, 1), _WHOLE)
    live = np.flatnonzero((table.key[: table.size] != 0) & ~TERMINAL[table.client[: table.size]])
    nodes, groups = table.node[live], table.group[live]
    counts = np.bincount(nodes, minlength=fleet.size)
    jobs, job = _leading_jobs(state, nodes, groups, counts)
    return FleetColumns(
        seq=state.seq,
        members=members,
        jobs=jobs,
        shares=shares.T.astype(np.uint16),
        count=np.minimum(counts[rows], _WHOLE).astype(np.uint16),
        flags=_flags(state, rows),
        job=job[rows],
        version=_versions(state, nodes, groups, counts)[rows],
    )


def _members(state: State) -> FleetMembers:
    fleet = state.fleet
    ids = sorted(fleet.row_of)
    rows = [fleet.row_of[one] for one in ids]
    specs = [fleet.specs[row] for row in rows]
    return FleetMembers(
        generation=fleet.generation,
        rows=np.asarray(rows, dtype=np.int32),
        ids=[str(one) for one in ids],
        datacenters=[one.datacenter for one in specs],
        classes=[one.node_class for one in specs],
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


def _versions(
    state: State, nodes: Rows, groups: Rows, counts: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Whether what is on each node is of its job's present version. Shape: (fleet.size,)."""
    table, jobs = state.allocations, state.jobs.by_id
    known = zip(table.groups.job_ids, table.groups.versions, strict=True)
    present = [(job := jobs.get(one)) is not None and job.version == n for one, n in known]
    is_older = ~np.asarray(present or [False])[groups]
    older = np.bincount(nodes[is_older], minlength=state.fleet.size)
    found = np.where(older == 0, CURRENT, np.where(older < counts, MIXED, OLDER))
    return np.where(counts == 0, NOTHING, found).astype(np.uint8)


def _leading_jobs(
    state: State, nodes: Rows, groups: Rows, counts: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.uint8]]:
    """The largest jobs, and by fleet row the one with most allocations there; equal ones: the first in the list."""
    names = state.allocations.groups.job_ids
    per_group: list[int] = np.bincount(groups, minlength=len(names)).tolist()
    per_job: dict[str, int] = {}
    for name, count in zip(names, per_group, strict=True):
        if count:
            per_job[name] = per_job.get(name, 0) + count
    jobs = sorted(per_job, key=lambda one: (-per_job[one], one))[:JOBS_SHOWN]
    number_of = {one: at for at, one in enumerate(jobs)}
    number = np.asarray([number_of.get(one, len(jobs)) for one in names] or [0], dtype=np.int64)
    width, size = len(jobs) + 1, state.fleet.size
    cells = nodes * width + number[groups]
    best = np.bincount(cells, minlength=size * width).reshape(size, width).argmax(axis=1)
    found = np.where(best == len(jobs), OTHER_JOB, best)
    return [str(one) for one in jobs], np.where(counts == 0, NO_JOB, found).astype(np.uint8)
