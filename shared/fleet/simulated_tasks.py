"""Task runs of a simulated node: which come up, end, or are lost with the power.

Every call takes effect at once. Its caller draws the durations and calls at that time, with the boot under which it
planned the call: what was planned before a power loss does not happen.
"""

from shared.core.runtime.agent_messages import TaskExited, TaskStarted, TaskStartFailed

#: Key of the allocation, task, number of the run.
TaskRunId = tuple[int, str, int]


class TaskRun:
    """One run of one task. `life`: of the agent that is notified of its end; 0: none now."""

    __slots__ = ("exit_code", "is_alive", "is_started", "life", "name", "signal")

    def __init__(self, name: TaskRunId, life: int = 0) -> None:
        self.name = name
        self.life = life
        self.is_started = False
        self.is_alive = False
        self.exit_code: int | None = None
        self.signal = 0

    @property
    def is_over(self) -> bool:
        """Return whether it ended, or will never come up."""
        return self.exit_code is not None or self.signal != 0

    def exited(self) -> TaskExited:
        """Return the event of its end."""
        key, task, run = self.name
        return TaskExited(key=key, task=task, run=run, exit_code=self.exit_code, signal=self.signal)


class SimulatedTasks:
    """The tasks of one node. `runs`: every run by name, until its owner removes it. `boot`: counts power losses."""

    def __init__(self) -> None:
        self.runs: dict[TaskRunId, TaskRun] = {}
        self.boot = 1

    def start(self, name: TaskRunId, life: int = 0) -> TaskRun:
        """Add a run that is to come up."""
        run = self.runs[name] = TaskRun(name, life)
        return run

    def alive(self) -> list[TaskRunId]:
        """Names of the runs that are alive."""
        return [name for name, run in self.runs.items() if run.is_alive]

    def may_come_up(self, run: TaskRun, boot: int) -> bool:
        """Return whether a run still starts: it was not ended meanwhile, nor the power lost."""
        return boot == self.boot and not run.is_over

    def come_up(self, run: TaskRun, pid: int = 0) -> TaskStarted:
        """Make a run alive."""
        run.is_started = run.is_alive = True
        key, task, number = run.name
        return TaskStarted(key=key, task=task, run=number, pid=pid)

    def fail_start(self, run: TaskRun, reason: str, *, recoverable: bool = True) -> TaskStartFailed:
        """Fail the start of a run."""
        run.is_started, run.exit_code = True, -1
        key, task, number = run.name
        return TaskStartFailed(
            key=key, task=task, run=number, reason=reason, recoverable=recoverable
        )

    def end(
        self, run: TaskRun, boot: int, exit_code: int | None, signal: int = 0
    ) -> TaskExited | None:
        """End a run; None: it ended before, or the power was lost."""
        if boot != self.boot or run.is_over:
            return None
        run.is_alive = False
        run.exit_code, run.signal = exit_code, signal
        return run.exited()

    def lose_power(self) -> None:
        """End every run without an event."""
        self.boot += 1
        for run in self.runs.values():
            run.is_alive = False
