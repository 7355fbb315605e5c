"""The shell's clock: wall time that never runs backwards and never stops.

A wall clock set forward is followed at once; one set back is approached slowly, so that timers of a role, which name
wall times, neither stall for the step nor fire early.
"""

import time
from collections.abc import Callable

#: While ahead of the wall, every tenth nanosecond is left out.
_SLEW = 10


class WallClock:
    """Reads wall and monotonic time; both can be given, for tests."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._mono = monotonic_ns()
        self._now = wall_ns()

    def readings(self) -> tuple[int, int]:
        """The wall's time, which may run backwards, and ours, which does not."""
        return self._wall_ns(), self.now_ns()

    def now_ns(self) -> int:
        """Nanoseconds since 1970, never less than what was returned before."""
        mono, wall = self._monotonic_ns(), self._wall_ns()
        passed = mono - self._mono
        self._mono = mono
        expected = self._now + passed
        self._now = wall if wall >= expected else max(wall, expected - passed // _SLEW, self._now)
        return self._now
