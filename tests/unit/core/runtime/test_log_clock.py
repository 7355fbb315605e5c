"""Log time advances where a clock is behind the log, never decreases, and the clock of the writer catches up."""

import pytest

from shared.core.runtime.deadline_timer import DeadlineTimer
from shared.core.runtime.log_clock import WRITER_SLOWDOWN, LogClock
from shared.core.runtime.step import Step

SECOND = 1_000_000_000
HOUR = 3_600 * SECOND


class Role:
    """A clock of log time, and the wall clock of its machine."""

    def __init__(self, *, slowdown: int, wall_ns: int) -> None:
        self.clock = LogClock(slowdown=slowdown)
        self.timer = DeadlineTimer("due")
        self.wall_ns = wall_ns

    def read(self, t_ns: int, after_s: float = 0) -> int:
        """Read log time after a while, when the newest record has `t_ns`."""
        self.wall_ns += int(after_s * SECOND)
        return self.clock.read(Step(self.wall_ns, self.timer.read(self.wall_ns)), t_ns)


@pytest.mark.parametrize("slowdown", [1, WRITER_SLOWDOWN])
def test_a_clock_that_is_right_is_log_time(slowdown: int) -> None:
    """The usual case: the clock is not behind the log."""
    role = Role(slowdown=slowdown, wall_ns=HOUR)
    assert role.read(0) == HOUR
    assert role.read(HOUR, after_s=3) == HOUR + 3 * SECOND


def test_a_writer_that_is_behind_advances_at_half_the_pace() -> None:
    """Its own records take nothing from that, and its clock catches up."""
    role = Role(slowdown=WRITER_SLOWDOWN, wall_ns=HOUR)
    t_ns = HOUR + 10 * SECOND
    assert role.read(t_ns) == t_ns
    for _ in range(9):
        t_ns = role.read(t_ns, after_s=2)
    assert t_ns == HOUR + 19 * SECOND
    assert role.wall_ns == HOUR + 18 * SECOND
    assert role.read(t_ns, after_s=2) == HOUR + 20 * SECOND
    assert role.read(t_ns, after_s=1) == HOUR + 21 * SECOND


def test_a_reader_guesses_at_the_full_pace_and_follows_the_log() -> None:
    """A record of a later time is the new beginning; an earlier one is no news."""
    role = Role(slowdown=1, wall_ns=SECOND)
    assert role.read(HOUR) == HOUR
    assert role.read(HOUR, after_s=5) == HOUR + 5 * SECOND
    assert role.read(HOUR + 2 * SECOND, after_s=1) == HOUR + 6 * SECOND
    assert role.read(2 * HOUR, after_s=1) == 2 * HOUR
    assert role.read(2 * HOUR, after_s=1) == 2 * HOUR + SECOND


@pytest.mark.parametrize("slowdown", [1, WRITER_SLOWDOWN])
def test_a_clock_that_is_set_back_takes_no_time_back(slowdown: int) -> None:
    """Elapsed time is steady time, which never decreases."""
    role = Role(slowdown=slowdown, wall_ns=HOUR)
    t_ns = role.read(0)
    role.wall_ns -= HOUR // 2
    first = role.read(t_ns)
    assert first == t_ns
    assert role.read(first, after_s=8) == t_ns + 8 * SECOND // slowdown
