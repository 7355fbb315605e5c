"""What every table consists of: which attributes are written, which are derived and how they are made again.

Bytes are the business of `codecs.py`. An attribute added to a table is listed here: writing a snapshot fails on one
that is not. Row hashes are made again from the columns, so that the checkpoint in the log proves
what was read.
"""

# ruff: noqa: SLF001 - a snapshot contains the private attributes of the tables, too.
from typing import Any, NamedTuple

import msgspec
import numpy as np

from schemas.base import DeploymentKey, EvalKey, JobId, NodeId, RolloutKey
from schemas.evaluations import Reservation
from schemas.nodes import NodeRefused, NodeSpec, Pool
from schemas.policy import Policy
from shared.core.columns import EntryHashes, RowPool, grown
from shared.core.resources.ask_shape import AskShape
from shared.core.resources.asks import ExtraAsks, Holding
from shared.core.resources.devices import DeviceModel
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import OfferedResources, SlotPool
from shared.core.resources.ports import HeldPorts, _RowsByPort
from shared.core.state.group_registry import GroupKey, GroupRegistry
from shared.core.state.ids import Incarnations
from shared.core.state.live_children import MARK
from shared.core.state.node_attributes import AttributeColumn, AttributeColumns
from shared.core.state.predecessors import Predecessors
from shared.core.state.snapshots.codecs import (
    ColumnCodec,
    DictCodec,
    MsgpackCodec,
    ObjectCodec,
    ObjectDictCodec,
    RowRunsCodec,
    set_dict_codec,
)
from shared.core.state.snapshots.lazy_entries import LazyDict, LazyEntriesCodec
from shared.core.state.tables.allocations import TERMINAL, AllocationTable
from shared.core.state.tables.claims import ClaimRow, ClaimTable, IndexKey
from shared.core.state.tables.deployments import Deployment, DeploymentTable
from shared.core.state.tables.evaluations import Evaluation, EvaluationTable, PlanNumber
from shared.core.state.tables.fleet import DrainEnd, DrainTerms, FleetTable
from shared.core.state.tables.host_volumes import VolumeRow, VolumeTable
from shared.core.state.tables.jobs import Job, JobTable, JobVersion, SubmissionRecord
from shared.core.state.tables.launches import LaunchTable, PeriodicParent, by_parent
from shared.core.state.tables.policy import PolicyTable
from shared.core.state.tables.remotes import RemoteTable, SlotRow
from shared.core.state.tables.reservations import ReservationTable
from shared.core.state.tables.rollouts import RolloutRecord, RolloutTable
from shared.core.state.tables.signing_keys import SigningKeyRow, SigningKeyTable
from shared.core.state.tables.variable_locks import LockRow, LockTable
from shared.core.state.tables.variables import (
    KeyRow,
    LifeKey,
    RequestKey,
    VariableRow,
    VariableTable,
)
from shared.core.state.workload import AskWorkload

_INT, _TEXTS, _NUMBERS = MsgpackCodec(int), MsgpackCodec(list[str]), MsgpackCodec(list[int])
_ROWS, _LONG, _BYTES = ColumnCodec("i4"), ColumnCodec("i8"), ColumnCodec("i1")
_POOL = ObjectCodec(RowPool, {"high": _INT, "_free": ColumnCodec("i4", whole=True)})


def _touch_all(table: Any) -> None:
    """Have the hash of every row made again."""
    table._hashes.touch(np.arange(table._pool.high, dtype=np.int32))


# ---- policy, reservations ----


class _Begun(NamedTuple):
    """What a later release added to the table."""

    bus: str
    begun: list[tuple[int, int]]


def _cluster_and_bus(table: PolicyTable) -> str:
    """Write what was added behind the cluster's id, so that the format of release 0.1.0 stays."""
    if not (table.bus or table.incarnations.begun):
        return table.cluster_id
    more = msgspec.json.encode(_Begun(table.bus, table.incarnations.begun)).decode()
    return f"{table.cluster_id}\n{more}"


def _settle_policy(table: PolicyTable) -> None:
    table.cluster_id, _, more = table.cluster_id.partition("\n")
    if more:
        found = msgspec.json.decode(more, type=_Begun)
        table.bus, table.incarnations = found.bus, Incarnations(found.begun)


_POLICY = ObjectCodec(
    PolicyTable,
    {
        "cluster_id": MsgpackCodec(str),
        "policy": MsgpackCodec(Policy),
        "policy_hash": MsgpackCodec(str),
        "log_level": _INT,
        "modify_seq": _INT,
        "generation": _INT,
    },
    derived=("cluster_id", "incarnations", "bus"),
    settle=_settle_policy,
    shown={"cluster_id": _cluster_and_bus},
)
_RESERVATIONS = ObjectCodec(ReservationTable, {"by_job": DictCodec(JobId, Reservation)})


# ---- jobs ----


def _settle_jobs(table: JobTable) -> None:
    assert isinstance(table.by_id, LazyDict)
    assert isinstance(table.submissions, LazyDict)
    table._jobs, table._submissions = table.by_id.hashes(), table.submissions.hashes()
    for job_id, kept in table.versions.items():
        if any(one.mark for one in kept):
            table._marks.touch(job_id)


_JOBS = ObjectCodec(
    JobTable,
    {
        "by_id": LazyEntriesCodec(JobId, Job, with_key=True),
        "versions": DictCodec(JobId, tuple[JobVersion, ...], frozen=True),
        "purging": DictCodec(JobId, None),
        "everywhere": DictCodec(JobId, None),
        "submissions": LazyEntriesCodec(str, SubmissionRecord, with_key=True),
        "jobs_seq": _INT,
    },
    derived=("_jobs", "_submissions", "_marks"),
    settle=_settle_jobs,
)


# ---- launches ----


def _settle_launches(table: LaunchTable) -> None:
    table.children = by_parent(table.parent_of)
    for parent in table.by_parent:
        table._parents.touch(parent)
    for child in table.parent_of:
        table._children.touch(child)
    for child in table.payloads:
        table._payloads.touch(child)
    table._tokens_of = {child: key for key, child in table.tokens.items()}


_LAUNCHES = ObjectCodec(
    LaunchTable,
    {
        "by_parent": DictCodec(JobId, PeriodicParent, frozen=True),
        "parent_of": DictCodec(JobId, JobId, frozen=True),
        "tokens": DictCodec(str, JobId, frozen=True),
        "payloads": DictCodec(JobId, bytes, frozen=True),
    },
    derived=("children", "_tokens_of", "_parents", "_children", "_payloads"),
    settle=_settle_launches,
)


# ---- evaluations ----


def _settle_evaluations(table: EvaluationTable) -> None:
    assert isinstance(table.by_key, LazyDict)
    table._hashes = table.by_key.hashes()


_EVALUATIONS = ObjectCodec(
    EvaluationTable,
    {
        "by_key": LazyEntriesCodec(EvalKey, Evaluation, with_key=False),
        "open": DictCodec(EvalKey, None),
        "open_of": DictCodec(JobId, list[EvalKey], pack=list, unpack=tuple),
        "blocked_of": DictCodec(JobId, EvalKey),
        "proposing": DictCodec(JobId, EvalKey),
        "ended": DictCodec(EvalKey, None),
        "freed_seq": DictCodec(int, int),
        "grown_seq": DictCodec(int, int),
        "workers": DictCodec(str, PlanNumber),
        "_ordinal_seq": _INT,
        "_ordinal": _INT,
    },
    derived=("_hashes", "incarnation"),
    settle=_settle_evaluations,
)


# ---- fleet ----

_ATTRIBUTE = ObjectCodec(
    lambda: AttributeColumn(0),
    {
        "codes": ColumnCodec("i4", whole=True),
        "values": _TEXTS,
        "_code_of": DictCodec(str, int),
        "_uses": _NUMBERS,
        "_free": _NUMBERS,
    },
)
_ATTRIBUTES = ObjectCodec(
    AttributeColumns, {"_rows": _INT, "_size": _INT, "_columns": ObjectDictCodec(_ATTRIBUTE)}
)
_SLOT_POOL = ObjectCodec(
    SlotPool,
    {
        **dict.fromkeys(("present", "model", "group", "part", "cell"), _ROWS),
        "parts": _INT,
        "cells": _INT,
        "count": _LONG,
        "ids": DictCodec(int, list[str]),
    },
)


class _NamedColumnsCodec:
    """Columns by name."""

    def __init__(self, column: ColumnCodec) -> None:
        self._keys, self._column = MsgpackCodec(list[str]), column

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


_OFFERS = ObjectCodec(
    OfferedResources,
    {
        "sums": _NamedColumnsCodec(_LONG),
        "slots": ObjectDictCodec(_SLOT_POOL),
        "cluster": DictCodec(str, int),
        "models": MsgpackCodec(list[DeviceModel]),
        "generation": _INT,
        **dict.fromkeys(
            ("core_mhz", "port_min", "port_max", "ports_barred"), ColumnCodec("i8", whole=True)
        ),
        "reserved": set_dict_codec(int),
        "moved": DictCodec(int, None),
        "_reserved_of": DictCodec(int, tuple[int, ...]),
        "_names_of": DictCodec(int, tuple[str, ...]),
        "_model_codes": DictCodec(DeviceModel, int),
    },
    derived=("_matches", "_made_at", "_kinds", "_eligible", "_tried"),
)
_FLEET = ObjectCodec(
    FleetTable,
    {
        "row_of": DictCodec(NodeId, int),
        "ids": _TEXTS,
        "specs": MsgpackCodec(list[NodeSpec]),
        "host_ids": _TEXTS,
        "boot_ids": _TEXTS,
        "capacity": _LONG,
        "status": _BYTES,
        "eligible": ColumnCodec("?"),
        "live": ColumnCodec("?"),
        "reports_seen": _LONG,
        "row_seq": _LONG,
        "modify_seq": _LONG,
        "class_of": _ROWS,
        "classes": DictCodec(str, int),
        "attributes": _ATTRIBUTES,
        "generation": _INT,
        "refused": DictCodec(NodeId, NodeRefused),
        "declared": DictCodec(tuple[str, str], Pool),
        "offers": _OFFERS,
        "silent_ns": DictCodec(int, int),
        "drains": DictCodec(int, int),
        "drain_terms": DictCodec(int, DrainTerms),
        "drained": DictCodec(int, DrainEnd),
        "confirmed_dead": DictCodec(int, None),
        "operator_meta": DictCodec(NodeId, dict[str, str | None]),
        "_spec_hash": ColumnCodec("u8"),
        "_slots_hash": ColumnCodec("u8"),
        "_pool": _POOL,
    },
    derived=("_hashes", "_ready", "_pool_sizes"),
    rows=lambda table: table._pool.high,
    settle=_touch_all,
    later=("drain_terms", "drained", "confirmed_dead"),
)


# ---- allocations ----


def _known(groups: GroupRegistry) -> dict[JobId, None]:
    """Jobs of which any version is known."""
    return dict.fromkeys([*groups.refs(), *groups._bare])


def _settle_groups(groups: GroupRegistry) -> None:
    """Number by number, where it was written key by key."""
    read = groups.__dict__
    of_job, newest, ref_of = read.pop("_of_job"), read.pop("newest"), read.pop("ref_of")
    groups._refs = {job_id: tuple([ref_of[key] for key in keys]) for job_id, keys in of_job.items()}
    known = {job_id: groups.newest(job_id) for job_id in newest}
    groups._bare = {one: version for one, version in newest.items() if known[one] != version}


_GROUPS = ObjectCodec(
    GroupRegistry,
    {
        "ref_of": DictCodec(GroupKey, int),
        "job_ids": MsgpackCodec(list[JobId]),
        "names": _TEXTS,
        "versions": _NUMBERS,
        "digests": _TEXTS,
        "ask": _LONG,
        "extras": MsgpackCodec(list[ExtraAsks | None]),
        "priority": _ROWS,
        "held": _NUMBERS,
        "stateful": DictCodec(int, None),
        "newest": DictCodec(JobId, int),
        "_of_job": DictCodec(JobId, list[GroupKey], pack=list, unpack=tuple),
        "_pool": _POOL,
    },
    derived=("_refs", "_bare"),
    rows=lambda groups: groups._pool.high,
    settle=_settle_groups,
    later=("stateful",),
    shown={
        "ref_of": lambda groups: groups.ref_of,
        "newest": lambda groups: {job_id: groups.newest(job_id) for job_id in _known(groups)},
        "_of_job": lambda groups: {job_id: groups.of_job(job_id) for job_id in groups.refs()},
    },
)
_BOOK = ObjectCodec(_RowsByPort, {"rows": set_dict_codec(int)}, derived=("_own",))
_PORTS = ObjectCodec(
    HeldPorts,
    {"_picked": _BOOK, "_static": _BOOK, "_count": ColumnCodec("i8", whole=True)},
    derived=("_owns_count",),
)
_HELD = ObjectCodec(
    HeldResources,
    {
        "used": ColumnCodec("i8", whole=True),
        "ports": _PORTS,
        "_sums": _NamedColumnsCodec(_LONG),
        "_slots": _NamedColumnsCodec(_ROWS),
        "_cluster": DictCodec(str, int),
        "_cores": ColumnCodec("i8", whole=True),
    },
    derived=("_shared",),
)
_COUNTS = DictCodec(AskShape, int)
_WORKLOAD = ObjectCodec(
    AskWorkload,
    {"counts": _COUNTS, "settled": _COUNTS, "generation": _INT, "_total": _INT, "_due": _INT},
)


class _EntryHashesCodec:
    """The hashes of rare entries, by row: made of a text each, so they are kept and not made again."""

    def __init__(self) -> None:
        self._column = ColumnCodec("u8", whole=True)

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


def _settle_allocations(table: AllocationTable) -> None:
    """Make again what is not written: columns that a release before 0.2.0 did not have, live children, hashes."""
    size = len(table.key)
    table.health = grown(table.health, size)
    table.canary = grown(table.canary, size)
    table.deployment = grown(table.deployment, size)
    for job_id in table.by_job:
        if MARK in job_id:
            alive = ~TERMINAL[table.client[table.rows_of(job_id)]]
            table.live_children.count(job_id, int(alive.sum()))
    _touch_all(table)


_PREDECESSORS = ObjectCodec(
    Predecessors, {"by_key": DictCodec(int, tuple[int, int]), "rooms": DictCodec(int, None)}
)
_ALLOCATIONS = ObjectCodec(
    AllocationTable,
    {
        "key": _LONG,
        "group": _ROWS,
        "index": _ROWS,
        "node": _ROWS,
        "desired": _BYTES,
        "client": _BYTES,
        "reschedules": ColumnCodec("i2"),
        "modify_seq": _LONG,
        "groups": _GROUPS,
        "by_job": RowRunsCodec(JobId),
        "held": _HELD,
        "holdings": DictCodec(int, Holding),
        "previous": DictCodec(int, int),
        "evicted_by": DictCodec(int, JobId),
        "displaced": DictCodec(int, None),
        "details": DictCodec(int, bytes),
        "reschedule_at_ns": DictCodec(int, int),
        "chains": DictCodec(int, tuple[int, ...]),
        "workload": _WORKLOAD,
        "_ordinal_seq": _INT,
        "_ordinal": _INT,
        "_pool": _POOL,
        "_rare": _EntryHashesCodec(),
        "health": _BYTES,
        "canary": ColumnCodec("?"),
        "deployment": _LONG,
        "health_reasons": DictCodec(int, str),
        "final": DictCodec(int, None),
        "predecessors": _PREDECESSORS,
    },
    derived=("_hashes", "incarnation", "live_children"),
    rows=lambda table: table._pool.high,
    settle=_settle_allocations,
    later=("health", "canary", "deployment", "health_reasons", "final", "predecessors"),
)


# ---- deployments ----


def _settle_deployments(table: DeploymentTable) -> None:
    for key in table.by_key:
        table._hashes.touch(key)


_DEPLOYMENTS = ObjectCodec(
    DeploymentTable,
    {
        "by_key": DictCodec(DeploymentKey, Deployment, frozen=True),
        "keys_of": DictCodec(JobId, list[DeploymentKey], pack=list, unpack=tuple),
        "active": DictCodec(JobId, DeploymentKey),
    },
    derived=("_hashes", "log_ns"),
    settle=_settle_deployments,
)

# ---- rollouts ----


def _settle_rollouts(table: RolloutTable) -> None:
    for key in table.by_key:
        table._hashes.touch(key)


_ROLLOUTS = ObjectCodec(
    RolloutTable,
    {
        "by_key": DictCodec(RolloutKey, RolloutRecord, frozen=True),
        "active": DictCodec(JobId, RolloutKey),
        "_ordinal_seq": _INT,
        "_ordinal": _INT,
    },
    derived=("_hashes",),
    settle=_settle_rollouts,
)

# ---- variables ----

_VARIABLES = ObjectCodec(
    VariableTable,
    {
        # A variable has up to 70 KB, which no compression shortens.
        "by_path": DictCodec(str, VariableRow, frozen=True, piece_entries=16),
        "ended": DictCodec(LifeKey, int, frozen=True),
        "keys": DictCodec(str, KeyRow, frozen=True),
        "refused": DictCodec(RequestKey, int, frozen=True),
    },
    derived=("live", "total_size", "_rows", "_ended", "_keys", "_refused"),
    settle=VariableTable.settle,
)

_VARIABLE_LOCKS = ObjectCodec(
    LockTable,
    {"by_path": DictCodec(str, LockRow, frozen=True)},
    derived=("_hashes",),
    settle=LockTable.settle,
)

_SIGNING_KEYS = ObjectCodec(
    SigningKeyTable,
    {
        "by_id": DictCodec(str, SigningKeyRow, frozen=True),
        "removed": DictCodec(str, int, frozen=True),
    },
    derived=("_keys", "_removed"),
    settle=SigningKeyTable.settle,
)

_CLAIMS = ObjectCodec(
    ClaimTable,
    {"by_index": DictCodec(IndexKey, dict[str, ClaimRow], frozen=True)},
    derived=("_hashes",),
    settle=ClaimTable.settle,
)

_VOLUMES = ObjectCodec(
    VolumeTable,
    {"by_id": DictCodec(str, VolumeRow, frozen=True)},
    derived=("of_node", "leaving", "_hashes"),
    settle=VolumeTable.settle,
)

_REMOTES = ObjectCodec(
    RemoteTable,
    {"by_key": DictCodec(int, SlotRow, frozen=True)},
    derived=("_hashes", "tracked", "of_job", "endings"),
    settle=RemoteTable.settle,
)

#: by table's name.
TABLE_CODECS: dict[str, ObjectCodec] = {
    "policy": _POLICY,
    "jobs": _JOBS,
    "fleet": _FLEET,
    "evaluations": _EVALUATIONS,
    "allocations": _ALLOCATIONS,
    "reservations": _RESERVATIONS,
    "deployments": _DEPLOYMENTS,
    "launches": _LAUNCHES,
    "rollouts": _ROLLOUTS,
    "variables": _VARIABLES,
    "variable_locks": _VARIABLE_LOCKS,
    "signing_keys": _SIGNING_KEYS,
    "claims": _CLAIMS,
    "volumes": _VOLUMES,
    "remotes": _REMOTES,
}

#: Releases whose snapshots are read beside those of this one.
OLDER_RELEASES = frozenset(f"0.{minor}.0" for minor in range(1, 12))
#: Tables that came after release 0.1.0: its snapshots have none of them.
LATER_TABLES: frozenset[str] = frozenset(
    {
        "deployments",
        "launches",
        "rollouts",
        "variables",
        "variable_locks",
        "signing_keys",
        "claims",
        "volumes",
        "remotes",
    }
)
#: table -> fingerprints of older formats that the codec above reads too: entries of theirs lack fields that have a
#: default, and none is encoded otherwise. tests/golden/test_logs.py has those of each release.
OLDER_SHAPES: dict[str, frozenset[str]] = {
    "policy": frozenset({"ba5e7a9c8380786a"}),
    "jobs": frozenset({"a1032e3ab2d7be7c", "3306d0cfecca2399", "8924855c6684e792"}),
    "allocations": frozenset({"fe8ec7e7780fa1c6", "cb90e28c7b6ad995", "c6953c290d4fcc13"}),
    "fleet": frozenset({"7284cccb488963fe", "bc5d6f294c583fa0"}),
    "deployments": frozenset({"b97a5e7290064d87"}),
}
