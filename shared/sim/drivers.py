"""A simulated node: tasks in virtual time, and the agent's journal that outlives the agent.

Decides how long a task runs and whether it fails, by draws. Must not know what an agent wants; it keeps the promises
of shared/core/tasks.py. Tasks survive a crash of the agent, nothing survives the death of the node but the journal
up to its last synced entry. Next: `customers.py`.
"""

from collections.abc import Callable

import msgspec

from shared.core import tasks
from shared.sim.loop import MS, SECOND, Draws
from shared.sim.process import Process, Site

RunName = tuple[int, str, int]


class _Config(msgspec.Struct):
    """What a simulated task is given: its first argument says how many ms it runs; 0: until it is told to end."""

    args: tuple[str, ...] = ("0",)


class Run:
    """One run of one task. `life`: that of the agent which hears of its end; 0: nobody does now."""

    __slots__ = ("exit_code", "is_alive", "is_started", "life", "name", "signal")

    def __init__(self, name: RunName, life: int) -> None:
        self.name = name
        self.life = life
        self.is_started = False
        self.is_alive = False
        self.exit_code: int | None = None
        self.signal = 0


class Node:
    """One machine. `runs` holds every run that ever was asked for, by name."""

    def __init__(self, site: Site, node_id: str, draws: Draws) -> None:
        self.site = site
        self.node_id = node_id
        self.boot = 1
        self.is_dead = False
        self.runs: dict[RunName, Run] = {}
        self.journal: list[tasks.JournalEntry] = []
        self.process: Process | None = None
        self.fail_per_mille = 0
        #: told of every run that comes alive.
        self.on_start: Callable[[Node, RunName], None] | None = None
        self._synced = 0
        self._draws = draws
        self._performers: dict[type, Callable[..., None]] = {
            tasks.WriteJournal: self._write,
            tasks.StartTask: self._start,
            tasks.RecoverTask: self._recover,
            tasks.SignalTask: self._signal,
            tasks.KillTask: self._kill,
            tasks.LimitLogs: self._remove,
            tasks.CloseAlloc: self._remove,
            tasks.RemoveAlloc: self._remove,
            tasks.SweepAllocs: self._remove,
        }

    def perform(self, process: Process, effect: object) -> None:
        """Perform one effect of the agent."""
        assert process is self.process
        self._performers[type(effect)](effect)

    def alive(self) -> list[RunName]:
        """Names of the runs that are alive."""
        return [name for name, run in self.runs.items() if run.is_alive]

    def crash_agent(self, *, power_lost: bool) -> None:
        """Kill the agent; with `power_lost` the whole node, and what was not synced."""
        assert self.process is not None
        self.process.crash()
        for run in self.runs.values():
            run.life = 0
            if power_lost:
                run.is_alive = False
        if len(self.journal) > self._synced:
            kept = self._synced + self._draws.below(len(self.journal) - self._synced + 1)
            if kept < len(self.journal):
                self.site.weather.faults["journal_tail_lost"] += 1
            del self.journal[kept:]
        self._synced = len(self.journal)
        if power_lost:
            self.is_dead = True
            self.boot += 1

    def start_agent(self) -> None:
        """Start the agent, after the node where that was dead."""
        assert self.process is not None
        self.is_dead = False
        if self.process.role is None:
            self.process.start()

    # ---- effects ----

    def _write(self, effect: tasks.WriteJournal) -> None:
        self.journal += effect.entries
        if effect.sync:
            self._synced = len(self.journal)

    def _start(self, effect: tasks.StartTask) -> None:
        assert self.process is not None
        name = (effect.key, effect.task, effect.run)
        run = Run(name, self.process.life)
        self.runs[name] = run
        config = msgspec.json.decode(bytes(effect.launch.config), type=_Config)
        fails = self._draws.hit(self.fail_per_mille)
        delay = self._draws.between(MS, 40 * MS)
        self.site.loop.after(delay, self._came_up, run, self.boot, int(config.args[0]), fails)

    def _came_up(self, run: Run, boot: int, run_ms: int, fails: bool) -> None:  # noqa: FBT001
        if boot != self.boot or run.exit_code is not None or run.signal:
            return
        key, task, number = run.name
        run.is_started = True
        if fails and self._draws.hit(300):
            self.site.weather.faults["task_failed"] += 1
            run.exit_code = -1
            reason = "no such command"
            self._tell(run, tasks.TaskStartFailed(key=key, task=task, run=number, reason=reason))
            return
        run.is_alive = True
        if self.on_start is not None:
            self.on_start(self, run.name)
        self._tell(
            run, tasks.TaskStarted(key=key, task=task, run=number, pid=1000 + len(self.runs))
        )
        if fails:
            self.site.weather.faults["task_failed"] += 1
            self.site.loop.after(self._draws.below(3 * SECOND), self._end, run, boot, 1, 0)
        elif run_ms:
            self.site.loop.after(run_ms * MS, self._end, run, boot, 0, 0)

    def _end(self, run: Run, boot: int, exit_code: int | None, signal: int) -> None:
        if boot != self.boot or not run.is_alive:
            return
        run.is_alive = False
        run.exit_code, run.signal = exit_code, signal
        self._tell(run, self._exited(run))

    @staticmethod
    def _exited(run: Run) -> tasks.TaskExited:
        key, task, number = run.name
        return tasks.TaskExited(
            key=key, task=task, run=number, exit_code=run.exit_code, signal=run.signal
        )

    def _recover(self, effect: tasks.RecoverTask) -> None:
        assert self.process is not None
        key, task, number = effect.key, effect.task, effect.run
        run = self.runs.get((key, task, number))
        if run is None:
            run = Run((key, task, number), 0)
            run.exit_code = -1
            self.runs[run.name] = run
        run.life = self.process.life
        if run.is_alive:
            self._tell(run, tasks.TaskStarted(key=key, task=task, run=number, adopted=True))
        elif run.is_started and (run.exit_code is not None or run.signal):
            self._tell(run, self._exited(run))
        else:
            # Either it never came up, or the node lost power under it; a start still on its way is called off.
            run.exit_code = -1
            self._tell(run, tasks.TaskGone(key=key, task=task, run=number, started=run.is_started))

    def _signal(self, effect: tasks.SignalTask) -> None:
        run = self.runs.get((effect.key, effect.task, effect.run))
        # One task in eight does not listen and has to be killed.
        if run is not None and run.is_alive and self._draws.below(8):
            delay = self._draws.between(MS, 300 * MS)
            self.site.loop.after(delay, self._end, run, self.boot, None, 15)

    def _kill(self, effect: tasks.KillTask) -> None:
        run = self.runs.get((effect.key, effect.task, effect.run))
        if run is not None and run.is_alive:
            self.site.loop.after(
                self._draws.between(MS, 5 * MS), self._end, run, self.boot, None, 9
            )

    def _remove(self, effect: object) -> None:
        """Directories and logs cost nothing here; that nothing of it runs is held by the oracle."""

    def _tell(self, run: Run, given: object) -> None:
        assert self.process is not None
        if run.life:
            delay = self._draws.between(50_000, MS)
            self.site.loop.after(delay, self.process.take, run.life, given)
