"""The roles of a cluster, and what carries between them: the log, messages, timers, signs of life.

Decides who hears what when. Must not know what a message means, but for what it need not carry: roles that a record
does not concern are not woken (`_WAKES`), signs of life that change nothing are not sent (`before_step`). Everything
else is the shell of shared/core/role.py. Nothing is lost here: faults are scripted. Next: `engine.py`.
"""

from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from typing import Any

import msgspec

from schemas.base import EvalKey
from schemas.envelope import LeaseHeld
from schemas.envelope import Record as LogRecord
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, EvaluationsWoken, Leases
from schemas.jobs import JobEvaluated, JobRegistered, JobStopped, SubmissionRefused
from schemas.nodes import CapacityFreed, NodeRegistered, NodesCollected
from schemas.plans import PlanCommitted, PlanRefused
from schemas.policy import ClusterCreated, PolicyChanged
from shared.bus import subjects
from shared.core import role
from shared.core.replica import Replica
from shared.core.snapshots.sets import Asides
from shared.errors import CaravanError
from shared.sim.engine.actor import Actor
from shared.sim.engine.deciding import Decided, Deciding, Decision
from shared.sim.engine.replicas import Shared, copied
from shared.sim.engine.setup import Setup, Stats
from shared.sim.loop import SECOND, Loop
from shared.sim.stores import log_subject

#: What concerns a role that only reads, by what is in a record.
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
#: A worker follows the log at least every so many records, whether it has work or not.
_BEHIND_MAX = 512
#: How old the sign of life of an idle worker may be: it would show one so often.
_PRESENCE_NS = SECOND // 5
_LEASES = msgspec.json.Decoder(Leases)


class EngineStopped(CaravanError):
    """A role stopped: what it says why."""


class Cluster:
    """All roles of one run, over a log in memory."""

    def __init__(self, loop: Loop, setup: Setup, begin_ns: int) -> None:
        self.loop = loop
        self.stats = Stats()
        self._setup = setup
        self._begin_ns = begin_ns
        #: reads with everybody who only reads.
        self.shared = Shared()
        if setup.start is not None:
            copied(setup.start, into=self.shared)
        #: seq of the newest record; of the newest that everybody may have seen.
        self.written = self.visible = self.shared.seq
        self.records: list[role.Record] = []
        #: seq of the first of `records`.
        self._kept_from = self.written + 1
        self._digest = blake2b(digest_size=16)
        self.decisions: list[Decision] = []
        self.latencies: list[Decided] = []
        #: evaluation -> when it was leased last, and how many were.
        self._leased: dict[EvalKey, tuple[int, int]] = {}
        #: hears of each record as everybody does, with its seq.
        self.followers: list[Callable[[LogRecord, int], None]] = []
        #: hears of each verdict: token of the question, and what was said.
        self.on_verdict: Callable[[int, bytes], None] | None = None
        self._asked: dict[int, None] = {}
        self._route: dict[str, tuple[Actor, str]] = {}
        self._held: list[tuple[str, str, bytes]] = []
        self._is_open = False
        self._presence: dict[str, tuple[int, role.Message]] = {}
        self._carries = self._table()
        self.applier = self._actor("plan_applier", "PlanApplier", **self._applier_settings())
        self.applier.lateness = {
            "garbage": setup.garbage_late_ns,
            "checkpoint": setup.checkpoint_late_ns,
        }
        self.intake = self._actor("intake", "Intake")
        self.broker = self._actor("eval_broker", "EvalBroker")
        self.heartbeat = self._actor("heartbeat", "Heartbeat")
        self.workers = [self._worker(number) for number in range(setup.schedulers)]
        self._readers = [self.intake, self.broker, self.heartbeat]
        #: who has a replica of its own, and takes every record.
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

    def _actor(self, module: str, name: str, nth: int = 1, **settings: Any) -> Actor:
        made = getattr(import_module(f"services.{module}.role"), name)
        # In a fork another life than the recorded ones: plans and submissions are numbered by instance.
        life = f"-at-{self.written}" if self._setup.start is not None else ""
        actor = Actor(self, module, made(instance=f"{module}-{nth}{life}", **settings))
        actor.cpu_clock = self._setup.cpu_ns
        return actor

    def _worker(self, number: int) -> Actor:
        setup = self._setup
        deciding = Deciding(setup.times, self.decisions.append, self.wall, setup.cpu_ns)
        actor = self._actor("scheduler", "Scheduler", number + 1, decide=deciding)
        actor.deciding = deciding
        worker: Any = actor.role
        actor.parks = lambda: bool(worker.is_idle)
        instance = worker.instance
        self._route[subjects.leases(instance)] = (actor, "leases")
        self._route[subjects.presence("scheduler", instance)] = (self.broker, "presence")
        return actor

    def _start(self, actor: Actor) -> None:
        """Give a role what it finds when it starts: a state, a connection, leadership."""
        start = self._setup.start
        shares = actor is not self.applier and self._setup.shares
        if shares:
            # Nobody else may write into it: see replicas.py.
            setattr(actor.role, "_replica", self.shared)  # noqa: B010 - private, and meant.
        if start is not None:
            tables = next(
                one.tables for one in actor.role.sources() if isinstance(one, role.Replay)
            )
            lease = LeaseHeld(holder=start.chain.holder, cluster_id=start.chain.cluster_id)
            asides = Asides(marks=self._setup.marks)
            replica = self.shared if shares else copied(start, tables)
            actor.take(role.Restored(replica, asides, lease))
            actor.log_at = self.written + 1
        actor.take(role.Reconnected(fsync=True))
        actor.take(role.CaughtUp(self.written))
        actor.take(role.LeadershipWon())

    # ---- what actors need ----

    def wall(self) -> int:
        """Wall clock now, ns since 1970."""
        return self._begin_ns + self.loop.now_ns

    def records_for(self, actor: Actor) -> list[role.Input]:
        """Return the records that an actor with a replica of its own has not taken; the applier wrote them itself."""
        first, actor.log_at = actor.log_at - self._kept_from, self.visible + 1
        if actor not in self._alone:
            return []
        return [*self.records[first : self.visible + 1 - self._kept_from]]

    def before_step(self, actor: Actor, inputs: list[role.Input]) -> None:
        """Let the broker have heard of idle workers, as it would have twice a second."""
        if actor is not self.broker:
            return
        now_ns = self.loop.now_ns
        idle = [one.role.instance for one in self.workers if one.is_parked]
        heard = [self._presence[one] for one in idle if one in self._presence]
        if any(since_ns + _PRESENCE_NS <= now_ns for since_ns, _ in heard):
            inputs[:0] = [message for _, message in heard]
            self._presence |= {
                one: (now_ns, self._presence[one][1]) for one in idle if one in self._presence
            }

    def cost_ns(self, actor: Actor, inputs: list[role.Input]) -> int:
        """How long a step took, by the table of times."""
        times = self._setup.times
        if actor.deciding is not None:
            return actor.deciding.spent_ns()
        if actor is self.broker:
            return times.broker_step_ns
        messages = sum(type(one) is role.Message for one in inputs)
        if actor is self.applier:
            return messages * times.applier_command_ns
        return messages * times.intake_submission_ns if actor is self.intake else 0

    # ---- messages ----

    def command(self, kind: str, subject: str, data: bytes) -> None:
        """Bring a message to the applier, a hop from now."""
        self.loop.after(self._setup.times.hop_ns, self._command, kind, subject, data)

    def _command(self, kind: str, subject: str, data: bytes) -> None:
        if self._is_open:
            self.applier.hear(kind, subject, data)
        else:
            self._held.append((kind, subject, data))

    def ask(self, verb: str, data: bytes, submission_id: str = "") -> int:
        """Bring a submission to the fast door; returns the token that its verdict names."""
        subject = subjects.api_jobs(verb)
        token = self.intake.hear("api", subject, data, reply=True, msg_id=submission_id)
        self._asked[token] = None
        return token

    def _send(self, actor: Actor, effect: Any) -> None:
        subject = effect.subject
        target = self._route.get(subject)
        hop_ns = self._setup.times.hop_ns
        if target is None:
            if subject.startswith("dead."):
                self.stats.dead_letters.append(effect.data.decode())
        elif target[0] is self.applier:
            self.loop.after(hop_ns, self._command, target[1], subject, effect.data)
        elif target[1] == "presence":
            message = role.Message("presence", subject, effect.data, 0)
            self._presence[actor.role.instance] = (self.loop.now_ns + hop_ns, message)
            self.loop.after(hop_ns, self.broker.take, message)
        elif target[1] == "leases":
            for lease in _LEASES.decode(effect.data).leases:
                self._leased.pop(lease.key, None)
                self._leased[lease.key] = (self.loop.now_ns, len(self._leased) + 1)
            self.loop.after(hop_ns, _hand, target[0], target[1], subject, effect.data)
        else:
            self.loop.after(hop_ns, _hand, target[0], target[1], subject, effect.data)

    def _reply(self, _actor: Actor, effect: Any) -> None:
        if self._asked.pop(effect.token, 0) is None and self.on_verdict is not None:
            self.on_verdict(effect.token, effect.data)

    def _open(self, actor: Actor, _effect: Any) -> None:
        if actor is self.applier and not self._is_open:
            self._is_open = True
            for kind, subject, data in self._held:
                self.applier.hear(kind, subject, data)
            self._held.clear()

    def _stop(self, actor: Actor, effect: Any) -> None:
        reason = getattr(effect, "reason", type(effect).__name__)
        raise EngineStopped(f"{actor.role.instance} stopped: {reason}")

    def _table(self) -> dict[type, Callable[[Actor, Any], None]]:
        """Effect -> what carries it. There is no drop box here, and nobody publishes last values."""
        nothing = _ignore
        return {
            role.Append: self._append,
            role.Send: self._send,
            role.Reply: self._reply,
            role.Open: self._open,
            role.Close: nothing,
            role.Purge: nothing,
            role.Put: nothing,
            role.Rewind: self._stop,
            role.Resign: self._stop,
            role.Stop: self._stop,
        }

    def carry(self, actor: Actor, effect: role.Effect) -> None:
        """Perform an effect."""
        self._carries[type(effect)](actor, effect)

    # ---- the log ----

    def _append(self, _actor: Actor, effect: Any) -> None:
        self.loop.after(self._setup.times.append_ns, self._appended, effect)

    def _appended(self, effect: Any) -> None:
        assert effect.expected_seq == self.written, (effect.expected_seq, self.written)
        self.written += 1
        record = role.Record(self.written, log_subject(effect.kind), effect.data)
        self.records.append(record)
        self._digest.update(effect.data)
        self.stats.records += 1
        self.stats.bytes += len(effect.data)
        if self._setup.sink is not None:
            self._setup.sink(record)
        self.applier.inbox.append(role.Appended(self.written))
        applier: Any = self.applier.role
        if self.applier.inbox[:-1] or applier.has_waiting or effect.kind != "tx" or self.is_new:
            self.applier.wake()
        # Else there is nothing to write: it hears of the append together with what comes next.
        self.loop.after(self._setup.times.hop_ns, self._spread, record)

    @property
    def is_new(self) -> bool:
        """Tell whether the applier has not said yet whose log this is."""
        return not self._is_open or not self.shared.state.policy.cluster_id

    @property
    def digest(self) -> str:
        """Hash of all bytes written: 32 hex digits."""
        return self._digest.hexdigest()

    def _spread(self, record: role.Record) -> None:
        """Let everybody who reads see a record; those whom it concerns act on it at this instant."""
        decoded = self.shared.apply(record)
        kinds: set[type] = set()
        self.visible = record.seq
        if decoded is not None:
            self.stats.events += len(decoded.events)
            for event in decoded.events:
                if type(event) is EvaluationEnded and event.key in self._leased:
                    since_ns, load = self._leased.pop(event.key)
                    took_ns = self.loop.now_ns - since_ns
                    self.latencies.append(Decided(self.wall(), took_ns, load))
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
        """Drop the records that everybody took; without a sink they are kept."""
        behind = min(one.log_at for one in self.workers or self._readers)
        if self._setup.shares:
            self.shared.forget(behind)
        drop = behind - self._kept_from
        if drop > 0 and self._setup.sink is not None:
            del self.records[:drop]
            self._kept_from = behind

    def count(self) -> None:
        """Bring the counts up to date."""
        actors = (self.applier, *self._readers, *self.workers)
        self.stats.happenings = self.loop.events
        self.stats.steps = {one.role.instance: one.steps for one in actors}
        self.stats.cpu_ns = {one.role.instance: one.cpu_ns for one in actors}
        self.stats.decisions = len(self.decisions)


def _hand(actor: Actor, source: str, subject: str, data: bytes) -> None:
    actor.hear(source, subject, data)


def _ignore(_actor: Actor, _effect: Any) -> None:
    return


__all__ = ["Cluster", "EngineStopped", "Replica"]
