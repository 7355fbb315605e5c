"""Continuous starts and stops: processes, descriptors, mounts, cgroups and directories that are left afterwards.

`python -m bench.resilience.start_stop_soak [--driver exec|raw_exec] [--count 10000] [--seconds 1800]` prints one
line of JSON on stdout and its progress on stderr; exit 1 when anything is left. Ends by count or by time, whichever
comes first. Not a benchmark of speed: the drivers are used as the agent uses them; a third of the tasks end by
themselves, a third by a signal, a third by a kill with a child in another session.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from services.agent.drivers.driver import Driver, DriverRun
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.drivers.raw_exec import RawExecDriver
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import TaskLaunch

#: Tasks that are alive at the same time.
AT_ONCE = 8
SCRIPTS = ("exit 0", "exec sleep 300", "setsid sleep 301 & sleep 300")


class StartStopSoak:
    """One driver, used until it is enough."""

    def __init__(self, top: Path, kind: str) -> None:
        self.home = DataDir(top, "soak")
        self.directories = AllocDirs(self.home.top, memory=False)
        self.driver: Any = _driver(kind, self.home)
        self.done = 0
        self.unexpected: list[str] = []

    async def one(self, number: int) -> None:
        """Start a task, end it in one of three ways, and take its directories away."""
        alloc = f"soak{number}"
        run = DriverRun(
            alloc_id=alloc, task="main", number=1, places=self.home.places(alloc, "main")
        )
        await asyncio.to_thread(self.directories.prepare, run.places)
        config = {"command": "/bin/sh", "args": ["-c", SCRIPTS[number % 3]]}
        launch = TaskLaunch(
            config=msgspec.Raw(json.dumps(config).encode()), cpu_mhz=100, memory_mib=64
        )
        handle = await self.driver.start(run, launch)
        if number % 3 == 1:
            await self.driver.signal(handle, "SIGTERM")
        elif number % 3 == 2:
            await self.driver.stop(handle)
        end = await self.driver.wait(handle)
        if end.code != (0, 143, 137)[number % 3]:
            self.unexpected.append(f"{SCRIPTS[number % 3]}: {end}")
        await asyncio.to_thread(self.directories.remove, alloc)
        self.done += 1

    async def run(self, count: int, seconds: float) -> None:
        """Continue until the count or the time is reached."""
        until = time.monotonic() + seconds
        numbers = iter(range(count))

        async def lane() -> None:
            for number in numbers:
                if time.monotonic() > until:
                    return
                await self.one(number)
                if self.done % 500 == 0:
                    sys.stderr.write(f"{self.done} of {count}: {leftovers(self)}\n")

        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))


def _driver(kind: str, home: DataDir) -> Driver:
    if kind == "raw_exec":
        return RawExecDriver(kernel_boot=home.kernel_boot)
    made = ExecDriver(home=home.top, kernel_boot=home.kernel_boot, settings=ExecSettings())
    if why := made.offer.off():
        raise SystemExit(f"driver exec is off here: {why}")
    return made


def leftovers(soak: StartStopSoak) -> dict[str, int]:
    """What there is now of everything that a start makes; of others on this machine nothing counts."""
    groups = getattr(soak.driver, "groups", None)
    tops = [path for path in groups.tops.values() if path.is_dir()] if groups is not None else []
    place = str(soak.home.top)
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return {
        "processes": len(_processes(place) | _members(tops) - {_starter(soak.driver)}),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "mounts": mounts.count(place),
        "cgroups": sum(1 for top in tops for one in top.iterdir() if one.is_dir()),
        "directories": sum(1 for part in soak.home.top.glob("*/*") if part.is_dir()),
    }


def _starter(driver: Any) -> int:
    return int(driver.starter.pid) if isinstance(driver, ExecDriver) else 0


def _members(tops: list[Path]) -> set[int]:
    """Tasks, keepers and inits: all are in a cgroup of this driver."""
    files = [file for top in tops for file in top.glob("*/cgroup.procs")]
    found: set[int] = set()
    for file in files:
        with contextlib.suppress(OSError):
            found |= {int(word) for word in file.read_text().split()}
    return found


def _processes(place: str) -> set[int]:
    """Processes that were given our directory."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if place.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return found


def _place() -> Path:
    top = Path(tempfile.mkdtemp(prefix="caravan-soak-"))
    # Tasks of another user walk through it.
    top.chmod(0o755)
    return top


async def _main(kind: str, count: int, seconds: float) -> int:
    top = _place()
    soak = StartStopSoak(top, kind)
    # What is made once, at the first start, is not a leak.
    await asyncio.gather(*(soak.one(-number) for number in range(1, AT_ONCE * 3 + 1)))
    soak.done = 0
    before, started = leftovers(soak), time.monotonic()
    await soak.run(count, seconds)
    after = leftovers(soak)
    result = {
        "driver": kind,
        "starts": soak.done,
        "seconds": round(time.monotonic() - started, 1),
        "before": before,
        "after": after,
        "unexpected_ends": len(soak.unexpected),
        "ok": before == after and not soak.unexpected,
    }
    soak.driver.close()
    soak.home.close()
    shutil.rmtree(top)
    sys.stdout.write(json.dumps(result) + "\n")
    for text in soak.unexpected[:5]:
        sys.stderr.write(f"{text}\n")
    return 0 if result["ok"] else 1


def main() -> int:
    """Read the arguments and soak."""
    parser = argparse.ArgumentParser(prog="python -m bench.resilience.start_stop_soak")
    parser.add_argument("--driver", choices=("exec", "raw_exec"), default="exec")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1800.0)
    found = parser.parse_args()
    return asyncio.run(_main(found.driver, found.count, found.seconds))


if __name__ == "__main__":
    sys.exit(main())
