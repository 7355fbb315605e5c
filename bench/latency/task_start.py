"""The time from a projection to a running process, by driver, and the cost of a thousand idle tasks to an agent.

`python -m bench.latency.task_start [--idle 1000] [--starts 100] [--seconds 20]` prints one line of JSON. The
agent's role, executor, journal (fsynced) and drivers are real; a projection is handed in and the running process
awaited, without a bus. The figures to reach: raw_exec p50 15 ms, exec p50 40 ms; a thousand raw_exec tasks below 5 % of
a core and 1 MiB each beside the task. Other load on the machine counts: `load_before` is printed.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil

from services.agent.drivers.driver import Driver
from services.agent.drivers.exec.isolated_drivers import isolated_drivers
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import TaskStarted
from tests.integration.agent_node import Node, job, projection

READY_S = 300.0


def _task(driver: str) -> dict[str, Any]:
    config = {"command": "/bin/sleep", "args": ["3600"]}
    resources = {"CPU": 20, "MemoryMB": 16}
    return {"Name": "main", "Driver": driver, "Config": config, "Resources": resources}


class TimedNode(Node):
    """A node that notes when each process was running; its report waits 20 ms for others."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.began: dict[int, float] = {}
        super().__init__(*arguments, **named)

    def put(self, one: Any) -> None:
        """Hand an input to the role."""
        if isinstance(one, TaskStarted):
            self.began[one.key] = time.perf_counter()
        super().put(one)


class AgentBench:
    """One agent, with tasks of one driver."""

    def __init__(self, driver: str) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="caravan-starts-"))
        self.top.chmod(0o755)
        self.drivers: list[Driver] = []
        self.node = TimedNode(self.top, job(_task(driver)), more=self._make_drivers)
        self.node.turn()
        self._seq = 5

    def _make_drivers(self, home: DataDir) -> list[Driver]:
        self.drivers = isolated_drivers(home.top, home.kernel_boot, ExecSettings())
        return self.drivers

    def want(self, count: int) -> None:
        """Ask for so many allocations in all."""
        self._seq += 1
        self.node.hear(projection(self._seq, *range(1, count + 1)))

    async def end(self) -> None:
        """End all tasks and let go of everything."""
        await self.node.end_tasks()
        await self.node.close()
        for driver in self.drivers:
            driver.close()  # type: ignore[attr-defined]
        shutil.rmtree(self.top)


async def starts_ms(driver: str, count: int) -> dict[str, float]:
    """Start one after the other; the first few, which load programs, do not count."""
    bench = AgentBench(driver)
    found = []
    try:
        for number in range(1, count + 6):
            began = time.perf_counter()
            bench.want(number)
            await bench.node.until(lambda key=number: bench.node.status(key) == "running", READY_S)
            found.append((bench.node.began[number] - began) * 1000)
    finally:
        await bench.end()
    kept = sorted(found[5:])
    return {
        "p50_ms": round(median(kept), 1),
        "p99_ms": round(kept[int(len(kept) * 0.99)], 1),
        "min_ms": round(kept[0], 1),
    }


async def idle(count: int, seconds: float) -> dict[str, float]:
    """Run so many raw_exec tasks and watch the agent do nothing."""
    bench = AgentBench("raw_exec")
    me = psutil.Process()
    before = me.memory_info().rss
    try:
        bench.want(count)
        await bench.node.until(
            lambda: sum(one.status == "running" for one in bench.node.states.values()) >= count,
            READY_S,
        )
        await asyncio.sleep(2.0)
        began, used = time.perf_counter(), _cpu_s(me)
        names = ("caravan-keep", "caravan-init")
        watchers = [one for one in me.children(recursive=True) if one.name() in names]
        watched = sum(map(_cpu_s, watchers))
        await asyncio.sleep(seconds)
        share = (_cpu_s(me) - used + sum(map(_cpu_s, watchers)) - watched) * 100
        own = mean(_own_kib(one.pid) for one in watchers)
        return {
            "tasks": count,
            "core_pct": round(share / (time.perf_counter() - began), 2),
            "agent_mib_each": round((me.memory_info().rss - before) / count / (1 << 20), 3),
            "watcher_mib_each": round(own / 1024, 3),
        }
    finally:
        await bench.end()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _own_kib(pid: int) -> int:
    """A process's share of memory: what it has alone, and its part of what it has with others."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return int(text.split("\nPss:")[1].split()[0])


async def _main(arguments: argparse.Namespace) -> int:
    load = round(os.getloadavg()[0], 2)
    raw = await starts_ms("raw_exec", arguments.starts)
    isolated_ms = await starts_ms("exec", arguments.starts)
    cost = await idle(arguments.idle, arguments.seconds)
    checks = {
        "raw_exec_below_15_ms": raw["p50_ms"] < 15,
        "exec_below_40_ms": isolated_ms["p50_ms"] < 40,
        "idle_below_5_pct": cost["core_pct"] < 5,
        "below_1_mib_each": cost["agent_mib_each"] + cost["watcher_mib_each"] < 1,
    }
    result = {"raw_exec": raw, "exec": isolated_ms, "idle": cost, "checks": checks}
    sys.stdout.write(json.dumps({**result, "load_before": load}) + "\n")
    return 0 if all(checks.values()) else 1


def main() -> int:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency.task_start")
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    return asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
