"""The gateway's role: a replica of the log with what HTTP reads need beside it. It writes nothing to the bus.

It decides which queries wake at a record, and from which state an answer is made: the newest that was applied. What
follows records as they are applied (event streams, the console's columns) is a `Follower`. HTTP itself is in `edge/`.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from schemas.answers import DeadLine
from schemas.envelope import LogRecord
from services.gateway.allocation_times import AllocationTimes
from services.gateway.change_index import ChangeIndex
from services.gateway.nomad.nodes import NodeIds
from services.gateway.nomad.source import ShapeSource
from shared.core.decide.garbage import LogTimeIndex
from shared.core.runtime.messages import Effect, Record, Replay, Source
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.restored import Restored
from shared.core.runtime.role import Input
from shared.core.runtime.step import Step
from shared.core.state.state import State
from shared.display.time_marks import TimeMarks
from shared.query.answers import QueryEngine
from shared.query.evaluation_index import EvaluationIndex
from shared.query.job_progress import SettlingClock

#: Records are delivered in batches of this window: what a person sees may be as old.
BATCH_WINDOW_NS = 10_000_000
#: Leadership of the gateway that sends events out.
OUTGOING_KEY = "gateway.outgoing"


class Follower(Protocol):
    """Sees each record before and after it is applied; must not raise and must not keep the state."""

    def begin(self, state: State, seq: int) -> None:
        """Begin at a state: the empty one, or that of a snapshot."""

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """Look at what a record is about to change."""

    def after(self, state: State, record: LogRecord, seq: int) -> None:
        """Look at what a record has changed."""


class RecordTimes:
    """Log time of each record that was applied, and roughly of those before the beginning of the replay."""

    def __init__(self, older: LogTimeIndex) -> None:
        self._older = older
        self._times = array("q")
        self._first = 1

    def note(self, seq: int, t_ns: int) -> None:
        """Remember that `seq` was written at `t_ns`."""
        if not self._times:
            self._first = seq
        # A foreign record has no time of its own.
        while len(self._times) < seq - self._first:
            self._times.append(t_ns)
        self._times.append(t_ns)

    def points(self, most: int) -> list[tuple[int, int]]:
        """At most about so many (seq, time), evenly by seq, the first and the last known among them."""
        older = [one for one in self._older.marks() if one[0] < self._first]
        size = len(self._times)
        own = sorted({*range(0, size, max(size // most, 1)), *((size - 1,) if size else ())})
        found = [(self._first + at, self._times[at]) for at in own]
        return older[:: max(len(older) // most, 1)] + found

    def seq_at(self, t_ns: int) -> int:
        """Seq of the last record that was written by a log time; 0: none that is known."""
        place = bisect_right(self._times, t_ns)
        if place:
            return self._first + place - 1
        return max((seq for seq, at_ns in self._older.marks() if at_ns <= t_ns), default=0)

    def at(self, seq: int) -> int:
        """Log time of a seq, ns: at most a second late where it lies before the beginning; 0: not known."""
        place = seq - self._first
        if 0 <= place < len(self._times):
            return self._times[place]
        is_newer = bool(self._times) and place >= len(self._times)
        return 0 if is_newer or seq <= 0 else self._older.written_ns(seq, since_ns=0)


class OutgoingGauges(msgspec.Struct, kw_only=True):
    """For /metrics: targets of events that are disabled, and records that the slowest target is behind."""

    disabled: int = 0
    lag_records: int = 0


class Gateway(ReplicatedRole):
    """One gateway. All instances answer. `sends_out`: it competes for sending events out, which one does."""

    name = "gateway"

    def __init__(
        self, *, instance: str, replicas: ReplicaFactory = Replica, sends_out: bool = False
    ) -> None:
        super().__init__(instance, replicas=replicas)
        if sends_out:
            # All answer; of those with events to send out, one does.
            self.leader_key = OUTGOING_KEY
        self.histories = EvaluationIndex(self.replica.state)
        self.log_times = LogTimeIndex()
        #: says by which time answers have settled.
        self.clock = SettlingClock(self.log_times)
        no_dead_letters: deque[DeadLine] = deque(maxlen=0)
        self.answers = QueryEngine(self.replica, self.histories, no_dead_letters, self.clock)
        self.changes = ChangeIndex(self.replica.state)
        self.node_ids = NodeIds(self.replica.state)
        self.marks = TimeMarks()
        self.delays = AllocationTimes(self.histories)
        self.followers: list[Follower] = [self.marks, self.delays]
        self.times = RecordTimes(self.log_times)
        #: ends a wait for a seq, by the seq it waits for.
        self._awaited: dict[int, list[Callable[[], None]]] = {}
        #: for /metrics.
        self.counts = dict.fromkeys(("requests", "refused", "deliveries", "deliveries_failed"), 0)
        self.outgoing = OutgoingGauges()

    # ---- what the edge reads ----

    @property
    def state(self) -> State:
        """The state behind the last record."""
        return self.replica.state

    @property
    def source(self) -> ShapeSource:
        """What Nomad's shapes are made from."""
        return ShapeSource(self.state, self.histories, self.times.at)

    @property
    def seq(self) -> int:
        """Seq of the last record that is applied."""
        return self.replica.seq

    def follow(self, follower: Follower) -> None:
        """Let a follower see each record from now on; it begins at the present state."""
        self.followers.append(follower)
        follower.begin(self.state, self.seq)

    def unfollow(self, follower: Follower) -> None:
        """Show a follower no more records."""
        if follower in self.followers:
            self.followers.remove(follower)

    def when_at(self, seq: int, wake: Callable[[], None]) -> None:
        """Call `wake` once, when the record of `seq` is applied; at once where it is."""
        if seq <= self.seq:
            wake()
        else:
            self._awaited.setdefault(seq, []).append(wake)

    # ---- what a shell asks ----

    def sources(self) -> tuple[Source, ...]:
        """The log alone."""
        return (Replay(tables=self.replica.tables, batch_window_ns=BATCH_WINDOW_NS),)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and what waits now."""
        found = {f"caravan_gateway_{name}_total": float(n) for name, n in self.counts.items()}
        found["caravan_gateway_seq"] = float(self.seq)
        found["caravan_gateway_waiting_queries"] = float(self.changes.waiting)
        found["caravan_gateway_outgoing_disabled"] = float(self.outgoing.disabled)
        found["caravan_gateway_outgoing_lag_records"] = float(self.outgoing.lag_records)
        return found

    # ---- inputs ----

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take inputs, at a time by which answers say what has settled."""
        self.clock.now_ns = now_ns
        return super().step(inputs, now_ns)

    def on_record(self, record: Record, step: Step) -> None:
        """Apply a record and wake what waits for it. Raises LogError."""
        del step
        decoded = self.replica.apply(record, self._before)
        if decoded is None:
            return
        if decoded.lease is not None:
            self.answers.lease = decoded.lease
        self.times.note(record.seq, decoded.t_ns)
        self.log_times.note(record.seq, decoded.t_ns)
        self.histories.after(decoded, record.seq)
        for follower in self.followers:
            follower.after(self.state, decoded, record.seq)
        self.changes.after(decoded, record.seq)

    def finish(self, step: Step) -> None:
        """End the waits for a seq that was reached."""
        del step
        for seq in [one for one in self._awaited if one <= self.seq]:
            for wake in self._awaited.pop(seq):
                wake()

    def on_input(self, item: Input, step: Step) -> None:
        """Begin at a snapshot."""
        del step
        match item:
            case Restored():
                self.histories.begin_at(item.asides.since_ns)
                self.log_times.begin_at(item.asides.marks)
                self.answers.lease = item.lease
                self.changes.begin_at(self.seq)
                for follower in self.followers:
                    follower.begin(self.state, self.seq)
            case _:
                pass

    def _before(self, record: LogRecord) -> None:
        self.histories.before(record)
        self.changes.before(self.state, record)
        for follower in self.followers:
            # The replica's seq is the record's by now.
            follower.before(self.state, record, self.seq)
