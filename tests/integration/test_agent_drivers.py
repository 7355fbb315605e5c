"""Drivers that hang, lie and die in the middle: each costs its own task alone, and never leaves it without an end."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.envelope import ENCODER
from services.agent.drivers.driver import TaskExit, TaskMissing
from tests.bounds import WAIT_S
from tests.integration.agent_node import NODE, Node, job, projection, sh, wanted
from tests.projected import projected


class Liar:
    """A driver with one bad habit. Everything that it does not spoil works, without a process."""

    name = "liar"

    def __init__(self, habit: str) -> None:
        self.habit = habit
        self.calls: list[str] = []

    def fingerprint(self) -> dict[str, str]:
        """Usable, it says."""
        return {"driver.liar": "1"}

    async def start(self, *_: Any) -> Any:
        """Start, or not."""
        if self.habit == "dies":
            raise KeyError("State")
        return None if self.habit == "nothing" else SimpleNamespace(pid=1)

    async def recover(self, *_: Any) -> Any:
        """Find something, or say so."""
        return "yes" if self.habit == "finds" else TaskMissing(started=True)

    async def wait(self, *_: Any) -> Any:
        """Wait, or pretend to."""
        if self.habit == "raises":
            raise OSError("lost")
        return 0 if self.habit == "number" else TaskExit(code=0)

    def __getattr__(self, name: str) -> Any:
        async def call(*_: Any) -> None:
            self.calls.append(name)

        return call


def node_with(top: Path, driver: Liar) -> Node:
    """A node that has the driver, and a job for it."""
    spec = job({"Name": "main", "Driver": "liar", "Config": {}}, RestartPolicy=ONCE)
    return Node(top, spec, more=lambda _home: [driver])  # type: ignore[list-item]


ONCE = {"Attempts": 0, "Interval": 10**12, "Delay": 10**7, "Mode": "fail"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("habit", "told", "cleaned"),
    [
        ("dies", "KeyError('State')", "abandon"),
        ("nothing", "driver returned no task handle: None", "abandon"),
        ("raises", "driver lost track of the task: OSError('lost')", "stop"),
        (
            "number",
            "driver lost track of the task: TypeError('driver returned no task exit: 0')",
            "stop",
        ),
    ],
)
async def test_a_driver_that_lies_costs_its_task_alone(
    tmp_path: Path, habit: str, told: str, cleaned: str
) -> None:
    """Whatever comes back from a driver, its task ends with a reason, is cleaned up after, and others run."""
    driver = Liar(habit)
    node = node_with(tmp_path, driver)
    try:
        node.turn()
        node.hear(projection(1, 1))
        await node.until(lambda: node.status() == "failed")
        assert told in str(node.task().events)
        assert cleaned in driver.calls
        node.spec = job(sh("exec sleep 60"))
        other = msgspec.structs.replace(wanted(2), job_id="other")
        said = projected((wanted(1), other), cluster_id="c1", seq=2, node_id=NODE)
        node.hear(ENCODER.encode(said))
        await node.until(lambda: node.status(2) == "running")
    finally:
        await node.end_tasks()
        await node.close()


@pytest.mark.asyncio
async def test_a_driver_that_finds_nonsense_has_lost_its_task(tmp_path: Path) -> None:
    """What an earlier life started and a driver speaks nonsense about is reported lost, not waited for."""
    node = node_with(tmp_path, Liar("slow"))
    started = asyncio.Event()

    async def unwatched(*_: Any, **__: Any) -> None:
        started.set()

    node.edge._watch = unwatched  # type: ignore[method-assign]
    node.turn()
    node.hear(projection(1, 1))
    async with asyncio.timeout(WAIT_S):
        await started.wait()
    await node.close()
    again = node_with(tmp_path, Liar("finds"))
    try:
        again.turn()
        await again.until(lambda: again.status() == "failed")
        assert "recovery failed: TypeError" in str(again.task().events)
    finally:
        await again.close()
