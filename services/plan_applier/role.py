"""The plan applier: the single writer of the log.

It decides the contents of a transaction, and how to handle an append that is refused or unanswered; the events of a
command are decided by shared/core/decide. It applies events to its state while it decides, then appends, and never
undoes: if the log differs from its state, it drops the state, replays, and competes again. Its states are tables in
`tenure.py`.
"""

import msgspec

from schemas.base import Event
from schemas.envelope import CORE_VERSION, ENCODER, AnyCommand, LeaseHeld, LogRecord
from schemas.policy import ClusterCreated, LogRolled, OperatorRefused, Policy
from services.plan_applier.batch import COMMANDS_MAX, BatchDecider, BatchFailed
from services.plan_applier.command_queue import ALLOWED, CommandQueue
from services.plan_applier.counters import ApplierCounters
from services.plan_applier.incarnation import PendingIncarnation
from services.plan_applier.log_roll import TIMER as ROLL_TIMER
from services.plan_applier.log_roll import PendingLogRoll
from services.plan_applier.tenure import (
    APPEND,
    TENURE,
    AppendState,
    AppendTrigger,
    Tenure,
    TenureTrigger,
)
from shared.core.decide.garbage import LogTimeIndex, decide_garbage, is_pass_full
from shared.core.decide.operator import decide_roll
from shared.core.runtime.chain import core_order, seal
from shared.core.runtime.log_clock import WRITER_SLOWDOWN, LogClock
from shared.core.runtime.messages import (
    Ack,
    Append,
    Appended,
    AppendRefused,
    AppendUnknown,
    CaughtUp,
    Close,
    LeadershipLost,
    LogSpace,
    Message,
    Open,
    Reconnected,
    Record,
    Replay,
    Resign,
    Rewind,
    RollReady,
    RollRefused,
    SetTimer,
    Source,
    Stop,
    Timer,
    Work,
)
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.restored import Restored
from shared.core.runtime.role import Input
from shared.core.runtime.state_machine import StateMachine
from shared.core.runtime.step import Step
from shared.core.state.state import TABLES, State
from shared.errors import CommandInvalid
from shared.protocol import subjects

#: Largest record, below the limit of the log's stream with its headers; the bounds of a batch are far below it.
RECORD_BYTES_MAX = 1_000_000
CHECKPOINT_EVERY = 1000
#: Also after so many facts: every replica hashes the changed rows in one go, which takes about 10 ms.
CHECKPOINT_FACTS = 8_000
CHECKPOINT_IDLE_NS = 1_000_000_000
GARBAGE_EVERY_NS = 5_000_000_000
#: After a full pass: at the usual pace more rows would end than are collected.
GARBAGE_CONTINUE_NS = 200_000_000
#: Under load: wait so long after the last append for more commands, if the mean batch is above LINGER_ABOVE.
LINGER_NS = 2_000_000
LINGER_ABOVE = 1.2
#: Time for the replay to show an unanswered append before the state is rebuilt.
UNKNOWN_NS = 1_000_000_000
#: After a full log refused an append.
LOG_FULL_PAUSE_NS = 1_000_000_000


#: So often in a row, a second apart, the log may refuse an append at the same seq. Each time the replay must have shown
#: another writer's record there: if it never does, the server knows of records that cannot be read.
REFUSALS_MAX = 8


#: Batch window of the replay: the applier knows its own records before it reads them.
BATCH_WINDOW_NS = 20_000_000


#: timers of work that needs no append in flight.
_DUE_WORK = frozenset({"checkpoint", "garbage"})
_HOLDS_LEASE = frozenset({Tenure.ACTIVE, Tenure.ROLLING})


class _PendingAppend(msgspec.Struct):
    """The one append in flight. Its events are already applied."""

    seq: int
    data: bytes
    digest: str
    record: LogRecord
    tokens: list[int]


class PlanApplier(ReplicatedRole):
    """One instance: active or standby."""

    name = "plan_applier"
    leader_key = "plan_applier"

    def __init__(
        self,
        *,
        instance: str,
        cluster_id: str,
        policy: Policy | None = None,
        require_fsync: bool = True,
        checkpoint_every: int = CHECKPOINT_EVERY,
        replicas: ReplicaFactory = Replica,
    ) -> None:
        super().__init__(instance, replicas=replicas)
        self._cluster_id = cluster_id
        self._first_policy = policy or Policy()
        self._require_fsync = require_fsync
        self._checkpoint_every = checkpoint_every
        self._horizon = LogTimeIndex()
        self._inbox = CommandQueue()
        self._log_clock = LogClock(slowdown=WRITER_SLOWDOWN)
        self._decider = BatchDecider()
        self._tenure = StateMachine(Tenure.STANDBY, TENURE)
        self._append_state = StateMachine(AppendState.IDLE, APPEND)
        self._pending: _PendingAppend | None = None
        self._fsync = False
        self._replicas = 1
        self._since_checkpoint = 0
        self._facts_since = 0
        #: due work: a checkpoint after an idle second, a garbage collection.
        self._due: set[str] = set()
        self._appended_ns = 0
        #: steady time before which nothing is appended: the log was full.
        self._paused_until_ns = 0
        #: at which seq the last append was refused, and how often in a row.
        self._refused_seq = self._refusals = 0
        #: moving mean of commands a transaction.
        self._mean = 1.0
        self._rolling = PendingLogRoll()
        self._incarnation = PendingIncarnation()
        self._counters = ApplierCounters()
        self._sent_ns = 0
        #: newest CORE_VERSION among the writers of the log: a release before it decides otherwise.
        self._newest_core = ""

    def sources(self) -> tuple[Source, ...]:
        """The log, and one work queue for each kind of command, open while active."""
        queues = (
            Work(
                name=kind,
                stream="CMD",
                subject=subjects.command_filter(kind),
                durable=f"applier_{kind}",
            )
            for kind in subjects.COMMAND_KINDS
        )
        replay = Replay(space=True, tables=self.replica.tables, batch_window_ns=BATCH_WINDOW_NS)
        return (replay, *queues)

    @property
    def is_active(self) -> bool:
        """Whether this instance holds the write lease."""
        return self._tenure.state in _HOLDS_LEASE

    @property
    def is_appending(self) -> bool:
        """Whether an append is in flight: the state has its events, and the log may not."""
        return self._pending is not None

    @property
    def has_waiting(self) -> bool:
        """Whether commands wait for the append in flight."""
        return len(self._inbox) > 0

    def finish(self, step: Step) -> None:
        """Write the next record when nothing is in flight."""
        if self._append_state.state is AppendState.IDLE:
            self._sent_ns = step.now_ns
            self._write(step)

    def metrics(self) -> dict[str, float]:
        """Gauges and counters; plan queue depth as in Nomad's nomad.plan.queue_depth."""
        return self._counters.shown(self.replica, self._inbox, is_active=self.is_active)

    # ---- inputs ----

    def on_input(self, item: Input, step: Step) -> None:
        """Take answers of the bus, timers, and changes of leadership."""
        match item:
            case Restored():
                self._horizon.begin_at(item.asides.marks)
                self._replay_began()
            case Appended() | AppendRefused() | AppendUnknown():
                self._answered(item, step)
            case RollReady() | RollRefused():
                self._rolled(item, step)
            case Timer(name=name) if name == ROLL_TIMER:
                self._rolled(RollRefused("the bus did not answer"), step)
            case Timer():
                self._fire(item, step)
            case CaughtUp():
                # One from before a rewind does not apply to the state being rebuilt.
                self.is_caught_up = self.replica.seq >= item.seq
                if self.is_caught_up:
                    self._replay_began()
            case LogSpace():
                self.replica.room.learn(item)
                self._counters.compared_clocks(
                    item.clock_off_ns, self.replica.chain.t_ns - step.now_ns
                )
            case LeadershipLost():
                self._stand_by(step, TenureTrigger.LEADERSHIP_LOST)
            case Reconnected():
                self._reconnect(item, step)
            case _:
                pass

    def _answered(self, item: Appended | AppendRefused | AppendUnknown, step: Step) -> None:
        """Take the answer to the append in flight; the replay may have shown it before."""
        if isinstance(item, AppendUnknown):
            self._append_state.move(AppendTrigger.UNANSWERED)
            if self._pending is not None:
                step.emit(SetTimer("unknown", step.now_ns + UNKNOWN_NS))
            return
        self._append_state.move(AppendTrigger.ANSWERED)
        if isinstance(item, Appended):
            self._confirm(item.seq, step)
            return
        if item.full or self._is_refused_again(item, step):
            self._paused_until_ns = step.steady_ns + LOG_FULL_PAUSE_NS
            step.emit(SetTimer("pause", step.now_ns + LOG_FULL_PAUSE_NS))
        self._rebuild(step)

    def _is_refused_again(self, item: AppendRefused, step: Step) -> bool:
        """Tell whether the append before was refused at the same seq; stop if that does not end."""
        if self._pending is None:
            return False
        seq = self._pending.seq
        self._refusals = self._refusals + 1 if seq == self._refused_seq else 1
        self._refused_seq = seq
        if self._refusals >= REFUSALS_MAX:
            text = f"the log can be read up to {seq - 1}, and refuses every record behind that: {item.reason}"
            step.emit(Stop(f"{text}; it is damaged, see `caravan log verify`"))
        return self._refusals > 1

    def _replay_began(self) -> None:
        """Accept records again: none from before the rewind can arrive any more."""
        if self._tenure.state is Tenure.REBUILDING:
            self._tenure.move(TenureTrigger.REPLAY_BEGUN)

    def on_message(self, message: Message, step: Step) -> None:
        """Queue the commands of a message; without the write lease another instance handles them."""
        if not self.is_active:
            step.emit(Ack(message.token))
            return
        try:
            self._inbox.put(message)
        except CommandInvalid as err:
            self._counters.add("dead")
            step.emit(self.dead_letter(message, err.message, step.now_ns))
            step.emit(Ack(message.token))

    def on_record(self, record: Record, step: Step) -> None:
        """Confirm the append in flight, or apply what another instance wrote."""
        pending = self._pending
        if pending is not None and record.seq == pending.seq:
            self._append_state.move(AppendTrigger.SHOWN)
            if record.data == pending.data:
                self._confirm(record.seq, step)
            else:
                self._rebuild(step)
            return
        if self._tenure.state is Tenure.REBUILDING and record.seq != self.replica.next_seq:
            # Sent before the rewind.
            return
        self._replay_began()
        accepted = self.replica.apply(record)
        if accepted is None:
            return
        self._horizon.note(record.seq, accepted.t_ns)
        self._note(accepted)
        if accepted.core != self._newest_core:
            self._newest_core = max(self._newest_core, accepted.core, key=core_order)
        if accepted.kind == "lease" and self.is_active:
            # Its epoch is higher than ours: our own lease is handled above.
            self._stand_by(step, TenureTrigger.SUPERSEDED)
            self.is_leader = False
            step.emit(Resign())

    def _fire(self, timer: Timer, step: Step) -> None:
        if timer.name == "unknown" and self._append_state.state is AppendState.UNKNOWN:
            self._append_state.move(AppendTrigger.TIMED_OUT)
            self._rebuild(step)
        elif timer.name in _DUE_WORK:
            self._due.add(timer.name)

    def _reconnect(self, item: Reconnected, step: Step) -> None:
        self._fsync, self._replicas = item.fsync, item.replicas
        self._incarnation.bus = item.bus
        if self._require_fsync and not item.fsync:
            step.emit(Stop("the bus does not fsync every write; set sync_interval: always"))
        if self.is_active:
            self._open(step)

    # ---- the write lease ----

    def _confirm(self, seq: int, step: Step) -> None:
        """The append in flight is in the log."""
        pending = self._pending
        if pending is None or seq != pending.seq:
            return
        self._pending = None
        self._counters.durable(step.now_ns - self._sent_ns)
        self.replica.wrote(pending.seq, pending.record, pending.digest, len(pending.data))
        if self.observe is not None and self.is_acting:
            self.observe(self.replica.state, pending.record, pending.seq)
        self._horizon.note(seq, pending.record.t_ns)
        self._appended_ns = step.now_ns
        step.emit(SetTimer("unknown", 0))
        step.effects += [Ack(token) for token in pending.tokens]
        if pending.record.kind == "lease":
            if not self.is_leader:
                # Leadership was lost while the lease was in flight: the next leader appends its own.
                return
            self._tenure.move(TenureTrigger.LEASE_CONFIRMED)
            self._inbox.clear()
            self._open(step)
            step.emit(SetTimer("garbage", step.now_ns + GARBAGE_EVERY_NS))
            if self._since_checkpoint:
                # The last holder ended before its checkpoint, and no other record may follow for long.
                step.emit(SetTimer("checkpoint", step.now_ns + CHECKPOINT_IDLE_NS))
            return
        self._note(pending.record)
        if pending.record.kind != "checkpoint":
            self._counters.add("transactions")
            self._counters.add("events", len(pending.record.events))
            # A generation begins with a checkpoint, so that its readers can verify their state.
            if pending.record.kind == "roll":
                self._due.add("checkpoint")
            step.emit(SetTimer("checkpoint", step.now_ns + CHECKPOINT_IDLE_NS))

    def _open(self, step: Step) -> None:
        step.effects.extend(Open(kind) for kind in subjects.COMMAND_KINDS)

    def _stand_by(self, step: Step, trigger: TenureTrigger) -> None:
        """Leave the tenure: close the command queues, drop waiting commands."""
        if self.is_active:
            step.effects += [Close(kind) for kind in subjects.COMMAND_KINDS]
        self._tenure.move(trigger)
        self._inbox.clear()
        self._rolling.forget()

    def _rebuild(self, step: Step) -> None:
        """Drop a state with events that are not in the log, replay the log, compete again."""
        if self._pending is not None:
            self._drop_state(step)

    def _drop_state(self, step: Step) -> None:
        self._counters.add("rebuilds")
        self._pending = None
        self._stand_by(step, TenureTrigger.DIVERGED)
        self.is_caught_up = False
        self._since_checkpoint = self._facts_since = 0
        room = self.replica.room
        self.replica = self.make_replica(TABLES)
        self.replica.room = room
        self._horizon = LogTimeIndex()
        step.emit(SetTimer("unknown", 0))
        step.emit(Rewind(1))

    def _write(self, step: Step) -> None:
        """Start the next append, if there is one and this instance may write."""
        if step.steady_ns < self._paused_until_ns or not self.is_acting:
            return
        if self._tenure.state is Tenure.STANDBY:
            self._tenure.move(TenureTrigger.ELIGIBLE)
        if self._tenure.state is Tenure.ROLLING:
            return
        if self._tenure.state is Tenure.CANDIDATE:
            self._write_lease(step)
        elif not self.replica.state.policy.cluster_id:
            created = ClusterCreated(
                cluster_id=self._cluster_id, policy=self._first_policy, bus=self._incarnation.bus
            )
            self._begin(step)
            self._commit([created], step)
        elif self._write_incarnation(step):
            # Before any other event gets an id.
            return
        elif self._is_roll_ordered(step):
            self._begin_roll(step)
        elif self.replica.room.is_full:
            # The remaining space is for the roll, and for the lease of the next applier.
            return
        elif self._is_checkpoint_due():
            tables = self.replica.state.hashes()
            self._append(
                self.replica.chain.draft("checkpoint", self._log_ns(step), tables=tables), [], step
            )
        elif "garbage" in self._due:
            self._write_garbage(step)
        elif len(self._inbox) and not self._waits_for_batch(step):
            self._write_commands(step)

    def _write_lease(self, step: Step) -> None:
        log_of = self.replica.chain.cluster_id
        if log_of not in ("", self._cluster_id):
            # A lease of another cluster would damage the log for every reader.
            text = f"the log on this bus belongs to cluster {log_of}, not {self._cluster_id}"
            step.emit(Stop(f"{text}: use the data directory and the bus of one cluster"))
            return
        written_by = self._newest_core
        if core_order(written_by) > core_order(CORE_VERSION):
            # Its decisions would differ from those that follow from the log so far.
            text = f"the log was written by core {written_by}, this release has {CORE_VERSION}"
            step.emit(Stop(f"{text}: run a release with core {written_by} or newer"))
            return
        held = LeaseHeld(
            holder=self.instance,
            cluster_id=self._cluster_id,
            fsync=self._fsync,
            replicas=self._replicas,
        )
        self._append(self.replica.chain.draft("lease", self._log_ns(step), lease=held), [], step)
        if self._pending is not None:
            self._tenure.move(TenureTrigger.LEASE_SENT)

    def _write_incarnation(self, step: Step) -> bool:
        """Begin a new incarnation of the log if one is due, in a transaction of its own."""
        chain = self.replica.chain
        begun = self._incarnation.due(
            self.replica.state, last_seq=chain.next_seq - 1, now_ns=self._log_ns(step)
        )
        if begun is not None:
            self._begin(step)
            self._commit([begun], step)
        return begun is not None

    def _is_roll_ordered(self, step: Step) -> bool:
        if self.replica.room.is_full and (found := self._inbox.take_roll_command()) is not None:
            self._rolling.take(found.command)  # type: ignore[arg-type]
            step.effects.extend(Ack(one) for one in (found.token,) if one is not None)
        order, state = self._rolling.order, self.replica.state
        if order is not None and not decide_roll(state, order):
            # That generation has already ended in the log.
            self._rolling.forget()
        return self._rolling.order is not None

    def _begin_roll(self, step: Step) -> None:
        first_seq = self.replica.next_seq + 1
        self._tenure.move(TenureTrigger.ROLL_BEGUN)
        self._rolling.begin(step, first_seq, self.replica.room.bytes_max)

    def _rolled(self, answer: RollReady | RollRefused, step: Step) -> None:
        """Append the record that ends the generation, or the refusal with its reason."""
        order, rolling = self._rolling.order, self._rolling
        if isinstance(answer, RollReady) and not rolling.is_for(answer):
            return
        if order is None or self._tenure.state is not Tenure.ROLLING:
            return
        rolling.forget()
        self._tenure.move(TenureTrigger.ROLL_ENDED)
        step.emit(SetTimer(ROLL_TIMER, 0))
        self._begin(step)
        if isinstance(answer, RollReady):
            self._commit([LogRolled(generation=answer.generation)], step, kind="roll")
        else:
            reason = f"the log continues unchanged: {answer.reason}"
            refused = OperatorRefused(
                request_id=order.request_id, code="unavailable", reason=reason
            )
            self._commit([refused], step)

    def _write_garbage(self, step: Step) -> None:
        self._due.discard("garbage")
        events = decide_garbage(self._begin(step), self._horizon, self._log_ns(step))
        pause_ns = GARBAGE_CONTINUE_NS if is_pass_full(events) else GARBAGE_EVERY_NS
        step.emit(SetTimer("garbage", step.now_ns + pause_ns))
        if events:
            self._commit(events, step)

    def _write_commands(self, step: Step) -> None:
        """Decide waiting commands, and append their events."""
        state = self._begin(step)
        try:
            batch = self._decider.decide(
                state,
                self._inbox,
                self._horizon,
                self._log_ns(step),
                no_new_work=self.replica.room.refuses_new_work,
            )
        except BatchFailed as err:
            self._fail(err.taken, err.reason, step)
            return
        for command, reason in batch.failed:
            self._bury(command, reason, step)
        self._counters.decided(batch.commands, batch.events)
        self._mean += (batch.commands - self._mean) / 8
        self._rolling.take(batch.roll)
        self._incarnation.take(batch.ahead)
        if batch.events:
            record = self._draft("tx", batch.events, step)
            data, digest = seal(record)
            if len(data) > RECORD_BYTES_MAX:
                self._fail(batch.taken, f"a transaction of {len(data)} bytes", step)
            else:
                self._append_sealed(record, data, digest=digest, tokens=batch.tokens, step=step)
        else:
            step.effects += [Ack(token) for token in batch.tokens]

    def _fail(self, taken: list[AnyCommand], reason: str, step: Step) -> None:
        """Rebuild a state that commands broke; when their senders send them again, each is decided alone."""
        for command in self._decider.blame(taken):
            self._bury(command, reason, step)
        self._drop_state(step)

    def _bury(self, command: AnyCommand, reason: str, step: Step) -> None:
        """Write a dead letter for a command that could not be decided."""
        self.failed_messages += 1
        kind = next(kind for kind, types in ALLOWED.items() if isinstance(command, types))
        message = Message(kind, subjects.command(kind), ENCODER.encode(command), 0)
        step.emit(self.dead_letter(message, reason, step.now_ns))

    def _waits_for_batch(self, step: Step) -> bool:
        """Under load wait for more commands: each transaction wakes up every replica."""
        due = self._appended_ns + LINGER_NS
        if self._mean <= LINGER_ABOVE or len(self._inbox) >= COMMANDS_MAX or step.now_ns >= due:
            return False
        if due - step.now_ns > LINGER_NS:
            # The clock was set back.
            return False
        step.emit(SetTimer("linger", due))
        return True

    def _begin(self, step: Step) -> State:
        state = self.replica.state
        state.begin(self.replica.next_seq, self._log_ns(step))
        return state

    def _commit(self, events: list[Event], step: Step, *, kind: str = "tx") -> None:
        state = self.replica.state
        state.evolve_all(events, state.seq)
        self._append(self._draft(kind, events, step), [], step)

    def _draft(self, kind: str, events: list[Event], step: Step) -> LogRecord:
        """Date a transaction as the state on which it was decided: a batch without events may have taken that ahead."""
        now_ns = max(self._log_ns(step), self.replica.state.t_ns)
        return self.replica.chain.draft(kind, now_ns, events=events)

    def _log_ns(self, step: Step) -> int:
        return self._log_clock.read(step, self.replica.chain.t_ns)

    def _append(self, record: LogRecord, tokens: list[int], step: Step) -> None:
        data, digest = seal(record)
        if len(data) > RECORD_BYTES_MAX:
            # The bus would drop it silently and every retry would fail: stop with an error.
            kinds = ", ".join(sorted({type(event).__name__ for event in record.events}))
            text = f"a transaction of {len(data)} bytes exceeds the limit of the log: {kinds}"
            step.emit(Stop(text))
            return
        self._append_sealed(record, data, digest=digest, tokens=tokens, step=step)

    def _append_sealed(
        self, record: LogRecord, data: bytes, *, digest: str, tokens: list[int], step: Step
    ) -> None:
        seq = self.replica.next_seq
        self._pending = _PendingAppend(seq, data, digest, record, tokens)
        self._append_state.move(AppendTrigger.SENT)
        msg_id = f"{seq}-{digest}"
        step.emit(Append(kind=record.kind, data=data, expected_seq=seq - 1, msg_id=msg_id))

    def _is_checkpoint_due(self) -> bool:
        if "checkpoint" in self._due:
            self._due.discard("checkpoint")
            return self._since_checkpoint > 0
        many = self._facts_since >= CHECKPOINT_FACTS
        return many or self._since_checkpoint >= self._checkpoint_every

    def _note(self, record: LogRecord) -> None:
        """Count the records and facts since the last checkpoint."""
        if record.kind == "checkpoint":
            self._since_checkpoint = self._facts_since = 0
        else:
            self._since_checkpoint += 1
            self._facts_since += len(record.events)
