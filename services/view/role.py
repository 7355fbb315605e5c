"""The view: answers queries and publishes the state, so that readers need not replay the log.

It decides when readers get a change (at once, then at most every 50 ms), and from which state a query is answered.
Order of reading: shared/query/projections.py, `dirty_set.py` (what a transaction changes for readers), `publisher.py`
(fence and pacing), `queries.py`. Any number of views may run: the fence orders what they publish.
"""

from collections import deque

import msgspec

from schemas.answers import DeadLine
from schemas.dead_letter import DeadLetter
from schemas.envelope import LogRecord
from schemas.nodes import NodeRegistered
from schemas.policy import IncarnationBegan
from services.view.dirty_set import DirtyTracker
from services.view.disk_sources import DISK_SOURCE, answer_disk_source
from services.view.lost_history import LostHistory
from services.view.operator_api import TIMER as OPERATOR_TIMER
from services.view.operator_api import OperatorApi
from services.view.publisher import Publisher
from services.view.queries import QueryHandler
from services.view.scrub_report import ScrubReport
from services.view.snapshot_writer import TIMER as SNAPSHOT_TIMER
from services.view.snapshot_writer import SnapshotSchedule, SnapshotWriter
from services.view.standing_values import StandingValues
from shared.core.decide.garbage import LogTimeIndex
from shared.core.runtime.messages import (
    Ack,
    Answer,
    BusSeen,
    CaughtUp,
    Effect,
    Listen,
    LogScrubbed,
    LogSpace,
    Message,
    Open,
    PutDone,
    PutRefused,
    Read,
    Reconnected,
    Record,
    Replay,
    SetTimer,
    Source,
    Timer,
)
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.runtime.role import Input
from shared.core.runtime.step import Step
from shared.core.state.counts import count_state
from shared.protocol import subjects
from shared.protocol.operator_verbs import NOUNS
from shared.query.answers import QueryEngine
from shared.query.evaluation_index import EvaluationIndex
from shared.query.job_progress import SettlingClock

#: The first change is published at once, the next ones after this time.
COALESCE_NS = 50_000_000
#: Records are delivered in batches of this window, since the view publishes less often.
BATCH_WINDOW_NS = 10_000_000
#: Delay of a change, so that a job and its placement are published together.
GATHER_NS = 15_000_000
#: While plans arrive, publishing takes at most one part in this many of the time: values are outdated at once, and the
#: scheduler needs the CPU.
PLANNING_SHARE = 4
#: Dead letters remembered, newest last.
DEAD_KEPT = 1_000
#: Before the noun: names of the sources of operators' requests.
_OPERATOR_SOURCE = "door-"
DEAD_DECODER = msgspec.json.Decoder(DeadLetter)


class View(ReplicatedRole):
    """One view. `reads_dead_letters`: also read the stream of dead letters, to list them."""

    name = "view"

    def __init__(
        self,
        *,
        instance: str,
        reads_dead_letters: bool = False,
        snapshots: SnapshotSchedule | None = None,
        gather_ns: int = 0,
        replicas: ReplicaFactory = Replica,
    ) -> None:
        super().__init__(instance, replicas=replicas)
        self._gather_ns = gather_ns
        self._follow_dead = reads_dead_letters
        self._histories = EvaluationIndex(self.replica.state)
        self._horizon = LogTimeIndex()
        #: tells when jobs whose tasks have just started count as running.
        self._clock = SettlingClock(self._horizon)
        self._publisher = Publisher(
            self.replica.state, self._histories, self.dead_letter, self._clock
        )
        self._marker = DirtyTracker(self.replica.state, self._publisher.marks)
        self._standing = StandingValues(self.replica.state, self._publisher.marks)
        self._dead: deque[DeadLine] = deque(maxlen=DEAD_KEPT)
        self._dead_seq = 0
        self._answers = QueryEngine(self.replica, self._histories, self._dead, self._clock)
        self._questions = QueryHandler(
            self.replica, self._answers, self.dead_letter, self._take_message
        )
        self._operator_api = OperatorApi(instance, self.replica)
        #: records wait while it reads the state.
        self._snapshots = SnapshotWriter(self.replica, snapshots or SnapshotSchedule())
        #: what the background read of the stored log found.
        self.scrub = ScrubReport()
        self._lost = LostHistory()
        #: what the shell found at its last look at the servers of the bus.
        self._bus_alarms: tuple[str, ...] = ()
        self._waiting: list[Record] = []
        #: the log was read to its end once.
        self._is_open = False
        self._published_ns = 0
        self._pause_ns = COALESCE_NS
        #: time of the first unpublished change; 0: none.
        self._gathers_ns = 0
        self._timer_ns = 0

    # ---- what a shell asks ----

    def sources(self) -> tuple[Source, ...]:
        """Say where inputs come from."""
        dead = (Read("dead", "DEAD", subjects.DEAD_ALL),) if self._follow_dead else ()
        requests = tuple(
            Listen(f"{_OPERATOR_SOURCE}{noun}", subjects.api(noun, "*"), queue="view")
            for noun in NOUNS
        )
        return (
            Replay(
                space=True,
                tables=self.replica.tables,
                batch_window_ns=BATCH_WINDOW_NS,
                servers=True,
            ),
            Listen("query", subjects.QUERIES, queue="view"),
            Listen("node_query", subjects.NODE_QUERIES, queue="view"),
            Listen(DISK_SOURCE, subjects.NODE_DISK_SOURCES, queue="view"),
            *requests,
            *dead,
        )

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should know although the view works; damage on disk is a problem of the shell."""
        lost = self._lost.alarm(self._clock.now_ns)
        return (lost,) if lost else ()

    def _tell_alarms(self) -> None:
        alarms = (*self._bus_alarms, self.scrub.alarm, *self.alarms)
        self._answers.alarms = tuple(filter(None, alarms))

    def metrics(self) -> dict[str, float]:
        """Gauges and counters by Prometheus name; what there is, counted now."""
        counts = count_state(self.replica.state)
        allocations = {
            f'caravan_view_allocations{{status="{status}"}}': float(n)
            for status, n in counts.allocations.items()
        }
        return {
            **allocations,
            "caravan_view_jobs": float(counts.jobs),
            "caravan_view_nodes": float(counts.nodes),
            "caravan_view_evaluations": float(counts.evaluations),
            "caravan_view_seq": float(self.replica.seq),
            "caravan_view_foreign_records": float(self.replica.chain.foreign),
            "caravan_view_checkpoints_compared": float(self.replica.checked),
            "caravan_view_puts_total": float(self._publisher.published),
            "caravan_view_allocations_told_total": float(self._publisher.told),
            "caravan_view_puts_refused_total": float(self._publisher.refused),
            "caravan_view_values_too_large_total": float(self._publisher.too_large),
            "caravan_view_marks_waiting": float(self._publisher.waiting),
            "caravan_view_queries_total": float(self._questions.answered),
            "caravan_view_queries_invalid_total": float(self._questions.invalid),
            "caravan_view_queries_held": float(len(self._questions)),
            "caravan_view_operator_wishes_waiting": float(len(self._operator_api)),
            **self._snapshots.metrics(),
            **self.scrub.metrics(),
        }

    # ---- inputs ----

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take inputs, at a time by which answers say what has settled."""
        self._clock.now_ns = now_ns
        self._tell_alarms()
        return super().step(inputs, now_ns)

    def finish(self, step: Step) -> None:
        """Apply what waits, answer what can be answered, publish what is due."""
        self._catch_up(step)
        self._questions.answer_waiting(step)
        self._publish(step)

    def on_record(self, record: Record, step: Step) -> None:
        """Apply a record, unless a snapshot needs the state as it is."""
        self._waiting.append(record)
        self._catch_up(step)

    def on_message(self, message: Message, step: Step) -> None:
        """Take a query, an operator's request, or a dead letter."""
        if message.source == "dead":
            self._keep_dead(message)
            step.emit(Ack(message.token))
        elif message.source == DISK_SOURCE:
            state = self.replica.state
            step.emit(answer_disk_source(message, state, is_open=self._is_open))
        elif not message.source.startswith(_OPERATOR_SOURCE):
            self._questions.asked(message, step)
        elif not message.reply or not self._is_open:
            # Before the log was replayed nothing tells what a request would change.
            step.emit(Ack(message.token))
        else:
            self._operator_api.asked(message, step)

    def _on_failed(self, message: Message, reason: str, step: Step) -> None:
        """Refuse what cannot be handled; an operator's request in the form of its verdict."""
        if message.source.startswith(_OPERATOR_SOURCE) and message.reply:
            step.emit(self.dead_letter(message, reason, step.now_ns))
            self._operator_api.failed(message, reason, step)
        else:
            super()._on_failed(message, reason, step)

    def on_input(self, item: Input, step: Step) -> None:
        """Take answers of the bus, timers, and changes of the connection."""
        match item:
            case PutDone() | PutRefused():
                self._publisher.answered(item)
            case CaughtUp():
                if not self._is_open:
                    self._is_open = self._questions.is_open = True
                    self._marker.follow()
                    self._snapshots.look(step)
                    self._standing.look(step)
            case BusSeen():
                self._answers.bus, self._bus_alarms = item.status, item.alarms
                self._tell_alarms()
            case LogScrubbed():
                self.scrub.learn(item)
                self._tell_alarms()
            case LogSpace():
                self.replica.room.learn(item)
                self._operator_api.learn(item, step)
            case Reconnected():
                self._reconnected(step)
            case Restored():
                self._begin_at(item, step.now_ns)
            case Answer():
                self._standing.answered(item, step)
                self._snapshots.answered(item, step)
                self._snapshots.begin_if_armed(step, asides=self._asides)
            case Timer(name="publish"):
                # `finish` looks at what it was set for.
                self._timer_ns = 0
            case Timer(name=name) if name == SNAPSHOT_TIMER:
                self._snapshots.timer(step)
            case Timer(name=name) if name == OPERATOR_TIMER:
                self._operator_api.timer(step)
            case _:
                pass

    def _reconnected(self, step: Step) -> None:
        self._publisher.forget_in_flight()
        if self._is_open:
            # Memory streams may be empty; where they are not, the fence says so.
            self._publisher.marks.everything(self.replica.state)
        if self._follow_dead:
            step.emit(Open("dead", self._dead_seq + 1))

    def _keep_dead(self, message: Message) -> None:
        self._dead_seq = max(self._dead_seq, message.stream_seq)
        try:
            letter = DEAD_DECODER.decode(message.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            letter = DeadLetter(
                subject=message.subject, reason="not a dead letter of ours", at_ns=0
            )
        self._dead.append(
            DeadLine(
                id=str(message.stream_seq),
                subject=letter.subject,
                reason=letter.reason,
                at=letter.at_ns,
                size=len(letter.body_base64.rstrip("=")) * 3 // 4,
            )
        )

    # ---- the log: what changed for readers ----

    def _catch_up(self, step: Step) -> None:
        """Apply what waits, unless a snapshot needs the state as it is."""
        at = 0
        while at < len(self._waiting) and not self._snapshots.is_holding:
            self._apply(self._waiting[at], step)
            at += 1
        del self._waiting[:at]

    def _begin_at(self, restored: Restored, now_ns: int) -> None:
        """Begin at a snapshot instead of the first record."""
        self._histories.begin_at(restored.asides.since_ns)
        self._horizon.begin_at(restored.asides.marks)
        self._answers.lease = self._snapshots.lease = restored.lease
        self._publisher.applier_changed(self.replica.chain.epoch)
        self._snapshots.restored(self.replica.seq, now_ns)
        self._standing.restored()

    def _asides(self) -> SnapshotExtras:
        return SnapshotExtras(since_ns=self._histories.open_since_ns(), marks=self._horizon.marks())

    def _apply(self, record: Record, step: Step) -> None:
        decoded = self.replica.apply(record, self._before)
        if decoded is None:
            return
        if decoded.lease is not None:
            self._answers.lease = self._snapshots.lease = decoded.lease
            self._publisher.applier_changed(decoded.epoch)
            self._on_new_writer(step)
        self._horizon.note(record.seq, decoded.t_ns)
        if decoded.kind == "checkpoint":
            self._proven(decoded, step)
        self._marker.after(decoded, record.seq, self._histories.after(decoded, record.seq))
        self._operator_api.see(decoded.events, step)
        for event in decoded.events:
            if isinstance(event, IncarnationBegan | NodeRegistered) and event.lost_seq:
                self._lost.learn(event, record.seq, decoded.t_ns)
                self._tell_alarms()

    def _on_new_writer(self, step: Step) -> None:
        """Send operators' requests again that the log does not show."""
        self._operator_api.hurry(step)

    def _before(self, record: LogRecord) -> None:
        """Look at what a transaction is about to change."""
        self._histories.before(record)
        self._marker.before(record, self.replica.seq)

    def _proven(self, checkpoint: LogRecord, step: Step) -> None:
        """The tables are those of the checkpoint: a moment for a snapshot, but not while the past is read."""
        if self._is_open:
            self._snapshots.checkpoint(checkpoint, step, asides=self._asides)
        else:
            self._snapshots.remember(checkpoint)

    # ---- publishing ----

    def _publish(self, step: Step) -> None:
        first_ns = self._publisher.due_ns() if self._is_open else 0
        if not first_ns:
            return
        if self._gather_ns and first_ns <= step.now_ns:
            if not 0 < self._gathers_ns <= step.now_ns:
                self._gathers_ns = step.now_ns
            first_ns = max(first_ns, self._gathers_ns + self._gather_ns)
        due_ns = max(self._published_ns + self._pause_ns, first_ns)
        # A clock that was set back makes it due, too.
        if step.now_ns >= due_ns or step.now_ns < self._published_ns:
            self._publisher.tick(step)
            self._published_ns = step.now_ns
            self._gathers_ns = 0
            marks = self._publisher.marks
            busy_ns = PLANNING_SHARE * self._publisher.cost_ns if marks.has_new_placements else 0
            self._pause_ns = max(COALESCE_NS, busy_ns)
            marks.has_new_placements = False
            first_ns = self._publisher.due_ns()
            due_ns = max(step.now_ns + self._pause_ns, first_ns)
        if first_ns and self._timer_ns != due_ns:
            self._timer_ns = due_ns
            step.emit(SetTimer("publish", due_ns))
