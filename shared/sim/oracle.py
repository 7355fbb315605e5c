"""The oracle: watches log, processes, tasks and verdicts, and says which invariant broke.

Decides whether the world is right, by its own books (`books.py`) and one reference state replayed from the log alone.
Must not act on the world. Next: `world.py`.
"""

from collections.abc import Sequence

import msgspec

from schemas.allocations import CLIENT_STATUSES, DESIRED_STATUSES
from schemas.base import JobId
from schemas.envelope import Record
from schemas.jobs import Verdict
from schemas.projections import NodeProjection
from shared.bus import subjects
from shared.core import role, tasks
from shared.core.replica import Replica
from shared.core.wanted import wanted
from shared.errors import LogError
from shared.sim.books import KEY_SHIFT, TERMINAL, Alloc, Books
from shared.sim.customers import Customer, Wish
from shared.sim.drivers import Node, RunName
from shared.sim.findings import Broken, Ledger
from shared.sim.lives import Lives, is_after
from shared.sim.memo import Memo
from shared.sim.process import Process, Site
from shared.sim.settled import unsettled_jobs

_VERDICT = msgspec.json.Decoder(Verdict)
_PROJECTION = msgspec.json.Decoder(NodeProjection)
_CHECKPOINT = "checkpoint"
#: What a table or the books raise over a fact that cannot be.
_IMPOSSIBLE = (LogError, AssertionError, LookupError, ValueError, TypeError)


class _Orders:
    """The newest projection that one life of an agent was given."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, life: int) -> None:
        """Begin a life that was told nothing."""
        self.life = life
        self.seq = -1
        self.wanted: frozenset[int] = frozenset()

    def follow(self, data: bytes) -> bool:
        """Take a projection; an older one is no order, nor is nothing."""
        if not data:
            return False
        projection = _PROJECTION.decode(data)
        if projection.seq < self.seq:
            return False
        self.seq = projection.seq
        found = wanted(projection)
        self.wanted = frozenset(found.keys[found.runs].tolist())
        return True


class Oracle:
    """All that must hold, held while it happens."""

    def __init__(self, site: Site, memo: Memo, nodes: list[Node]) -> None:
        self.site = site
        self.ledger = Ledger()
        self.books = Books(self.ledger)
        self.lives = Lives(self.ledger, self._is_wanted)
        self.reference = Replica()
        self.forged: set[int] = set()
        self._memo = memo
        self._head = ""
        self._epoch = 0
        self._node_of = {node.node_id: node for node in nodes}
        self._orders: dict[Process, _Orders] = {
            node.process: _Orders() for node in nodes if node.process is not None
        }
        self._node_ids = {node.process: node.node_id for node in nodes if node.process is not None}
        for node in nodes:
            node.on_start = self.started

    # ---- the log ----

    def on_log(self, seq: int, subject: str, data: bytes) -> None:
        """Check one record as it is written. Raises Broken."""
        try:
            record = self._memo.decode(seq, subject, data)
            if seq not in self.forged:
                self._own(seq, record)
            self.reference.apply(role.Record(seq, subject, data))
        except _IMPOSSIBLE as err:
            self.ledger.hold(
                "state_equals_log", False, f"record {seq}: {type(err).__name__}: {err}"
            )
        if subject.endswith(_CHECKPOINT):
            self.compare_rows()

    def _own(self, seq: int, record: Record | None) -> None:
        assert record is not None, seq
        current = record.epoch == (seq if record.kind == "lease" else self._epoch)
        fine = current and record.prev == self._head
        self.ledger.hold(
            "no_write_by_old_epoch", fine, f"epoch {record.epoch} while {self._epoch} is current"
        )
        self._head, self._epoch = record.sum, record.epoch
        if record.events:
            self.books.apply(record, seq)

    def compare_rows(self) -> None:
        """Hold the tables' rows against the books'. Raises Broken."""
        table, fleet = self.reference.state.allocations, self.reference.state.fleet
        drains = {row: one.drain_ns for row, one in self.books.nodes.items()}
        drains = {row: at_ns for row, at_ns in drains.items() if at_ns is not None}
        self.ledger.hold("state_equals_log", fleet.drains == drains, "drains", fleet.drains, drains)
        said_of = {name: meta for name, meta in self.books.meta.items() if meta}
        same = fleet.operator_meta == said_of
        self.ledger.hold("state_equals_log", same, "meta", fleet.operator_meta, said_of)
        rows = self.books.allocs
        self.ledger.hold("state_equals_log", len(table.live_rows()) == len(rows), "rows in use")
        for row, alloc in rows.items():
            said = (
                int(table.key[row]),
                int(table.node[row]),
                DESIRED_STATUSES[table.desired[row]],
                CLIENT_STATUSES[table.client[row]],
            )
            ours = (alloc.key, alloc.node, alloc.desired, alloc.client)
            self.ledger.hold("state_equals_log", said == ours, alloc, "the table says", said)

    # ---- processes ----

    def stepped(
        self, process: Process, inputs: list[role.Input], effects: list[role.Effect]
    ) -> None:
        """Look at one step, before its effects."""
        self.ledger.checks["roles_go_on"] += 1
        orders = self._orders.get(process)
        if orders is not None:
            self._agent_stepped(process, orders, inputs, effects)
            return
        for given in inputs:
            # The role compared its tables in this step; had they differed, it would have stopped.
            if type(given) is role.Record and given.subject.endswith(_CHECKPOINT):
                self.ledger.checks["hashes_equal"] += 1

    def ended(self, process: Process, reason: str, *, raised: bool) -> None:
        """Hear that a role ended its process: no fault of this world is a reason to."""
        diverged = "the checkpoint says" in reason
        word = "raised" if raised else "stopped"
        invariant = "hashes_equal" if diverged else "roles_go_on"
        raise Broken(invariant, f"{process.instance} {word}: {reason}")

    def _agent_stepped(
        self,
        process: Process,
        orders: _Orders,
        inputs: Sequence[object],
        effects: Sequence[object],
    ) -> None:
        if orders.life != process.life:
            orders.begin(process.life)
        # One step may take several projections: what any of them wants may start, what any omits may end.
        some, every = orders.wanted, orders.wanted
        for given in inputs:
            if orders.follow(_value_of(given)):
                some, every = some | orders.wanted, every & orders.wanted
        if orders.seq < 0:
            return
        for effect in effects:
            if isinstance(effect, tasks.StartTask):
                wants = effect.key in some or is_after(effect)
                self.ledger.hold("no_stale_order", wants, process.instance, "starts", effect.key)
            elif isinstance(effect, tasks.KillTask | tasks.SignalTask):
                node_id = self._node_ids[process]
                wants = effect.key in every and not self.lives.may_end(node_id, effect.key)
                self.ledger.hold("no_stale_order", not wants, process.instance, "ends", effect.key)

    # ---- tasks ----

    def started(self, node: Node, name: RunName) -> None:
        """Hold a start against every other run of the same allocation."""
        key, task, number = name
        twins = [
            other
            for one in self._node_of.values()
            for other, run in one.runs.items()
            if other[0] == key and other[1] == task and other[2] != number and run.is_alive
        ]
        self.ledger.hold("no_task_twice", not twins, name, "beside", twins, "on", node.node_id)
        alloc = self.books.by_key.get(key)
        there = alloc is not None and self.books.node_id(alloc) == node.node_id
        self.ledger.hold("no_task_twice", there, name, "started on", node.node_id, "is", alloc)
        self.lives.started(node, name)
        if alloc is not None and number == 1:
            self._after_who_made_room(node, alloc)

    def _after_who_made_room(self, node: Node, alloc: Alloc) -> None:
        """Hold a first start against those whose room it has: they hold nothing in the log, but may run on."""
        placed_seq = alloc.key >> KEY_SHIFT
        for name in node.alive():
            other = self.books.by_key.get(name[0])
            if other is None or not other.evicted_seq or other.client in TERMINAL:
                continue
            waits = other.evicted_seq > placed_seq
            self.ledger.hold("room_before_start", waits, alloc, "starts beside", other)

    # ---- customers ----

    def on_verdict(self, wish: Wish, verdict: Verdict) -> None:
        """Hold a verdict against the log. Raises Broken."""
        said = self.books.submissions.get(wish.submission_id, ("", 0))[0]
        if wish.is_conflict:
            refused = verdict.status == "refused" and said == "accepted"
            self.ledger.hold("submission_once", refused, wish.submission_id, verdict, said)
            return
        kept = said == verdict.status
        self.ledger.hold(
            "no_acknowledged_job_lost", kept, wish.submission_id, verdict, "log:", said
        )
        fine = verdict.status == "accepted" or wish.verb != "submit"
        self.ledger.hold("no_acknowledged_job_lost", fine, wish.submission_id, verdict)

    def verdict_of(self, submission_id: str) -> str:
        """Return accepted or refused, or nothing yet."""
        return self.books.submissions.get(submission_id, ("", 0))[0]

    # ---- the end ----

    def unsettled(self, customers: list[Customer], processes: list[Process]) -> str:
        """Say what has not come to rest yet; nothing: the world has converged."""
        for find in (
            self._promises(customers),
            unsettled_jobs(self.books, self._told),
            self._operated(),
            self._evaluations(),
            self._tasks(),
            self.lives.unsettled(),
            self._replicas(processes),
            self._projections(),
        ):
            if find:
                return find
        return ""

    def _promises(self, customers: list[Customer]) -> str:
        for customer in customers:
            if not customer.is_idle:
                return f"{customer.shape.job_id} waits for a verdict"
            wish = customer.promised
            if wish is None:
                continue
            job = self.books.jobs.get(customer.shape.job_id)
            if job is None:
                # Forgotten: right where nothing of it was to run any more.
                over = wish.shape is None or wish.shape.job_type in {"batch", "sysbatch"}
                self.ledger.hold("no_acknowledged_job_lost", over, wish.submission_id, "is gone")
                continue
            count = job.groups[job.version]["web"][0]
            kept = job.is_stopped if wish.shape is None else not job.is_stopped
            kept = kept and (wish.shape is None or wish.shape.count == count)
            self.ledger.hold(
                "no_acknowledged_job_lost", kept, wish.submission_id, wish.shape, job.version
            )
        waiting = [one.seq for one in self.site.bus.jobs if one.seq > self.books.jobs_seq]
        return f"JOBS {waiting} without a verdict" if waiting else ""

    def _operated(self) -> str:
        """What an operator wanted gone is gone, and nothing is on a node whose drain is due."""
        t_ns = self.reference.state.t_ns
        for alloc in self.books.allocs.values():
            node = self.books.nodes.get(alloc.node)
            at_ns = None if node is None else node.drain_ns
            is_due = at_ns is not None and 0 < at_ns <= t_ns
            if alloc.is_wanted and (alloc.is_displaced or is_due):
                return f"{alloc} was to go"
        self.ledger.checks["operator_heeded"] += 1
        return ""

    def heed(self, holds: bool, wish: object) -> None:  # noqa: FBT001
        """Hold what the operators' door promised against the log. Raises Broken."""
        self.ledger.hold("operator_heeded", holds, wish)

    def _told(self, job_id: str, group: str) -> int:
        """How many of a group wait in the job's blocked evaluation."""
        table = self.reference.state.evaluations
        key = table.blocked_of.get(JobId(job_id))
        blocked = table.by_key[key].blocked if key is not None else None
        waiting = blocked.waiting.get(group) if blocked is not None else None
        return waiting.count if waiting is not None else 0

    def _evaluations(self) -> str:
        table = self.reference.state.evaluations
        ready = [k for k in table.open if table.by_key[k].status == "pending"]
        ready = [k for k in ready if not table.by_key[k].wait_until_ns]
        return f"evaluations {ready} wait for a worker" if ready else ""

    def _projections(self) -> str:
        """Compare what stands in NODE and VIEW with the books."""
        value = self.site.bus.values.get
        for row, node in self.books.nodes.items():
            orders = _Orders()
            orders.follow(value(subjects.node(node.id)).data)
            wanted = frozenset(
                a.key for a in self.books.allocs.values() if a.is_wanted and a.node == row
            )
            if orders.wanted != wanted:
                return (
                    f"projection of {node.id} wants {sorted(orders.wanted)}, not {sorted(wanted)}"
                )
        for submission_id in self.reference.state.jobs.submissions:
            status = self.verdict_of(submission_id)
            data = value(subjects.view_submission(submission_id)).data
            if not data or _VERDICT.decode(data).status != status:
                return f"no verdict stands for {submission_id}, it is {status}"
        return ""

    def _tasks(self) -> str:
        wanted = {a.key: a for a in self.books.allocs.values() if a.is_wanted}
        alive: set[int] = set()
        for node in self._node_of.values():
            for name in node.alive():
                if name[0] not in wanted:
                    return f"{node.node_id} still runs {name}: {self.books.by_key.get(name[0])}"
                alive.add(name[0])
        missing = [a for key, a in wanted.items() if key not in alive]
        return f"{missing} run nowhere" if missing else ""

    def _replicas(self, processes: list[Process]) -> str:
        for process in processes:
            if process.role is None or process.is_paused or not process.is_connected:
                return f"{process.name} is away"
            replica = replica_of(process.role)
            if replica is not None and replica.next_seq != self.reference.next_seq:
                return f"{process.name} stands at {replica.next_seq}, the log at {self.reference.next_seq}"
        return ""

    def settle(self, processes: list[Process]) -> None:
        """Check at the end what only then can be: all replicas are one, no task runs that nobody wants."""
        ours = self.reference.state.hashes()
        for process in processes:
            replica = None if process.role is None else replica_of(process.role)
            if replica is not None:
                theirs = replica.state.hashes()
                differ = {name for name, digest in theirs.items() if ours[name] != digest}
                self.ledger.hold("hashes_equal", not differ, process.instance, sorted(differ))
        for node in self._node_of.values():
            for name in node.alive():
                alloc = self.books.by_key.get(name[0])
                kept = alloc is not None and alloc.is_wanted
                self.ledger.hold("no_orphan_task", kept, node.node_id, name, alloc)
        self.lives.settle()
        self.compare_rows()

    def _is_wanted(self, key: int) -> bool:
        alloc = self.books.by_key.get(key)
        return alloc is not None and alloc.is_wanted


def _value_of(given: object) -> bytes:
    """Return the projection in an agent's input, pushed or asked for."""
    if isinstance(given, role.Message):
        return given.data
    if isinstance(given, tasks.Answer) and given.name == "projection":
        return given.data or b""
    return b""


def replica_of(one: role.Role) -> Replica | None:
    """Find the replica that a role follows the log with."""
    for value in vars(one).values():
        if isinstance(value, Replica):
            return value
    return None
