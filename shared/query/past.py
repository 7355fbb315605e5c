"""A past: the state as it was behind some record, and everything that can be asked of it.

Decides nothing: it keeps what a view keeps (services/view/role.py), without a bus, for whoever reads the log itself.
"""

from collections import deque

import msgspec

from schemas.answers import PlanAnswer
from schemas.envelope import ENCODER
from schemas.envelope import Record as LogRecord
from schemas.projections import PlanQuery, Query
from shared.core.replica import Replica
from shared.core.role import Record, Restored
from shared.core.state import State
from shared.query.answers import LIMIT_MAX, Answers
from shared.query.histories import Histories

_QUERY = msgspec.json.Decoder(Query)
_PLAN = msgspec.json.Decoder(PlanQuery)


class Past:
    """Records are applied in order; then it is asked."""

    def __init__(self) -> None:
        self.replica = Replica()
        self._histories = Histories(self.replica.state)
        self._answers = Answers(self.replica, self._histories, deque())

    @property
    def state(self) -> State:
        """The state behind the last record."""
        return self.replica.state

    def begin_at(self, restored: Restored) -> None:
        """Begin at a snapshot instead of the first record."""
        self.replica.begin_at(restored.replica)
        self._histories.begin_at(restored.asides.since_ns)
        self._answers.lease = restored.lease

    def apply(self, record: Record) -> LogRecord | None:
        """Go on by one record; None: it was foreign. Raises LogError."""
        decoded = self.replica.apply(record, self._histories.before)
        if decoded is not None:
            if decoded.lease is not None:
                self._answers.lease = decoded.lease
            self._histories.after(decoded, record.seq)
        return decoded

    def answer(self, noun: str, body: bytes) -> bytes:
        """Answer as the view does to `query.<noun>`, however long the answer. Raises CommandInvalid, msgspec errors."""
        if noun == "plan":
            return ENCODER.encode(self.plan(_PLAN.decode(body)))
        query = _QUERY.decode(body or b"{}")
        bounded = msgspec.structs.replace(query, limit=min(max(query.limit, 0), LIMIT_MAX))
        return ENCODER.encode(self._answers.answer(noun, bounded))

    def plan(self, query: PlanQuery) -> PlanAnswer:
        """Say what registering a job would have done."""
        return self._answers.plan(query)

    def find_alloc(self, text: str) -> int:
        """Find an allocation's row by id, prefix or name. Raises CommandInvalid."""
        return self._answers.find_alloc(text)

    def find_node(self, text: str) -> int:
        """Find a node's row by id, prefix or name. Raises CommandInvalid."""
        return self._answers.find_node(text)
