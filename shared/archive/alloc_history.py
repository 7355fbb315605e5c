"""Allocation history: from events that name rows to facts that name allocations, a column at a time.

An allocation ends when it releases its resources: by its client status or because it was evicted.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsCollected, AllocationsDisplaced, AllocationsReported
from schemas.base import Event, JobId, NodeId
from schemas.jobs import JobRegistered
from schemas.nodes import NodeRegistered
from schemas.plans import GroupPlacement, PlanCommitted
from shared.archive.intervals import IntervalChunk, OpenIntervals, Value
from shared.archive.table_buffers import EventPosition, StringDictionary, TableBuffer
from shared.core.columns import Rows, grown
from shared.core.state.ids import ALLOC_SALT, alloc_id, shown_halves
from shared.core.state.name_runs import expand_runs
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    CLIENT_CODE,
    EVICT,
    STOP,
    TERMINAL,
    collected_rows,
    keeps_room,
)


class AllocationHistory:
    """What becomes of allocations."""

    def __init__(
        self, state: State, buffers: dict[str, TableBuffer], words: StringDictionary
    ) -> None:
        self._words = words
        #: by fleet row: word of its node's id.
        self._row_words = np.zeros(0, dtype=np.int32)
        #: by ref of a group: words of its job's id and its name.
        self._job_words = np.zeros(0, dtype=np.int32)
        self._group_words = np.zeros(0, dtype=np.int32)
        self._spans = IntervalChunk()
        self._state = state
        self._buffers = buffers
        self._placements = buffers["placements"]
        self._changes = buffers["changes"]
        self._tasks = buffers["tasks"]
        self._usage = buffers["usage"]
        self._shares = buffers["shares"]
        self._ordinal_seq = 0
        self._ordinal = 0

    def before(self, event: Event, at: EventPosition) -> None:
        """Record what ends or changes, from the state before the event."""
        if isinstance(event, AllocationsReported):
            self._report(event, at)
        elif isinstance(event, AllocationsDisplaced):
            rows = np.asarray(event.rows, dtype=np.int32)
            self._change(rows, at, reason="stopped by an operator")
        elif isinstance(event, AllocationsCollected):
            self._give_up_rooms(set(collected_rows(event).tolist()), set(), at)
        elif isinstance(event, PlanCommitted):
            stopped = {row for stop in event.stops for row in stop.rows}
            replaced = {key for one in event.placements for key in one.previous}
            evicted = self._evict(event, at)
            ended = self._give_up_rooms(stopped, replaced, at)
            self._stop(event, at, np.concatenate((evicted, ended)))
            for update in event.updates:
                rows = np.asarray(update.rows, dtype=np.int32)
                self._change(rows, at, version=update.version)

    def after(self, event: Event, at: EventPosition) -> None:
        """Record what began: placements name groups that the state knows."""
        if isinstance(event, NodeRegistered):
            self._name(event.spec.node_id)
        elif isinstance(event, JobRegistered):
            groups = self._state.allocations.groups
            self._name_groups(groups.ref_of[key] for key in groups.of_job(event.job_id))
        elif isinstance(event, PlanCommitted) and event.placements:
            self._place(event, at)

    def settle(self, first_seq: int) -> bool:
        """Put the spans of the chunk that began at `first_seq` into the buffers; True: it is a full one."""
        return self._spans.take(self._buffers, first_seq, self._words)

    def _report(self, event: AllocationsReported, at: EventPosition) -> None:
        table = self._state.allocations
        if event.rows:
            rows = np.asarray(event.rows, dtype=np.int32)
            codes = np.asarray(event.statuses, dtype=np.int64)
            differs = table.client[rows] != codes
            rows, codes = rows[differs], codes[differs]
            ends = TERMINAL[codes] & ~TERMINAL[table.client[rows]] & table.is_holding(rows)
            if table.predecessors:
                ends &= ~keeps_room(table, rows, codes)
            self._change(rows, at, client=codes, ends=ends)
        for detail in event.details:
            self._tasks.add_event(
                at,
                key=int(table.key[detail.row]),
                tasks=bytes(detail.tasks).decode("utf-8", "replace"),
            )

    def _evict(self, event: PlanCommitted, at: EventPosition) -> Rows:
        table = self._state.allocations
        all_rows = [row for one in event.evictions for row in one.rows]
        rows = np.asarray(all_rows, dtype=np.int32)
        if len(rows):
            reason = f"evicted for {event.job_id}"
            self._change(rows, at, desired=EVICT, ends=table.is_holding(rows), reason=reason)
        return rows

    def _give_up_rooms(self, ended: set[int], replaced: set[int], at: EventPosition) -> Rows:
        """Record the end of rooms that were kept for replacements, by rows or by keys; returns the rows."""
        table = self._state.allocations
        rooms = sorted(table.predecessors.rooms)
        rows = [row for row in rooms if row in ended or int(table.key[row]) in replaced]
        found = np.asarray(rows, dtype=np.int32)
        if rows:
            self._change(found, at, ends=np.ones(len(rows), dtype=np.bool_))
        return found

    def _stop(self, event: PlanCommitted, at: EventPosition, gone: Rows) -> None:
        table = self._state.allocations
        for stop in event.stops:
            rows = np.asarray(stop.rows, dtype=np.int32)
            client: int = CLIENT_CODE[stop.client_status] if stop.client_status else -1
            ends = np.zeros(len(rows), dtype=np.bool_)
            if client >= 0 and TERMINAL[client]:
                ends = table.is_holding(rows) & ~np.isin(rows, gone)
            desired = np.where(table.desired[rows] == EVICT, -1, STOP)
            self._change(rows, at, client=client, desired=desired, ends=ends, reason=stop.reason)

    def _change(
        self,
        rows: Rows,
        at: EventPosition,
        *,
        client: NDArray[np.int64] | int = -1,
        desired: NDArray[np.int64] | int = -1,
        version: int = -1,
        ends: NDArray[np.bool_] | None = None,
        reason: str = "",
    ) -> None:
        table = self._state.allocations
        seq, n, t_ns = at
        self._changes.extend(
            len(rows),
            seq=seq,
            n=n,
            t_ns=t_ns,
            key=table.key[rows],
            client=client,
            desired=desired,
            version=version,
            is_end=False if ends is None else ends,
            reason=reason or None,
        )
        changes: dict[str, Value] = {"client": client, "desired": desired, "version": version}
        told = {
            name: value
            for name, value in changes.items()
            if isinstance(value, np.ndarray) or value >= 0
        }
        if told or ends is not None:
            self._spans.change(rows, seq, told, ends)
        if ends is not None and ends.any():
            self._let_go(rows[ends], at)

    def _let_go(self, rows: Rows, at: EventPosition) -> None:
        table = self._state.allocations
        refs = table.group[rows]
        ask = -table.groups.ask[refs]
        self._usage.extend(
            len(rows),
            seq=at[0],
            t_ns=at[2],
            allocations=-1,
            cpu_mhz=ask[:, 0],
            memory_mib=ask[:, 1],
            disk_mib=ask[:, 2],
            job_id=self._job_words[refs],
            group_name=self._group_words[refs],
            node_id=self._of_rows(table.node[rows]),
        )

    def _place(self, event: PlanCommitted, at: EventPosition) -> None:
        """Record all that a plan places at once: their keys follow one another."""
        seq, n, t_ns = at
        placements = event.placements
        where = np.concatenate([np.asarray(one.rows, dtype=np.intp) for one in placements])
        counts = np.concatenate([np.asarray(one.counts, dtype=np.int64) for one in placements])
        totals = np.array([sum(one.counts) for one in placements], dtype=np.int64)
        count = int(totals.sum())
        ordinal = self._ordinal if self._ordinal_seq == seq else 0
        self._ordinal_seq, self._ordinal = seq, ordinal + count
        first = self._state.policy.incarnations.key(seq, ordinal)
        keys = np.arange(first, first + count)
        nodes, job = self._of_rows(where), self._words.code(event.job_id)
        names = self._words.codes([one.group for one in placements])
        versions = np.array([one.version for one in placements], dtype=np.int64)
        high, low = shown_halves(keys, ALLOC_SALT)
        shared: dict[str, Value] = {
            "seq": seq,
            "key": keys,
            "version": np.repeat(versions, totals),
            "name_index": np.concatenate([expand_runs(one.names) for one in placements]),
        }
        places, groups_of = np.repeat(nodes, counts), np.repeat(names, totals)
        self._placements.extend(
            count,
            n=n,
            t_ns=t_ns,
            id_high=high,
            id_low=low,
            previous_id=_previous(placements),
            reschedules=_reschedules(placements),
            node_id=places,
            job_id=job,
            group_name=groups_of,
            **shared,
        )
        # The state put them at the end of their job's rows, in this order.
        rows = self._state.allocations.rows_of(event.job_id)
        new = rows[len(rows) - count :]
        words: dict[str, Value] = {"node_word": places, "job_word": job, "group_word": groups_of}
        begun: dict[str, Value] = {"placed_ns": t_ns, "client": 0, "desired": 0}
        self._spans.begin(new, {**shared, **words, **begun})
        groups = self._state.allocations.groups
        refs = [groups.ref_of[JobId(event.job_id), one.version, one.group] for one in placements]
        if any(groups.extras[ref] is not None for ref in refs):
            self._share(new, at)
        widths = [len(one.rows) for one in placements]
        ask = np.repeat(groups.ask[refs], widths, axis=0) * counts[:, None]
        self._usage.extend(
            len(where),
            seq=seq,
            t_ns=t_ns,
            allocations=counts,
            cpu_mhz=ask[:, 0],
            memory_mib=ask[:, 1],
            disk_mib=ask[:, 2],
            node_id=nodes,
            job_id=job,
            group_name=np.repeat(names, widths),
        )

    def _share(self, rows: Rows, at: EventPosition) -> None:
        """Record what new allocations hold of pools: devices, cores, custom resources."""
        table, offers = self._state.allocations, self._state.fleet.offers
        for row in rows.tolist():
            holding = table.holdings.get(row)
            for pool, slot, amount in () if holding is None else holding.parts:
                instance = offers.instance_id(int(table.node[row]), pool, slot)
                self._shares.add_event(
                    at,
                    key=int(table.key[row]),
                    amount=amount,
                    pool=self._words.code(pool),
                    instance=self._words.code(instance),
                )

    def restore_open(self, standing: OpenIntervals | None = None) -> None:
        """Learn nodes, groups and what holds resources from the state: it was replayed without us.

        `standing`: the open spans of the chunks before; without them the next chunk is a full one.
        """
        state, table = self._state, self._state.allocations
        self._row_words = self._words.codes(state.fleet.ids)
        self._name_groups(table.groups.ref_of.values())
        rows = table.live_rows()
        rows = rows[table.is_holding(rows)]
        refs, keys = table.group[rows], table.key[rows]
        versions = np.array(table.groups.versions, dtype=np.int64)
        columns: dict[str, Value] = {
            "seq": table.modify_seq[rows],
            "key": keys,
            "placed_ns": 0,
            "version": versions[refs],
            "name_index": table.index[rows],
            "node_word": self._row_words[table.node[rows]],
            "job_word": self._job_words[refs],
            "group_word": self._group_words[refs],
            "client": table.client[rows],
            "desired": table.desired[rows],
        }
        since = -1
        if standing is not None:
            found = standing.find(keys)
            columns |= {"seq": standing.seqs[found], "placed_ns": standing.placed_ns[found]}
            since = standing.since
        self._spans = IntervalChunk(since)
        self._spans.begin(rows, columns)
        self._spans.carry()

    def _name(self, node_id: NodeId) -> None:
        row = self._state.fleet.row_of[node_id]
        self._row_words = grown(self._row_words, row + 1)
        self._row_words[row] = self._words.code(node_id)

    def _of_rows(self, rows: NDArray[np.integer]) -> NDArray[np.int32]:
        """Words of the ids of the nodes in fleet rows."""
        words: NDArray[np.int32] = self._row_words[rows]
        return words

    def _name_groups(self, refs: Iterable[int]) -> None:
        groups = self._state.allocations.groups
        for ref in refs:
            self._job_words = grown(self._job_words, ref + 1)
            self._group_words = grown(self._group_words, ref + 1)
            self._job_words[ref] = self._words.code(groups.job_ids[ref])
            self._group_words[ref] = self._words.code(groups.names[ref])


def _previous(placements: Sequence[GroupPlacement]) -> NDArray[np.object_] | None:
    """Ids of what each allocation replaces; None where none does."""
    if not any(one.previous for one in placements):
        return None
    keys = [key for one in placements for key in one.previous or (0,) * sum(one.counts)]
    return np.array([alloc_id(key) if key else None for key in keys], dtype=object)


def _reschedules(placements: Sequence[GroupPlacement]) -> NDArray[np.int64] | int:
    if not any(one.reschedules for one in placements):
        return 0
    times = [nth for one in placements for nth in one.reschedules or (0,) * sum(one.counts)]
    return np.array(times, dtype=np.int64)
