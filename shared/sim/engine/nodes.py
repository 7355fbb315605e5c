"""Simulated nodes: they read what they shall run from the log itself, live it by `Lives`, and report as agents do.

Decides when an order reaches a node, what a node says and when, and what of it nobody hears. Must not know how work is
placed. Reports are the real ones, numbered by node and boot, each in a message of its own; nothing is lost on the way,
so nothing is sent twice.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES
from schemas.base import JobId, NodeId
from schemas.envelope import ENCODER, CommandBatch
from schemas.envelope import Record as LogRecord
from schemas.nodes import AllocReport, NodeRegistered, NodeSpec, ReportNode
from schemas.plans import PlanCommitted
from shared.bus import subjects
from shared.core.columns import grown
from shared.core.ids import make_key
from shared.core.splitmix import splitmix64_array
from shared.core.state import State
from shared.core.tables.allocations import RUN, TERMINAL
from shared.fleet.laws import fixed
from shared.fleet.lives import Changes, Lives
from shared.fleet.profile import RUN_MS, STEADY, Habits, Manner
from shared.sim.engine.setup import MannerOf
from shared.sim.engine.times import ServiceTimes
from shared.sim.loop import Loop

Rows = NDArray[np.int32]
Int64s = NDArray[np.int64]
#: subject, data: a message of a node to the applier.
Tell = Callable[[str, bytes], None]


class _Named(msgspec.Struct):
    """What of a task or group the nodes look at."""

    name: str = msgspec.field(name="Name", default="")
    meta: dict[str, str] | None = msgspec.field(name="Meta", default=None)


class _Group(_Named):
    tasks: tuple[_Named, ...] = msgspec.field(name="Tasks", default=())


class _Job(msgspec.Struct):
    groups: tuple[_Group, ...] = msgspec.field(name="TaskGroups", default=())
    meta: dict[str, str] | None = msgspec.field(name="Meta", default=None)


#: Begins what a job says about its lives.
_SAYS = b'"sim.'
_JOB: Any = msgspec.json.Decoder(_Job)


class SimNodes:
    """All nodes. A node's number is its row in the fleet."""

    def __init__(
        self,
        loop: Loop,
        state: Callable[[], State],
        tell: Tell,
        *,
        seed: int,
        habits: Habits,
        times: ServiceTimes,
        manner_of: MannerOf | None = None,
        lives: Lives | None = None,
    ) -> None:
        self._loop = loop
        self._state = state
        self._tell = tell
        self._times = times
        self._manner_of = manner_of
        self.habits = habits
        self.lives = Lives(seed) if lives is None else lives
        #: manners and draws do not matter to lives that came from elsewhere.
        self._needs_manners = lives is None
        self.reports = 0
        #: by node id: boots so far, and the last report's number within the newest.
        self._boots: dict[str, int] = {}
        #: nodes of the state that the run began with, and their boot ids then.
        self._adopted: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self.specs: dict[str, NodeSpec] = {}
        #: (N,) nobody hears the node in this row.
        self._silent = np.zeros(0, dtype=np.bool_)
        self._manners: dict[tuple[JobId, int, str, int], int] = {}
        self._known: dict[tuple[str | int, int, int], int] = {}
        #: when the next look at the lives is; 0: none is planned.
        self._tick_ns = 0

    # ---- nodes ----

    def join(self, spec: NodeSpec) -> None:
        """Let a node register, under a new boot where it was here before."""
        self.specs[spec.node_id] = spec
        self._boots[spec.node_id] = self._boots.get(spec.node_id, 0) + 1
        self._numbers[spec.node_id] = 0
        self._report(spec.node_id, spec=spec)

    def adopt(self, row: int) -> None:
        """Take over a node that the log knows already: reports go on behind the last one seen."""
        fleet = self._state().fleet
        node_id = fleet.ids[row]
        self.specs[node_id] = fleet.specs[row]
        self._boots[node_id] = 0
        self._adopted[node_id] = fleet.boot_ids[row]
        self._numbers[node_id] = int(fleet.reports_seen[row])

    def silence(self, row: int, *, dies: bool) -> None:
        """Nobody hears this node any more; with `dies`, all that ran there is gone."""
        self._silent = grown(self._silent, row + 1)
        self._silent[row] = True
        if dies:
            self.lives.lose(np.asarray([row], dtype=np.int32))

    def hear_again(self, row: int) -> None:
        """A node that went on is heard again: it gets its orders, and says what it did not say."""
        self._silent[row] = False
        table, lives = self._state().allocations, self.lives
        here = np.asarray([row], dtype=np.int32)
        rows = table.on_nodes(here)
        wanted = rows[(table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]]
        mine = lives.on(here)
        keep = np.isin(lives.key[mine], table.key[wanted])
        lives.stop(mine[~keep], lives.key[mine[~keep]], self._loop.now_ns)
        self._start(wanted, table.key[wanted])
        known = rows[lives.is_known(rows, table.key[rows])]
        news = known[lives.status[known] != table.client[known]]
        if len(news):
            node_id = self._state().fleet.ids[row]
            self._report(node_id, news.tolist(), lives.status[news].tolist())
        self._plan()

    # ---- orders ----

    def follow(self, record: LogRecord, seq: int) -> None:
        """Read a record, which the state holds: orders reach their nodes a while later."""
        starts: list[Rows] = []
        stops: list[int] = []
        table = self._state().allocations
        first = make_key(seq, 0)
        for event in record.events:
            if type(event) is PlanCommitted:
                if event.placements:
                    rows = table.rows_of(event.job_id)
                    starts.append(rows[table.key[rows] >= first])
                for stop in event.stops:
                    stops += stop.rows
                for one in event.evictions:
                    stops += one.rows
            elif type(event) is NodeRegistered:
                row = self._state().fleet.row_of.get(event.spec.node_id)
                again = self._boots.get(event.spec.node_id, 0) > 1
                if row is not None and (again or event.spec.node_id in self._adopted):
                    # It finds in its projection what it shall run, and begins anew.
                    self._silent = grown(self._silent, row + 1)
                    self._loop.after(self._times.projection_ns, self.hear_again, row)
        if not starts and not stops:
            return
        run = np.unique(np.concatenate(starts)) if starts else np.zeros(0, dtype=np.int32)
        end = np.asarray(sorted(set(stops)), dtype=np.int32)
        # By key: the rows may be others' when the order arrives.
        self.order(run, end)

    def order(self, run: Rows, end: Rows) -> None:
        """Order allocations to start and others to end, as the projections of a recorded state do."""
        key = self._state().allocations.key
        self._loop.after(self._times.projection_ns, self._ordered, run, key[run], end, key[end])

    def resume(self, rows: Rows, left_ns: Callable[[int], int | None] | None) -> None:
        """Let allocations run on that run already: for so long, or, where nobody knows, as if they began now."""
        table = self._state().allocations
        rows = rows[self._heard(table.node[rows])]
        keys = table.key[rows]
        known = [left_ns(key) if left_ns is not None else None for key in keys.tolist()]
        says = np.asarray([one is not None for one in known], dtype=np.bool_)
        self._start(rows[~says], keys[~says])
        numbers = [
            self.lives.manner(Manner(STEADY.starts, 0, fixed(one), 0, STEADY.stops))
            for one in known
            if one is not None
        ]
        self.lives.start(
            rows[says],
            keys[says],
            table.node[rows[says]],
            np.asarray(numbers, dtype=np.int32),
            now_ns=self._loop.now_ns,
        )
        self._plan()

    def _ordered(self, run: Rows, run_keys: Int64s, end: Rows, end_keys: Int64s) -> None:
        table = self._state().allocations
        if len(end):
            at = self._heard(table.node[end])
            self.lives.stop(end[at], end_keys[at], self._loop.now_ns)
            # What never came to its node cannot say that it ended; its agent reports it all the same.
            unknown = at & ~self.lives.is_known(end, end_keys) & (table.key[end] == end_keys)
            for row in end[unknown & ~TERMINAL[table.client[end]]].tolist():
                self._report(self._state().fleet.ids[int(table.node[row])], [row], [2])
        if len(run):
            at = (table.key[run] == run_keys) & (table.desired[run] == RUN)
            at &= self._heard(table.node[run]) & ~TERMINAL[table.client[run]]
            self._start(run[at], run_keys[at])
        self._plan()

    def _heard(self, nodes: Rows) -> NDArray[np.bool_]:
        if not self._silent.any():
            return np.ones(len(nodes), dtype=np.bool_)
        self._silent = grown(self._silent, int(nodes.max()) + 1)
        return ~self._silent[nodes]

    def _start(self, rows: Rows, keys: Int64s) -> None:
        if not len(rows):
            return
        table = self._state().allocations
        if not self._needs_manners:
            none = np.zeros(len(rows), dtype=np.int32)
            self.lives.start(rows, keys, table.node[rows], none, now_ns=self._loop.now_ns)
            return
        refs, index = table.group[rows].tolist(), table.index[rows]
        manners = np.asarray(
            [self._manner(*one) for one in zip(refs, index.tolist(), strict=True)], dtype=np.int32
        )
        names = np.asarray([self._salt(ref) for ref in refs], dtype=np.uint64)
        # The same life befalls the same allocation of the same job, whoever placed it where.
        nth = (index.astype(np.uint64) << np.uint64(16)) | table.reschedules[rows].astype(np.uint64)
        draws = splitmix64_array(names ^ nth).view(np.int64)
        self.lives.start(
            rows, keys, table.node[rows], manners, now_ns=self._loop.now_ns, draws=draws
        )

    def _salt(self, ref: int) -> int:
        groups = self._state().allocations.groups
        text = f"{groups.job_ids[ref]}/{groups.names[ref]}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    def _manner(self, ref: int, index: int) -> int:
        state = self._state()
        groups = state.allocations.groups
        job_id, version, group = groups.job_ids[ref], groups.versions[ref], groups.names[ref]
        key = (job_id, version, group, index if self._manner_of is not None else -1)
        number = self._manners.get(key)
        if number is None:
            job = state.jobs.by_id.get(job_id)
            job_type = job.job_type if job is not None else "batch"
            meta = _meta_of(state.jobs.spec(job_id, version), group)
            if self._manner_of is not None:
                manner = self._manner_of(job_id, job_type, group, index, meta)
            else:
                manner = self.habits.manner(job_id, job_type, meta)
            number = self._manners[key] = self._number_of(manner, meta.get(RUN_MS, ""))
        return number

    def _number_of(self, manner: Manner, run_ms: str) -> int:
        """Make a manner known once: lives of one manner are drawn together, however many jobs have it."""
        if self._manner_of is not None:
            return self.lives.manner(manner)
        # Laws are the profile's own objects, but for a run time of the job's own.
        law = run_ms or id(manner.runs)
        key = (law, manner.run_fails, manner.exit_code)
        if key not in self._known:
            self._known[key] = self.lives.manner(manner)
        return self._known[key]

    # ---- reports ----

    def _plan(self) -> None:
        """Look at the lives when the next thing happens to one, and gather for a moment."""
        due_ns = self.lives.next_due_ns()
        if not due_ns:
            return
        step = self._times.report_ns
        at_ns = -(-max(due_ns, self._loop.now_ns) // step) * step
        if not self._tick_ns or at_ns < self._tick_ns:
            self._tick_ns = at_ns
            self._loop.at(at_ns, self._tick, at_ns)

    def _tick(self, at_ns: int) -> None:
        if at_ns != self._tick_ns:
            return
        self._tick_ns = 0
        changes = self.lives.due(self._loop.now_ns)
        if len(changes):
            self._say(changes)
        self._plan()

    def _say(self, changes: Changes) -> None:
        """Report changes, each node its own."""
        ids = self._state().fleet.ids
        rows, codes = changes.rows, changes.statuses
        # What ran already where a run begins runs on, and says nothing new.
        heard = self._heard(changes.nodes) & (self._state().allocations.client[rows] != codes)
        by_node: dict[int, tuple[list[int], list[int]]] = {}
        for node, row, code in zip(
            changes.nodes[heard].tolist(), rows[heard].tolist(), codes[heard].tolist(), strict=True
        ):
            entry = by_node.setdefault(node, ([], []))
            entry[0].append(row)
            entry[1].append(code)
        for node, (at, what) in by_node.items():
            self._report(ids[node], at, what)

    def _report(
        self,
        node_id: NodeId,
        rows: list[int] | None = None,
        codes: list[int] | None = None,
        *,
        spec: NodeSpec | None = None,
    ) -> None:
        key = self._state().allocations.key
        states = tuple(
            AllocReport(key=int(key[row]), row=row, status=CLIENT_STATUSES[code])
            for row, code in zip(rows or (), codes or (), strict=True)
        )
        number = self._numbers[node_id] = self._numbers[node_id] + 1
        host_id, boot_id = self._who(node_id)
        report = ReportNode(
            node_id=node_id,
            host_id=host_id,
            boot_id=boot_id,
            number=number,
            spec=spec,
            states=states,
        )
        batch = CommandBatch(sender=node_id, commands=(report,))
        self.reports += 1
        self._tell(subjects.report(node_id), ENCODER.encode(batch))

    def _who(self, node_id: NodeId) -> tuple[str, str]:
        boot = self._boots[node_id]
        fleet = self._state().fleet
        row = fleet.row_of.get(node_id)
        host_id = fleet.host_ids[row] if row is not None else f"host-{node_id}"
        if boot == 0 and row is not None:
            # As the log knows it.
            return host_id, fleet.boot_ids[row]
        # Behind a recorded state, a boot that the log never saw.
        first = self._adopted.get(node_id)
        return host_id, f"boot-{boot}-{node_id}" if first is None else f"{first}.{boot}"


def _meta_of(spec: bytes | None, group: str) -> dict[str, str]:
    """Return what a job says about a group: of the job, the group, and its tasks, the nearer one goes before."""
    meta: dict[str, str] = {}
    if spec is not None and _SAYS in spec:
        said = _JOB.decode(spec)
        meta |= said.meta or {}
        for one in said.groups:
            if one.name == group:
                meta |= one.meta or {}
                for task in one.tasks:
                    meta |= task.meta or {}
    return meta
