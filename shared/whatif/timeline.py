"""The timeline of a log after a moment: what became of every allocation, waits, and use of the cluster.

The record and every fork are followed in the same way, so that they can be compared.
"""

from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise

import msgspec
import numpy as np

from schemas.allocations import AllocationsReported
from schemas.base import Event
from schemas.envelope import LogRecord
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, EvaluationsWoken
from schemas.jobs import JobRegistered, JobStopped
from schemas.plans import GroupPlacement, PlanCommitted, PlanRefused
from shared.core.columns import Int64s, Rows
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.name_runs import expand_runs
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    CLIENT_CODE,
    COMPLETE,
    FAILED,
    LOST,
    RUN,
    RUNNING,
    TERMINAL,
)
from shared.whatif.deployment_tracker import DeploymentTracker
from shared.whatif.placement_table import NameTable, PlacementTable
from shared.whatif.wait_tracker import WaitTracker

#: Usage samples of a timeline.
SAMPLES = 512
#: Why an allocation was stopped.
STOPPED, EVICTED = 1, 2
_NO_ROWS = np.zeros(0, dtype=np.int32)


class TimelineTotals(msgspec.Struct, kw_only=True):
    """Counts of a timeline."""

    records: int = 0
    plans: int = 0
    plans_refused: int = 0
    placements: int = 0
    failed: int = 0
    lost: int = 0
    complete: int = 0
    evicted: int = 0
    stopped: int = 0


class UsageSample(msgspec.Struct, frozen=True):
    """Use of ready nodes at a moment. Shapes: used, capacity (3,): MHz, MiB, MiB."""

    t_ns: int
    used: tuple[int, ...]
    capacity: tuple[int, ...]


class Timeline:
    """Follows a log from the state of `replica`, and takes over `replica`."""

    def __init__(self, replica: Replica, names: NameTable, until_ns: int = 0) -> None:
        self.replica = replica
        #: the state behind the last record.
        self.state = replica.state
        self.names = names
        #: log time there: the checkpoint of a snapshot may be later than the state.
        self.begin_ns = max(replica.state.t_ns, replica.chain.t_ns)
        self.t_ns = self.begin_ns
        self.totals = TimelineTotals()
        self.usage: list[UsageSample] = []
        #: scheduler workers of the plans seen.
        self.workers: set[str] = set()
        self.placed = PlacementTable(names)
        self.waits = WaitTracker(self.state, names.group)
        self.deployments = DeploymentTracker(self.state, self.begin_ns)
        self._sample_ns = max((until_ns - self.begin_ns) // SAMPLES, 1)
        self._node_names = np.zeros(0, dtype=np.int64)
        self._generation = -1
        self._ordinal_seq = 0
        self._ordinal = 0
        self._begin()
        #: allocations at the beginning, and which of them ran or had ended, since an unknown time.
        self.there = self.placed.count
        self.unknown = (self.placed.column("running_ns") > 0) | (self.placed.column("ended_ns") > 0)
        self._look()

    def forked(self, replica: Replica, until_ns: int) -> "Timeline":
        """Return a timeline that continues from here with its own counts. It takes over `replica`."""
        assert replica.seq == self.replica.seq, (replica.seq, self.replica.seq)
        found = copy(self)
        vars(found).update(
            replica=replica,
            state=replica.state,
            begin_ns=self.t_ns,
            there=self.placed.count,
            totals=TimelineTotals(),
            usage=[],
            workers=set(),
            placed=self.placed.copied(),
            waits=self.waits.forked(replica.state, self.t_ns),
            deployments=DeploymentTracker(replica.state, self.t_ns),
            _sample_ns=max((until_ns - self.t_ns) // SAMPLES, 1),
            _generation=-1,
        )
        found.pause(self.t_ns)
        return found

    def between(self, fork: "Timeline", until_ns: int) -> "Timeline":
        """Return our part from a fork to a moment."""
        found = copy(self)
        vars(found).update(
            there=fork.there, begin_ns=fork.begin_ns, placed=self.placed.until(until_ns)
        )
        return found

    # ---- following ----

    def follow(
        self, record: Record, before: Callable[[State, Event], None] | None = None
    ) -> LogRecord | None:
        """Follow one record, verified as a replica does; `before` sees each event first. Raises LogError."""
        replica = self.replica
        if record.seq < replica.chain.next_seq:
            return None
        decoded = replica.chain.accept(record.seq, record.subject, record.data)
        if decoded is None:
            return None
        if decoded.kind == "checkpoint":
            replica.compare(decoded, record.seq)
        self._begins(decoded)
        if decoded.events:
            self.state.begin(record.seq, decoded.t_ns)
        for event in decoded.events:
            if before is not None:
                before(self.state, event)
            self.state.evolve(event, record.seq)
            self._take(event, record.seq)
        self._ends()
        return decoded

    def follow_state(self, state: State) -> None:
        """Read another state from now on, at the same seq; its owner applies the records."""
        assert state.seq == self.state.seq, (state.seq, self.state.seq)
        self.state = state
        self.waits.follow_state(state)
        self.deployments.follow_state(state)

    def observe(self, decoded: LogRecord, seq: int) -> None:
        """Follow one record that the state has applied already."""
        self._begins(decoded)
        for event in decoded.events:
            self._take(event, seq)
        self._ends()

    def _begins(self, decoded: LogRecord) -> None:
        self.totals.records += 1
        self.t_ns = max(self.t_ns, decoded.t_ns)

    def _ends(self) -> None:
        self.waits.settle(self.t_ns)
        self.deployments.settle()
        if self.t_ns - self.usage[-1].t_ns >= self._sample_ns:
            self._look()

    def pause(self, at_ns: int) -> None:
        """Advance the time without a record."""
        self.t_ns = max(self.t_ns, at_ns)
        if not self.usage or self.usage[-1].t_ns < self.t_ns:
            self._look()

    def close(self, at_ns: int) -> None:
        """End the timeline: open waits and use last until then."""
        if self.usage[-1].t_ns < at_ns:
            self.usage.append(msgspec.structs.replace(self.usage[-1], t_ns=at_ns))
        self.t_ns = max(self.t_ns, at_ns)
        self.waits.close(self.t_ns)

    def detach(self) -> None:
        """Drop the state, keep the figures."""
        vars(self).update(replica=None, state=None, placed=self.placed.slim())
        self.waits.detach()
        self.deployments.detach()

    # ---- events ----

    def _take(self, event: Event, seq: int) -> None:
        """Follow one event; the state has it, and maybe later ones of the same record."""
        self.deployments.take(event, self.t_ns)
        match event:
            case AllocationsReported():
                if event.rows:
                    rows = np.asarray(event.rows, dtype=np.int32)
                    self._became(rows, np.asarray(event.statuses, dtype=np.int64))
            case PlanCommitted():
                self.totals.plans += 1
                self.workers.add(event.origin.worker)
                self._end(event)
                self._place(event, seq)
                self.waits.touched(event.job_id)
            case PlanRefused():
                self.totals.plans_refused += 1
            case EvaluationsCreated():
                self.waits.created(event, seq, self.t_ns)
            case EvaluationEnded():
                self.waits.looked_at(event.key)
            case EvaluationsWoken():
                for key in event.keys:
                    self.waits.looked_at(key)
            case JobRegistered() | JobStopped():
                # Its order in the queue, and what it waits for.
                self.waits.touched(event.job_id)
            case _:
                pass

    def _end(self, event: PlanCommitted) -> None:
        for evictions in event.evictions:
            self._told(evictions.rows, EVICTED)
            self.totals.evicted += len(evictions.rows)
        for stop in event.stops:
            self._told(stop.rows, STOPPED)
            self.totals.stopped += len(stop.rows)
            if stop.client_status:
                rows = np.asarray(stop.rows, dtype=np.int32)
                code = CLIENT_CODE[stop.client_status]
                self._became(rows, np.full(len(rows), code, dtype=np.int64))

    def _became(self, rows: Rows, codes: Int64s) -> None:
        at = self.placed.positions_of_rows(rows)
        runs = at[codes == RUNNING]
        running = self.placed.column("running_ns")
        running[runs[running[runs] == 0]] = self.t_ns
        over = TERMINAL[codes]
        ends, how = at[over], codes[over]
        fresh = self.placed.column("ended_ns")[ends] == 0
        ends, how = ends[fresh], how[fresh]
        self.placed.column("ended_ns")[ends] = self.t_ns
        self.placed.column("code")[ends] = how
        self.totals.lost += int(np.count_nonzero(how == LOST))
        # What was stopped or evicted ended of that, whatever its exit code.
        by_itself = how[self.placed.column("told")[ends] == 0]
        self.totals.failed += int(np.count_nonzero(by_itself == FAILED))
        self.totals.complete += int(np.count_nonzero(by_itself == COMPLETE))

    def _told(self, rows: Sequence[int], how: int) -> None:
        at = self.placed.positions_of_rows(np.asarray(rows, dtype=np.int32))
        at = at[self.placed.column("told")[at] == 0]
        self.placed.column("told")[at] = how
        self.placed.column("told_ns")[at] = self.t_ns

    def _place(self, event: PlanCommitted, seq: int) -> None:
        total = sum(sum(one.counts) for one in event.placements)
        if not total:
            return
        ordinal = self._ordinal if self._ordinal_seq == seq else 0
        self._ordinal_seq, self._ordinal = seq, ordinal + total
        first = self.state.policy.incarnations.key(seq, ordinal)
        keys = first + np.arange(total)
        rows = self.state.allocations.rows_of(event.job_id)
        made = self.state.allocations.key[rows] - first
        rows = rows[(made >= 0) & (made < total)]
        if len(rows) < total:
            # The job was removed with the same record.
            rows = _NO_ROWS
        asked = self.waits.asked_ns(event.key, self.t_ns)
        begin = 0
        for one in event.placements:
            end = begin + sum(one.counts)
            group = self.names.group(event.job_id, one.group)
            since = min(asked, self.waits.since(event.job_id, one.group, self.t_ns))
            nodes = self._nodes(np.repeat(one.rows, one.counts))
            at = self.placed.add(
                group, expand_runs(one.names), nodes, keys=keys[begin:end], rows=rows[begin:end]
            )
            self.placed.column("placed_ns")[at] = self.t_ns
            self.placed.column("asked_ns")[at] = since
            self.placed.column("seq")[at] = seq
            self._replaces(one, at)
            begin = end
        self.totals.placements += total

    def _replaces(self, placement: GroupPlacement, at: slice) -> None:
        """Set the replaced allocation, as position + 1; 0: none, or one from before the beginning."""
        if not any(placement.previous):
            return
        known, previous = self.placed.by_key(), self.placed.column("previous")
        for nth, key in enumerate(placement.previous):
            previous[at.start + nth] = known.get(key, -1) + 1

    # ---- the beginning ----

    def _begin(self) -> None:
        """Add the existing allocations: by group, oldest first."""
        table, groups = self.state.allocations, self.state.allocations.groups
        rows = table.live_rows()
        if not len(rows):
            return
        of_ref = np.zeros(len(groups.names), dtype=np.int64)
        for ref in np.unique(table.group[rows]).tolist():
            of_ref[ref] = self.names.group(groups.job_ids[ref], groups.names[ref])
        rows = rows[np.lexsort((table.key[rows], of_ref[table.group[rows]]))]
        group = of_ref[table.group[rows]]
        edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1)).tolist()
        for begin, end in pairwise(edges):
            self._there(int(group[begin]), rows[begin:end])

    def _there(self, group: int, rows: Rows) -> None:
        table, placed = self.state.allocations, self.placed
        index = table.index[rows].astype(np.int64)
        nodes = self._nodes(table.node[rows])
        at = placed.add(group, index, nodes, keys=table.key[rows], rows=rows)
        placed.column("placed_ns")[at] = self.begin_ns
        placed.column("asked_ns")[at] = self.begin_ns
        client = table.client[rows].astype(np.int64)
        over, told = TERMINAL[client], table.desired[rows] != RUN
        placed.column("code")[at] = np.where(over, client, 0)
        placed.column("ended_ns")[at] = np.where(over, self.begin_ns, 0)
        placed.column("running_ns")[at] = np.where(client == RUNNING, self.begin_ns, 0)
        placed.column("told")[at] = np.where(told, STOPPED, 0)
        placed.column("told_ns")[at] = np.where(told, self.begin_ns, 0)

    def _nodes(self, rows: Int64s | Rows) -> Int64s:
        """Numbers of the nodes now in these fleet rows."""
        fleet = self.state.fleet
        if fleet.generation != self._generation:
            self._generation = fleet.generation
            names = [self.names.node(one) for one in fleet.ids]
            self._node_names = np.asarray(names, dtype=np.int64)
        found: Int64s = self._node_names[rows]
        return found

    def _look(self) -> None:
        """Sample the use of the cluster."""
        fleet, size = self.state.fleet, self.state.fleet.size
        ready = fleet.ready()
        used = self.state.allocations.used(size)[ready].sum(axis=0)
        capacity = fleet.capacity[:size][ready].sum(axis=0)
        self.usage.append(UsageSample(self.t_ns, tuple(used.tolist()), tuple(capacity.tolist())))
