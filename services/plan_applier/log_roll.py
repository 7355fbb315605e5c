"""A roll of the log in progress: from an operator's command to the last record of a generation.

First the stream of the next generation is created, then the record that ends the current one is appended. No other
record is appended in between, so the new stream begins at the next seq. A failure before that record leaves the log as
it was; after it, the next holder of the write lease writes into the new stream.
"""

from schemas.policy import RollLog
from shared.core.runtime.messages import Roll, RollReady, SetTimer
from shared.core.runtime.step import Step

TIMER = "roll"
#: Creating a stream takes milliseconds, with three replicas somewhat longer.
ANSWER_NS = 5_000_000_000


class PendingLogRoll:
    """At most one command: a second one concerns the same generation and is answered by the same record."""

    def __init__(self) -> None:
        self._order: RollLog | None = None
        #: first seq of the stream that is being created; 0: none.
        self._first_seq = 0

    @property
    def order(self) -> RollLog | None:
        """The command in progress."""
        return self._order

    def take(self, order: RollLog | None) -> None:
        """Keep a command, if there is one."""
        self._order = self._order or order

    def begin(self, step: Step, first_seq: int, bytes_max: int) -> None:
        """Request the next stream."""
        self._first_seq = first_seq
        step.emit(Roll(first_seq, bytes_max))
        step.emit(SetTimer(TIMER, step.now_ns + ANSWER_NS))

    def is_for(self, ready: RollReady) -> bool:
        """Whether this is the requested stream."""
        return 0 < self._first_seq == ready.first_seq

    def forget(self) -> None:
        """Drop the command: done, refused, or left to the next applier, which receives it again."""
        self._order, self._first_seq = None, 0
