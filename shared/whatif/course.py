"""The course of a log behind a moment: what became of every allocation, who waited for what, how full the cluster was.

The same is taken down of what was recorded and of every fork, so that they can be told apart allocation by allocation:
an allocation is known by its lineage (job, group, index in its name, how many had it before), which does not depend on
seqs and rows. Columns, no object an allocation. Must not know what is compared with what. Next: `lives.py`.
"""

from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsReported
from schemas.base import EvalKey, Event, JobId
from schemas.envelope import Record as LogRecord
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, EvaluationsWoken
from schemas.plans import GroupPlacement, PlanCommitted, PlanRefused
from shared.core.columns import Rows, grown
from shared.core.ids import make_key
from shared.core.replica import Replica
from shared.core.role import Record
from shared.core.state import State
from shared.core.tables.allocations import (
    CLIENT_CODE,
    FAILED,
    LOST,
    RUNNING,
    TERMINAL,
    expand_runs,
)
from shared.whatif.script import Lineage
from shared.whatif.waits import Waits

Int64s = NDArray[np.int64]
#: Lineage keys: group, index, attempt.
_INDEX_BITS = 24
_ATTEMPT_BITS = 14
#: Looks at how full the cluster is, in a course.
SAMPLES = 512
_COLUMNS = (
    *("group", "index", "attempt", "node", "seq"),
    #: asked for, placed, seen to run, told to end, ended: log times.
    *("asked_ns", "placed_ns", "running_ns", "told_ns", "ended_ns"),
    #: why it was told to end; client status that it ended with; position + 1 of whom it replaces.
    *("told", "code", "previous"),
)
#: Why an allocation was told to end.
STOPPED, EVICTED = 1, 2


class Names:
    """Groups and nodes as numbers; courses that are compared share them."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, str]] = []
        self.nodes: list[str] = []
        self._group_of: dict[tuple[str, str], int] = {}
        self._node_of: dict[str, int] = {}

    def group(self, job_id: str, name: str) -> int:
        """Number of a job's group."""
        found = self._group_of.setdefault((job_id, name), len(self.groups))
        if found == len(self.groups):
            self.groups.append((job_id, name))
        return found

    def node(self, node_id: str) -> int:
        """Number of a node."""
        found = self._node_of.setdefault(node_id, len(self.nodes))
        if found == len(self.nodes):
            self.nodes.append(node_id)
        return found


class Totals(msgspec.Struct, kw_only=True):
    """What is counted by the way."""

    records: int = 0
    plans: int = 0
    plans_refused: int = 0
    placements: int = 0
    failed: int = 0
    lost: int = 0
    complete: int = 0
    evicted: int = 0
    stopped: int = 0


class Usage(msgspec.Struct, frozen=True):
    """How full ready nodes were at a moment. Shapes: used, capacity (3,): MHz, MiB, MiB."""

    t_ns: int
    used: tuple[int, ...]
    capacity: tuple[int, ...]


class Course:
    """Follows a log from the state that `replica` has; `replica` is its own from then on."""

    def __init__(self, replica: Replica, names: Names, until_ns: int = 0) -> None:
        self.replica = replica
        #: the state behind the last record.
        self.state = replica.state
        self.names = names
        self.begin_seq = replica.seq
        self.begin_ns = replica.state.t_ns
        self.t_ns = self.begin_ns
        self.totals = Totals()
        self.usage: list[Usage] = []
        #: names of scheduler workers whose plans it tells.
        self.workers: set[str] = set()
        self._sample_ns = max((until_ns - self.begin_ns) // SAMPLES, 1)
        self._count = 0
        self._columns: dict[str, Int64s] = {name: np.zeros(0, dtype=np.int64) for name in _COLUMNS}
        self._position_of_row = np.full(0, -1, dtype=np.int64)
        #: by group: how many allocations had an index so far.
        self._seen: dict[int, Int64s] = {}
        #: by position: key of the allocation; ascending but for those that were there at the beginning.
        self._by_key: dict[int, int] | None = None
        self._key = np.zeros(0, dtype=np.int64)
        self._node_names = np.zeros(0, dtype=np.int64)
        self._ordinal_seq = 0
        self._ordinal = 0
        self.waits = Waits(self.state, names.group)
        self._generation = -1
        self._begin()
        #: allocations that were there at the beginning, and that ran or had ended then: since when is not known.
        self.there = self._count
        self.unknown = (self.column("running_ns") > 0) | (self.column("ended_ns") > 0)
        self.look()

    def forked(self, replica: Replica, until_ns: int) -> "Course":
        """Another course that goes on from here, counting anew. `replica`: where this one's is, its own then."""
        assert replica.seq == self.replica.seq, (replica.seq, self.replica.seq)
        found = copy(self)
        vars(found).update(
            replica=replica,
            state=replica.state,
            begin_seq=replica.seq,
            begin_ns=self.t_ns,
            there=self._count,
            totals=Totals(),
            usage=[],
            workers=set(),
            waits=self.waits.forked(replica.state),
            _sample_ns=max((until_ns - self.t_ns) // SAMPLES, 1),
            _columns={name: one.copy() for name, one in self._columns.items()},
            _key=self._key.copy(),
            _position_of_row=self._position_of_row.copy(),
            _seen={group: one.copy() for group, one in self._seen.items()},
            _by_key=None,
            _generation=-1,
        )
        found.look()
        return found

    @property
    def count(self) -> int:
        """Allocations known: those at the beginning, and those placed since."""
        return self._count

    def column(self, name: str) -> Int64s:
        """A column over all allocations. Times are 0 where it never came to it. Do not write to it."""
        return self._columns[name][: self._count]

    def lineages(self) -> Int64s:
        """One number for the lineage of each allocation. Shape: (count,)."""
        return lineage(self.column("group"), self.column("index"), self.column("attempt"))

    # ---- following ----

    def follow(
        self, record: Record, before: Callable[[State, Event], None] | None = None
    ) -> LogRecord | None:
        """Go on by one record, proven as a replica proves it; `before` sees each event first. Raises LogError."""
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

    def attend(self, state: State) -> None:
        """From now on somebody else keeps the state; it stands where ours does."""
        assert state.seq == self.state.seq, (state.seq, self.state.seq)
        self.state = state
        self.waits.attend(state)

    def observe(self, decoded: LogRecord, seq: int) -> None:
        """Go on by one record that the state of somebody else has already."""
        self._begins(decoded)
        for event in decoded.events:
            self._take(event, seq)
        self._ends()

    def _begins(self, decoded: LogRecord) -> None:
        self.totals.records += 1
        self.t_ns = max(self.t_ns, decoded.t_ns)

    def _ends(self) -> None:
        self.waits.settle(self.t_ns)
        if self.t_ns - self.usage[-1].t_ns >= self._sample_ns:
            self.look()

    def pause(self, at_ns: int) -> None:
        """Nothing happened since, up to now."""
        self.t_ns = max(self.t_ns, at_ns)
        if self.usage[-1].t_ns < self.t_ns:
            self.look()

    def close(self, at_ns: int) -> None:
        """End it: what waits, waited until then, and what is in use was in use until then."""
        if self.usage[-1].t_ns < at_ns:
            self.usage.append(msgspec.structs.replace(self.usage[-1], t_ns=at_ns))
        self.t_ns = max(self.t_ns, at_ns)
        self.waits.close()

    def cut(self, until_ns: int) -> None:
        """Forget what was placed later."""
        self._count = int(np.searchsorted(self.column("placed_ns"), until_ns, "right"))

    def detach(self) -> None:
        """Let go of the state; what was taken down stays."""
        columns = {name: self.column(name).copy() for name in self._columns}
        vars(self).update(replica=None, state=None, _columns=columns, _seen={}, _by_key=None)
        self.waits.detach()

    def positions_of(self, rows: Rows) -> Int64s:
        """Which allocations are in these rows now. Shapes: (K,)."""
        found: Int64s = self._position_of_row[rows]
        return found

    def position_of(self, row: int) -> int:
        """Which allocation is in a row now."""
        return int(self._position_of_row[row])

    def key_of(self, one: Lineage) -> int:
        """Key of the allocation with this place in history; 0: there is none (yet)."""
        number = self.names.group(one.job_id, one.group)
        wanted = lineage(*(np.asarray([part]) for part in (number, one.index, one.attempt)))
        found = np.flatnonzero(self.lineages() == wanted[0])
        return int(self._key[found[0]]) if len(found) else 0

    def lineages_of(self, at: Int64s) -> Int64s:
        """Lineages of some allocations. Shapes: (K,)."""
        columns = self._columns
        return lineage(columns["group"][at], columns["index"][at], columns["attempt"][at])

    # ---- events ----

    def _take(self, event: Event, seq: int) -> None:
        """Take one event; the state has it, and maybe more of the same record."""
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
        at = self._position_of_row[rows]
        runs = at[codes == RUNNING]
        running = self._columns["running_ns"]
        running[runs[running[runs] == 0]] = self.t_ns
        over = TERMINAL[codes]
        ends, how = at[over], codes[over]
        fresh = self._columns["ended_ns"][ends] == 0
        ends, how = ends[fresh], how[fresh]
        self._columns["ended_ns"][ends] = self.t_ns
        self._columns["code"][ends] = how
        counts = np.bincount(how, minlength=6)
        self.totals.failed += int(counts[FAILED])
        self.totals.lost += int(counts[LOST])
        self.totals.complete += len(how) - int(counts[FAILED]) - int(counts[LOST])

    def _told(self, rows: Sequence[int], how: int) -> None:
        at = self._position_of_row[np.asarray(rows, dtype=np.int32)]
        at = at[self._columns["told"][at] == 0]
        self._columns["told"][at] = how
        self._columns["told_ns"][at] = self.t_ns

    def _place(self, event: PlanCommitted, seq: int) -> None:
        total = sum(sum(one.counts) for one in event.placements)
        if not total:
            return
        ordinal = self._ordinal if self._ordinal_seq == seq else 0
        self._ordinal_seq, self._ordinal = seq, ordinal + total
        first = make_key(seq, ordinal)
        keys = first + np.arange(total)
        rows = self.state.allocations.rows_of(event.job_id)
        made = self.state.allocations.key[rows] - first
        rows = rows[(made >= 0) & (made < total)]
        asked = self.waits.asked_ns(event.key, self.t_ns)
        begin = 0
        for one in event.placements:
            end = begin + sum(one.counts)
            group = self.names.group(event.job_id, one.group)
            since = min(asked, self.waits.since(event.job_id, one.group, self.t_ns))
            at = self._add(
                group, expand_runs(one.names), np.repeat(one.rows, one.counts), keys[begin:end]
            )
            self._columns["placed_ns"][at] = self.t_ns
            self._columns["asked_ns"][at] = since
            self._columns["seq"][at] = seq
            self._remember(rows[begin:end], at)
            self._replaces(one, at)
            begin = end
        self.totals.placements += total

    def _replaces(self, placement: GroupPlacement, at: slice) -> None:
        """Note whom allocations replace, by position + 1; 0: nobody, or somebody from before."""
        if not any(placement.previous):
            return
        known = self._keys()
        first = at.start
        for nth, key in enumerate(placement.previous):
            self._columns["previous"][first + nth] = known.get(key, -1) + 1

    def _keys(self) -> dict[int, int]:
        """Position of an allocation by its key; made when it is first asked for, kept since."""
        if self._by_key is None:
            self._by_key = {}
        for at in range(len(self._by_key), self._count):
            self._by_key[int(self._key[at])] = at
        return self._by_key

    # ---- columns ----

    def _begin(self) -> None:
        """Take down what is there already, the oldest first."""
        table = self.state.allocations
        rows = table.live_rows()
        rows = rows[np.argsort(table.key[rows], kind="stable")]
        groups = table.groups
        numbers: dict[int, int] = {
            ref: self.names.group(groups.job_ids[ref], groups.names[ref])
            for ref in np.unique(table.group[rows]).tolist()
        }
        of_ref = np.zeros(len(groups.names) + 1, dtype=np.int64)
        for ref, number in numbers.items():
            of_ref[ref] = number
        group = of_ref[table.group[rows]]
        order = np.argsort(group, kind="stable")
        # A group at a time: within it the oldest first.
        rows, group = rows[order], group[order]
        edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1)).tolist()
        for begin, end in pairwise(edges) if len(rows) else ():
            some = rows[begin:end]
            at = self._add(
                int(group[begin]),
                table.index[some].astype(np.int64),
                table.node[some],
                table.key[some],
            )
            self._columns["placed_ns"][at] = self.begin_ns
            self._columns["asked_ns"][at] = self.begin_ns
            client = table.client[some].astype(np.int64)
            over = TERMINAL[client]
            self._columns["code"][at] = np.where(over, client, 0)
            self._columns["ended_ns"][at] = np.where(over, self.begin_ns, 0)
            self._columns["running_ns"][at] = np.where(client == RUNNING, self.begin_ns, 0)
            self._columns["told"][at] = np.where(table.desired[some] != 0, STOPPED, 0)
            self._columns["told_ns"][at] = np.where(table.desired[some] != 0, self.begin_ns, 0)
            self._remember(some, at)

    def _add(self, group: int, index: Int64s, nodes: Int64s | Rows, keys: Int64s) -> slice:
        count = len(index)
        at = slice(self._count, self._count + count)
        self._count += count
        if self._count > len(self._key):
            self._key = grown(self._key, self._count)
            self._columns = {name: grown(one, self._count) for name, one in self._columns.items()}
        self._key[at] = keys
        columns = self._columns
        columns["group"][at] = group
        columns["index"][at] = index
        columns["attempt"][at] = self._attempts(group, np.asarray(index))
        columns["node"][at] = self._nodes(nodes)
        return at

    def _attempts(self, group: int, index: Int64s) -> Int64s:
        """How many had each name before."""
        seen = grown(self._seen.get(group, np.zeros(0, dtype=np.int64)), int(index.max()) + 1)
        self._seen[group] = seen
        found = seen[index]
        if len(index) < 2 or bool((np.diff(index) > 0).all()):
            seen[index] += 1
            return found
        np.add.at(seen, index, 1)
        # Several of one name at once are told apart by their order.
        before: dict[int, int] = {}
        for nth, one in enumerate(index.tolist()):
            found[nth] += before.get(one, 0)
            before[one] = before.get(one, 0) + 1
        return found

    def _nodes(self, rows: Int64s | Rows) -> Int64s:
        """Numbers of the nodes that are in these fleet rows now."""
        fleet = self.state.fleet
        if fleet.generation != self._generation:
            self._generation = fleet.generation
            names = [self.names.node(one) for one in fleet.ids]
            self._node_names = np.asarray(names, dtype=np.int64)
        found: Int64s = self._node_names[rows]
        return found

    def _remember(self, rows: Rows, at: slice) -> None:
        known = len(self._position_of_row)
        if self.state.allocations.size > known:
            self._position_of_row = grown(self._position_of_row, self.state.allocations.size)
            self._position_of_row[known:] = -1
        self._position_of_row[rows] = np.arange(at.start, at.stop)

    def look(self) -> None:
        """Take down how full the cluster is now."""
        fleet, size = self.state.fleet, self.state.fleet.size
        ready = fleet.ready()
        used = self.state.allocations.used(size)[ready].sum(axis=0)
        capacity = fleet.capacity[:size][ready].sum(axis=0)
        self.usage.append(Usage(self.t_ns, tuple(used.tolist()), tuple(capacity.tolist())))


def lineage(group: Int64s, index: Int64s, attempt: Int64s) -> Int64s:
    """One number of all three; attempts beyond 16,383 are one."""
    key = group << (_INDEX_BITS + _ATTEMPT_BITS)
    key |= index << _ATTEMPT_BITS
    key |= np.minimum(attempt, (1 << _ATTEMPT_BITS) - 1)
    return key


def job_of(names: Names, group: int) -> JobId:
    """Id of the job of a group's number."""
    return JobId(names.groups[group][0])


__all__ = ["Course", "EvalKey", "Names", "Totals", "Usage", "job_of"]
