"""Driver exec on this very machine: starts, ends and attacks without a bus or a role."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from services.agent.drivers.driver import DriverRun, TaskExit
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.drivers.isolation.probe import IsolationSupport
from services.agent.drivers.process.run_record import ProcessRun
from services.agent.drivers.process.starter_client import probe_isolation
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import TaskLaunch
from tests import not_tested

#: What the tests of isolation need; where it is missing they are left out, and say so.
NEEDED = ("user", "view", "pid", "ipc", "uts", "network", "cgroups", "seccomp")


def what_works() -> IsolationSupport:
    """Ask once; the answer is the machine's."""
    if not _FOUND:
        _FOUND.append(probe_isolation("caravan/probe-of-tests"))
        for path in Path("/sys/fs/cgroup").glob("*/caravan/probe-of-tests"):
            for level in (path / "keepers", path):
                with contextlib.suppress(OSError):
                    level.rmdir()
    return _FOUND[0]


_FOUND: list[IsolationSupport] = []


def need(*kinds: str) -> None:
    """Leave a test out, loudly, where this machine has no such isolation."""
    found = what_works()
    lacks = {kind: found.why.get(kind, "") for kind in kinds if kind not in found.works}
    if lacks:
        text = f"this machine lacks isolation: {lacks}"
        not_tested.missing_feature(text)


class Cell:
    """One node's driver exec, with what it started."""

    def __init__(self, top: Path, driver: ExecDriver, home: DataDir) -> None:
        self.top = top
        self.driver = driver
        self.home = home
        self.live: list[ProcessRun] = []
        self._runs = 0

    def place(self, alloc_id: str = "a1", task: str = "main", number: int = 0) -> DriverRun:
        """A run's name and places; `number` 0: the next."""
        self._runs += 1
        number = number or self._runs
        places = self.home.places(alloc_id, task)
        return DriverRun(alloc_id=alloc_id, task=task, number=number, places=places)

    async def start(self, script: str, run: DriverRun | None = None, **more: Any) -> ProcessRun:
        """Start a shell script."""
        config = {"command": "/bin/sh", "args": ["-c", script], **more.pop("config", {})}
        values = {"cpu_mhz": 100, "memory_mib": 64, **more}
        launch = TaskLaunch(config=msgspec.Raw(json.dumps(config).encode()), **values)
        found = await self.driver.start(run or self.place(), launch)
        self.live.append(found)
        return found

    async def run(
        self, script: str, run: DriverRun | None = None, **more: Any
    ) -> tuple[TaskExit, str]:
        """Run a shell script to its end. Returns the end and all it wrote."""
        run = run or self.place()
        for path in (run.places.stdout, run.places.stderr):
            path.unlink(missing_ok=True)
        end = await self.driver.wait(await self.start(script, run, **more))
        return end, run.places.stdout.read_text() + run.places.stderr.read_text()


@contextlib.asynccontextmanager
async def a_cell(
    top: Path, *, without: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[Cell]:
    """A driver whose tasks are ended with the test. `without`: kinds of isolation it must do without."""
    found = what_works()
    found = msgspec.structs.replace(found, works=[one for one in found.works if one not in without])
    with open_home(top) as home:
        # Tasks of another user walk to their directory through this one.
        for path in (top, *top.parents[:3]):
            with contextlib.suppress(PermissionError):
                path.chmod(path.stat().st_mode | 0o011)
        driver = ExecDriver(
            home=home.top,
            kernel_boot=home.kernel_boot,
            settings=ExecSettings(**settings),
            found=found,
        )
        if driver.groups is not None:
            driver.groups.prepare()
        cell = Cell(top, driver, home)
        try:
            yield cell
        finally:
            for handle in cell.live:
                await driver.stop(handle)
                await driver.wait(handle)
            driver.close()


@contextlib.contextmanager
def open_home(top: Path) -> Iterator[DataDir]:
    """A data directory, given back at the end."""
    home = DataDir(top / "node", "n1")
    try:
        yield home
    finally:
        home.close()


def groups_left(driver: ExecDriver) -> list[str]:
    """Cgroups of a driver's tasks that are still there."""
    if driver.groups is None:
        return []
    found = [path for top in driver.groups.tops.values() if top.is_dir() for path in top.iterdir()]
    return sorted(str(path) for path in found if path.is_dir() and path.name != "keepers")


def set_uid_program(directory: Path) -> Path:
    """A copy of `id` with the set-user-id bit of root."""
    directory.mkdir(mode=0o755, exist_ok=True)
    copy = directory / "become"
    shutil.copy("/usr/bin/id", copy)
    os.chown(copy, 0, 0)
    copy.chmod(0o4755)
    return copy


@contextlib.contextmanager
def a_stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the very user that tasks run as."""
    other = subprocess.Popen(["sleep", "300"], user=65534, group=65534, extra_groups=[])
    try:
        yield other
    finally:
        other.kill()
        other.wait()


def is_there(path: str | Path) -> bool:
    """Whether a path exists, for tests that are coroutines."""
    return Path(path).exists()
