"""Timekeeper: sends commands to the plan applier when deadlines are due.

It decides nothing: a command names the instant that it believes in, and the applier acts only if its tables still hold
that instant and log time has reached it. What is due follows from tables and the clock, so nothing is kept that a
successor would miss. The leader has a heap for each kind (`due_heap.py`), sends what is due, and sends it again until
the log shows that something else is due. A standby has heaps of what needs no lease, and sends what is due where the
log shows no progress on it (`patience.py`). When it begins to lead it finds the rest.

Times may be late, never early. They are of the wall clock, as the log has them: where it is set back launches wait.
What began with a record, as the clock of a deployment, is due in log time (`log_clock.py`).
"""

from collections.abc import Sequence
from functools import partial

from schemas import envelope
from schemas.base import SECOND_NS, Event
from schemas.envelope import ENCODER, AnyCommand, CommandBatch
from services.timekeeper.due_heap import DueHeap, DueKey, DueSource, DueTime
from services.timekeeper.gates import HeardGauges, UpdateGates
from services.timekeeper.launches import PeriodicLaunches
from services.timekeeper.patience import Patience
from services.timekeeper.progress_deadlines import ProgressDeadlines
from shared.core.runtime.counters import Counters
from shared.core.runtime.deadline_timer import RESEND_NS, earliest
from shared.core.runtime.log_clock import LogClock
from shared.core.runtime.messages import (
    CaughtUp,
    LeadershipLost,
    LeadershipWon,
    Listen,
    Message,
    Reconnected,
    Replay,
    Send,
    Source,
)
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.resend_table import ResendTable
from shared.core.runtime.role import Input
from shared.core.runtime.selective_decoding import decoder_for
from shared.core.runtime.step import Step
from shared.core.state.state import State
from shared.protocol import subjects

#: A command that the log does not show is sent again after twice the time, up to this.
RESEND_MAX_NS = 8_000_000_000
#: Commands in one message: each has a few hundred bytes.
COMMANDS_MAX = 500
#: Sent in one step, one message: the applier works on it while the next step computes instants. A standby has so many
#: unconfirmed at most.
STEP_MAX = COMMANDS_MAX
#: Invalid gauge messages that are kept, a second.
DEAD_LETTERS_MAX = 5
#: What follows from a record is a matter of milliseconds.
BATCH_WINDOW_NS = 20_000_000

#: Beside these each instance has one of gates, which hears gauges.
SOURCES: tuple[DueSource, ...] = (ProgressDeadlines(), PeriodicLaunches())


class Timekeeper(ReplicatedRole):
    """The role. Replays the tables of its sources."""

    name = "timekeeper"
    leader_key = "timekeeper"

    def __init__(
        self,
        *,
        instance: str,
        sources: Sequence[DueSource] = SOURCES,
        replicas: ReplicaFactory | None = None,
    ) -> None:
        self._gauges = HeardGauges()
        sources = (*sources, UpdateGates(self._gauges))
        tables = frozenset({"policy"}).union(*(one.tables for one in sources))
        if replicas is None:
            # Most of the log is about allocations: only what a table or a source needs is decoded.
            needed = {
                kind for table in State(tables).tables().values() for kind in table.handlers()
            }
            needed = needed.union(*(one.events for one in sources))
            replicas = partial(Replica, decode=decoder_for(needed))
        super().__init__(instance, tables, replicas)
        self._due_sources: tuple[DueSource, ...] = sources
        self._of_event: dict[type[Event], tuple[int, ...]] = {}
        for kind, source in enumerate(self._due_sources):
            for event in source.events:
                self._of_event[event] = (*self._of_event.get(event, ()), kind)
        self._heaps = tuple(DueHeap() for _ in sources)
        self._log_clock = LogClock()
        #: commands of a source, by its index, and a key.
        self._asked = ResendTable[tuple[int, DueKey]](RESEND_MAX_NS)
        #: when this instance began to act or to lead, or was connected again, by the clock of each source.
        self._began_ns = [0] * len(sources)
        self._patience = Patience()
        #: the second in which dead letters were written last, and how many.
        self._dead_letters = (0, 0)
        self._counters = Counters(
            "caravan_timekeeper_", ("commands", "standby_commands", "resends", "gauges")
        )

    def sources(self) -> tuple[Source, ...]:
        """The log, and the gauges that clients publish."""
        replay = Replay(tables=self.replica.tables, batch_window_ns=BATCH_WINDOW_NS)
        return replay, Listen("gauges", subjects.GAUGES)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and what waits for its time or for the log."""
        found = self._counters.totals()
        found["caravan_timekeeper_waiting_deadlines"] = float(sum(map(len, self._heaps)))
        found["caravan_timekeeper_unconfirmed_commands"] = float(len(self._asked))
        return found

    # ---- inputs ----

    def take_inputs(self, inputs: list[Input], step: Step) -> None:
        """Take the inputs at the time of the step."""
        self._gauges.now_ns = step.steady_ns
        super().take_inputs(inputs, step)

    def on_message(self, message: Message, step: Step) -> None:
        """Hear a gauge, also as a standby. Raises GaugeInvalidError."""
        del step
        self._gauges.record(message)
        self._counters.add("gauges")

    def _on_failed(self, message: Message, reason: str, step: Step) -> None:
        """Keep some of the invalid gauge messages."""
        second, count = self._dead_letters
        count = count + 1 if second == step.now_ns // SECOND_NS else 1
        self._dead_letters = (step.now_ns // SECOND_NS, count)
        if self.is_leader and count <= DEAD_LETTERS_MAX:
            step.emit(self.dead_letter(message, reason, step.now_ns))

    def on_input(self, item: Input, step: Step) -> None:
        """Begin anew where this instance begins to stand by or to lead, or may have missed something."""
        if not self.is_caught_up:
            return
        match item:
            case CaughtUp() | Reconnected() | LeadershipLost():
                self._begin(step)
            case LeadershipWon():
                # What a standby may say is in the heaps already, or was sent.
                self._find(step)
            case _:
                pass

    def on_applied(self, record: envelope.LogRecord, seq: int, step: Step) -> None:
        """Look again at what the events are about."""
        del seq
        if not self.is_caught_up:
            return
        of_event, state, at = self._of_event, self.replica.state, self._time(step)
        for event in record.events:
            for kind in of_event.get(type(event), ()):
                for key in self._due_sources[kind].changed(state, event):
                    self._note_progress(kind, key, at, step)
                    self._look(kind, key, at)

    def _on_new_writer(self, step: Step) -> None:
        """Say again what the log does not show; `finish` sends it."""
        self._asked.hurry(step.steady_ns)

    def finish(self, step: Step) -> None:
        """Say what is due, and again what the log does not show."""
        if not self.is_caught_up:
            return
        commands: list[AnyCommand] = []
        at, most = self._time(step), self._most(step)
        for kind, heap in enumerate(self._heaps):
            for key in heap.take_due(self._now_ns(kind, at), most - len(commands)):
                self._ask(kind, key, commands, at=at, steady_ns=step.steady_ns)
        for kind, key in self._asked.due(step.steady_ns):
            self._ask(kind, key, commands, at=at, steady_ns=step.steady_ns)
        for start in range(0, len(commands), COMMANDS_MAX):
            batch = CommandBatch(
                sender=self.instance, commands=tuple(commands[start : start + COMMANDS_MAX])
            )
            step.emit(Send(subjects.command("timer"), ENCODER.encode(batch)))
        self.timer.arm(step, earliest(self._next_ns(step), self._asked.next_ns()))

    # ---- deadlines ----

    def _begin(self, step: Step) -> None:
        """Find everything that is due, from the tables."""
        for heap in self._heaps:
            heap.clear()
        self._asked.clear()
        self._patience.begin(step.steady_ns)
        self._find(step)

    def _find(self, step: Step) -> None:
        """Look at every key that neither waits for its time nor for the log."""
        self._gauges.begin()
        at = self._time(step)
        for kind, source in enumerate(self._due_sources):
            self._began_ns[kind] = self._now_ns(kind, at)
            if source.needs_lease and not self.is_leader:
                continue
            heap = self._heaps[kind]
            for key in source.keys(self.replica.state):
                if key not in heap and (kind, key) not in self._asked:
                    self._look(kind, key, at)

    def _most(self, step: Step) -> int:
        """Return how many commands may be sent now, beside those that are sent again."""
        if self.is_leader:
            return STEP_MAX
        due_ns = self._earliest_ns(step)
        if not 0 < due_ns <= step.steady_ns:
            self._patience.rest()
            return 0
        most = STEP_MAX - len(self._asked)
        if most <= 0 or step.steady_ns < self._patience.ready_ns(due_ns):
            return 0
        self._patience.sent(step.steady_ns)
        return most

    def _next_ns(self, step: Step) -> int:
        """Return when something is to be sent that was not sent yet, in steady time; 0: not before the log grows."""
        due_ns = self._earliest_ns(step)
        if self.is_leader or not due_ns:
            return due_ns
        return self._patience.ready_ns(due_ns) if len(self._asked) < STEP_MAX else 0

    def _earliest_ns(self, step: Step) -> int:
        """Return when the first is due, in steady time; 0: none."""
        at = self._time(step)
        times = [
            step.steady_ns + due_ns - self._now_ns(kind, at)
            for kind, heap in enumerate(self._heaps)
            if (due_ns := heap.earliest_ns())
        ]
        return earliest(*times)

    def _note_progress(self, kind: int, key: DueKey, at: DueTime, step: Step) -> None:
        """Be patient as a standby: the log shows something of what is due, so that another instance may be at it."""
        if self.is_leader:
            return
        is_due = self._heaps[kind].is_due(key, self._now_ns(kind, at))
        if is_due or (kind, key) in self._asked:
            self._patience.saw_progress(step.steady_ns)

    def _time(self, step: Step) -> DueTime:
        return DueTime(step.now_ns, self._log_clock.read(step, self.replica.state.t_ns))

    def _now_ns(self, kind: int, at: DueTime) -> int:
        """Return the time by the clock of a source."""
        return at.log_ns if self._due_sources[kind].is_log_time else at.wall_ns

    def _look(self, kind: int, key: DueKey, at: DueTime) -> None:
        """Ask a source when the next thing of a key is due."""
        self._asked.remove((kind, key))
        self._heaps[kind].put(key, self._due_ns(kind, key, at))

    def _due_ns(self, kind: int, key: DueKey, at: DueTime) -> int:
        """Return when this instance may say something of a key; 0: it has nothing to say."""
        source, state = self._due_sources[kind], self.replica.state
        due_ns = source.due_ns(state, key, at) if self.is_leader or not source.needs_lease else 0
        if not due_ns:
            return 0
        grace_ns = source.grace_ns(state, key)
        # A grace begins with the lease.
        return max(due_ns, self._began_ns[kind] + grace_ns) if self.is_leader or not grace_ns else 0

    def _ask(
        self, kind: int, key: DueKey, commands: list[AnyCommand], *, at: DueTime, steady_ns: int
    ) -> None:
        """Send the command of a key, and remember to send it again."""
        command = self._due_sources[kind].command(self.replica.state, key, at)
        if command is None:
            self._look(kind, key, at)
            return
        commands.append(command)
        if not self.is_leader:
            self._counters.add("standby_commands")
        if not self._due_sources[kind].is_told_again:
            self._counters.add("commands")
            self._look(kind, key, at)
        elif (kind, key) in self._asked:
            self._counters.add("resends")
            self._asked.sent_again((kind, key), steady_ns)
        else:
            self._counters.add("commands")
            self._asked.add((kind, key), steady_ns + RESEND_NS)
