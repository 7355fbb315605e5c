"""Allocations: placed work as columns, and what it uses of each node.

A plan of thousands of allocations becomes a few array writes: no Python object an allocation. What is rare (task
details, reschedule times, the allocation that one replaces) lives in dicts beside the columns.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import (
    CLIENT_STATUSES,
    AllocationsCollected,
    AllocationsDisplaced,
    AllocationsHealthChanged,
    AllocationsReported,
)
from schemas.base import JobId
from schemas.deployments import DeploymentPromoted
from schemas.envelope import ENCODER
from schemas.jobs import JobRegistered, JobsCollected
from schemas.plans import GroupPlacement, PlanCommitted
from schemas.policy import IncarnationBegan
from shared.core.columns import (
    EntryHashes,
    RowHashes,
    RowPool,
    Rows,
    grown,
    hash_columns,
)
from shared.core.resources.ask_shape import AskShape, ask_shape_of
from shared.core.resources.asks import Holding, holdings_of
from shared.core.resources.held import HeldResources
from shared.core.state.group_registry import GroupRegistry
from shared.core.state.ids import make_key
from shared.core.state.live_children import LiveChildren
from shared.core.state.name_runs import expand_runs
from shared.core.state.predecessors import Predecessors
from shared.core.state.tables.consumer import EventConsumer, EventHandlers
from shared.core.state.workload import AskWorkload

CLIENT_CODE = {name: code for code, name in enumerate(CLIENT_STATUSES)}
PENDING, RUNNING, COMPLETE, FAILED, LOST, UNKNOWN = range(6)
RUN, STOP, EVICT = range(3)
#: codes of health: index into HEALTHS.
HEALTHY, UNHEALTHY = 1, 2
#: by client status code: has ended, and holds no resources any more.
TERMINAL = np.array([False, False, True, True, True, False])
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)


class AllocationTable(EventConsumer):
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
        #: index into HEALTHS.
        self.health = np.zeros(0, dtype=np.int8)
        #: of a deployment that did not promote it.
        self.canary = np.zeros(0, dtype=np.bool_)
        #: key of the deployment that it was placed or updated for; 0: none.
        self.deployment = np.zeros(0, dtype=np.int64)
        #: by row: why it is unhealthy.
        self.health_reasons: dict[int, str] = {}
        self.groups = GroupRegistry()
        #: rows of a job, terminal ones included, in order of creation; a row alone as its number: `rows_of`.
        self.by_job: dict[JobId, Rows | int] = {}
        self.live_children = LiveChildren()
        #: what is held on each fleet row by allocations that are neither terminal nor evicted.
        self.held = HeldResources()
        #: by row: what an allocation holds beside the three columns, for as long as the row is its.
        self.holdings: dict[int, Holding] = {}
        self.previous: dict[int, int] = {}
        #: job that an evicted one made room for.
        self.evicted_by: dict[int, JobId] = {}
        #: rows that an operator stopped, until the plan that replaces them.
        self.displaced: dict[int, None] = {}
        #: rows stopped for good: nothing replaces them in their version of the job.
        self.final: dict[int, None] = {}
        #: what was stopped to be replaced and is not replaced yet, and the room that is kept of it.
        self.predecessors = Predecessors()
        self.details: dict[int, bytes] = {}
        self.reschedule_at_ns: dict[int, int] = {}
        #: by key: due time, delay, due time, delay, … of the reschedules of its chain.
        self.chains: dict[int, tuple[int, ...]] = {}
        #: what was asked for so far, placed or not.
        self.workload = AskWorkload[AskShape]()
        #: enters keys: what the log says of itself.
        self.incarnation = 0
        self._ordinal_seq = 0
        self._ordinal = 0
        self._pool = RowPool()
        self._hashes = RowHashes()
        self._rare = EntryHashes[int]()

    @property
    def size(self) -> int:
        """Number of rows, free ones included."""
        return self._pool.high

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            JobRegistered: self._register,
            PlanCommitted: self._commit,
            AllocationsReported: self._report,
            AllocationsDisplaced: self._displace,
            AllocationsCollected: self._collect,
            AllocationsHealthChanged: self._set_health,
            DeploymentPromoted: self._promote,
            JobsCollected: self._drop,
            IncarnationBegan: self._begin_incarnation,
        }

    def _begin_incarnation(self, event: IncarnationBegan, seq: int) -> None:
        del seq
        self.incarnation = event.incarnation

    def _register(self, event: JobRegistered, seq: int) -> None:
        del seq
        if self.groups.newest(event.job_id) == event.version:
            return
        for group in event.groups:
            alternatives = group.alternatives
            shape = ask_shape_of(group, alternatives[0] if alternatives else ())
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

    def is_final(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows were stopped for good, replaced by nothing. Shapes: rows, result (R,)."""
        if not self.final:
            return np.zeros(len(rows), dtype=bool)
        return np.isin(rows, np.fromiter(self.final, dtype=np.int32, count=len(self.final)))

    def is_holding(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows hold resources: not evicted, nor ended without room kept. Shapes: rows, result (R,)."""
        holding: NDArray[np.bool_] = ~TERMINAL[self.client[rows]]
        if self.predecessors.rooms:
            holding |= self.predecessors.has_room(rows)
        holding &= self.desired[rows] != EVICT
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
        live = self.key[rows] != 0
        hashes = hash_columns(rows, columns, live)
        # Of what has no deployment and no health the hash is that of before there were any.
        said = (self.deployment[rows] != 0) | (self.health[rows] != 0) | self.canary[rows]
        if said.any():
            more = (self.deployment, self.health, self.canary.view(np.int8))
            hashes ^= hash_columns(rows, more, live & said)
        return hashes

    def _rare_text(self, row: int) -> bytes:
        entry: tuple[object, ...]
        entry = (self.previous.get(row), self.details.get(row), self.reschedule_at_ns.get(row))
        chain = self.chains.get(int(self.key[row])) if self.chains else None
        holding = self.holdings.get(row)
        evicted_by = self.evicted_by.get(row)
        is_displaced = row in self.displaced or None
        reason = self.health_reasons.get(row)
        is_final = row in self.final or None
        predecessor = self.predecessors.text(row, int(self.key[row]))
        more = (chain, holding, evicted_by, is_displaced, reason, is_final, predecessor)
        if entry == (None, None, None) and more == (None,) * len(more):
            return b""
        if chain is not None:
            entry = (*entry, chain)
        if holding is not None:
            entry = (*entry, holding)
        if evicted_by is not None:
            entry = (*entry, evicted_by)
        if is_displaced:
            entry = (*entry, "displaced")
        if reason is not None:
            entry = (*entry, "health", reason)
        if is_final:
            entry = (*entry, "final")
        if predecessor is not None:
            entry = (*entry, *predecessor)
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
            if stop.final:
                for row in stop.rows:
                    self.final[row] = None
                    self._rare.touch(row)
            if stop.client_status:
                self._set_client(rows, np.full(len(rows), CLIENT_CODE[stop.client_status]), seq)
            if stop.to_replace:
                self._await_replacements(rows)
            elif self.predecessors:
                self._settle_predecessors(self.key[rows].tolist())
        for update in event.updates:
            rows = np.asarray(update.rows, dtype=np.int32)
            self._regroup(rows, self.groups.ref(event.job_id, update.version, update.group))
            self._join(rows, update.deployment)
            self.modify_seq[rows] = seq
            self._hashes.touch(rows)
        for placement in event.placements:
            ref = self.groups.ref(event.job_id, placement.version, placement.group)
            is_plain = not placement.previous and self.groups.extras[ref] is None
            if is_plain and placement.counts == (1,):
                self._place_one(event.job_id, placement, ref, seq)
            else:
                self._place(event.job_id, placement, ref, seq)

    def _await_replacements(self, rows: Rows) -> None:
        """Keep these as predecessors; of one that is one already, what it was first."""
        keys, codes = self.key[rows].tolist(), self.client[rows].tolist()
        for row, key, code in zip(rows.tolist(), keys, codes, strict=True):
            if self.predecessors.add(row, key, code):
                self._let_go(np.array([row], dtype=np.int32))
            self._rare.touch(row)

    def _settle_predecessors(self, keys: Iterable[int]) -> None:
        """These are replaced, or will not be."""
        rows, freed = self.predecessors.settle(keys)
        if freed:
            self._let_go(np.array(freed, dtype=np.int32))
        for row in rows:
            self._rare.touch(row)

    def _join(self, rows: Rows, deployment: int) -> None:
        """Enter a deployment, where health counts anew; 0: leave the one before."""
        self.deployment[rows] = deployment
        self.canary[rows] = False
        if deployment:
            self.health[rows] = 0
            self._forget_reasons(rows)

    def _forget_reasons(self, rows: Rows) -> None:
        if self.health_reasons:
            for row in rows.tolist():
                if self.health_reasons.pop(row, None) is not None:
                    self._rare.touch(row)

    def _set_health(self, event: AllocationsHealthChanged, seq: int) -> None:
        rows = np.asarray(event.rows, dtype=np.int32)
        self._forget_reasons(rows)
        self.health[rows] = np.asarray(event.healths, dtype=np.int8)
        for row, reason in zip(event.rows, event.reasons, strict=False):
            if reason:
                self.health_reasons[row] = reason
                self._rare.touch(row)
        self._mark(rows, seq)

    def _promote(self, event: DeploymentPromoted, seq: int) -> None:
        rows = np.asarray(event.rows, dtype=np.int32)
        self.canary[rows] = False
        self._mark(rows, seq)

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
        self.key[row] = make_key(seq + self.incarnation, ordinal)
        self.group[row] = ref
        self.index[row] = placement.names[0]
        self.node[row] = node
        self.desired[row] = RUN
        self.client[row] = PENDING
        self.reschedules[row] = placement.reschedules[0] if placement.reschedules else 0
        self.modify_seq[row] = seq
        if placement.deployment:
            self.deployment[row] = placement.deployment
            self.canary[row] = placement.canaries
        old = self.by_job.get(job_id)
        self.by_job[job_id] = row if old is None else _append_rows(old, row)
        self.held.add(node, groups.ask[ref], None)
        self.live_children.count(job_id, 1)
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
        first = make_key(seq + self.incarnation, ordinal)
        self.groups.hold(ref, count)
        self.key[at] = np.arange(first, first + count)
        self.group[at] = ref
        self.index[at] = expand_runs(placement.names)
        self.node[at] = nodes
        self.desired[at] = RUN
        self.client[at] = PENDING
        self.reschedules[at] = placement.reschedules or 0
        self.modify_seq[at] = seq
        if placement.deployment:
            self.deployment[at] = placement.deployment
            self.canary[at] = placement.canaries
        if placement.previous:
            if self.predecessors:
                self._settle_predecessors(placement.previous)
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
        self.by_job[job_id] = _alone(rows) if old is None else _append_rows(old, rows)
        self.live_children.count(job_id, count)
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
        is_end = TERMINAL[codes] & ~TERMINAL[self.client[rows]] & (self.desired[rows] != EVICT)
        if self.predecessors:
            kept = keeps_room(self, rows, codes)
            for row in rows[kept].tolist():
                self.predecessors.rooms[row] = None
                self._rare.touch(row)
            is_end &= ~kept
        ended = rows[is_end]
        if len(ended):
            self._let_go(ended)
        if self.live_children:
            self._end_children(rows[TERMINAL[codes] & ~TERMINAL[self.client[rows]]])
        self.client[rows] = codes
        self.modify_seq[rows] = seq
        self._hashes.touch(rows)

    def _end_children(self, ended: Rows) -> None:
        refs, counts = np.unique(self.group[ended], return_counts=True)
        for ref, count in zip(refs.tolist(), counts.tolist(), strict=True):
            self.live_children.count(self.groups.job_ids[ref], -count)

    def _let_go(self, rows: Rows) -> None:
        self.held.add_columns(self.node[rows], -self.groups.ask[self.group[rows]])
        if self.holdings:
            for row in rows.tolist():
                holding = self.holdings.get(row)
                if holding is not None:
                    self.held.remove(int(self.node[row]), None, holding)

    def _collect(self, event: AllocationsCollected, seq: int) -> None:
        del seq
        rows = collected_rows(event)
        if self.predecessors:
            self._settle_predecessors(self.key[rows].tolist())
        refs = np.unique(self.group[rows]).tolist()
        going = np.zeros(self.size, dtype=bool)
        going[rows] = True
        for job_id in sorted({self.groups.job_ids[ref] for ref in refs}):
            kept = self.rows_of(job_id)
            kept = kept[~going[kept]]
            if len(kept):
                self.by_job[job_id] = _alone(kept)
            else:
                del self.by_job[job_id]
        self._release(self.group[rows])
        if self.chains:
            for key in self.key[rows].tolist():
                self.chains.pop(key, None)
        self.key[rows] = 0
        self.health[rows] = 0
        self.canary[rows] = False
        self.deployment[rows] = 0
        kinds = (
            self.previous,
            self.details,
            self.reschedule_at_ns,
            self.holdings,
            self.evicted_by,
            self.displaced,
            self.health_reasons,
            self.final,
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
        self.health = grown(self.health, size)
        self.canary = grown(self.canary, size)
        self.deployment = grown(self.deployment, size)


def _alone(rows: Rows) -> Rows | int:
    """Rows; a row alone stands for itself."""
    return int(rows[0]) if len(rows) == 1 else rows


def _append_rows(old: Rows | int, more: Rows | int) -> Rows:
    """Rows and more rows, or one more."""
    return np.concatenate((np.atleast_1d(old), np.atleast_1d(more)), dtype=np.int32)


def was_failed(table: AllocationTable, rows: Rows) -> NDArray[np.bool_]:
    """Which of these rows ended by their own failure, not while they were stopped. Shapes: rows, result (R,)."""
    failed: NDArray[np.bool_] = table.client[rows] == FAILED
    if table.predecessors and failed.any():
        for at in np.flatnonzero(failed).tolist():
            status = table.predecessors.status_at_stop(int(table.key[rows[at]]))
            failed[at] = status is None or status == FAILED
    return failed


def keeps_room(table: AllocationTable, rows: Rows, codes: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Of which of these rows the room is kept when they become of these statuses. Shapes: all (R,).

    What is lost leaves none: its node takes nothing. What had ended before its stop had given its room back.
    """
    kept: NDArray[np.bool_] = table.predecessors.holds(table.key[rows]) & (
        table.desired[rows] != EVICT
    )
    kept &= ~TERMINAL[table.client[rows]] & TERMINAL[codes] & (codes != LOST)
    return kept


def collected_rows(event: AllocationsCollected) -> Rows:
    """Rows that left, one by one."""
    rows = np.asarray(event.rows, dtype=np.int32)
    runs = np.asarray(event.runs, dtype=np.int32).reshape(-1, 2)
    if not len(runs):
        return rows
    parts = [np.arange(start, start + size, dtype=np.int32) for start, size in runs.tolist()]
    return np.concatenate([rows, *parts])
