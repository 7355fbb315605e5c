"""The oracle: watches log, processes, tasks and verdicts, and raises the first broken invariant.

It judges by the reference model (reference_model.py) and one reference state replayed from the log alone.
"""

from collections.abc import Sequence

import msgspec

from schemas.allocations import CLIENT_STATUSES, DESIRED_STATUSES
from schemas.base import JobId
from schemas.envelope import LogRecord
from schemas.jobs import Verdict
from schemas.projections import NodeProjection
from shared.core.runtime import agent_messages, messages
from shared.core.runtime.desired_allocs import read_columns, read_desired_allocs
from shared.core.runtime.replica import Replica
from shared.core.runtime.role import Input, Role
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.state import Table
from shared.core.state.tables.allocations import AllocationTable
from shared.errors import LogError
from shared.fleet.simulated_tasks import TaskRunId
from shared.protocol import subjects
from shared.sim.environment.role_factory import NODES
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.environment.submitters import SubmitRequest, Submitter
from shared.sim.oracle.claim_checks import ClaimChecks
from shared.sim.oracle.convergence import find_unconverged_job
from shared.sim.oracle.input_checks import InputChecks
from shared.sim.oracle.invariants import InvariantBroken, InvariantChecks
from shared.sim.oracle.lifecycle_checks import LifecycleChecks, is_end_task
from shared.sim.oracle.order_checks import OrderChecks
from shared.sim.oracle.placement_checks import PlacementChecks
from shared.sim.oracle.reference_model import KEY_SHIFT, TERMINAL, ReferenceAlloc, ReferenceModel
from shared.sim.oracle.remote_checks import RemoteChecks
from shared.sim.oracle.volume_checks import VolumeChecks
from shared.sim.record_cache import RecordCache
from shared.sim.virtual_time import START_NS

_VERDICT = msgspec.json.Decoder(Verdict)
_PROJECTION = msgspec.json.Decoder(NodeProjection)
_CHECKPOINT = "checkpoint"
#: Errors of a table or of the reference model for an impossible fact.
_IMPOSSIBLE = (LogError, AssertionError, LookupError, ValueError, TypeError)


class _DesiredAllocs:
    """The newest projection that one life of an agent has taken."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, life: int) -> None:
        """Begin a life without a projection."""
        self.life = life
        self.seq = -1
        self.wanted: frozenset[int] = frozenset()
        #: what they end elsewhere.
        self.ends: frozenset[int] = frozenset()

    def follow(self, data: bytes) -> bool:
        """Take a projection; ignore an older or an empty one."""
        if not data:
            return False
        projection = _PROJECTION.decode(data)
        if projection.seq < self.seq:
            return False
        self.seq = projection.seq
        found = read_columns(projection)
        self.wanted = frozenset(found.keys[found.runs].tolist())
        self.ends = frozenset(
            one.key
            for one in (read_desired_allocs(projection) if projection.extras else ())
            if one.remote is not None and one.remote.ends
        )
        return True


class Oracle:
    """Checks all invariants while the world runs."""

    def __init__(
        self, context: SimulationContext, cache: RecordCache, nodes: list[SimulatedNode]
    ) -> None:
        self.context = context
        self.ledger = InvariantChecks()
        self.model = ReferenceModel(self.ledger)
        self.lives = LifecycleChecks(self.ledger, self._is_wanted)
        self._inputs = InputChecks(self.ledger)
        self._placements = PlacementChecks(self.ledger, self.model)
        self._order = OrderChecks(self.ledger)
        self._claims = ClaimChecks(self.ledger)
        self.volumes = VolumeChecks(self.ledger, self.model)
        self.remotes = RemoteChecks(self.ledger, self.model)
        self.reference = Replica(decode=cache.decode)
        self.forged: set[int] = set()
        self._cache = cache
        self._head = ""
        self._epoch = 0
        self._node_of = {node.node_id: node for node in nodes}
        self._orders: dict[SimulatedProcess, _DesiredAllocs] = {
            node.process: _DesiredAllocs() for node in nodes if node.process is not None
        }
        self._node_ids = {node.process: node.node_id for node in nodes if node.process is not None}
        for node in nodes:
            node.on_start = self.started

    # ---- the log ----

    def on_log(self, seq: int, subject: str, data: bytes) -> None:
        """Check one record as it is written. Raises InvariantBroken."""
        try:
            record = self._cache.decode(seq, subject, data)
            if seq not in self.forged:
                self._own(seq, record)
            self.reference.apply(messages.Record(seq, subject, data))
            if seq not in self.forged and record is not None:
                self._placements.check(record.events, self.reference.state, seq)
                self._order.check(record.events, self.reference.state)
                ids = dict(enumerate(self.reference.state.fleet.ids))
                self.remotes.apply(record)
                self._claims.apply(record, ids)
                self.volumes.apply(record.events, ids)
        except _IMPOSSIBLE as err:
            self.ledger.hold(
                "state_equals_log", False, f"record {seq}: {type(err).__name__}: {err}"
            )
        if self.model.succession.rooms:
            kept = self.reference.state.allocations.predecessors.rooms
            lacking = sorted(self.model.succession.rooms - kept.keys())
            rows = [self.model.allocs[row] for row in lacking]
            self.ledger.hold("own_room_kept", not lacking, "no room is kept of", rows)
        if subject.endswith(_CHECKPOINT):
            self.compare_rows()

    def _own(self, seq: int, record: LogRecord | None) -> None:
        assert record is not None, seq
        current = record.epoch == (seq if record.kind == "lease" else self._epoch)
        fine = current and record.prev == self._head
        self.ledger.hold(
            "no_write_by_old_epoch", fine, f"epoch {record.epoch} while {self._epoch} is current"
        )
        self._head, self._epoch = record.sum, record.epoch
        if record.events:
            self.model.apply(record, seq)

    def compare_rows(self) -> None:
        """Compare the tables with the reference model. Raises InvariantBroken."""
        table, fleet = self.reference.state.allocations, self.reference.state.fleet
        drains = {row: one.drain_ns for row, one in self.model.nodes.items()}
        drains = {row: at_ns for row, at_ns in drains.items() if at_ns is not None}
        self.ledger.hold("state_equals_log", fleet.drains == drains, "drains", fleet.drains, drains)
        said_of = {name: meta for name, meta in self.model.meta.items() if meta}
        same = fleet.operator_meta == said_of
        self.ledger.hold("state_equals_log", same, "meta", fleet.operator_meta, said_of)
        self._compare_rollouts()
        differences = self.model.variables.differences(self.reference.state)
        self.ledger.hold("state_equals_log", not differences, *differences)
        for job_id, kept in self.reference.state.jobs.versions.items():
            tags = {one.version: one.tag for one in kept if one.tag}
            own = self.model.versions.tags_of(job_id)
            self.ledger.hold("state_equals_log", tags == own, job_id, "tags", tags, own)
        rows = self.model.allocs
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

    def _compare_rollouts(self) -> None:
        """Compare the table of deployments, and health, with the reference model. Raises InvariantBroken."""
        state, model = self.reference.state, self.model.rollouts
        for key, one in state.deployments.by_key.items():
            ours = model.by_key[key]
            counts = {
                group.name: (group.placed, group.healthy, group.unhealthy, group.require_by_ns)
                for group in one.groups
            }
            said = {name: group.counts() for name, group in ours.groups.items()}
            same = (one.status, one.version, counts) == (ours.status, ours.version, said)
            self.ledger.hold("state_equals_log", same, one, ours.status, said)
        table = state.allocations
        for row, member in model.members.items():
            is_there = (int(table.deployment[row]), int(table.health[row]), bool(table.canary[row]))
            said_of = (member.deployment, member.health, member.is_canary)
            self.ledger.hold("state_equals_log", is_there == said_of, row, is_there, said_of)

    # ---- processes ----

    def stepped(
        self,
        process: SimulatedProcess,
        inputs: list[Input],
        effects: list[messages.Effect],
    ) -> None:
        """Check one step, before its effects."""
        self.ledger.checks["roles_go_on"] += 1
        orders = self._orders.get(process)
        if orders is not None:
            self._agent_stepped(process, orders, inputs, effects)
            return
        for given in inputs:
            # The role compares its tables in this step, and stops if they differ.
            if type(given) is messages.Record and given.subject.endswith(_CHECKPOINT):
                self.ledger.checks["hashes_equal"] += 1

    def ended(self, process: SimulatedProcess, reason: str, *, raised: bool) -> None:
        """Fail: no fault of this world may end a role."""
        diverged = "the checkpoint says" in reason
        word = "raised" if raised else "stopped"
        invariant = "hashes_equal" if diverged else "roles_go_on"
        raise InvariantBroken(invariant, f"{process.instance} {word}: {reason}")

    def _agent_stepped(
        self,
        process: SimulatedProcess,
        orders: _DesiredAllocs,
        inputs: Sequence[object],
        effects: Sequence[object],
    ) -> None:
        if orders.life != process.life:
            orders.begin(process.life)
        # A step may take several projections: what any of them wants may start, what any omits may stop.
        some, every = orders.wanted, orders.wanted
        for given in inputs:
            if orders.follow(_value_of(given)):
                some, every = some | orders.wanted, every & orders.wanted
        node = self._node_of[self._node_ids[process]]
        self._inputs.stepped(node, effects)
        self._inputs.told(node, self.context.loop.now_ns)
        if orders.seq < 0:
            return
        self.remotes.stepped(node, effects, wanted=some, ends=orders.ends)
        for effect in effects:
            if isinstance(effect, agent_messages.StartTask):
                wants = effect.key in some or is_end_task(effect)
                self.ledger.hold("no_stale_order", wants, process.instance, "starts", effect.key)
            elif isinstance(effect, agent_messages.KillTask | agent_messages.SignalTask):
                wants = effect.key in every and not self._may_signal(process, effect)
                self.ledger.hold("no_stale_order", not wants, process.instance, "ends", effect.key)

    def _may_signal(
        self,
        process: SimulatedProcess,
        effect: agent_messages.KillTask | agent_messages.SignalTask,
    ) -> bool:
        """Tell whether something other than an order of the cluster is a reason for a signal."""
        node_id = self._node_ids[process]
        signal = effect.signal if isinstance(effect, agent_messages.SignalTask) else ""
        run = (effect.key, effect.task, effect.run)
        may_end = self.lives.may_end(node_id, effect.key)
        may_end = may_end or effect.key in self._node_of[node_id].networks.broken
        may_end = may_end or self.remotes.may_end(self._node_of[node_id], effect.key)
        return self._node_of[node_id].followed.may_signal(run, signal) or may_end

    # ---- tasks ----

    def started(self, node: SimulatedNode, name: TaskRunId) -> None:
        """Check a start against all other runs of the same allocation."""
        key, task, number = name
        twins = [
            other
            for one in self._node_of.values()
            for other, run in one.runs.items()
            if other[0] == key and other[1] == task and other[2] != number and run.is_alive
        ]
        self.ledger.hold("no_task_twice", not twins, name, "beside", twins, "on", node.node_id)
        alloc = self.model.by_key.get(key)
        there = alloc is not None and self.model.node_id(alloc) == node.node_id
        self.ledger.hold("no_task_twice", there, name, "started on", node.node_id, "is", alloc)
        alive = {other[0] for one in self._node_of.values() for other in one.alive()}
        beside = self.model.stateful.runs_beside(key, sorted(alive))
        self.ledger.hold("one_instance", not beside, alloc, "starts beside", beside)
        self.lives.started(node, name)
        if alloc is not None and number == 1:
            self._after_who_made_room(node, alloc)

    def _after_who_made_room(self, node: SimulatedNode, alloc: ReferenceAlloc) -> None:
        """Check a first start against evicted allocations: they hold nothing in the log, but may still run."""
        placed_seq = alloc.key >> KEY_SHIFT
        for name in node.alive():
            other = self.model.by_key.get(name[0])
            if other is None or not other.evicted_seq or other.client in TERMINAL:
                continue
            waits = other.evicted_seq > placed_seq
            self.ledger.hold("room_before_start", waits, alloc, "starts beside", other)

    # ---- customers ----

    def on_verdict(self, request: SubmitRequest, verdict: Verdict) -> None:
        """Check a verdict against the log. Raises InvariantBroken."""
        said = self.model.submissions.status(request.submission_id)
        if request.is_conflict and request.submission_id in self.model.submissions.decided_again:
            return
        if request.is_conflict:
            refused = verdict.status == "refused" and said == "accepted"
            self.ledger.hold("submission_once", refused, request.submission_id, verdict, said)
            return
        kept = said == verdict.status
        self.ledger.hold(
            "no_acknowledged_job_lost", kept, request.submission_id, verdict, "log:", said
        )
        fine = verdict.status == "accepted" or request.verb != "submit"
        # A deployment failed and went back to another version: the submitter has not seen that one.
        reverted = self.model.rollouts.reverted
        is_reverted = request.shape is not None and request.shape.job_id in reverted
        # A client that lost the answer reads the status alone.
        fine |= is_reverted and (verdict.error is None or verdict.error.code == "conflict")
        self.ledger.hold("no_acknowledged_job_lost", fine, request.submission_id, verdict)

    def status_of_submission(self, submission_id: str) -> str:
        """Return accepted, refused, or an empty text."""
        return self.model.submissions.status(submission_id)

    # ---- the end ----

    def unsettled(self, customers: list[Submitter], processes: list[SimulatedProcess]) -> str:
        """Describe what has not settled; empty: the world has converged."""
        for find in (
            self._promises(customers),
            find_unconverged_job(self.model, self._told, START_NS + self.context.loop.now_ns),
            self._operated(),
            self._evaluations(),
            self._tasks(),
            self._inputs.unsettled(self._node_of.values()),
            self.remotes.unsettled(),
            self.lives.unsettled(),
            self._replicas(processes),
            self._projections(),
        ):
            if find:
                return find
        return ""

    def _promises(self, customers: list[Submitter]) -> str:
        for customer in customers:
            if not customer.is_idle:
                return f"{customer.shape.job_id} waits for a verdict"
            request = customer.promised
            if request is None:
                continue
            job = self.model.jobs.get(customer.shape.job_id)
            if job is None:
                # Garbage collected: correct if nothing of it had to run any more.
                over = request.shape is None or request.shape.job_type in {"batch", "sysbatch"}
                self.ledger.hold("no_acknowledged_job_lost", over, request.submission_id, "is gone")
                continue
            count = job.groups[job.version]["web"][0]
            kept = job.is_stopped if request.shape is None else not job.is_stopped
            # What failed went back to a stable version, with its count.
            is_whole = customer.shape.job_id not in self.model.rollouts.reverted
            kept = kept and (request.shape is None or request.shape.count == count or not is_whole)
            self.ledger.hold(
                "no_acknowledged_job_lost", kept, request.submission_id, request.shape, job.version
            )
        waiting = [
            one.seq for one in self.context.bus.jobs if one.seq > self.model.submissions.jobs_seq
        ]
        return f"JOBS {waiting} without a verdict" if waiting else ""

    def _operated(self) -> str:
        """Check that allocations stopped by an operator, or on drained nodes past their deadline, are gone."""
        t_ns = self.reference.state.t_ns
        for alloc in self.model.allocs.values():
            node = self.model.nodes.get(alloc.node)
            at_ns = None if node is None else node.drain_ns
            is_due = at_ns is not None and 0 < at_ns <= t_ns and not self.model.is_spared(alloc)
            if alloc.is_wanted and (alloc.is_displaced or is_due):
                return f"{alloc} must be stopped"
        self.ledger.checks["operator_heeded"] += 1
        return ""

    def check_operator_verdict(self, holds: bool, request: object) -> None:  # noqa: FBT001
        """Check an operator verdict against the log. Raises InvariantBroken."""
        self.ledger.hold("operator_heeded", holds, request)

    def _told(self, job_id: str, group: str) -> int:
        """Number of allocations of a group in the job's blocked evaluation."""
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
        """Compare the values of NODE and VIEW with the reference model."""
        value = self.context.bus.values.get
        for row, node in self.model.nodes.items():
            orders = _DesiredAllocs()
            orders.follow(value(subjects.node(node.id)).data)
            wanted = frozenset(
                a.key for a in self.model.allocs.values() if a.is_wanted and a.node == row
            )
            if orders.wanted != wanted:
                return (
                    f"projection of {node.id} wants {sorted(orders.wanted)}, not {sorted(wanted)}"
                )
        for submission_id in self.reference.state.jobs.submissions:
            status = self.status_of_submission(submission_id)
            if submission_id in self.model.submissions.reused:
                status = "refused"
            data = value(subjects.view_submission(submission_id)).data
            if not data or _VERDICT.decode(data).status != status:
                return f"no verdict for {submission_id}, which is {status}"
        return ""

    def _tasks(self) -> str:
        wanted = {a.key: a for a in self.model.allocs.values() if a.is_wanted}
        alive: set[int] = set()
        for node in self._node_of.values():
            for name in node.alive():
                if name[0] not in wanted:
                    return f"{node.node_id} still runs {name}: {self.model.by_key.get(name[0])}"
                alive.add(name[0])
        missing = [a for key, a in wanted.items() if key not in alive]
        return f"{missing} run nowhere" if missing else ""

    def _replicas(self, processes: list[SimulatedProcess]) -> str:
        for process in processes:
            if process.role is None or process.is_paused or not process.is_connected:
                return f"{process.name} is not connected"
            replica = replica_of(process.role)
            if replica is not None and replica.next_seq != self.reference.next_seq:
                return f"{process.name} stands at {replica.next_seq}, the log at {self.reference.next_seq}"
            # Its state has events that the log lacks. The seq of the state does not say so: a command that
            # came to nothing, or a garbage collection that found nothing, leaves it at the next record.
            if getattr(process.role, "is_appending", False):
                return f"{process.name} waits for an append"
        return ""

    def settle(self, processes: list[SimulatedProcess]) -> None:
        """Check at the end: all replicas are equal, and no unwanted task runs."""
        ours = self.reference.state.hashes()
        # Hashes cover what was touched since the last one, and no index; packed tables are compared whole.
        packed = {name: _pack(name, table) for name, table in self.reference.state.tables().items()}
        for process in processes:
            replica = replica_of(process.role)
            if replica is not None:
                theirs = replica.state.hashes()
                differ = {name for name, digest in theirs.items() if ours[name] != digest}
                tables = replica.state.tables().items()
                differ |= {name for name, table in tables if _pack(name, table) != packed[name]}
                self.ledger.hold("hashes_equal", not differ, process.instance, sorted(differ))
        for node in self._node_of.values():
            for name in node.alive():
                alloc = self.model.by_key.get(name[0])
                kept = alloc is not None and alloc.is_wanted
                self.ledger.hold("no_orphan_task", kept, node.node_id, name, alloc)
        self.lives.settle()
        self.volumes.settle(list(self._node_of.values()))
        self.compare_rows()

    def _is_wanted(self, key: int) -> bool:
        alloc = self.model.by_key.get(key)
        return alloc is not None and alloc.is_wanted


def _value_of(given: object) -> bytes:
    """Return the projection in an agent's input, pushed or queried."""
    if isinstance(given, messages.Message):
        return given.data
    if isinstance(given, agent_messages.Answer) and given.name == "projection":
        return given.data or b""
    return b""


def _pack(name: str, table: Table) -> bytes:
    """The content of a table's snapshot, columns and indexes."""
    if isinstance(table, AllocationTable):
        # A role that decides has lengthened columns ahead of what they hold; `copy` lengthens them here, too.
        table.held.copy(NODES)
    return b"".join(TABLE_CODECS[name].pieces(table, -1))


def replica_of(role: Role | None) -> Replica | None:
    """Return the replica with which a role follows the log; None: it follows none."""
    return getattr(role, "replica", None)
