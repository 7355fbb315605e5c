"""Reports of ends: a code is no signal, a kill by order is not the kernel's, and a full disk loses no exit code."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.agent.drivers.driver import DriverRun, TaskExit
from services.agent.drivers.process import starter_client
from services.agent.drivers.process.driver import ProcessDriver
from services.agent.drivers.process.run_record import read_exit
from services.agent.drivers.raw_exec import RawExecDriver
from services.agent.executor.alloc_dirs import _mount, _unmount
from shared.core.runtime.agent_messages import TaskLaunch
from tests.bounds import WAIT_S
from tests.integration.exec_node import NEEDED, a_cell, need, open_home

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    top = tmp_path / "small"
    top.mkdir()
    _mount(str(top), 8)
    yield top
    assert _unmount(top)


class Started:
    """A driver, and runs of it."""

    def __init__(self, driver: ProcessDriver, run: DriverRun) -> None:
        self.driver = driver
        self.run = run

    async def start(self, script: str) -> Any:
        """Start a shell script."""
        config = {"command": "/bin/sh", "args": ["-c", script]}
        launch = TaskLaunch(
            config=msgspec.Raw(json.dumps(config).encode()), cpu_mhz=100, memory_mib=64
        )
        return await self.driver.start(self.run, launch)

    async def ended(self, script: str) -> TaskExit:
        """Run a shell script to its end."""
        return await self.driver.wait(await self.start(script))


@contextlib.asynccontextmanager
async def a_driver(top: Path, name: str) -> AsyncIterator[Started]:
    """Driver exec or raw_exec with one run."""
    if name == "exec":
        need(*NEEDED)
        async with a_cell(top) as cell:
            yield Started(cell.driver, cell.place())
        return
    with open_home(top) as home:
        driver = RawExecDriver(kernel_boot=home.kernel_boot)
        places = home.places("a1", "main")
        yield Started(driver, DriverRun(alloc_id="a1", task="main", number=1, places=places))
        driver.close()


both = pytest.mark.parametrize("name", ["raw_exec", "exec"])


@both
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("exit 137", 137, 0),
        ("exit 143", 143, 0),
        ("exit 255", 255, 0),
        ("sleep 300 & kill -KILL $!; wait $!", 137, 0),
        ("kill -KILL $$", 137, 9),
        ("kill -USR1 $$", 138, 10),
    ],
)
async def test_a_code_above_128_is_no_signal(
    tmp_path: Path, name: str, script: str, code: int, number: int
) -> None:
    """A program that exits with 137 was not killed; one that was killed has the code and the signal."""
    async with a_driver(tmp_path, name) as one:
        assert await one.ended(script) == TaskExit(code=code, signal=number)


def test_an_end_of_an_older_release_is_read(tmp_path: Path) -> None:
    """A record without the line of the signal means what it meant."""
    (tmp_path / "exit").write_text("137\nout of memory\n")
    assert read_exit(tmp_path) == TaskExit(code=137, signal=9, reason="out of memory")
    (tmp_path / "exit").write_text("3\n\n")
    assert read_exit(tmp_path) == TaskExit(code=3)


@pytest.mark.asyncio
@pytest.mark.parametrize("by", ["stop", "signal"])
async def test_a_forced_kill_is_not_the_kernels(tmp_path: Path, by: str) -> None:
    """After a child was killed for lack of memory a task that is killed by order was not killed by the kernel."""
    need(*NEEDED)
    async with a_driver(tmp_path, "exec") as one:
        handle = await one.start("tail /dev/zero; echo survived; sleep 300")
        async with asyncio.timeout(WAIT_S):
            while "survived" not in one.run.places.stdout.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if by == "stop":
            await one.driver.stop(handle)
        else:
            await one.driver.signal(handle, "SIGKILL")
        end = await one.driver.wait(handle)
        assert (end.code, end.signal) == (137, 9)
        assert end.reason == "out of memory: a child process was killed at the limit of 64 MiB"


_FILL = "cat /dev/zero > $NOMAD_ALLOC_DIR/data/big 2>/dev/null; exit 7"


@is_root
@both
@pytest.mark.asyncio
async def test_an_end_is_told_on_a_full_disk(small_disk: Path, name: str) -> None:
    """A task that ends on a disk without room keeps its exit code: the room for it was taken at the start."""
    async with a_driver(small_disk, name) as one:
        assert await one.ended(_FILL) == TaskExit(code=7)
        assert os.statvfs(small_disk).f_bavail == 0
        assert read_exit(one.run.directory) == TaskExit(code=7)
        (one.run.places.shared / "data" / "big").unlink()


@is_root
@both
@pytest.mark.asyncio
async def test_an_end_waits_for_room(
    small_disk: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no room could be taken before, the record of an end waits until the disk has some."""
    patch = "from services.agent.drivers.isolation import ending; ending.reserve_exit = lambda _: None; "
    monkeypatch.setattr(starter_client, "_SERVE", patch + starter_client._SERVE)
    async with a_driver(small_disk, name) as one:
        handle = await one.start(_FILL)
        big = one.run.places.shared / "data" / "big"
        async with asyncio.timeout(WAIT_S):
            while not (one.run.directory / "exit.new").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert read_exit(one.run.directory) is None
        big.unlink()
        assert await one.driver.wait(handle) == TaskExit(code=7)
