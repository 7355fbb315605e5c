"""What every table consists of: which attributes are written, which are derived and how they are made again.

Decides nothing about bytes (`kinds.py`). Whoever adds an attribute to a table says here what it is: writing a snapshot
fails on one that stands nowhere. Row hashes are made again from the columns, so that the checkpoint in the log proves
what was read.
"""

# ruff: noqa: SLF001 - whoever writes a table down must see all of it, and nobody else should.
from typing import Any

import numpy as np

from schemas.base import EvalKey, JobId, NodeId
from schemas.evaluations import Reservation
from schemas.nodes import NodeRefused, NodeSpec, Pool
from schemas.policy import Policy
from shared.core.columns import EntryHashes, RowPool
from shared.core.feasibility import AttributeColumns, _Column
from shared.core.fragmentation.workload import Workload
from shared.core.learned import Learned
from shared.core.resources.asks import Extras, Holding
from shared.core.resources.devices import DeviceModel
from shared.core.resources.held import Held
from shared.core.resources.offers import Offers, SlotPool
from shared.core.resources.ports import Ports, _Book
from shared.core.snapshots.entries import Entries, LazyDict
from shared.core.snapshots.kinds import Column, Pairs, Plain, Runs, Shape, Shapes, sets
from shared.core.tables.allocations import AllocationTable, GroupKey, Groups
from shared.core.tables.evaluations import Evaluation, EvaluationTable, PlanNumber
from shared.core.tables.fleet import FleetTable
from shared.core.tables.jobs import Job, JobTable, JobVersion, Submission
from shared.core.tables.policy import PolicyTable
from shared.core.tables.reservations import ReservationTable

_INT, _TEXTS, _NUMBERS = Plain(int), Plain(list[str]), Plain(list[int])
_ROWS, _LONG, _BYTES = Column("i4"), Column("i8"), Column("i1")
_POOL = Shape(RowPool, {"high": _INT, "_free": Column("i4", whole=True)})


def _touch_all(table: Any) -> None:
    """Have the hash of every row made again."""
    table._hashes.touch(np.arange(table._pool.high, dtype=np.int32))


# ---- policy, reservations ----

_POLICY = Shape(
    PolicyTable,
    {
        "cluster_id": Plain(str),
        "policy": Plain(Policy),
        "policy_hash": Plain(str),
        "log_level": _INT,
        "modify_seq": _INT,
        "generation": _INT,
    },
)
_RESERVATIONS = Shape(ReservationTable, {"by_job": Pairs(JobId, Reservation)})


# ---- jobs ----


def _settle_jobs(table: JobTable) -> None:
    assert isinstance(table.by_id, LazyDict)
    assert isinstance(table.submissions, LazyDict)
    table._jobs, table._submissions = table.by_id.hashes(), table.submissions.hashes()


_JOBS = Shape(
    JobTable,
    {
        "by_id": Entries(JobId, Job, with_key=True),
        "versions": Pairs(JobId, tuple[JobVersion, ...], frozen=True),
        "purging": Pairs(JobId, None),
        "everywhere": Pairs(JobId, None),
        "submissions": Entries(str, Submission, with_key=True),
        "jobs_seq": _INT,
    },
    derived=("_jobs", "_submissions"),
    settle=_settle_jobs,
)


# ---- evaluations ----


def _settle_evaluations(table: EvaluationTable) -> None:
    assert isinstance(table.by_key, LazyDict)
    table._hashes = table.by_key.hashes()


_EVALUATIONS = Shape(
    EvaluationTable,
    {
        "by_key": Entries(EvalKey, Evaluation, with_key=False),
        "open": Pairs(EvalKey, None),
        "open_of": Pairs(JobId, list[EvalKey], pack=list, unpack=tuple),
        "blocked_of": Pairs(JobId, EvalKey),
        "proposing": Pairs(JobId, EvalKey),
        "ended": Pairs(EvalKey, None),
        "freed_seq": Pairs(int, int),
        "grown_seq": Pairs(int, int),
        "workers": Pairs(str, PlanNumber),
        "_ordinal_seq": _INT,
        "_ordinal": _INT,
    },
    derived=("_hashes",),
    settle=_settle_evaluations,
)


# ---- fleet ----

_ATTRIBUTE = Shape(
    lambda: _Column(0),
    {
        "codes": Column("i4", whole=True),
        "values": _TEXTS,
        "_code_of": Pairs(str, int),
        "_uses": _NUMBERS,
        "_free": _NUMBERS,
    },
)
_ATTRIBUTES = Shape(
    AttributeColumns, {"_rows": _INT, "_size": _INT, "_columns": Shapes(_ATTRIBUTE)}
)
_SLOT_POOL = Shape(
    SlotPool,
    {
        **dict.fromkeys(("present", "model", "group", "part", "cell"), _ROWS),
        "parts": _INT,
        "cells": _INT,
        "count": _LONG,
        "ids": Pairs(int, list[str]),
    },
)


class _Sums:
    """Columns by name."""

    def __init__(self, column: Column) -> None:
        self._keys, self._column = Plain(list[str]), column

    def pieces(self, value: Any, rows: int) -> Any:
        """The names, then each column."""
        yield from self._keys.pieces(list(value), rows)
        for one in value.values():
            yield from self._column.pieces(one, -1)

    def read(self, cursor: Any) -> Any:
        """The dict. Raises ValueError, msgspec errors."""
        return {key: self._column.read(cursor) for key in self._keys.read(cursor)}

    def described(self) -> str:
        """What each is."""
        return f"each {self._column.described()}"


_OFFERS = Shape(
    Offers,
    {
        "sums": _Sums(_LONG),
        "slots": Shapes(_SLOT_POOL),
        "cluster": Pairs(str, int),
        "models": Plain(list[DeviceModel]),
        "generation": _INT,
        **dict.fromkeys(
            ("core_mhz", "port_min", "port_max", "ports_barred"), Column("i8", whole=True)
        ),
        "reserved": sets(int),
        "moved": Pairs(int, None),
        "_reserved_of": Pairs(int, tuple[int, ...]),
        "_names_of": Pairs(int, tuple[str, ...]),
        "_model_codes": Pairs(DeviceModel, int),
    },
    derived=("_matches", "_made_at", "_kinds", "_eligible", "_tried"),
)
_FLEET = Shape(
    FleetTable,
    {
        "row_of": Pairs(NodeId, int),
        "ids": _TEXTS,
        "specs": Plain(list[NodeSpec]),
        "host_ids": _TEXTS,
        "boot_ids": _TEXTS,
        "capacity": _LONG,
        "status": _BYTES,
        "eligible": Column("?"),
        "live": Column("?"),
        "reports_seen": _LONG,
        "row_seq": _LONG,
        "modify_seq": _LONG,
        "class_of": _ROWS,
        "classes": Pairs(str, int),
        "attributes": _ATTRIBUTES,
        "generation": _INT,
        "refused": Pairs(NodeId, NodeRefused),
        "declared": Pairs(tuple[str, str], Pool),
        "offers": _OFFERS,
        "silent_ns": Pairs(int, int),
        "drains": Pairs(int, int),
        "operator_meta": Pairs(NodeId, dict[str, str | None]),
        "_spec_hash": Column("u8"),
        "_slots_hash": Column("u8"),
        "_pool": _POOL,
    },
    derived=("_hashes", "_ready"),
    rows=lambda table: table._pool.high,
    settle=_touch_all,
)


# ---- allocations ----


def _known(groups: Groups) -> dict[JobId, None]:
    """Jobs of which any version is known."""
    return dict.fromkeys([*groups.refs(), *groups._bare])


def _settle_groups(groups: Groups) -> None:
    """Number by number, where it was written key by key."""
    read = groups.__dict__
    of_job, newest, ref_of = read.pop("_of_job"), read.pop("newest"), read.pop("ref_of")
    groups._refs = {job_id: tuple([ref_of[key] for key in keys]) for job_id, keys in of_job.items()}
    known = {job_id: groups.newest(job_id) for job_id in newest}
    groups._bare = {one: version for one, version in newest.items() if known[one] != version}


_GROUPS = Shape(
    Groups,
    {
        "ref_of": Pairs(GroupKey, int),
        "job_ids": Plain(list[JobId]),
        "names": _TEXTS,
        "versions": _NUMBERS,
        "digests": _TEXTS,
        "ask": _LONG,
        "extras": Plain(list[Extras | None]),
        "priority": _ROWS,
        "held": _NUMBERS,
        "newest": Pairs(JobId, int),
        "_of_job": Pairs(JobId, list[GroupKey], pack=list, unpack=tuple),
        "_pool": _POOL,
    },
    derived=("_refs", "_bare"),
    rows=lambda groups: groups._pool.high,
    settle=_settle_groups,
    shown={
        "ref_of": lambda groups: groups.ref_of,
        "newest": lambda groups: {job_id: groups.newest(job_id) for job_id in _known(groups)},
        "_of_job": lambda groups: {job_id: groups.of_job(job_id) for job_id in groups.refs()},
    },
)
_BOOK = Shape(_Book, {"rows": sets(int)}, derived=("_own",))
_PORTS = Shape(
    Ports,
    {"_picked": _BOOK, "_static": _BOOK, "_count": Column("i8", whole=True)},
    derived=("_owns_count",),
)
_HELD = Shape(
    Held,
    {
        "used": Column("i8", whole=True),
        "ports": _PORTS,
        "_sums": _Sums(_LONG),
        "_slots": _Sums(_ROWS),
        "_cluster": Pairs(str, int),
        "_cores": Column("i8", whole=True),
    },
    derived=("_shared",),
)
_COUNTS = Pairs(Learned, int)
_WORKLOAD = Shape(
    Workload,
    {"counts": _COUNTS, "settled": _COUNTS, "generation": _INT, "_total": _INT, "_due": _INT},
)


class _Hashes:
    """The hashes of rare entries, by row: made of a text each, so they are kept and not made again."""

    def __init__(self) -> None:
        self._column = Column("u8", whole=True)

    def pieces(self, value: EntryHashes[int], rows: int) -> Any:
        """Rows, then hashes."""
        size = len(value._of)
        keys = np.fromiter(value._of.keys(), np.uint64, size)
        yield from self._column.pieces(keys, rows)
        yield from self._column.pieces(np.fromiter(value._of.values(), np.uint64, size), rows)

    def read(self, cursor: Any) -> EntryHashes[int]:
        """The hashes and their sum. Raises ValueError, msgspec errors."""
        found = EntryHashes[int]()
        keys, hashes = self._column.read(cursor), self._column.read(cursor)
        found._of = dict(zip(keys.tolist(), hashes.tolist(), strict=True))
        found._sum = int(hashes.sum(dtype=np.uint64))
        return found

    def described(self) -> str:
        """Two columns."""
        return f"hashes {self._column.described()}"


_ALLOCATIONS = Shape(
    AllocationTable,
    {
        "key": _LONG,
        "group": _ROWS,
        "index": _ROWS,
        "node": _ROWS,
        "desired": _BYTES,
        "client": _BYTES,
        "reschedules": Column("i2"),
        "modify_seq": _LONG,
        "groups": _GROUPS,
        "by_job": Runs(JobId),
        "held": _HELD,
        "holdings": Pairs(int, Holding),
        "previous": Pairs(int, int),
        "evicted_by": Pairs(int, JobId),
        "displaced": Pairs(int, None),
        "details": Pairs(int, bytes),
        "reschedule_at_ns": Pairs(int, int),
        "chains": Pairs(int, tuple[int, ...]),
        "workload": _WORKLOAD,
        "_ordinal_seq": _INT,
        "_ordinal": _INT,
        "_pool": _POOL,
        "_rare": _Hashes(),
    },
    derived=("_hashes",),
    rows=lambda table: table._pool.high,
    settle=_touch_all,
)

#: by table's name.
SHAPES: dict[str, Shape] = {
    "policy": _POLICY,
    "jobs": _JOBS,
    "fleet": _FLEET,
    "evaluations": _EVALUATIONS,
    "allocations": _ALLOCATIONS,
    "reservations": _RESERVATIONS,
}
