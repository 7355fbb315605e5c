"""A past state: the state behind some record, with all queries that the view answers, without a bus."""

from collections import deque
from collections.abc import Callable

import msgspec

from schemas.envelope import ENCODER, LogRecord
from schemas.job_answers import PlanAnswer
from schemas.projections import PlanQuery, Query
from shared.core.decide.garbage import LogTimeIndex
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.state.state import State
from shared.query.answers import QueryEngine
from shared.query.evaluation_index import EvaluationIndex
from shared.query.job_progress import SettlingClock

_QUERY = msgspec.json.Decoder(Query)
_PLAN = msgspec.json.Decoder(PlanQuery)


class HistoricalState:
    """Records are applied in order before queries."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.histories = EvaluationIndex(self.replica.state)
        self._log_times = LogTimeIndex()
        clock = SettlingClock(self._log_times)
        self.answers = QueryEngine(self.replica, self.histories, deque(), clock)

    @property
    def state(self) -> State:
        """The state behind the last record."""
        return self.replica.state

    def begin_at(self, restored: Restored) -> None:
        """Begin at a snapshot instead of the first record."""
        self.replica.begin_at(restored.replica)
        self.histories.begin_at(restored.asides.since_ns)
        self._log_times.begin_at(restored.asides.marks)
        self.answers.lease = restored.lease

    def asides(self) -> SnapshotExtras:
        """What a snapshot of this state has beside the tables."""
        return SnapshotExtras(
            since_ns=self.histories.open_since_ns(), marks=self._log_times.marks()
        )

    def apply(self, record: Record) -> LogRecord | None:
        """Apply the next record; None: it was foreign. Raises LogError."""
        return self.apply_with(record, lambda _: None)

    def apply_with(self, record: Record, look: Callable[[LogRecord], None]) -> LogRecord | None:
        """As `apply`; `look` gets the record while the state is the one before it."""

        def before(found: LogRecord) -> None:
            self.histories.before(found)
            look(found)

        decoded = self.replica.apply(record, before)
        if decoded is not None:
            if decoded.lease is not None:
                self.answers.lease = decoded.lease
            self.histories.after(decoded, record.seq)
            self._log_times.note(record.seq, decoded.t_ns)
        return decoded

    def answer(self, noun: str, body: bytes) -> bytes:
        """Answer as the view does to `query.<noun>`, however long the answer. Raises CommandInvalid, msgspec errors."""
        if noun == "plan":
            return ENCODER.encode(self.plan(_PLAN.decode(body)))
        query = _QUERY.decode(body or b"{}")
        return ENCODER.encode(self.answers.answer(noun, query))

    def plan(self, query: PlanQuery) -> PlanAnswer:
        """Describe what registering a job would have done."""
        return self.answers.plan(query)
