"""One named timer, always set to the earliest deadline, and a steady time that never runs backwards.

Deadlines of leases, resends and presence are distances, so they are kept in steady time: the wall clock plus every
step it was ever set back by. A time that the log names (until when an evaluation sleeps) is wall time and must not be
compared with steady time.
"""

from shared.core.runtime.messages import SetTimer
from shared.core.runtime.step import Step

#: Pause before a command is sent again that the log does not show.
RESEND_NS = 500_000_000


class DeadlineTimer:
    """A timer by name. Times are ns, steady unless said otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._last_wall_ns = 0
        #: steady time minus wall time.
        self._shift_ns = 0
        #: deadline it is set to; 0: none.
        self._armed_ns = 0

    def read(self, now_ns: int) -> int:
        """Return the steady time at wall clock `now_ns`; called once a step."""
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
        """Forget the deadline: the timer fired."""
        self._armed_ns = 0

    def arm(self, step: Step, due_ns: int) -> None:
        """Make the timer fire at `due_ns` or before; 0: nothing is due.

        A timer that fires too soon costs one idle step; setting it anew for each deadline that went away would cost
        an effect a step.
        """
        if due_ns and not 0 < self._armed_ns <= due_ns:
            self._armed_ns = due_ns
            step.emit(SetTimer(self.name, due_ns - self._shift_ns))


def earliest(*due_ns: int) -> int:
    """Return the earliest of these times; 0 stands for never."""
    return min((due for due in due_ns if due), default=0)
