"""kill -9 of the agent, of its watchers, and the machine's restart: no task is lost, doubled or told wrongly."""

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from schemas.envelope import COMMANDS_DECODER
from services.agent.drivers.driver import DriverRun, StartRefused, TaskMissing
from services.agent.drivers.process import os_process
from services.agent.drivers.process.os_process import OsProcess, has_pid, is_alive, parse_stat
from services.agent.drivers.process.run_record import read_claim, void_run
from services.agent.drivers.raw_exec import RawExecDriver
from services.agent.executor import data_dir
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import TaskLaunch
from shared.core.state.ids import alloc_id
from shared.errors import ConfigInvalid
from tests.bounds import WAIT_S, level
from tests.integration.agent_node import NODE, job, projection, sh
from tests.integration.test_agent_raw_exec import a_node

ROOT = Path(__file__).resolve().parents[2]


class Killable:
    """An agent in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.states: dict[int, Any] = {}

    async def until(self, status: str, key: int = 1) -> Any:
        """Read reports until an allocation has a status; returns its only task."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(WAIT_S):
                while key not in self.states or self.states[key].status != status:
                    line = await self.process.stdout.readline()
                    assert line, "the agent ended"
                    for command in COMMANDS_DECODER.decode(line).commands:
                        self.states |= {state.key: state for state in command.states}  # type: ignore[union-attr]
        except TimeoutError:
            raise TimeoutError(f"{key} is not {status}: {self.states}") from None
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


def processes(top: Path, run: int = 1) -> tuple[OsProcess, OsProcess]:
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
    assert is_alive(processes(tmp_path)[1])
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
    await level(lambda: not has_pid(processes(tmp_path)[0]))
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


def pidfds(pid: int) -> list[str]:
    """Descriptors of this process that wait for the end of another one."""
    texts = []
    for entry in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            texts.append(entry.read_text())
    return [text for text in texts if f"\nPid:\t{pid}\n" in text]


@pytest.mark.asyncio
async def test_a_killed_watcher_does_not_take_its_task_for_dead(tmp_path: Path) -> None:
    """A task whose keeper and init were killed still runs; its end is seen, its exit code is unknown."""
    async with a_node(tmp_path, job(sh("exec sleep 300"))) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        run = read_claim(tmp_path / "runs" / alloc_id(1) / "main" / "1")
        assert run is not None
        # One process is both for raw_exec; the kernel reaps it at once.
        for guard in {run.keeper, run.init}:
            os.kill(guard.pid, 9)
        await level(lambda: not is_alive(run.keeper) and not is_alive(run.init))
        # The second wait, for the task itself, is under way.
        await level(lambda: len(pidfds(run.pid)) == 1)
        assert is_alive(run.process)
        assert node.status() == "running"
        os.kill(run.pid, 15)
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code is None


@contextlib.contextmanager
def a_sleeper() -> Iterator[OsProcess]:
    """A process of no agent, killed at the end."""
    with subprocess.Popen(("/bin/sleep", "300")) as sleeper:
        try:
            yield parse_stat(Path(f"/proc/{sleeper.pid}/stat").read_text())[0]
        finally:
            sleeper.kill()


@pytest.mark.asyncio
async def test_an_agent_without_descriptors_does_not_take_a_task_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be looked at, because the agent has no descriptor left, has not ended."""

    def none_left(*_args: object, **_more: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with a_sleeper() as process, monkeypatch.context() as short:
        short.setattr(os, "pidfd_open", none_left)
        short.setattr(Path, "read_text", none_left)
        short.setattr(os_process, "_LOOK_AGAIN_S", 0.01)
        wait = asyncio.ensure_future(os_process.wait_for_end(process))
        done, _ = await asyncio.wait({wait}, timeout=0.1)
        assert not done
        assert is_alive(process)
        # A signal goes to nothing that is not known to be the process.
        assert not has_pid(process)
    await wait
    assert not is_alive(process)


def test_a_copy_on_another_machine_is_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies that live at once have two host ids, so the second gets the node's id only when the first is down.

    The same machine after another boot is the same host in another life.
    """
    machines = {"first": "a" * 32, "second": "b" * 32}
    boots = tmp_path / "boot"
    monkeypatch.setattr(data_dir, "_BOOT_ID", boots)

    def lives(folder: str, machine: str, boot: str) -> DataDir:
        monkeypatch.setattr(data_dir, "machine_id", lambda: machines[machine])
        boots.write_text(boot)
        return DataDir(tmp_path / folder, NODE)

    one = lives("one", "first", "boot-1")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    # The copy's lock file names a pid of the other machine: nothing here holds it.
    with contextlib.closing(one), contextlib.closing(lives("two", "second", "boot-9")) as two:
        assert two.host_id != one.host_id and two.boot_id != one.boot_id
        with pytest.raises(ConfigInvalid, match="in use by another agent"):
            lives("two", "second", "boot-9")
    with contextlib.closing(lives("one", "first", "boot-2")) as again:
        assert again.host_id == one.host_id and again.boot_id != one.boot_id
    with contextlib.closing(lives("two", "second", "boot-9")) as again:
        assert again.host_id == two.host_id


@pytest.mark.asyncio
async def test_a_restarted_machine_has_lost_its_tasks(tmp_path: Path) -> None:
    """A run of an earlier boot is lost and begun again uncharged; a process with its pid is left alone."""
    spec = job(sh("exec sleep 300"))
    pid = await started_and_orphaned(tmp_path, spec)
    guard, task = processes(tmp_path)
    proc = tmp_path / "runs" / alloc_id(1) / "main" / "1" / "proc"
    boot, rest = proc.read_text().split("\n", 1)
    proc.write_text(f"another-{boot}\n{rest}")
    async with a_node(tmp_path, spec) as node:
        await node.until(
            lambda: "node was rebooted" in "".join(e.message for e in node.task().events)
        )
        # The policy allows no restart: one that is charged would fail the allocation.
        node.hear(projection(6, 1))
        await node.until(lambda: node.status() in {"running", "failed"})
        assert (node.status(), node.task().restarts) == ("running", 0)
        assert node.task().pid not in {0, pid}
        assert psutil.pid_exists(pid)
    for one in {guard, task}:
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
        await node.end_tasks(at_once=False)
        assert not psutil.pid_exists(pid)
    async with a_node(tmp_path, spec) as node:
        node.hear(projection(6, 1))
        await node.until(lambda: node.status() == "running" and node.task().pid)
        assert node.task().restarts == 0
        await level(lambda: node.output() == "run\nrun\n")


@pytest.mark.asyncio
async def test_a_start_that_was_voided_never_begins(tmp_path: Path) -> None:
    """Once a recovery has claimed a run, the start that comes too late starts nothing."""
    home = DataDir(tmp_path / "data", NODE)
    run = DriverRun(alloc_id="a1", task="main", number=1, places=home.places("a1", "main"))
    assert void_run(run.directory, "boot") == TaskMissing(started=False)
    config = msgspec.json.encode({"command": "/bin/touch", "args": [str(tmp_path / "ran")]})
    driver = RawExecDriver(kernel_boot="boot")
    with pytest.raises(StartRefused):
        await driver.start(run, TaskLaunch(config=msgspec.Raw(config)))
    assert not (tmp_path / "ran").exists()
    driver.close()
    home.close()


def test_a_data_directory_has_one_agent(tmp_path: Path) -> None:
    """A data directory in use, of another node, or of a newer release is refused, and says why."""
    home = DataDir(tmp_path, NODE)
    with pytest.raises(ConfigInvalid, match=f"in use by another agent, pid {os.getpid()}"):
        DataDir(tmp_path, NODE)
    first = (home.host_id, home.boot_id)
    home.close()
    with pytest.raises(ConfigInvalid, match="belongs to node n1, but this agent is node n2"):
        DataDir(tmp_path, "n2")
    again = DataDir(tmp_path, NODE)
    assert again.host_id == first[0]
    assert again.boot_id != first[1]
    again.close()
    identity = tmp_path / "agent.json"
    identity.write_bytes(identity.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(ConfigInvalid, match="format 2, this release supports up to 1"):
        DataDir(tmp_path, NODE)


def test_a_removed_allocation_leaves_nothing(tmp_path: Path) -> None:
    """Removing an allocation deletes its directories and runs; what its links point to stays."""
    home = DataDir(tmp_path / "data", NODE)
    (tmp_path / "precious").mkdir()
    for name in ("a1", "a2"):
        places = home.places(name, "main")
        for path in places.directories():
            path.mkdir(parents=True)
        (places.task / "link").symlink_to(tmp_path / "precious")
    AllocDirs(tmp_path / "data", memory=False).remove("a1")
    assert [path.name for path in (home.top / "alloc").iterdir()] == ["a2"]
    assert [path.name for path in (home.top / "runs").iterdir()] == ["a2"]
    assert (tmp_path / "precious").exists()
    home.close()


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "*", "alloc", " "])
def test_no_name_leaves_its_directory(tmp_path: Path, name: str) -> None:
    """Whatever a task or an allocation is called, its places are below the data directory, its own alone."""
    home = DataDir(tmp_path, NODE)
    places, other = home.places(name, name), home.places(name, "main")
    for path in (*places.directories(), places.stdout):
        assert path.resolve().is_relative_to(
            tmp_path.resolve() / path.relative_to(tmp_path).parts[0]
        )
        assert ".." not in path.parts
    assert places.task not in (places.shared, other.task)
    home.close()
