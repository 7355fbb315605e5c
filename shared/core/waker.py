"""One named timer that is always set to the earliest thing due, and a time to wait by that never runs backwards.

Decides when a role is woken. Must not know what is due. Deadlines of leases, resends and signs of life are distances,
so they are kept in steady time: the wall clock, minus every step it was ever set back by. What the log names (a time
before which an evaluation sleeps) is wall time and must not be compared with steady time.
"""

from shared.core.role import SetTimer


class Waker:
    """A timer by name. Times are ns, steady unless said otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._last_wall_ns = 0
        #: steady time minus wall time.
        self._shift_ns = 0
        #: what the timer is set to; 0: it is not set.
        self._armed_ns = 0

    def read(self, now_ns: int) -> int:
        """Return the steady time at wall clock `now_ns`; once a step."""
        if now_ns < self._last_wall_ns:
            self._shift_ns += self._last_wall_ns - now_ns
            # The shell's timer waits for a wall time that is far away now.
            self._armed_ns = 0
        self._last_wall_ns = now_ns
        return now_ns + self._shift_ns

    def steady(self, wall_ns: int) -> int:
        """Return the steady time at which the wall clock will show `wall_ns`."""
        return wall_ns + self._shift_ns

    def fired(self) -> None:
        """Take note that the timer fired."""
        self._armed_ns = 0

    def until(self, due_ns: int) -> list[SetTimer]:
        """Return what makes the timer fire at `due_ns` or before; 0: nothing is due.

        A timer that fires too soon costs one idle step; setting it anew for each deadline that went away would cost
        an effect a step.
        """
        if not due_ns or 0 < self._armed_ns <= due_ns:
            return []
        self._armed_ns = due_ns
        return [SetTimer(self.name, due_ns - self._shift_ns)]


def earliest(*due_ns: int) -> int:
    """Return the earliest of these times; 0 stands for never."""
    return min((due for due in due_ns if due), default=0)
