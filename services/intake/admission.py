"""Admission control: how many more submissions may be sent to the plan applier.

Decides how many may be sent on: as many as bring what waits for workers up to a bound, by the eval broker's last
report, with what is still on its way to the log, which that report does not count. A backlog report older than one
second is ignored, so that a missing broker does not block submissions; only the limit on unconfirmed submissions still
applies. Next: `role.py`.
"""

import msgspec

from schemas.bounds import bounded_decoder

#: Evaluations that may wait for workers: about a second of work, so that what is accepted is soon placed.
WAITING_MAX = 4_000
#: How long a backlog report is valid.
REPORT_VALID_NS = 1_000_000_000
#: Submissions that were sent on and are not in the log: a log that is slow must not gather them unseen.
UNCONFIRMED_MAX = 4_000


class _BacklogReport(msgspec.Struct):
    #: none is left out.
    waiting: int = 0


_DECODER = bounded_decoder(_BacklogReport)


class Admission:
    """What the last backlog report leaves room for, less what was sent since. `sent`: not in the log yet."""

    def __init__(self) -> None:
        self._left = 0
        self._until_ns = 0

    def read_report(self, data: bytes, sent: int, now_ns: int) -> None:
        """Take a backlog report; what does not decode is ignored."""
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
        """Record that so many were sent."""
        self._left = max(0, self._left - count)

    def until_ns(self, now_ns: int) -> int:
        """Until when the last report is valid; 0: no report is."""
        return self._until_ns if now_ns < self._until_ns else 0
