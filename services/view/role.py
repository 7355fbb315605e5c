"""The view: answers questions and publishes the state, so that nobody else needs to replay the log to look at it.

Decides when readers hear of a change (at once, then at most every 50 ms), and from which state a question is answered.
Order of reading: `projections.py` (what things look like), `marks.py` (what a transaction is news about),
`publishing.py` (fence and pacing), `answers.py` (questions). Any number of views may run: the fence sorts them out.
"""

from collections import deque

import msgspec

from schemas.answers import DeadLine
from schemas.dead import DeadLetter
from schemas.envelope import Record as LogRecord
from services.view.door import TIMER as DOOR_TIMER
from services.view.door import Door
from services.view.marks import Marker
from services.view.publishing import Publisher
from services.view.questions import Questions
from services.view.snapshots import TIMER as SNAPSHOT_TIMER
from services.view.snapshots import Snapshots, When
from shared.bus import subjects
from shared.core.counts import count_state
from shared.core.dead import dead_letter
from shared.core.decide.garbage import Horizon
from shared.core.replica import Replica
from shared.core.role import (
    Ack,
    Answer,
    CaughtUp,
    Effect,
    Input,
    Listen,
    Message,
    Open,
    PutDone,
    PutRefused,
    Read,
    Reconnected,
    Record,
    Replay,
    Restored,
    Send,
    SetTimer,
    Source,
    Stop,
    Timer,
)
from shared.core.snapshots.sets import Asides
from shared.errors import LogError
from shared.query.answers import Answers
from shared.query.histories import Histories

#: Changes are published at once, then collected for so long.
COALESCE_NS = 50_000_000
#: What it tells is published at most so often, so it need not hear of every record by itself.
LULL_NS = 10_000_000
#: Where a view gathers, a change waits so long for what follows from it, a job for its placement: both are one then.
GATHER_NS = 15_000_000
#: While plans keep coming a tick's work is at most this part of the time: what it says is old at once, and whoever
#: places needs the processor.
PLANNING_SHARE = 4
#: Dead letters remembered, newest last.
DEAD_KEPT = 1_000
_DOOR = "door-"
DEAD_DECODER = msgspec.json.Decoder(DeadLetter)


class View:
    """One view. `follow_dead`: also read the stream of dead letters, to list them."""

    name = "view"

    def __init__(
        self,
        *,
        instance: str,
        follow_dead: bool = False,
        snapshots: When | None = None,
        gather_ns: int = 0,
    ) -> None:
        self.instance = instance
        self._gather_ns = gather_ns
        self._follow_dead = follow_dead
        self._replica = Replica()
        self._histories = Histories(self._replica.state)
        self._publisher = Publisher(self._replica.state, self._histories.has_open, self._bury)
        self._marker = Marker(self._replica.state, self._publisher.marks)
        self._dead: deque[DeadLine] = deque(maxlen=DEAD_KEPT)
        self._dead_seq = 0
        self._answers = Answers(self._replica, self._histories, self._dead)
        find = self._answers
        self._questions = Questions(self._replica, self._answers, self._bury)
        self._door = Door(instance, self._replica, find.find_node, find.find_alloc)
        #: writes down what a reader may begin at; records wait while it looks at the state.
        self._snapshots = Snapshots(self._replica, snapshots or When())
        self._waiting: list[Record] = []
        self._horizon = Horizon()
        self._is_caught_up = False
        self._published_ns = 0
        self._pause_ns = COALESCE_NS
        #: when the first change came that is not published yet; 0: there is none.
        self._gathers_ns = 0
        self._timer_ns = 0

    # ---- what a shell asks ----

    def sources(self) -> tuple[Source, ...]:
        """Say where inputs come from."""
        dead = (Read("dead", "DEAD", subjects.DEAD_ALL),) if self._follow_dead else ()
        doors = tuple(
            Listen(f"{_DOOR}{noun}", subjects.api(noun, "*"), queue="view")
            for noun in subjects.OPERATOR_VERBS
        )
        return (
            Replay(tables=self._replica.tables, lull_ns=LULL_NS),
            Listen("query", subjects.QUERIES, queue="view"),
            *doors,
            *dead,
        )

    @property
    def leader_key(self) -> str:
        """Every view is active."""
        return ""

    @property
    def next_seq(self) -> int:
        """First seq of the log that was not applied yet."""
        return self._replica.next_seq

    def metrics(self) -> dict[str, float]:
        """Gauges and counters by Prometheus name; what there is, counted now."""
        counts = count_state(self._replica.state)
        allocations = {
            f'caravan_view_allocations{{status="{status}"}}': float(n)
            for status, n in counts.allocations.items()
        }
        return {
            **allocations,
            "caravan_view_jobs": float(counts.jobs),
            "caravan_view_nodes": float(counts.nodes),
            "caravan_view_evaluations": float(counts.evaluations),
            "caravan_view_seq": float(self._replica.seq),
            "caravan_view_foreign_records": float(self._replica.chain.foreign),
            "caravan_view_checkpoints_compared": float(self._replica.checked),
            "caravan_view_puts_total": float(self._publisher.published),
            "caravan_view_allocations_told_total": float(self._publisher.told),
            "caravan_view_puts_refused_total": float(self._publisher.refused),
            "caravan_view_values_too_large_total": float(self._publisher.too_large),
            "caravan_view_marks_waiting": float(self._publisher.waiting),
            "caravan_view_queries_total": float(self._questions.answered),
            "caravan_view_queries_invalid_total": float(self._questions.invalid),
            "caravan_view_queries_held": float(len(self._questions)),
            "caravan_view_operator_wishes_waiting": float(len(self._door)),
            **self._snapshots.metrics(),
        }

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take what happened; publish what is due, answer what can be answered."""
        out: list[Effect] = []
        try:
            for one in inputs:
                self._take(one, now_ns, out)
            self._catch_up(now_ns, out)
        except LogError as err:
            return [*out, Stop(str(err))]
        self._questions.answer_held(now_ns, out)
        self._publish(now_ns, out)
        return out

    # ---- inputs ----

    def _take(self, one: Input, now_ns: int, out: list[Effect]) -> None:
        match one:
            case Record():
                self._waiting.append(one)
                self._catch_up(now_ns, out)
            case PutDone() | PutRefused():
                self._publisher.answered(one)
            case Message(source="dead"):
                self._keep_dead(one)
                out.append(Ack(one.token))
            case Message() if one.source.startswith(_DOOR):
                self._wished(one, now_ns, out)
            case Message():
                self._questions.asked(one, now_ns, out)
            case CaughtUp():
                if not self._is_caught_up:
                    self._is_caught_up = self._questions.is_open = True
                    self._marker.follow()
                    self._snapshots.look(now_ns, out)
            case Reconnected():
                self._reconnected(out)
            case _:
                self._take_other(one, now_ns, out)

    def _take_other(self, one: Input, now_ns: int, out: list[Effect]) -> None:
        match one:
            case Restored():
                self._begin_at(one, now_ns)
            case Answer():
                self._snapshots.answered(one, now_ns, out)
                self._snapshots.may_begin(out, now_ns, asides=self._asides)
            case Timer(name="publish"):
                # What it was set for is looked at after every batch.
                self._timer_ns = 0
            case Timer(name=name) if name == SNAPSHOT_TIMER:
                self._snapshots.timer(now_ns, out)
            case Timer(name=name) if name == DOOR_TIMER:
                out += self._door.timer(now_ns)
            case _:
                pass

    def _reconnected(self, out: list[Effect]) -> None:
        self._publisher.forget_flights()
        if self._is_caught_up:
            # Memory streams may be empty; where they are not, the fence says so.
            self._publisher.marks.everything(self._replica.state)
        if self._follow_dead:
            out.append(Open("dead", self._dead_seq + 1))

    def _bury(self, message: Message, reason: str, now_ns: int) -> Send:
        """Make a dead letter."""
        return Send(subjects.dead(message.subject), dead_letter(self, message, reason, now_ns))

    def _keep_dead(self, message: Message) -> None:
        self._dead_seq = max(self._dead_seq, message.stream_seq)
        try:
            letter = DEAD_DECODER.decode(message.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
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

    def _catch_up(self, now_ns: int, out: list[Effect]) -> None:
        """Apply what waits, unless a snapshot needs the state as it is."""
        at = 0
        while at < len(self._waiting) and not self._snapshots.is_holding:
            self._apply(self._waiting[at], now_ns, out)
            at += 1
        del self._waiting[:at]

    def _begin_at(self, restored: Restored, now_ns: int) -> None:
        """Begin at a snapshot instead of the first record."""
        self._replica.begin_at(restored.replica)
        self._histories.begin_at(restored.asides.since_ns)
        self._horizon.begin_at(restored.asides.marks)
        self._answers.lease = self._snapshots.lease = restored.lease
        self._snapshots.restored(self._replica.seq, now_ns)

    def _asides(self) -> Asides:
        return Asides(since_ns=self._histories.all_since_ns(), marks=self._horizon.marks())

    def _apply(self, record: Record, now_ns: int, out: list[Effect]) -> None:
        decoded = self._replica.apply(record, self._before)
        if decoded is None:
            return
        if decoded.lease is not None:
            self._answers.lease = self._snapshots.lease = decoded.lease
        self._horizon.note(record.seq, decoded.t_ns)
        if decoded.kind == "checkpoint":
            self._proven(decoded, now_ns, out)
        self._marker.after(decoded, record.seq, self._histories.after(decoded, record.seq))
        out += self._door.see(decoded.events)

    def _before(self, record: LogRecord) -> None:
        """Look at what a transaction is about to change."""
        self._histories.before(record)
        self._marker.before(record, self._replica.seq)

    def _proven(self, checkpoint: LogRecord, now_ns: int, out: list[Effect]) -> None:
        """The tables are those of the checkpoint: a moment for a snapshot, but not while the past is read."""
        if self._is_caught_up:
            self._snapshots.checkpoint(checkpoint, now_ns, out, asides=self._asides)
        else:
            self._snapshots.remember(checkpoint)

    # ---- publishing ----

    def _publish(self, now_ns: int, out: list[Effect]) -> None:
        first_ns = self._publisher.due_ns() if self._is_caught_up else 0
        if not first_ns:
            return
        if self._gather_ns:
            if not 0 < self._gathers_ns <= now_ns:
                self._gathers_ns = now_ns
            first_ns = max(first_ns, self._gathers_ns + self._gather_ns)
        due_ns = max(self._published_ns + self._pause_ns, first_ns)
        # A clock that was set back makes it due, too.
        if now_ns >= due_ns or now_ns < self._published_ns:
            out += self._publisher.tick(now_ns)
            self._published_ns = now_ns
            self._gathers_ns = 0
            marks = self._publisher.marks
            busy_ns = PLANNING_SHARE * self._publisher.cost_ns if marks.is_planning else 0
            self._pause_ns = max(COALESCE_NS, busy_ns)
            marks.is_planning = False
            first_ns = self._publisher.due_ns()
            due_ns = max(now_ns + self._pause_ns, first_ns)
        if first_ns and self._timer_ns != due_ns:
            self._timer_ns = due_ns
            out.append(SetTimer("publish", due_ns))

    def _wished(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Take an operator's wish; before the log was replayed nobody can tell what it would change."""
        if not message.reply or not self._is_caught_up:
            out.append(Ack(message.token))
            return
        out += self._door.asked(message, now_ns)
