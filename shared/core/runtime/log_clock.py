"""Log time now, also where the clock of this machine is behind the log.

Log time never decreases. A clock may be behind it by an error of its own, or because an earlier writer's was ahead: log
time would stand still until the clock has caught up, and every deadline with it. It advances by the time that passes
here instead. The writer takes half of that, so that its clock catches up. A reader estimates with all of it: the writer
does nothing before its time.
"""

from shared.core.runtime.step import Step

#: The writer's log time takes so many seconds for each, while its clock is behind.
WRITER_SLOWDOWN = 2


class LogClock:
    """One role's reading of log time. `slowdown`: see `WRITER_SLOWDOWN`; 1: a reader."""

    def __init__(self, *, slowdown: int = 1) -> None:
        self._slowdown = slowdown
        #: log time, and the steady time at which this role first read it; None: its clock is not behind.
        self._began: tuple[int, int] | None = None

    def read(self, step: Step, t_ns: int) -> int:
        """Return log time at a step, ns, at least `t_ns`, which the newest record has."""
        found = t_ns
        if self._began is not None:
            began_ns, steady_ns = self._began
            found = began_ns + (step.steady_ns - steady_ns) // self._slowdown
        if step.now_ns >= max(found, t_ns):
            self._began = None
            return step.now_ns
        if self._began is None or found < t_ns:
            found, self._began = t_ns, (t_ns, step.steady_ns)
        return found
