"""Allocations: placed work as columns, and what it uses of each node.

A plan of thousands of allocations becomes a few array writes: no Python object an allocation. What is rare (task
details, reschedule times, the allocation that one replaces) lives in dicts beside the columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import (
    CLIENT_STATUSES,
    AllocationsCollected,
    AllocationsDisplaced,
    AllocationsReported,
)
from schemas.base import JobId
from schemas.envelope import ENCODER
from schemas.jobs import GroupSpec, JobRegistered, JobsCollected
from schemas.plans import GroupPlacement, PlanCommitted
from shared.core.columns import EntryHashes, RowHashes, RowPool, Rows, grown, hash_columns
from shared.core.fragmentation.workload import Workload
from shared.core.ids import make_key
from shared.core.learned import Learned, learned_of
from shared.core.resources.asks import Extras, Holding, extras_of, holdings_of
from shared.core.resources.held import Held
from shared.core.tables.handling import Handlers, Handling

CLIENT_CODE = {name: code for code, name in enumerate(CLIENT_STATUSES)}
PENDING, RUNNING, COMPLETE, FAILED, LOST, UNKNOWN = range(6)
RUN, STOP, EVICT = range(3)
#: by client status code: has ended, and holds no resources any more.
TERMINAL = np.array([False, False, True, True, True, False])
#: job, version, name of the group.
GroupKey = tuple[JobId, int, str]
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)
#: As many numbers are looked at one by one: vectors have their price.
_FEW = 16


class Groups:
    """Task groups of job versions, numbered: what an allocation's `group` column points to."""

    def __init__(self) -> None:
        self.job_ids: list[JobId] = []
        self.names: list[str] = []
        self.versions: list[int] = []
        #: what forces a replacement when it differs (GroupSpec.digest).
        self.digests: list[str] = []
        #: (G, 3) ask of one allocation.
        self.ask = np.zeros((0, 3), dtype=np.int64)
        #: what it asks for beside them; None: nothing.
        self.extras: list[Extras | None] = []
        #: (G,) priority that the job has now, whatever the version.
        self.priority = np.zeros(0, dtype=np.int32)
        #: allocations that point here.
        self.held: list[int] = []
        #: of all versions of a job, in the order of registration: the last is of the newest, unless that has none.
        self._refs: dict[JobId, tuple[int, ...]] = {}
        #: newest versions that have no groups.
        self._bare: dict[JobId, int] = {}
        self._pool = RowPool()

    @property
    def ref_of(self) -> Mapping[GroupKey, int]:
        """The same as `ref`, like a dict."""
        return RefOf(self)

    def ref(self, job_id: JobId, version: int, name: str) -> int:
        """Number of a group. Raises KeyError."""
        names, versions = self.names, self.versions
        for ref in self._refs[job_id]:
            if names[ref] == name and versions[ref] == version:
                return ref
        raise KeyError((job_id, version, name))

    def refs(self) -> Mapping[JobId, tuple[int, ...]]:
        """Numbers of all versions' groups, by job. Do not write to it."""
        return self._refs

    def key(self, ref: int) -> GroupKey:
        """What a number means."""
        return self.job_ids[ref], self.versions[ref], self.names[ref]

    def newest(self, job_id: JobId) -> int | None:
        """The newest version of a job that is known here."""
        if self._bare and job_id in self._bare:
            return self._bare[job_id]
        refs = self._refs.get(job_id)
        return self.versions[refs[-1]] if refs else None

    def add(self, event: JobRegistered) -> None:
        """Number the groups of a job version that is new, forget those of older ones that nothing points to."""
        job_id = event.job_id
        older = self._refs.get(job_id, ())
        if older:
            self._drop(job_id, [ref for ref in older if not self.held[ref]])
            older = self._refs.get(job_id, ())
            self.priority[list(older)] = event.priority
        if not event.groups:
            self._bare[job_id] = event.version
            return
        if self._bare:
            self._bare.pop(job_id, None)
        new = tuple([self._number(event, group) for group in event.groups])
        self._refs[job_id] = (*older, *new) if older else new

    def _number(self, event: JobRegistered, group: GroupSpec) -> int:
        ref = self._pool.take_one()
        if ref == len(self.names):
            self.job_ids.append(event.job_id)
            self.names.append(group.name)
            self.versions.append(event.version)
            self.digests.append(group.digest)
            self.extras.append(extras_of(group))
            self.held.append(0)
            if ref >= len(self.ask):
                self.ask = grown(self.ask, ref + 1)
                self.priority = grown(self.priority, ref + 1)
        else:
            self.job_ids[ref], self.versions[ref] = event.job_id, event.version
            self.names[ref], self.digests[ref] = group.name, group.digest
            self.extras[ref] = extras_of(group)
        self.ask[ref] = (group.cpu_mhz, group.memory_mib, group.disk_mib)
        self.priority[ref] = event.priority
        return ref

    def of_job(self, job_id: JobId) -> tuple[GroupKey, ...]:
        """Keys of all versions' groups of a job."""
        return tuple([self.key(ref) for ref in self._refs.get(job_id, ())])

    def hold(self, ref: int, count: int) -> None:
        """Count allocations that point to a group; a superseded one that nothing points to is forgotten."""
        self.held[ref] += count
        if not self.held[ref] and self.newest(self.job_ids[ref]) != self.versions[ref]:
            self._drop(self.job_ids[ref], [ref])

    def drop(self, job_id: JobId) -> None:
        """Forget a job that has no allocations."""
        self._bare.pop(job_id, None)
        self._drop(job_id, self._refs.get(job_id, ()))

    def _drop(self, job_id: JobId, refs: Sequence[int]) -> None:
        if not refs:
            return
        kept = tuple([ref for ref in self._refs[job_id] if ref not in refs])
        if kept:
            self._refs[job_id] = kept
        else:
            del self._refs[job_id]
        # Nobody's priority is as high: what is free looks like nothing that could make room.
        gone = np.asarray(refs, dtype=np.int32)
        self.priority[gone] = np.iinfo(np.int32).max
        self._pool.free(gone)


class RefOf(Mapping[GroupKey, int]):
    """Numbers of groups by what they mean: read from the columns, so that a group costs no entry of its own."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def __getitem__(self, key: GroupKey) -> int:
        return self._groups.ref(*key)

    def __iter__(self) -> Iterator[GroupKey]:
        return map(self._groups.key, chain.from_iterable(self._groups.refs().values()))

    def __len__(self) -> int:
        return sum(map(len, self._groups.refs().values()))


class AllocationTable(Handling):
    """Allocations. Shapes: A rows, free ones included (`key` 0)."""

    def __init__(self) -> None:
        #: identity; 0: the row is free.
        self.key = np.zeros(0, dtype=np.int64)
        #: index into `groups`.
        self.group = np.zeros(0, dtype=np.int32)
        #: number in the name `job.group[index]`.
        self.index = np.zeros(0, dtype=np.int32)
        #: fleet row.
        self.node = np.zeros(0, dtype=np.int32)
        self.desired = np.zeros(0, dtype=np.int8)
        self.client = np.zeros(0, dtype=np.int8)
        #: how often the chain it belongs to was rescheduled.
        self.reschedules = np.zeros(0, dtype=np.int16)
        self.modify_seq = np.zeros(0, dtype=np.int64)
        self.groups = Groups()
        #: rows of a job, terminal ones included, in order of creation; a row alone as its number: `rows_of`.
        self.by_job: dict[JobId, Rows | int] = {}
        #: what is held on each fleet row by allocations that are neither terminal nor evicted.
        self.held = Held()
        #: by row: what an allocation holds beside the three columns, for as long as the row is its.
        self.holdings: dict[int, Holding] = {}
        self.previous: dict[int, int] = {}
        #: job that an evicted one made room for.
        self.evicted_by: dict[int, JobId] = {}
        #: rows that an operator stopped, until the plan that replaces them.
        self.displaced: dict[int, None] = {}
        self.details: dict[int, bytes] = {}
        self.reschedule_at_ns: dict[int, int] = {}
        #: by key: due time, delay, due time, delay, … of the reschedules of its chain.
        self.chains: dict[int, tuple[int, ...]] = {}
        #: what was asked for so far, placed or not.
        self.workload = Workload[Learned]()
        self._ordinal_seq = 0
        self._ordinal = 0
        self._pool = RowPool()
        self._hashes = RowHashes()
        self._rare = EntryHashes[int]()

    @property
    def size(self) -> int:
        """Number of rows, free ones included."""
        return self._pool.high

    def handlers(self) -> Handlers:
        """What applies each fact."""
        return {
            JobRegistered: self._register,
            PlanCommitted: self._commit,
            AllocationsReported: self._report,
            AllocationsDisplaced: self._displace,
            AllocationsCollected: self._collect,
            JobsCollected: self._drop,
        }

    def _register(self, event: JobRegistered, seq: int) -> None:
        del seq
        if self.groups.newest(event.job_id) == event.version:
            return
        for group in event.groups:
            alternatives = group.alternatives
            shape = learned_of(group, alternatives[0] if alternatives else ())
            if shape is not None and group.count > 0:
                self.workload.saw(shape, group.count)
        self.groups.add(event)

    def _displace(self, event: AllocationsDisplaced, seq: int) -> None:
        for row in event.rows:
            self.displaced[row] = None
            self._rare.touch(row)
        self._mark(np.asarray(event.rows, dtype=np.int32), seq)

    def _drop(self, event: JobsCollected, seq: int) -> None:
        del seq
        for job_id in event.job_ids:
            self.groups.drop(job_id)

    def rows_of(self, job_id: JobId) -> Rows:
        """Rows of a job, terminal ones included. Do not write to it."""
        rows = self.by_job.get(job_id, _NO_ROWS)
        return np.array((rows,), dtype=np.int32) if type(rows) is int else rows  # type: ignore[return-value]

    def all_of_jobs(self) -> list[Rows]:
        """Rows of each job, in the order of `by_job`."""
        return [self.rows_of(job_id) for job_id in self.by_job]

    def is_wanted(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows are to run and did not end. Shapes: rows, result (R,)."""
        wanted: NDArray[np.bool_] = (self.desired[rows] == RUN) & ~TERMINAL[self.client[rows]]
        return wanted

    def is_holding(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows hold resources: what did not end and was not evicted. Shapes: rows, result (R,)."""
        holding: NDArray[np.bool_] = (self.desired[rows] != EVICT) & ~TERMINAL[self.client[rows]]
        return holding

    def used(self, size: int) -> NDArray[np.int64]:
        """The three columns held on the first `size` fleet rows. Shape: (size, 3). A view: do not write to it."""
        return self.held.columns(size)

    def held_by(self, row: int) -> tuple[int, NDArray[np.int64], Holding | None]:
        """Say what an allocation holds, as `Held.add` and `Held.remove` take it: fleet row, ask (3,), the rest."""
        ask: NDArray[np.int64] = self.groups.ask[self.group[row]]
        return int(self.node[row]), ask, self.holdings.get(row)

    def live_rows(self) -> Rows:
        """All rows in use."""
        return np.flatnonzero(self.key[: self.size]).astype(np.int32)

    def on_nodes(self, nodes: Rows) -> Rows:
        """Rows in use on any of these fleet rows: one vector pass."""
        size = self.size
        hit = np.isin(self.node[:size], nodes) & (self.key[:size] != 0)
        return np.flatnonzero(hit).astype(np.int32)

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        columns = self._hashes.digest(self._hash_rows)
        rare = self._rare.digest(lambda rows: [self._rare_text(row) for row in rows])
        return blake2b(f"{columns}{rare}".encode(), digest_size=8).hexdigest()

    def _hash_rows(self, rows: Rows) -> NDArray[np.uint64]:
        columns = (
            self.key,
            self.group,
            self.index,
            self.node,
            self.desired,
            self.client,
            self.reschedules,
            self.modify_seq,
        )
        return hash_columns(rows, columns, self.key[rows] != 0)

    def _rare_text(self, row: int) -> bytes:
        entry: tuple[object, ...]
        entry = (self.previous.get(row), self.details.get(row), self.reschedule_at_ns.get(row))
        chain = self.chains.get(int(self.key[row])) if self.chains else None
        holding = self.holdings.get(row)
        evicted_by = self.evicted_by.get(row)
        is_displaced = row in self.displaced or None
        more = (chain, holding, evicted_by, is_displaced)
        if entry == (None, None, None) and more == (None, None, None, None):
            return b""
        if chain is not None:
            entry = (*entry, chain)
        if holding is not None:
            entry = (*entry, holding)
        if evicted_by is not None:
            entry = (*entry, evicted_by)
        if is_displaced:
            entry = (*entry, "displaced")
        return ENCODER.encode((row, entry))

    def _commit(self, event: PlanCommitted, seq: int) -> None:
        for evictions in event.evictions:
            rows = np.asarray(evictions.rows, dtype=np.int32)
            self._let_go(rows)
            self._settle(evictions.rows)
            self.desired[rows] = EVICT
            for row in evictions.rows:
                self.evicted_by[row] = event.job_id
                self._rare.touch(row)
            self.modify_seq[rows] = seq
            self._hashes.touch(rows)
        for stop in event.stops:
            rows = np.asarray(stop.rows, dtype=np.int32)
            # Once evicted, always evicted: it must not hold again what it gave up.
            self.desired[rows[self.desired[rows] != EVICT]] = STOP
            self._settle(stop.rows)
            self._mark(rows, seq)
            if stop.client_status:
                self._set_client(rows, np.full(len(rows), CLIENT_CODE[stop.client_status]), seq)
        for update in event.updates:
            rows = np.asarray(update.rows, dtype=np.int32)
            self._regroup(rows, self.groups.ref(event.job_id, update.version, update.group))
            self.modify_seq[rows] = seq
            self._hashes.touch(rows)
        for placement in event.placements:
            ref = self.groups.ref(event.job_id, placement.version, placement.group)
            is_plain = not placement.previous and self.groups.extras[ref] is None
            if is_plain and placement.counts == (1,):
                self._place_one(event.job_id, placement, ref, seq)
            else:
                self._place(event.job_id, placement, ref, seq)

    def _mark(self, rows: Rows, seq: int) -> None:
        self.modify_seq[rows] = seq
        self._hashes.touch(rows)

    def _settle(self, rows: tuple[int, ...]) -> None:
        """These end: that an operator wanted it is done."""
        if self.displaced:
            for row in rows:
                if row in self.displaced:
                    del self.displaced[row]
                    self._rare.touch(row)

    def _regroup(self, rows: Rows, ref: int) -> None:
        old = self.group[rows].copy()
        self.group[rows] = ref
        self.groups.hold(ref, len(rows))
        self._release(old)

    def _release(self, refs: NDArray[np.int32]) -> None:
        for ref, count in zip(
            *(part.tolist() for part in np.unique(refs, return_counts=True)), strict=True
        ):
            self.groups.hold(ref, -count)

    def _place_one(self, job_id: JobId, placement: GroupPlacement, ref: int, seq: int) -> None:
        """Place one allocation that replaces none and holds nothing beside its ask: as `_place`, without vectors."""
        row, node = self._pool.take_one(), placement.rows[0]
        if row >= len(self.key):
            self._grow(row + 1)
        ordinal = self._ordinal if self._ordinal_seq == seq else 0
        self._ordinal_seq, self._ordinal = seq, ordinal + 1
        groups = self.groups
        groups.held[ref] += 1
        self.key[row] = make_key(seq, ordinal)
        self.group[row] = ref
        self.index[row] = placement.names[0]
        self.node[row] = node
        self.desired[row] = RUN
        self.client[row] = PENDING
        self.reschedules[row] = placement.reschedules[0] if placement.reschedules else 0
        self.modify_seq[row] = seq
        old = self.by_job.get(job_id)
        self.by_job[job_id] = row if old is None else _joined(old, row)
        self.held.add(node, groups.ask[ref], None)
        self._hashes.touched.append(row)

    def _place(self, job_id: JobId, placement: GroupPlacement, ref: int, seq: int) -> None:
        where = np.asarray(placement.rows, dtype=np.intp)
        counts = np.asarray(placement.counts, dtype=np.int64)
        nodes = np.repeat(where, counts)
        count = len(nodes)
        rows = self._pool.take(count)
        # Rows ascend: without a gap they are a slice, which is written several times faster.
        is_run = count > 0 and int(rows[-1]) - int(rows[0]) + 1 == count
        at = slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows
        self._grow(self._pool.high)
        ordinal = self._ordinal if self._ordinal_seq == seq else 0
        self._ordinal_seq, self._ordinal = seq, ordinal + count
        first = make_key(seq, ordinal)
        self.groups.hold(ref, count)
        self.key[at] = np.arange(first, first + count)
        self.group[at] = ref
        self.index[at] = expand_runs(placement.names)
        self.node[at] = nodes
        self.desired[at] = RUN
        self.client[at] = PENDING
        self.reschedules[at] = placement.reschedules or 0
        self.modify_seq[at] = seq
        if placement.previous:
            for nth, (row, previous) in enumerate(
                zip(rows.tolist(), placement.previous, strict=False)
            ):
                if previous:
                    self.previous[row] = previous
                    chain = self.chains.get(previous)
                    if chain is not None:
                        self.chains[first + nth] = chain
                    self._rare.touch(row)
        old = self.by_job.get(job_id)
        self.by_job[job_id] = rows if old is None else _joined(old, rows)
        ask = self.groups.ask[ref]
        self.held.add_columns(where, counts[:, None] * ask)
        extras = self.groups.extras[ref]
        if extras is not None:
            holdings = holdings_of(extras, placement)
            for row, node, holding in zip(rows.tolist(), nodes.tolist(), holdings, strict=True):
                self.holdings[row] = holding
                self.held.add(node, None, holding)
                self._rare.touch(row)
        self._hashes.touch(rows)

    def _report(self, event: AllocationsReported, seq: int) -> None:
        if event.rows:
            rows = np.asarray(event.rows, dtype=np.int32)
            self._set_client(rows, np.asarray(event.statuses, dtype=np.int8), seq)
        for detail in event.details:
            self.details[detail.row] = bytes(detail.tasks)
            if detail.reschedule_at_ns:
                self.reschedule_at_ns[detail.row] = detail.reschedule_at_ns
            if detail.reschedules:
                self.chains[int(self.key[detail.row])] = detail.reschedules
            self._rare.touch(detail.row)

    def _set_client(self, rows: Rows, codes: NDArray[np.integer], seq: int) -> None:
        ended = rows[TERMINAL[codes] & self.is_holding(rows)]
        if len(ended):
            self._let_go(ended)
        self.client[rows] = codes
        self.modify_seq[rows] = seq
        self._hashes.touch(rows)

    def _let_go(self, rows: Rows) -> None:
        self.held.add_columns(self.node[rows], -self.groups.ask[self.group[rows]])
        if self.holdings:
            for row in rows.tolist():
                holding = self.holdings.get(row)
                if holding is not None:
                    self.held.remove(int(self.node[row]), None, holding)

    def _collect(self, event: AllocationsCollected, seq: int) -> None:
        del seq
        rows = _leaving(event)
        refs = np.unique(self.group[rows]).tolist()
        going = np.zeros(self.size, dtype=bool)
        going[rows] = True
        for job_id in sorted({self.groups.job_ids[ref] for ref in refs}):
            kept = self.rows_of(job_id)
            kept = kept[~going[kept]]
            if len(kept):
                self.by_job[job_id] = kept
            else:
                del self.by_job[job_id]
        self._release(self.group[rows])
        if self.chains:
            for key in self.key[rows].tolist():
                self.chains.pop(key, None)
        self.key[rows] = 0
        kinds = (
            self.previous,
            self.details,
            self.reschedule_at_ns,
            self.holdings,
            self.evicted_by,
            self.displaced,
        )
        some = [rare for rare in kinds if rare]
        for row in rows.tolist() if some else ():
            for rare in some:
                rare.pop(row, None)
            self._rare.touch(row)
        self._hashes.touch(rows)
        self._pool.free(rows)

    def _grow(self, size: int) -> None:
        if size <= len(self.key):
            return
        self.key = grown(self.key, size)
        self.group = grown(self.group, size)
        self.index = grown(self.index, size)
        self.node = grown(self.node, size)
        self.desired = grown(self.desired, size)
        self.client = grown(self.client, size)
        self.reschedules = grown(self.reschedules, size)
        self.modify_seq = grown(self.modify_seq, size)


def _joined(old: Rows | int, more: Rows | int) -> Rows:
    """Rows and more rows, or one more."""
    return np.concatenate((np.atleast_1d(old), np.atleast_1d(more)), dtype=np.int32)


def expand_runs(runs: tuple[int, ...]) -> NDArray[np.int64]:
    """Turn start, length, start, length, … into the numbers themselves."""
    if len(runs) == 2:
        return np.arange(runs[0], runs[0] + runs[1])
    parts = [np.arange(runs[i], runs[i] + runs[i + 1]) for i in range(0, len(runs), 2)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def pack_runs(numbers: NDArray[np.integer]) -> tuple[int, ...]:
    """Turn numbers into start, length, … runs of consecutive ones, in their order."""
    count = len(numbers)
    if not count:
        return ()
    first = int(numbers[0])
    if count == 1:
        return first, 1
    if int(numbers[-1]) - first == count - 1 and (numbers == np.arange(first, first + count)).all():
        return (first, count)
    if count <= _FEW:
        runs: list[int] = []
        for number in numbers.tolist():
            if runs and number == runs[-2] + runs[-1]:
                runs[-1] += 1
            else:
                runs += (number, 1)
        return tuple(runs)
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
    lengths = np.diff(starts, append=len(numbers))
    return tuple(np.column_stack((numbers[starts], lengths)).ravel().tolist())


def _leaving(event: AllocationsCollected) -> Rows:
    """Rows that left, one by one."""
    rows = np.asarray(event.rows, dtype=np.int32)
    runs = np.asarray(event.runs, dtype=np.int32).reshape(-1, 2)
    if not len(runs):
        return rows
    parts = [np.arange(start, start + size, dtype=np.int32) for start, size in runs.tolist()]
    return np.concatenate([rows, *parts])
