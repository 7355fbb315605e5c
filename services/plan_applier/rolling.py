"""A roll on its way: from an operator's order to the last record of a generation.

Decides what is waited for. First the stream that follows is made ready, then the record is written that ends the one
there is; in between nothing else is, so that the new stream begins where the old one ends. Whatever goes wrong before
the record stands in the log, the log goes on as it was; whatever goes wrong behind it, who holds the pen next writes
into the new stream. Next: `role.py`.
"""

from schemas.policy import RollLog
from shared.core.role import Effect, Roll, RollReady, SetTimer

TIMER = "roll"
#: Making a stream takes milliseconds, with three replicas a moment.
ANSWER_NS = 5_000_000_000


class Rolling:
    """At most one order at a time; another one is of the same generation, and answered by the same record."""

    def __init__(self) -> None:
        self._order: RollLog | None = None
        #: where the stream that is being made begins; 0: none is.
        self._first_seq = 0

    @property
    def order(self) -> RollLog | None:
        """What was ordered and is not done."""
        return self._order

    @property
    def is_waiting(self) -> bool:
        """Tell whether nothing may be written: the stream that follows is being made."""
        return self._first_seq > 0

    def take(self, order: RollLog | None) -> None:
        """Note an order, if there is one."""
        self._order = self._order or order

    def begin(self, first_seq: int, bytes_max: int, now_ns: int) -> list[Effect]:
        """Have the stream made ready."""
        self._first_seq = first_seq
        return [Roll(first_seq, bytes_max), SetTimer(TIMER, now_ns + ANSWER_NS)]

    def is_for(self, ready: RollReady) -> bool:
        """Tell whether this is the stream that is waited for."""
        return self.is_waiting and ready.first_seq == self._first_seq

    def forget(self) -> None:
        """It is done, refused, or a matter of the next holder of the pen: who ordered it asks again."""
        self._order, self._first_seq = None, 0
