"""When the applier begins a new incarnation of the log: before all other events, in its own transaction (ADR 27)."""

from schemas.policy import BeginIncarnation, IncarnationBegan
from shared.core.decide.incarnation import decide_bus, decide_seen
from shared.core.state.state import State


class PendingIncarnation:
    """Whether a new incarnation is due: the bus was restarted, or a node has seen records that the log lacks."""

    def __init__(self) -> None:
        #: id of the start of the connected bus; empty: unknown.
        self.bus = ""
        self._seen: BeginIncarnation | None = None

    def take(self, seen: BeginIncarnation | None) -> None:
        """Keep the report of a node that is ahead of the log."""
        self._seen = seen or self._seen

    def due(self, state: State, *, last_seq: int, now_ns: int) -> IncarnationBegan | None:
        """Return the fact to write, alone in its transaction; None: not due. `last_seq`: last seq of the log."""
        if (begun := decide_bus(state, self.bus, now_ns)) is not None:
            return begun
        seen, self._seen = self._seen, None
        if seen is None:
            return None
        return decide_seen(state, seen, last_seq=last_seq, now_ns=now_ns)
