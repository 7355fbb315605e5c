"""kill -9 of the agent, of its watchers, and the machine's restart: no task is lost, doubled or told wrongly."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from schemas.envelope import COMMANDS_DECODER
from services.agent.drivers import watcher
from services.agent.drivers.process import Process, alive, exists, parse_stat
from services.agent.edge_dirs import Directories
from services.agent.edge_home import Home
from shared.core.ids import alloc_id
from shared.errors import ConfigInvalid
from tests.integration.agent_node import NODE, job, projection, sh
from tests.integration.test_agent_raw_exec import a_node, level

ROOT = Path(__file__).resolve().parents[2]


class Killable:
    """An agent in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.states: dict[int, Any] = {}

    async def until(self, status: str, key: int = 1) -> Any:
        """Read reports until an allocation has a status; returns its only task."""
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            while key not in self.states or self.states[key].status != status:
                line = await self.process.stdout.readline()
                assert line, "the agent ended"
                for command in COMMANDS_DECODER.decode(line).commands:
                    self.states |= {state.key: state for state in command.states}  # type: ignore[union-attr]
        return self.states[key].tasks["main"]

    def hear(self, data: bytes) -> None:
        """A projection arrives."""
        assert self.process.stdin is not None
        self.process.stdin.write(data + b"\n")

    async def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def an_agent(top: Path, spec: dict[str, Any], *flags: str) -> AsyncIterator[Killable]:
    """An agent process, killed at the end."""
    (top / "job.json").write_bytes(msgspec.json.encode(spec))
    command = (sys.executable, "-m", "tests.integration.agent_node", str(top), *flags)
    pipe = subprocess.PIPE
    made = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    agent = Killable(made)
    try:
        yield agent
    finally:
        if made.returncode is None:
            await agent.kill()
        # The pipes close with the loop's next turns.
        made._transport.close()  # type: ignore[attr-defined]
        await asyncio.sleep(0)


def processes(top: Path, run: int = 1) -> tuple[Process, Process]:
    """Watcher and task of a run of allocation 1."""
    lines = (top / "runs" / alloc_id(1) / "main" / str(run) / "proc").read_text().splitlines()
    return parse_stat(lines[1])[0], parse_stat(lines[2])[0]


async def started_and_orphaned(top: Path, spec: dict[str, Any]) -> int:
    """Start allocation 1 and kill the agent -9. Returns the task's pid."""
    async with an_agent(top, spec) as agent:
        agent.hear(projection(5, 1))
        task = await agent.until("running")
        await agent.kill()
        return int(task.pid)


@pytest.mark.asyncio
async def test_a_killed_agents_task_runs_on_and_is_adopted(tmp_path: Path) -> None:
    """After kill -9 the task runs on; the next agent finds the same process, starts no other, and can end it."""
    spec = job(sh("echo run; exec sleep 300"))
    pid = await started_and_orphaned(tmp_path, spec)
    assert alive(processes(tmp_path)[1])
    async with a_node(tmp_path, spec) as node:
        await node.until(lambda: node.status() == "running" and node.task().pid)
        assert node.task().pid == pid
        assert node.task().events[-1].kind == "Recovered"
        node.hear(projection(6, 1))
        node.hear(projection(7))
        await node.until(lambda: node.status() == "complete")
        assert node.output() == "run\n"
    await level(lambda: not psutil.pid_exists(pid))


@pytest.mark.asyncio
@pytest.mark.parametrize(("code", "status"), [(0, "complete"), (7, "failed")])
async def test_an_end_while_nobody_watched_is_reported(
    tmp_path: Path, code: int, status: str
) -> None:
    """A task that ended between two agents is reported with its exit code, and not run again."""
    go = tmp_path / "go"
    spec = job(sh(f"echo run; until [ -e {go} ]; do sleep 0.02; done; exit {code}"), kind="batch")
    await started_and_orphaned(tmp_path, spec)
    go.touch()
    await level(lambda: not exists(processes(tmp_path)[0]))
    async with a_node(tmp_path, spec) as node:
        await node.until(lambda: node.status() == status)
        assert node.task().exit_code == code
        node.hear(projection(6, 1))
        await node.until(lambda: node.agent._desired.seq == 6)
        assert node.output() == "run\n"


@pytest.mark.asyncio
async def test_an_adopted_tasks_end_is_seen(tmp_path: Path) -> None:
    """The end of an adopted task, no child of the agent, arrives with its exit code."""
    go = tmp_path / "go"
    spec = job(sh(f"until [ -e {go} ]; do sleep 0.02; done; exit 5"))
    await started_and_orphaned(tmp_path, spec)
    async with a_node(tmp_path, spec) as node:
        await node.until(lambda: node.status() == "running")
        go.touch()
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code == 5


@pytest.mark.asyncio
async def test_a_killed_watcher_does_not_take_its_task_for_dead(tmp_path: Path) -> None:
    """A task whose watcher was killed is still running; its end is seen, its code is said to be unknown."""
    async with a_node(tmp_path, job(sh("exec sleep 300"))) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        guard, task = processes(tmp_path)
        os.kill(guard.pid, 9)
        await level(lambda: not alive(guard))
        assert node.status() == "running"
        os.kill(task.pid, 15)
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code is None


@pytest.mark.asyncio
async def test_a_restarted_machine_has_lost_its_tasks(tmp_path: Path) -> None:
    """A run of an earlier boot of the kernel is reported lost; a process that has its pid now is left alone."""
    spec = job(sh("exec sleep 300"))
    pid = await started_and_orphaned(tmp_path, spec)
    guard, task = processes(tmp_path)
    proc = tmp_path / "runs" / alloc_id(1) / "main" / "1" / "proc"
    boot, rest = proc.read_text().split("\n", 1)
    proc.write_text(f"another-{boot}\n{rest}")
    async with a_node(tmp_path, spec) as node:
        await node.until(lambda: node.status() == "failed")
        assert "machine was restarted" in "".join(e.message for e in node.task().events)
        assert psutil.pid_exists(pid)
    for one in (guard, task):
        os.kill(one.pid, 9)


@pytest.mark.asyncio
async def test_a_recycled_pid_is_not_adopted(tmp_path: Path) -> None:
    """A process with the pid of a run but another start time is not ours: neither adopted nor signalled."""
    spec = job(sh("exec sleep 300"))
    pid = await started_and_orphaned(tmp_path, spec)
    guard, task = processes(tmp_path)
    proc = tmp_path / "runs" / alloc_id(1) / "main" / "1" / "proc"
    text = proc.read_text()
    for one in (guard, task):
        text = text.replace(f" {one.start_ticks} ", f" {one.start_ticks - 1} ")
    proc.write_text(text)
    async with a_node(tmp_path, spec) as node:
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code is None
        assert psutil.pid_exists(pid)
    for one in (guard, task):
        os.kill(one.pid, 9)


@pytest.mark.asyncio
async def test_tasks_ended_with_their_agent_start_again(tmp_path: Path) -> None:
    """Tasks that an operator ended with the agent start again with the next one, at no charge."""
    spec = job(sh("echo run; exec sleep 300"))
    async with a_node(tmp_path, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        await level(lambda: node.output() == "run\n")
        pid = node.task().pid
        assert await node.edge.end_tasks() == 1
        assert not psutil.pid_exists(pid)
    async with a_node(tmp_path, spec) as node:
        node.hear(projection(6, 1))
        await node.until(lambda: node.status() == "running" and node.task().pid)
        assert node.task().restarts == 0
        await level(lambda: node.output() == "run\nrun\n")


@pytest.mark.asyncio
async def test_a_start_that_was_voided_never_begins(tmp_path: Path) -> None:
    """Once a recovery has claimed a run, the watcher that comes too late starts nothing."""
    assert watcher.void(tmp_path, "boot") == watcher.Gone(started=False)
    command = watcher.Command(
        argv=("/bin/touch", str(tmp_path / "ran")),
        env={},
        directory=tmp_path,
        stdout=tmp_path / "out",
        stderr=tmp_path / "err",
    )
    script = watcher.watcher_script()
    child = watcher.begin(script, tmp_path, command, kernel_boot="boot", open_files=64)
    with pytest.raises(watcher.StartRefused):
        await watcher.came_alive(tmp_path, child, "boot")
    assert not (tmp_path / "ran").exists()


def test_a_data_directory_has_one_agent(tmp_path: Path) -> None:
    """A data directory in use, of another node, or of a newer release is refused, and says why."""
    home = Home(tmp_path, NODE)
    with pytest.raises(ConfigInvalid, match=f"in use by another agent, pid {os.getpid()}"):
        Home(tmp_path, NODE)
    first = (home.host_id, home.boot_id)
    home.close()
    with pytest.raises(ConfigInvalid, match="belongs to node n1, this is n2"):
        Home(tmp_path, "n2")
    again = Home(tmp_path, NODE)
    assert again.host_id == first[0]
    assert again.boot_id != first[1]
    again.close()
    identity = tmp_path / "agent.json"
    identity.write_bytes(identity.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(ConfigInvalid, match="format 2, this release knows 1"):
        Home(tmp_path, NODE)


def test_a_removed_allocation_leaves_nothing(tmp_path: Path) -> None:
    """Removing an allocation deletes its directories and runs; what its links point to stays."""
    home = Home(tmp_path / "data", NODE)
    (tmp_path / "precious").mkdir()
    for name in ("a1", "a2"):
        places = home.places(name, "main")
        for path in places.directories():
            path.mkdir(parents=True)
        (places.task / "link").symlink_to(tmp_path / "precious")
    Directories(tmp_path / "data", memory=False).remove("a1")
    assert [path.name for path in (home.top / "alloc").iterdir()] == ["a2"]
    assert [path.name for path in (home.top / "runs").iterdir()] == ["a2"]
    assert (tmp_path / "precious").exists()
    home.close()


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "*", "alloc", " "])
def test_no_name_leaves_its_directory(tmp_path: Path, name: str) -> None:
    """Whatever a task or an allocation is called, its places are below the data directory, its own alone."""
    home = Home(tmp_path, NODE)
    places, other = home.places(name, name), home.places(name, "main")
    for path in (*places.directories(), places.stdout):
        assert path.resolve().is_relative_to(
            tmp_path.resolve() / path.relative_to(tmp_path).parts[0]
        )
        assert ".." not in path.parts
    assert places.task not in (places.shared, other.task)
    home.close()
