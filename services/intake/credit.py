"""Credit: how much more work may go in while the workers have enough to do.

Decides how many submissions may be sent on: as many as bring what waits for workers up to a bound, by the eval
broker's last word. Who says nothing for a second has nothing to say, and nothing is held back: a broker that is away
must not close the door. Must not know what a submission is. Next: `role.py`.
"""

import msgspec

#: Evaluations that may wait for workers: about a second of work, so that what is accepted is soon placed.
WAITING_MAX = 4_000
#: A word is good for so long.
KEPT_NS = 1_000_000_000
UNBOUNDED = 1 << 60


class _Told(msgspec.Struct):
    #: none is left out.
    waiting: int = 0


_DECODER = msgspec.json.Decoder(_Told)


class Credit:
    """What the eval broker said last, less what was sent since."""

    def __init__(self) -> None:
        self._left = 0
        self._until_ns = 0

    def hear(self, data: bytes, now_ns: int) -> None:
        """Take the broker's word; what is none is passed over."""
        try:
            waiting = _DECODER.decode(data).waiting
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self._left = max(0, WAITING_MAX - waiting)
        self._until_ns = now_ns + KEPT_NS

    def left(self, now_ns: int) -> int:
        """How many may be sent now."""
        # A clock that was set back must not hold anything.
        is_kept = self._until_ns - KEPT_NS <= now_ns < self._until_ns
        return self._left if is_kept else UNBOUNDED

    def take(self, count: int) -> None:
        """So many were sent."""
        self._left = max(0, self._left - count)

    def held_until_ns(self, now_ns: int) -> int:
        """Until when nothing may be sent, if nothing is heard; 0: something may."""
        return 0 if self.left(now_ns) else self._until_ns
