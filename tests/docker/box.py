"""A driver on the engine of the tests, with one home, and runs of it without an agent around."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from services.agent.drivers.docker.container_spec import HostCpu
from services.agent.drivers.docker.driver import Container, DockerDriver
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.driver import DriverRun
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import TaskLaunch, TaskNames
from tests.bounds import WAIT_S
from tests.docker.engine import IMAGE, OwnEngine

ALLOC = "0123456789abcdef0123456789abcdef"


class Box:
    """One life of an agent's driver. A second one on the same directory is the next life."""

    def __init__(self, engine: OwnEngine, top: Path, url: str = "", **settings: Any) -> None:
        self.engine = engine
        self.home = DataDir(top, "n1")
        self.told: list[tuple[str, str]] = []
        self.driver = DockerDriver(
            DockerSettings(host=url or engine.url, **settings),
            data_dir=self.home.top,
            node_id="n1",
            home_id=self.home.host_id,
            kernel_boot=self.home.kernel_boot,
            machine=HostCpu(core_mhz=2000, cores=2),
        )
        self.driver.tell = lambda _run, kind, text: self.told.append((kind, text))

    def run(self, number: int = 1, task: str = "main", alloc: str = ALLOC) -> DriverRun:
        """A run of a task."""
        return DriverRun(
            alloc_id=alloc, task=task, number=number, places=self.home.places(alloc, task)
        )

    async def start(self, script: str = "sleep 300", number: int = 1, **more: Any) -> Container:
        """Start a shell script in the image of the tests. `launch_*`: fields of the launch, the rest options."""
        return await self.driver.start(self.run(number), launch(script, **more))

    async def ended(self, script: str, number: int = 1, **more: Any) -> Any:
        """Run a script to its end. Returns how it ended."""
        handle = await self.start(script, number, **more)
        return await asyncio.wait_for(self.driver.wait(handle), WAIT_S)

    def output(self, name: str = "stdout", task: str = "main") -> str:
        """What a task wrote, as its log has it."""
        path = getattr(self.home.places(ALLOC, task), name)
        return path.read_text() if path.exists() else ""

    def containers(self) -> list[Any]:
        """Containers of this home that the engine knows."""
        label = f"com.caravan.home={self.home.host_id}"
        return self.engine.client.containers.list(all=True, filters={"label": label})

    async def forget(self) -> None:
        """Whatever the driver does in the background ends here, as with a killed agent."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # A connection is closed one turn of the loop after the request to close it.
        await asyncio.sleep(0.01)

    def leave(self) -> None:
        """The agent is gone: killed, for all that its containers can know."""
        self.driver.close()
        self.home.close()

    def clear(self) -> None:
        """Remove what still runs."""
        for one in self.containers():
            with contextlib.suppress(Exception):
                one.remove(force=True)


def launch(script: str, **more: Any) -> TaskLaunch:
    """What the supervisor would hand over."""
    given = {key.removeprefix("launch_"): more.pop(key) for key in list(more) if "launch_" in key}
    config = {"image": IMAGE, "command": "sh", "args": ["-c", script], "init": False, **more}
    base = {"memory_mib": 64, "cpu_mhz": 200, "names": TaskNames(job="j", group="g", task="main")}
    return TaskLaunch(config=msgspec.Raw(msgspec.json.encode(config)), **{**base, **given})


@contextlib.asynccontextmanager
async def a_box(engine: OwnEngine, top: Path, **settings: Any) -> AsyncIterator[Box]:
    """A box whose containers are removed at the end."""
    box = Box(engine, top, **settings)
    try:
        yield box
    finally:
        box.clear()
        await box.forget()
        box.leave()


def status(pid: int) -> str:
    """What the kernel says of a process; empty: it is gone."""
    path = Path(f"/proc/{pid}/status")
    return path.read_text() if path.exists() else ""
