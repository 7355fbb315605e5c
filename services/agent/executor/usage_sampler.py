"""Measures what running tasks use, every ten seconds, and keeps the last hour of each in memory.

Decides how often and how long. A driver that hangs or fails leaves a gap of its own task's alone. Nothing of it is
in the journal or the log: another life of the agent begins anew. Each minute goes to the bus: `usage_minutes.py`.
"""

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

from schemas.node_rpc import TaskHistory
from schemas.usage import UsageMinute
from services.agent.drivers.driver import Driver, DriverRun, TaskUsage
from services.agent.executor.usage_minutes import UsageMinutes
from shared.usage_histogram import histogram, to_wire

SAMPLE_S = 10.0
#: An hour of samples; and tasks whose samples are kept, those that ended longest ago go first.
SAMPLES_MAX = 360
TASKS_MAX = 2_000
_AT_ONCE = 16
_DRIVER_S = 5.0

_Run = tuple[Driver, Any, DriverRun]
_Name = tuple[str, str]


class _Last(NamedTuple):
    """The last measurement of a run."""

    run: int
    at_s: float
    used: TaskUsage


class Spent:
    """What was counted between two measurements, or in all."""

    def __init__(self, cpu_ns: int = 0, throttled_ns: int = 0, oom_kills: int = 0) -> None:
        self.cpu_ns = cpu_ns
        self.throttled_ns = throttled_ns
        self.oom_kills = oom_kills
        #: between the two measurements; 0: there was none before, and all since the start of the run is counted.
        self.passed_s = 0.0

    def add(self, one: "Spent") -> None:
        """Add another."""
        self.cpu_ns += one.cpu_ns
        self.throttled_ns += one.throttled_ns
        self.oom_kills += one.oom_kills


class UsageSeries:
    """The samples of one task, over its runs, oldest first once it is full."""

    def __init__(self) -> None:
        self.times_s = array("d")
        self.millicores = array("Q")
        self.memory = array("Q")
        self._at = 0
        self.last: _Last | None = None
        #: of all runs that were seen.
        self.throttled_ns = 0
        self.oom_kills = 0
        self.memory_peak_bytes = 0

    def take(self, run: int, at_s: float, used: TaskUsage) -> "Spent":
        """Add a measurement; the first of a run has no processor use yet. Returns what came since the last one."""
        before = self.last if self.last is not None and self.last.run == run else None
        self.last = _Last(run, at_s, used)
        self.memory_peak_bytes = max(
            self.memory_peak_bytes, used.memory_peak_bytes, used.memory_bytes
        )
        earlier = TaskUsage(cpu_ns=0, memory_bytes=0) if before is None else before.used
        spent = Spent(
            max(used.cpu_ns - earlier.cpu_ns, 0),
            max(used.throttled_ns - earlier.throttled_ns, 0),
            max(used.oom_kills - earlier.oom_kills, 0),
        )
        self.throttled_ns += spent.throttled_ns
        self.oom_kills += spent.oom_kills
        if before is not None:
            spent.passed_s = max(at_s - before.at_s, 1e-3)
            self._add(at_s, round(spent.cpu_ns / 1e6 / spent.passed_s), used.memory_bytes)
        return spent

    def _add(self, at_s: float, millicores: int, memory: int) -> None:
        if len(self.times_s) < SAMPLES_MAX:
            self.times_s.append(at_s)
            self.millicores.append(millicores)
            self.memory.append(memory)
            return
        self.times_s[self._at] = at_s
        self.millicores[self._at] = millicores
        self.memory[self._at] = memory
        self._at = (self._at + 1) % SAMPLES_MAX

    def history(self, alloc_id: str, task: str) -> TaskHistory:
        """Summarize it."""
        times = self.times_s or array("d", [0.0])
        return TaskHistory(
            alloc_id=alloc_id,
            task=task,
            samples=len(self.times_s),
            from_ns=int(min(times) * 1e9),
            to_ns=int(max(times) * 1e9),
            cpu_millicores=to_wire(histogram(self.millicores)),
            memory_bytes=to_wire(histogram(self.memory)),
            cpu_peak_millicores=max(self.millicores, default=0),
            memory_peak_bytes=self.memory_peak_bytes,
            throttled_ns=self.throttled_ns,
            oom_kills=self.oom_kills,
        )


class UsageSampler:
    """One per agent. `runs` finds what is alive."""

    def __init__(self, runs: Callable[[], list[_Run]]) -> None:
        self._runs = runs
        self._series: dict[_Name, UsageSeries] = {}
        self._spent = Spent()
        self._minutes: UsageMinutes | None = None
        self._publish: Callable[[UsageMinute], object] | None = None
        self.is_running = False

    def publish_minutes(self, node_id: str, publish: Callable[[UsageMinute], object]) -> None:
        """Hand over each minute of this node once it is over."""
        self._minutes, self._publish = UsageMinutes(node_id), publish

    async def run(self) -> None:
        """Measure while any task runs."""
        try:
            while self._runs():
                await self.measure()
                await asyncio.sleep(SAMPLE_S)
        finally:
            self.is_running = False
            if self._minutes is not None:
                self._hand_over(self._minutes.end())

    async def measure(self) -> None:
        """Measure once what runs."""
        runs = self._runs()[:TASKS_MAX]
        found = await measure_all(runs)
        now_s = time.time()
        if self._minutes is not None:
            self._hand_over(self._minutes.begin(now_s))
        for (_, _, run), (_, used) in zip(runs, found, strict=True):
            if isinstance(used, TaskUsage):
                # Taken out and put in: what ended longest ago stands first.
                series = self._series.pop((run.alloc_id, run.task), None) or UsageSeries()
                self._series[run.alloc_id, run.task] = series
                spent = series.take(run.number, now_s, used)
                self._spent.add(spent)
                self._note((run.alloc_id, run.task), used, spent)
        while len(self._series) > TASKS_MAX:
            del self._series[next(iter(self._series))]

    def _note(self, name: _Name, used: TaskUsage, spent: Spent) -> None:
        if self._minutes is None:
            return
        # What a run did before its first measurement may be of an earlier life of the agent.
        counts = spent if spent.passed_s else Spent()
        self._minutes.add(
            name,
            used.memory_bytes,
            cpu_ns=counts.cpu_ns,
            passed_s=counts.passed_s,
            throttled_ns=counts.throttled_ns,
            oom_kills=counts.oom_kills,
        )

    def _hand_over(self, minute: UsageMinute | None) -> None:
        if minute is not None and self._publish is not None:
            self._publish(minute)

    def histories(self, alloc_id: str) -> tuple[TaskHistory, ...]:
        """Summarize the last hour of the tasks of an allocation."""
        return tuple(
            series.history(*name)
            for name, series in sorted(self._series.items())
            if name[0] == alloc_id
        )

    def metrics(self) -> dict[str, float]:
        """Return the use of what runs now, and what was counted in this life of the agent."""
        live = {(one.alloc_id, one.task) for _, _, one in self._runs()}
        lasts = [one.last.used for name, one in self._series.items() if name in live and one.last]
        return {
            "caravan_agent_tasks_memory_bytes": sum(one.memory_bytes for one in lasts),
            "caravan_agent_tasks_cpu_seconds_total": self._spent.cpu_ns / 1e9,
            "caravan_agent_tasks_throttled_seconds_total": self._spent.throttled_ns / 1e9,
            "caravan_agent_tasks_oom_kills_total": self._spent.oom_kills,
        }


async def measure_all(runs: list[_Run]) -> list[tuple[float, TaskUsage | Exception]]:
    """Measure runs, each with the moment of it."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(driver: Driver, handle: Any) -> tuple[float, TaskUsage | Exception]:
        loop = asyncio.get_running_loop()
        try:
            async with gate:
                used = await asyncio.wait_for(driver.stats(handle), _DRIVER_S)
        except Exception as err:  # noqa: BLE001 - a driver may fail in any way; the others still answer.
            return loop.time(), err
        return loop.time(), used

    return await asyncio.gather(*(one(driver, handle) for driver, handle, _ in runs))
