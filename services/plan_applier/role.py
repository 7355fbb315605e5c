"""The plan applier: the single writer of the log.

Decides when this instance holds the pen, what goes into one transaction, and what to do when an append is refused or
unanswered. What a command becomes is decided by shared/core/decide. It evolves its state while it decides, then
appends; it never undoes: when the log went another way it drops its state, replays, and competes again.

    standby ──won──▶ candidate ──lease appended──▶ active ──lost, refused, higher epoch──▶ standby
"""

import msgspec

from schemas.base import Event
from schemas.envelope import LeaseHeld
from schemas.envelope import Record as LogRecord
from schemas.policy import ClusterCreated, LogRolled, OperatorRefused, Policy
from services.plan_applier.batch import COMMANDS_MAX, decide_batch
from services.plan_applier.counters import Counters
from services.plan_applier.inbox import Inbox
from services.plan_applier.rolling import TIMER as ROLL_TIMER
from services.plan_applier.rolling import Rolling
from shared.bus import subjects
from shared.core.dead import dead_letter
from shared.core.decide.garbage import Horizon, decide_garbage, is_cut_short
from shared.core.decide.operator import decide_roll
from shared.core.log import seal
from shared.core.replica import Replica
from shared.core.role import (
    Ack,
    Append,
    Appended,
    AppendRefused,
    AppendUnknown,
    CaughtUp,
    Close,
    Effect,
    Input,
    LeadershipLost,
    LeadershipWon,
    LogSpace,
    Message,
    Open,
    PutDone,
    PutRefused,
    Reconnected,
    Record,
    Replay,
    Resign,
    Restored,
    Rewind,
    RollReady,
    RollRefused,
    Send,
    SetTimer,
    Source,
    Stop,
    Timer,
    Work,
)
from shared.core.state import State
from shared.errors import CommandInvalid, LogError

#: What the log's stream takes with headers to spare; the bounds above keep far below it.
RECORD_BYTES_MAX = 1_000_000
CHECKPOINT_EVERY = 1000
#: And after so many facts: what they touched is hashed at once, by every replica, which takes each about 10 ms.
CHECKPOINT_FACTS = 8_000
CHECKPOINT_IDLE_NS = 1_000_000_000
GARBAGE_EVERY_NS = 5_000_000_000
#: After a pass that took all it may: more ends than leaves otherwise.
GARBAGE_AGAIN_NS = 200_000_000
#: Busy: wait this long after the last append for company, but only while company comes.
LINGER_NS = 2_000_000
LINGER_ABOVE = 1.2
#: An append nobody answered for is looked for in the log this long before the state is rebuilt.
UNKNOWN_NS = 1_000_000_000
#: After a full log refused an append.
FULL_PAUSE_NS = 1_000_000_000


#: What it writes it knows before the log shows it.
LULL_NS = 20_000_000


class _Pending(msgspec.Struct):
    """The one append in flight. The state has its events already."""

    seq: int
    data: bytes
    digest: str
    record: LogRecord
    tokens: list[int]


class PlanApplier:
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
    ) -> None:
        self.instance = instance
        self._cluster_id = cluster_id
        self._first_policy = policy or Policy()
        self._require_fsync = require_fsync
        self._checkpoint_every = checkpoint_every
        self.replica = Replica()
        self._horizon = Horizon()
        self._inbox = Inbox()
        self._is_leader = False
        self._is_active = False
        self._is_caught_up = False
        self._pending: _Pending | None = None
        #: the replay may show a record before its append is answered; the next append waits for the answer.
        self._is_unanswered = False
        self._is_rewinding = False
        self._fsync = False
        self._replicas = 1
        self._since_checkpoint = 0
        self._facts_since = 0
        #: a second went by without a transaction.
        self._is_idle = False
        self._is_garbage_due = False
        self._appended_ns = 0
        #: the log was full a moment ago.
        self._is_paused = False
        #: moving mean of commands a transaction.
        self._mean = 1.0
        self._rolling = Rolling()
        self._counters = Counters()
        self._sent_ns = 0

    def sources(self) -> tuple[Source, ...]:
        """The log, and one queue a kind of command, opened while active."""
        queues = (
            Work(
                name=kind,
                stream="CMD",
                subject=subjects.command_filter(kind),
                durable=f"applier_{kind}",
            )
            for kind in subjects.COMMAND_KINDS
        )
        replay = Replay(space=True, tables=self.replica.tables, lull_ns=LULL_NS)
        return (replay, *queues)

    @property
    def next_seq(self) -> int:
        """First seq of the log that is not in the state."""
        return self.replica.next_seq

    @property
    def has_waiting(self) -> bool:
        """Say whether commands wait for the append in flight."""
        return len(self._inbox) > 0

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take what happened; when nothing is in flight, write the next record."""
        out: list[Effect] = []
        try:
            for item in inputs:
                self._take(item, now_ns, out)
            if self._pending is None and not self._is_unanswered:
                self._sent_ns = now_ns
                self._write(now_ns, out)
        except LogError as err:
            out.append(Stop(str(err)))
        return out

    def metrics(self) -> dict[str, float]:
        """Gauges and counters; plan queue depth as in Nomad's nomad.plan.queue_depth."""
        return self._counters.shown(self.replica, self._inbox, is_active=self._is_active)

    # ---- inputs ----

    def _take(self, item: Input, now_ns: int, out: list[Effect]) -> None:
        match item:
            case Message():
                self._receive(item, now_ns, out)
            case Record():
                self._follow(item, now_ns, out)
            case Restored():
                self.replica.begin_at(item.replica)
                self._horizon.begin_at(item.asides.marks)
            case Appended() | AppendRefused() | AppendUnknown():
                self._answered(item, now_ns, out)
            case RollReady() | RollRefused():
                self._rolled(item, now_ns, out)
            case Timer(name=name) if name == ROLL_TIMER:
                self._rolled(RollRefused("the bus did not answer"), now_ns, out)
            case Timer():
                self._fire(item, out)
            case CaughtUp():
                # One from before a rewind says nothing about the state that is built anew.
                self._is_caught_up = self.replica.seq >= item.seq
            case LogSpace():
                self.replica.room.learn(item)
            case LeadershipWon():
                self._is_leader = True
            case LeadershipLost():
                self._stand_by(out)
                self._is_leader = False
            case Reconnected():
                self._reconnect(item, out)
            case PutDone() | PutRefused():
                pass

    def _answered(
        self, item: Appended | AppendRefused | AppendUnknown, now_ns: int, out: list[Effect]
    ) -> None:
        """Take the one answer to the one append; the replay may have been faster."""
        self._is_unanswered = False
        if isinstance(item, Appended):
            self._confirm(item.seq, now_ns, out)
        elif isinstance(item, AppendRefused):
            if item.full:
                self._is_paused = True
                out.append(SetTimer("pause", now_ns + FULL_PAUSE_NS))
            self._rebuild(out)
        elif self._pending is not None:
            out.append(SetTimer("unknown", now_ns + UNKNOWN_NS))

    def _receive(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if not self._is_active:
            out.append(Ack(message.token))
            return
        try:
            self._inbox.put(message)
        except CommandInvalid as err:
            self._counters.add("dead")
            letter = dead_letter(self, message, err.message, now_ns)
            out.append(Send(subjects.dead(message.subject), letter))
            out.append(Ack(message.token))

    def _follow(self, record: Record, now_ns: int, out: list[Effect]) -> None:
        pending = self._pending
        if pending is not None and record.seq == pending.seq:
            if record.data == pending.data:
                self._confirm(record.seq, now_ns, out)
            else:
                self._rebuild(out)
            return
        if self._is_rewinding and record.seq != self.replica.next_seq:
            # On its way before the rewind.
            return
        self._is_rewinding = False
        accepted = self.replica.apply(record)
        if accepted is None:
            return
        self._horizon.note(record.seq, accepted.t_ns)
        self._note(accepted)
        if accepted.kind == "lease" and self._is_active:
            # A higher epoch than ours, and ours never comes this way.
            self._stand_by(out)
            self._is_leader = False
            out.append(Resign())

    def _fire(self, timer: Timer, out: list[Effect]) -> None:
        if timer.name == "unknown" and self._pending is not None:
            self._rebuild(out)
        elif timer.name == "pause":
            self._is_paused = False
        elif timer.name == "checkpoint":
            self._is_idle = True
        elif timer.name == "garbage":
            self._is_garbage_due = True

    def _reconnect(self, item: Reconnected, out: list[Effect]) -> None:
        self._fsync, self._replicas = item.fsync, item.replicas
        if self._require_fsync and not item.fsync:
            out.append(Stop("the bus does not fsync every write; set sync_interval: always"))
        if self._is_active:
            self._open(out)

    # ---- the pen ----

    def _confirm(self, seq: int, now_ns: int, out: list[Effect]) -> None:
        """The append in flight is in the log."""
        pending = self._pending
        if pending is None or seq != pending.seq:
            return
        self._pending = None
        self._counters.durable(now_ns - self._sent_ns)
        self.replica.wrote(pending.seq, pending.record, pending.digest, len(pending.data))
        self._horizon.note(seq, pending.record.t_ns)
        self._appended_ns = now_ns
        out.append(SetTimer("unknown", 0))
        out.extend(Ack(token) for token in pending.tokens)
        if pending.record.kind == "lease":
            if not self._is_leader:
                # Leadership went while the lease was under way: whoever has it now will take the pen.
                return
            self._is_active = True
            self._inbox.clear()
            self._open(out)
            out.append(SetTimer("garbage", now_ns + GARBAGE_EVERY_NS))
            if self._since_checkpoint:
                # Who had the pen died before it could prove its last words; there may be none after them.
                out.append(SetTimer("checkpoint", now_ns + CHECKPOINT_IDLE_NS))
            return
        self._note(pending.record)
        if pending.record.kind != "checkpoint":
            self._counters.add("transactions")
            self._counters.add("events", len(pending.record.events))
            # A generation begins with what its readers can prove.
            self._is_idle = self._is_idle or pending.record.kind == "roll"
            out.append(SetTimer("checkpoint", now_ns + CHECKPOINT_IDLE_NS))

    def _open(self, out: list[Effect]) -> None:
        out.extend(Open(kind) for kind in subjects.COMMAND_KINDS)

    def _stand_by(self, out: list[Effect]) -> None:
        if self._is_active:
            out.extend(Close(kind) for kind in subjects.COMMAND_KINDS)
        self._is_active = False
        self._inbox.clear()
        self._rolling.forget()

    def _rebuild(self, out: list[Effect]) -> None:
        """The state holds what the log does not: drop it, replay, compete again."""
        if self._pending is None:
            return
        self._counters.add("rebuilds")
        self._pending = None
        self._stand_by(out)
        self._is_caught_up = False
        self._since_checkpoint = self._facts_since = 0
        room = self.replica.room
        self.replica = Replica()
        self.replica.room = room
        self._horizon = Horizon()
        out.append(SetTimer("unknown", 0))
        self._is_rewinding = True
        out.append(Rewind(1))

    def _write(self, now_ns: int, out: list[Effect]) -> None:
        """Start the next append, if there is something to say and this instance may."""
        is_allowed = self._is_leader and self._is_caught_up
        if self._is_paused or not is_allowed or self._rolling.is_waiting:
            return
        if not self._is_active:
            self._write_lease(now_ns, out)
        elif not self.replica.state.policy.cluster_id:
            created = ClusterCreated(cluster_id=self._cluster_id, policy=self._first_policy)
            self._begin(now_ns)
            self._commit([created], now_ns, out)
        elif self._is_roll_ordered(out):
            self._begin_roll(now_ns, out)
        elif self.replica.room.is_full:
            # The rest is for the roll, and for who takes the pen.
            return
        elif self._is_checkpoint_due():
            tables = self.replica.state.hashes()
            self._append(self.replica.chain.draft("checkpoint", now_ns, tables=tables), [], out)
        elif self._is_garbage_due:
            self._write_garbage(now_ns, out)
        elif len(self._inbox) and not self._lingers(now_ns, out):
            self._write_commands(now_ns, out)

    def _write_lease(self, now_ns: int, out: list[Effect]) -> None:
        log_of = self.replica.chain.cluster_id
        if log_of not in ("", self._cluster_id):
            # A lease of ours in it would be damage to everybody, for ever.
            told = f"the log on this bus is of cluster {log_of}, this is {self._cluster_id}"
            out.append(Stop(f"{told}: use the data directory and the bus of one cluster"))
            return
        held = LeaseHeld(
            holder=self.instance,
            cluster_id=self._cluster_id,
            fsync=self._fsync,
            replicas=self._replicas,
        )
        self._append(self.replica.chain.draft("lease", now_ns, lease=held), [], out)

    def _is_roll_ordered(self, out: list[Effect]) -> bool:
        if self.replica.room.is_full and (found := self._inbox.take_roll()) is not None:
            self._rolling.take(found.command)  # type: ignore[arg-type]
            out.extend(Ack(one) for one in (found.token,) if one is not None)
        order, state = self._rolling.order, self.replica.state
        if order is not None and not decide_roll(state, order):
            # That generation is over already, and the log says so.
            self._rolling.forget()
        return self._rolling.order is not None

    def _begin_roll(self, now_ns: int, out: list[Effect]) -> None:
        first_seq = self.replica.next_seq + 1
        out += self._rolling.begin(first_seq, self.replica.room.bytes_max, now_ns)

    def _rolled(self, answer: RollReady | RollRefused, now_ns: int, out: list[Effect]) -> None:
        """Write what ends the generation, or why it goes on."""
        order, rolling = self._rolling.order, self._rolling
        if isinstance(answer, RollReady) and not rolling.is_for(answer):
            return
        if order is None or not rolling.is_waiting:
            return
        rolling.forget()
        out.append(SetTimer(ROLL_TIMER, 0))
        self._begin(now_ns)
        if isinstance(answer, RollReady):
            self._commit([LogRolled(generation=answer.generation)], now_ns, out, kind="roll")
        else:
            reason = f"the log goes on as it is: {answer.reason}"
            refused = OperatorRefused(
                request_id=order.request_id, code="unavailable", reason=reason
            )
            self._commit([refused], now_ns, out)

    def _write_garbage(self, now_ns: int, out: list[Effect]) -> None:
        self._is_garbage_due = False
        events = decide_garbage(self._begin(now_ns), self._horizon, now_ns)
        pause_ns = GARBAGE_AGAIN_NS if is_cut_short(events) else GARBAGE_EVERY_NS
        out.append(SetTimer("garbage", now_ns + pause_ns))
        if events:
            self._commit(events, now_ns, out)

    def _write_commands(self, now_ns: int, out: list[Effect]) -> None:
        """Decide what waits, and write what becomes of it."""
        state = self._begin(now_ns)
        batch = decide_batch(
            state, self._inbox, self._horizon, now_ns, no_new_work=self.replica.room.is_tight
        )
        self._counters.decided(batch.commands, batch.events)
        self._mean += (batch.commands - self._mean) / 8
        self._rolling.take(batch.roll)
        if batch.events:
            record = self.replica.chain.draft("tx", now_ns, events=batch.events)
            self._append(record, batch.tokens, out)
        else:
            out.extend(Ack(token) for token in batch.tokens)

    def _lingers(self, now_ns: int, out: list[Effect]) -> bool:
        """Wait a moment for company while there is much traffic: a transaction costs every replica a wake-up."""
        due = self._appended_ns + LINGER_NS
        if self._mean <= LINGER_ABOVE or len(self._inbox) >= COMMANDS_MAX or now_ns >= due:
            return False
        if due - now_ns > LINGER_NS:
            # The clock was set back.
            return False
        out.append(SetTimer("linger", due))
        return True

    def _begin(self, now_ns: int) -> State:
        state = self.replica.state
        self._counters.clock_off_ns = now_ns - self.replica.chain.t_ns
        state.begin(self.replica.next_seq, self.replica.chain.log_time(now_ns))
        return state

    def _commit(
        self, events: list[Event], now_ns: int, out: list[Effect], *, kind: str = "tx"
    ) -> None:
        state = self.replica.state
        state.evolve_all(events, state.seq)
        self._append(self.replica.chain.draft(kind, now_ns, events=events), [], out)

    def _append(self, record: LogRecord, tokens: list[int], out: list[Effect]) -> None:
        data, digest = seal(record)
        if len(data) > RECORD_BYTES_MAX:
            # The bus would drop it without a word, and we would try again for ever: better to be seen.
            kinds = ", ".join(sorted({type(event).__name__ for event in record.events}))
            out.append(
                Stop(f"a transaction of {len(data)} bytes is more than the log takes: {kinds}")
            )
            return
        seq = self.replica.next_seq
        self._pending = _Pending(seq, data, digest, record, tokens)
        self._is_unanswered = True
        msg_id = f"{seq}-{digest}"
        out.append(Append(kind=record.kind, data=data, expected_seq=seq - 1, msg_id=msg_id))

    def _is_checkpoint_due(self) -> bool:
        if self._is_idle:
            self._is_idle = False
            return self._since_checkpoint > 0
        many = self._facts_since >= CHECKPOINT_FACTS
        return many or self._since_checkpoint >= self._checkpoint_every

    def _note(self, record: LogRecord) -> None:
        """Count what no checkpoint has proved yet."""
        if record.kind == "checkpoint":
            self._since_checkpoint = self._facts_since = 0
        else:
            self._since_checkpoint += 1
            self._facts_since += len(record.events)
