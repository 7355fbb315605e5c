"""raw_exec: no process outlives its task, whatever session or group it is in; with cgroups and without them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.agent.drivers.isolation.cgroups import CgroupTree
from services.agent.drivers.process import starter_client
from services.agent.drivers.raw_exec import own_groups
from tests import not_tested
from tests.bounds import WAIT_S
from tests.command_output import run_command
from tests.integration.agent_node import Node, job, projection, sh

#: Of a process that has left its parent, its group and its session.
_LEAVE = "setsid sh -c 'echo $$; exec sleep 300' &"
_LEAVE_TWICE = "setsid sh -c '(setsid sh -c \"echo \\$\\$; exec sleep 300\" &) ; exit 0' &"
_IGNORE_ALL = "setsid sh -c 'trap \"\" INT TERM HUP; echo $$; while :; do sleep 300; done' &"


def tree_for(top: Path) -> CgroupTree:
    """Cgroups for the tasks of one test; skips it where there are none."""
    tree = own_groups(f"caravan/test-{top.name}-{os.getpid()}")
    if tree is None:
        not_tested.missing_feature("this machine gives no cgroup")
    assert tree is not None
    return tree


@contextlib.asynccontextmanager
async def a_node(top: Path, spec: dict[str, Any], holds: str) -> AsyncIterator[Node]:
    """A node whose tasks are ended with the test. `holds`: cgroup, or subreaper alone."""
    tree = tree_for(top) if holds == "cgroup" else None
    node = Node(top, spec, groups=tree)
    node.turn()
    try:
        yield node
    finally:
        await node.end_tasks()
        await node.close()


async def printed_pids(node: Node, count: int) -> list[int]:
    """Wait until so many lines with a process id are in the task's log."""
    async with asyncio.timeout(WAIT_S):
        while len(found := node.output().split()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return [int(one) for one in found]


async def gone(pids: list[int]) -> None:
    """Wait until processes that the test ended have ended."""
    async with asyncio.timeout(WAIT_S):
        while any(map(psutil.pid_exists, pids)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
@pytest.mark.parametrize("holds", ["cgroup", "subreaper"])
async def test_a_stop_ends_every_session_of_a_task(tmp_path: Path, holds: str) -> None:
    """When a stopped task is reported as ended, no process that it started is there."""
    script = f"{_LEAVE} {_LEAVE_TWICE} {_IGNORE_ALL} sleep 300"
    async with a_node(tmp_path, job(sh(script)), holds) as node:
        node.hear(projection(5, 1))
        pids = await printed_pids(node, 3)
        assert all(map(psutil.pid_exists, pids))
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        assert [pid for pid in pids if psutil.pid_exists(pid)] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("holds", ["cgroup", "subreaper"])
async def test_the_end_of_a_task_is_the_end_of_its_sessions(tmp_path: Path, holds: str) -> None:
    """A batch task that ends by itself leaves nothing; its exit code is its own."""
    wait = "while [ $(wc -l < $NOMAD_ALLOC_DIR/logs/main.stdout.0) -lt 2 ]; do :; done"
    script = f"{_LEAVE} {_LEAVE_TWICE} {wait}; exit 7"
    async with a_node(tmp_path, job(sh(script), kind="batch"), holds) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        pids = await printed_pids(node, 2)
        assert node.task().exit_code == 7
        assert [pid for pid in pids if psutil.pid_exists(pid)] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("holds", ["cgroup", "subreaper"])
async def test_what_a_command_beside_a_task_leaves_ends_with_the_task(
    tmp_path: Path, holds: str
) -> None:
    """A process that `alloc exec` left behind runs on until its task ends, and no longer."""
    async with a_node(tmp_path, job(sh("sleep 300")), holds) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        driver, handle, _ = node.edge.runs()[0]
        script = "setsid sleep 300 >/dev/null 2>&1 & echo $!"
        said = await run_command(driver, handle, ("sh", "-c", script), 60)
        pid = int(said.stdout)
        assert said.code == 0 and psutil.pid_exists(pid)
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        await gone([pid])


@pytest.mark.asyncio
@pytest.mark.parametrize("holds", ["cgroup", "subreaper"])
async def test_a_command_that_is_cut_off_ends_with_its_sessions(tmp_path: Path, holds: str) -> None:
    """When its client leaves, a command beside a task ends with all that it started; the task runs on."""
    async with a_node(tmp_path, job(sh("sleep 300")), holds) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        driver, handle, _ = node.edge.runs()[0]
        script = "setsid sleep 300 & echo $!; sleep 300"
        session = await driver.exec_stream(handle, ("sh", "-c", script), tty=False)
        pid = int((await session.read())[1])
        await session.close()
        await gone([pid])
        assert psutil.pid_exists(handle.pid)


@pytest.mark.asyncio
@pytest.mark.parametrize("holds", ["cgroup", "subreaper"])
async def test_a_killed_keeper_is_told_with_what_may_be_left(tmp_path: Path, holds: str) -> None:
    """Without its keeper a task's cgroup still ends all of it; without both the reason says what may run."""
    async with a_node(tmp_path, job(sh(f"{_LEAVE} sleep 300")), holds) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        (pid,) = await printed_pids(node, 1)
        os.kill(node.edge.runs()[0][1].keeper.pid, signal.SIGKILL)
        node.hear(projection(6))
        await node.until(lambda: node.status() not in {"", "running"})
        told = " ".join(event.message for event in node.task().events)
        assert "keeper and init processes were killed" in told
        assert ("may still run" in told) == (holds == "subreaper")
        if holds == "subreaper":
            os.kill(pid, signal.SIGKILL)
        await gone([pid])


@pytest.mark.asyncio
async def test_what_cannot_be_killed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a task names the processes that could not be killed."""
    patch = (
        "from services.agent.drivers.isolation import descendants; "
        "descendants.end_descendants = lambda: [4242, 4243]; "
    )
    monkeypatch.setattr(starter_client, "_SERVE", patch + starter_client._SERVE)
    async with a_node(tmp_path, job(sh("sleep 300")), "subreaper") as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        told = {event.kind: event.message for event in node.task().events}
        assert "2 processes of the task could not be killed: 4242, 4243" in told["Terminated"]
        assert told["Killed"] == "Task killed; 2 of its processes still run"
