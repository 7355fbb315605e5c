"""The roles of a simulated cluster, and their transport: log, messages, timers, presence.

Nothing is lost here: faults are scripted. Two shortcuts save steps without changing the log: roles that a record does
not concern are not woken (`_WAKES`), and the presence of idle workers is repeated on demand (`_inputs_for`).
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from importlib import import_module
from typing import Any

import msgspec

from schemas.base import EvalKey
from schemas.envelope import LeaseHeld, LogRecord
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, EvaluationsWoken, Leases
from schemas.jobs import JobEvaluated, JobRegistered, JobStopped, SubmissionRefused
from schemas.nodes import CapacityFreed, NodeRegistered, NodesCollected
from schemas.plans import PlanCommitted, PlanRefused
from schemas.policy import ClusterCreated, PolicyChanged
from shared.core.runtime import messages
from shared.core.runtime.replica import Replica, ReplicaFactory, copy_replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.runtime.role import Input
from shared.errors import CaravanError
from shared.protocol import subjects
from shared.sim.engine.engine_role import EngineRole
from shared.sim.engine.run_setup import EngineSetup, EngineStats
from shared.sim.engine.shared_replica import SharedReplica
from shared.sim.engine.timed_decisions import EvaluationLatency, TimedDecision, TimedPlacement
from shared.sim.environment.memory_stores import log_subject
from shared.sim.record_cache import RecordCache
from shared.sim.virtual_time import SECOND, VirtualLoop

#: Events that wake a reading role.
_WAKES: dict[str, tuple[type, ...]] = {
    "eval_broker": (
        EvaluationsCreated,
        EvaluationsWoken,
        EvaluationEnded,
        PlanCommitted,
        PlanRefused,
        JobRegistered,
        JobStopped,
        CapacityFreed,
    ),
    "intake": (JobRegistered, JobStopped, JobEvaluated, SubmissionRefused),
    "heartbeat": (NodeRegistered, NodesCollected, ClusterCreated, PolicyChanged),
}
_WORKER = frozenset((PlanCommitted, PlanRefused, EvaluationEnded))
#: A worker follows the log at least every this many records, even without work.
_BEHIND_MAX = 512
#: Interval in which an idle worker sends its presence.
_PRESENCE_NS = SECOND // 5
_LEASES = msgspec.json.Decoder(Leases)


class EngineStopped(CaravanError):
    """A role stopped, with its reason."""


class SimulatedCluster:
    """All roles of one run, over a log in memory."""

    def __init__(self, loop: VirtualLoop, setup: EngineSetup, begin_ns: int) -> None:
        self.loop = loop
        self.stats = EngineStats()
        self._setup = setup
        self._begin_ns = begin_ns
        #: the replica of all roles that only read.
        self._cache = RecordCache()
        self.shared = SharedReplica(self._cache.decode)
        if setup.start is not None:
            self.shared.begin_at_copy(setup.start)
        #: seq of the newest record, and of the newest that readers may see.
        self.written = self.visible = self.shared.seq
        self.records: list[messages.Record] = []
        #: seq of the first of `records`.
        self._kept_from = self.written + 1
        self._digest = blake2b(digest_size=16)
        self.decisions: list[TimedDecision] = []
        self.latencies: list[EvaluationLatency] = []
        #: evaluation -> time of its last lease, and leases outstanding then.
        self._leased: dict[EvalKey, tuple[int, int]] = {}
        #: called with each visible record and its seq.
        self.followers: list[Callable[[LogRecord, int], None]] = []
        #: called with each verdict: token of the request, and the answer.
        self.on_verdict: Callable[[int, bytes], None] | None = None
        self._asked: dict[int, None] = {}
        self._route: dict[str, tuple[EngineRole, str]] = {}
        self._held: list[tuple[str, str, bytes]] = []
        self._is_open = False
        self._presence: dict[str, tuple[int, messages.Message]] = {}
        self._carries = self._table()
        self.applier = self._actor("plan_applier", "PlanApplier", **self._applier_settings())
        self.applier.lateness = {
            "garbage": setup.garbage_late_ns,
            "checkpoint": setup.checkpoint_late_ns,
        }
        self.intake = self._actor("intake", "Intake")
        self.broker = self._actor("eval_broker", "EvalBroker")
        self.heartbeat = self._actor("heartbeat", "HeartbeatMonitor")
        self.workers = [self._worker(number) for number in range(setup.schedulers)]
        self._readers = [self.intake, self.broker, self.heartbeat]
        #: roles with their own replica, which take every record.
        self._alone = [] if setup.shares else [*self.workers, *self._readers]
        for kind in subjects.COMMAND_KINDS:
            self._route[subjects.command(kind)] = (self.applier, kind)
        self._route[subjects.presence("eval_broker", "backlog")] = (self.intake, "backlog")
        for actor in (self.applier, *self._readers, *self.workers):
            self._start(actor)

    def _applier_settings(self) -> dict[str, Any]:
        start = self._setup.start
        cluster_id = start.chain.cluster_id if start is not None else self._setup.cluster_id
        return {
            "cluster_id": cluster_id,
            "policy": self._setup.policy,
            "checkpoint_every": self._setup.checkpoint_every,
        }

    def _actor(self, module: str, name: str, nth: int = 1, **settings: Any) -> EngineRole:
        made = getattr(import_module(f"services.{module}.role"), name)
        # A fork needs new instance names: plans and submissions are numbered by instance.
        life = f"-at-{self.written}" if self._setup.start is not None else ""
        replicas: ReplicaFactory = partial(Replica, decode=self._cache.decode)
        if self._setup.shares and module != "plan_applier":
            replicas = self._share
        role = made(instance=f"{module}-{nth}{life}", replicas=replicas, **settings)
        actor = EngineRole(
            self.loop,
            module,
            role,
            wall=self.wall,
            inputs_for=self._inputs_for,
            cost_ns=self._cost_ns,
            carry=self._carry,
        )
        actor.cpu_clock = self._setup.cpu_ns
        return actor

    def _share(self, _tables: frozenset[str]) -> Replica:
        return self.shared

    def _worker(self, number: int) -> EngineRole:
        setup = self._setup
        deciding = TimedPlacement(setup.times, self.decisions.append, self.wall, setup.cpu_ns)
        actor = self._actor("scheduler", "Scheduler", number + 1, decide=deciding)
        actor.deciding = deciding
        worker: Any = actor.role
        actor.may_park = lambda: bool(worker.is_idle)
        instance = worker.instance
        self._route[subjects.leases(instance)] = (actor, "leases")
        self._route[subjects.presence("scheduler", instance)] = (self.broker, "presence")
        return actor

    def _start(self, actor: EngineRole) -> None:
        """Start a role with a state, a connection and leadership."""
        start = self._setup.start
        shares = actor is not self.applier and self._setup.shares
        if start is not None:
            tables = next(
                one.tables for one in actor.role.sources() if isinstance(one, messages.Replay)
            )
            lease = LeaseHeld(holder=start.chain.holder, cluster_id=start.chain.cluster_id)
            asides = SnapshotExtras(marks=self._setup.marks)
            replica = self.shared if shares else copy_replica(start, tables)
            actor.accept(Restored(replica, asides, lease))
            actor.log_at = self.written + 1
        actor.accept(messages.Reconnected(fsync=True))
        actor.accept(messages.CaughtUp(self.written))
        actor.accept(messages.LeadershipWon())

    # ---- what actors need ----

    def wall(self) -> int:
        """Wall clock, ns since 1970."""
        return self._begin_ns + self.loop.now_ns

    def _inputs_for(self, actor: EngineRole, waiting: list[Input]) -> list[Input]:
        """Return the inputs of a step: new records, then what waits in the inbox."""
        first, actor.log_at = actor.log_at - self._kept_from, self.visible + 1
        records: list[Input] = []
        if actor in self._alone:
            records += self.records[first : self.visible + 1 - self._kept_from]
        idle = self._idle_presence() if actor is self.broker else []
        return [*idle, *records, *waiting]

    def _idle_presence(self) -> list[Input]:
        """Return the presence messages of idle workers again, once any is old: parked workers send none."""
        now_ns = self.loop.now_ns
        idle = [worker.role.instance for worker in self.workers if worker.is_parked]
        seen = {name: self._presence[name] for name in idle if name in self._presence}
        if all(since_ns + _PRESENCE_NS > now_ns for since_ns, _ in seen.values()):
            return []
        self._presence |= {name: (now_ns, message) for name, (_, message) in seen.items()}
        return [message for _, message in seen.values()]

    def _cost_ns(self, actor: EngineRole, inputs: list[Input]) -> int:
        """Virtual time of a step, by the service times."""
        times = self._setup.times
        if actor.deciding is not None:
            return actor.deciding.spent_ns()
        if actor is self.broker:
            return times.broker_step_ns
        taken = sum(type(one) is messages.Message for one in inputs)
        if actor is self.applier:
            return taken * times.applier_command_ns
        return taken * times.intake_submission_ns if actor is self.intake else 0

    # ---- messages ----

    def command(self, kind: str, subject: str, data: bytes) -> None:
        """Deliver a message to the applier, one hop from now."""
        self.loop.after(self._setup.times.hop_ns, self._command, kind, subject, data)

    def _command(self, kind: str, subject: str, data: bytes) -> None:
        if self._is_open:
            self.applier.hear(kind, subject, data)
        else:
            self._held.append((kind, subject, data))

    def ask(self, verb: str, data: bytes, submission_id: str = "") -> int:
        """Deliver a request to intake; returns the token of its verdict."""
        subject = subjects.api_jobs(verb)
        token = self.intake.hear("api", subject, data, reply=True, msg_id=submission_id)
        self._asked[token] = None
        return token

    def _send(self, actor: EngineRole, effect: Any) -> None:
        subject = effect.subject
        target = self._route.get(subject)
        hop_ns = self._setup.times.hop_ns
        if target is None:
            if subject.startswith("dead."):
                self.stats.dead_letters.append(effect.data.decode())
        elif target[0] is self.applier:
            self.loop.after(hop_ns, self._command, target[1], subject, effect.data)
        elif target[1] == "presence":
            message = messages.Message("presence", subject, effect.data, 0)
            self._presence[actor.role.instance] = (self.loop.now_ns + hop_ns, message)
            self.loop.after(hop_ns, self.broker.accept, message)
        else:
            if target[1] == "leases":
                for lease in _LEASES.decode(effect.data).leases:
                    self._leased.pop(lease.key, None)
                    self._leased[lease.key] = (self.loop.now_ns, len(self._leased) + 1)
            self.loop.after(hop_ns, target[0].hear, target[1], subject, effect.data)

    def _reply(self, _actor: EngineRole, effect: Any) -> None:
        if self._asked.pop(effect.token, 0) is None and self.on_verdict is not None:
            self.on_verdict(effect.token, effect.data)

    def _open(self, actor: EngineRole, _effect: Any) -> None:
        if actor is self.applier and not self._is_open:
            self._is_open = True
            for kind, subject, data in self._held:
                self.applier.hear(kind, subject, data)
            self._held.clear()

    def _stop(self, actor: EngineRole, effect: Any) -> None:
        reason = getattr(effect, "reason", type(effect).__name__)
        raise EngineStopped(f"{actor.role.instance} stopped: {reason}")

    def _table(self) -> dict[type, Callable[[EngineRole, Any], None]]:
        """Handlers by effect type. There is no drop box, and last values are not stored."""
        return {
            messages.Append: self._append,
            messages.Send: self._send,
            messages.Reply: self._reply,
            messages.Open: self._open,
            messages.Close: _ignore,
            messages.Purge: _ignore,
            messages.Put: _ignore,
            messages.Rewind: self._stop,
            messages.Resign: self._stop,
            messages.Stop: self._stop,
        }

    def _carry(self, actor: EngineRole, effect: messages.Effect) -> None:
        """Perform an effect."""
        self._carries[type(effect)](actor, effect)

    # ---- the log ----

    def _append(self, _actor: EngineRole, effect: Any) -> None:
        self.loop.after(self._setup.times.append_ns, self._appended, effect)

    def _appended(self, effect: Any) -> None:
        assert effect.expected_seq == self.written, (effect.expected_seq, self.written)
        self.written += 1
        record = messages.Record(self.written, log_subject(effect.kind), effect.data)
        self.records.append(record)
        self._digest.update(effect.data)
        self.stats.records += 1
        self.stats.bytes += len(effect.data)
        if self._setup.sink is not None:
            self._setup.sink(record)
        self.applier.inbox.append(messages.Appended(self.written))
        applier: Any = self.applier.role
        if self.applier.inbox[:-1] or applier.has_waiting or effect.kind != "tx" or self.is_new:
            self.applier.wake()
        # Otherwise there is nothing to write: the applier takes the append with its next input.
        self.loop.after(self._setup.times.hop_ns, self._spread, record)

    @property
    def is_new(self) -> bool:
        """Whether the cluster has not been created yet."""
        return not self._is_open or not self.shared.state.policy.cluster_id

    @property
    def digest(self) -> str:
        """Hash of all bytes written: 32 hex digits."""
        return self._digest.hexdigest()

    def _spread(self, record: messages.Record) -> None:
        """Make a record visible to readers; the roles it concerns step at once."""
        decoded = self.shared.apply(record)
        kinds: set[type] = set()
        self.visible = record.seq
        if decoded is not None:
            self.stats.events += len(decoded.events)
            for event in decoded.events:
                if type(event) is EvaluationEnded and event.key in self._leased:
                    since_ns, load = self._leased.pop(event.key)
                    took_ns = self.loop.now_ns - since_ns
                    self.latencies.append(EvaluationLatency(self.wall(), took_ns, load))
            kinds = {type(event) for event in decoded.events}
            for actor in self._readers:
                if not kinds.isdisjoint(_WAKES[actor.name]):
                    if self._setup.shares:
                        actor.inbox.insert(0, record)
                    actor.step_now()
            for follower in self.followers:
                follower(decoded, record.seq)
        concerns = decoded is not None and not kinds.isdisjoint(_WORKER)
        for worker in self.workers:
            if concerns and self._setup.shares:
                worker.inbox.append(record)
            if not worker.is_parked or record.seq - worker.log_at >= _BEHIND_MAX:
                worker.wake()
        if record.seq % _BEHIND_MAX == 0:
            self._forget()

    def _forget(self) -> None:
        """Drop the records that all roles have taken; without a sink they are kept."""
        behind = min(one.log_at for one in self.workers or self._readers)
        if self._setup.shares:
            self.shared.forget(behind)
        drop = behind - self._kept_from
        if drop > 0 and self._setup.sink is not None:
            del self.records[:drop]
            self._kept_from = behind

    def count(self) -> None:
        """Update the counts."""
        actors = (self.applier, *self._readers, *self.workers)
        self.stats.loop_events = self.loop.events
        self.stats.steps = {one.role.instance: one.steps for one in actors}
        self.stats.cpu_ns = {one.role.instance: one.cpu_ns for one in actors}
        self.stats.decisions = len(self.decisions)


def _ignore(_actor: EngineRole, _effect: Any) -> None:
    return
