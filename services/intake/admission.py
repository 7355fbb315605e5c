"""Credit: how much more work may go in while the workers have enough to do.

Decides how many submissions may be sent on: as many as bring what waits for workers up to a bound, by the eval
broker's last word, with what is still on its way to the log, which that word does not count. Who says nothing for a
second has nothing to say, and nothing is held back but what is too much under way: a broker that is away must not close
the door. Must not know what a submission is. Next: `role.py`.
"""

import msgspec

from schemas.bounds import bounded_decoder

#: Evaluations that may wait for workers: about a second of work, so that what is accepted is soon placed.
WAITING_MAX = 4_000
#: A word is good for so long.
REPORT_VALID_NS = 1_000_000_000
#: Submissions that were sent on and are not in the log: a log that is slow must not gather them unseen.
UNCONFIRMED_MAX = 4_000


class _BacklogReport(msgspec.Struct):
    #: none is left out.
    waiting: int = 0


_DECODER = bounded_decoder(_BacklogReport)


class Admission:
    """What the eval broker said last, less what was sent since. `sent` everywhere: under way, not in the log."""

    def __init__(self) -> None:
        self._left = 0
        self._until_ns = 0

    def hear(self, data: bytes, sent: int, now_ns: int) -> None:
        """Take the broker's word; what is none is passed over."""
        try:
            waiting = _DECODER.decode(data).waiting
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self._left = max(0, WAITING_MAX - waiting - sent)
        self._until_ns = now_ns + REPORT_VALID_NS

    def left(self, sent: int, now_ns: int) -> int:
        """How many may be sent now."""
        room = max(0, UNCONFIRMED_MAX - sent)
        return min(self._left, room) if self.until_ns(now_ns) else room

    def take(self, count: int) -> None:
        """So many were sent."""
        self._left = max(0, self._left - count)

    def until_ns(self, now_ns: int) -> int:
        """Until when the last word is good, if no other is heard; 0: there is none."""
        return self._until_ns if now_ns < self._until_ns else 0
