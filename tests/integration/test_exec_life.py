"""Lives of isolated tasks: ends, kills of keeper and init, adoption, commands inside, and nothing left behind."""

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio

from services.agent.drivers.driver import StartRefused, TaskExit, TaskMissing
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.drivers.isolation.starter_protocol import EnterOrder
from services.agent.drivers.process import starter_client
from services.agent.drivers.process.driver import DEFAULT_PATH
from services.agent.drivers.process.exec_session import open_session
from services.agent.drivers.process.os_process import OsProcess, is_alive
from services.agent.drivers.process.run_record import ProcessRun, group_name
from services.agent.executor.alloc_dirs import AllocDirs
from tests.bounds import WAIT_S, level
from tests.command_output import run_command
from tests.integration.exec_node import NEEDED, Cell, a_cell, groups_left, is_there, need
from tests.not_tested import is_full


@pytest_asyncio.fixture
async def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cell]:
    """A driver with all isolation there is; a loaded machine may start its starter slowly."""
    need(*NEEDED)
    monkeypatch.setattr(starter_client, "START_TIMEOUT_S", WAIT_S)
    async with a_cell(tmp_path) as made:
        yield made


async def gone(*processes: OsProcess) -> None:
    """Wait until these have ended."""
    await level(lambda: not any(is_alive(one) for one in processes))


def again(cell: Cell) -> ExecDriver:
    """The driver of the agent's next life."""
    return ExecDriver(
        home=cell.home.top,
        kernel_boot=cell.home.kernel_boot,
        settings=ExecSettings(),
        found=cell.driver.found,
    )


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("exit 0", TaskExit(code=0)),
        ("exit 200", TaskExit(code=200, signal=0)),
        ("kill -KILL $$", TaskExit(code=137, signal=9)),
        ("kill -TERM $$", TaskExit(code=143, signal=15)),
        ("sleep 300 & exit 3", TaskExit(code=3)),
    ],
)
async def test_an_end_is_told(cell: Cell, script: str, end: TaskExit) -> None:
    """The exit code or signal of a task is what the agent hears, whatever the task left running."""
    found, _ = await cell.run(script)
    assert found.code == end.code
    assert found.signal == (end.signal if end.code != 200 else found.signal)
    assert groups_left(cell.driver) == []


@pytest.mark.asyncio
async def test_a_signal_reaches_the_task(cell: Cell) -> None:
    """The kill signal arrives at a task that has no handler as at one that has."""
    plain = await cell.start("exec sleep 300", cell.place("a1"))
    await cell.driver.signal(plain, "SIGTERM")
    assert (await cell.driver.wait(plain)).signal == signal.SIGTERM
    run = cell.place("a2")
    script = 'trap "echo bye; exit 4" INT; echo up; while :; do sleep 0.05; done'
    careful = await cell.start(script, run)
    await text_of(run.places.stdout, "up")
    await cell.driver.signal(careful, "SIGINT")
    assert (await cell.driver.wait(careful)).code == 4
    assert run.places.stdout.read_text() == "up\nbye\n"


@pytest.mark.asyncio
async def test_a_tasks_path_adds_to_the_drivers(cell: Cell) -> None:
    """References to PATH, HOME and the directories mean what the task would have without its own variables."""
    env = {"PATH": "${PATH}:/opt/own", "AT": "${HOME}/x:${NOMAD_ALLOC_DIR}"}
    _, said = await cell.run("echo $PATH; echo $AT", env=env)
    assert said.splitlines() == [f"{DEFAULT_PATH}:/opt/own", "/local/x:/alloc"]


async def text_of(path: Path, part: str) -> None:
    """Wait until a file holds a text."""
    await level(lambda: path.exists() and part in path.read_text(), f"{part!r} in {path}")


@pytest.mark.asyncio
async def test_stop_ends_all_that_a_task_started(cell: Cell) -> None:
    """A stop leaves no process of the task: not one in another session, nor one that ignores signals."""
    script = (
        "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep 301 & sleep 302' & sleep 303"
    )
    handle = await cell.start(script)
    groups = cell.driver.groups
    assert groups is not None
    name = group_name(handle.directory)
    members = await level(lambda: found if len(found := groups.members(name)) >= 4 else [])
    await cell.driver.stop(handle)
    end = await cell.driver.wait(handle)
    assert (end.code, end.signal) == (137, 9)
    assert [pid for pid in members if is_there(f"/proc/{pid}")] == []
    assert groups_left(cell.driver) == []


@pytest.mark.asyncio
async def test_a_killed_keeper_loses_nothing(cell: Cell) -> None:
    """Without its keeper a task runs on and its exit code is known; what is left of it is cleaned up."""
    handle = await cell.start("sleep 0.3; exit 7")
    os.kill(handle.keeper.pid, signal.SIGKILL)
    await gone(handle.keeper)
    assert is_alive(handle.process)
    assert (await cell.driver.wait(handle)).code == 7
    assert groups_left(cell.driver) == []


@pytest.mark.asyncio
async def test_a_killed_init_ends_its_task(cell: Cell) -> None:
    """A kill of pid 1 of a task kills the task; it is reported as a kill, and nothing of it lives."""
    handle = await cell.start("setsid sleep 301 & sleep 300")
    os.kill(handle.init.pid, signal.SIGKILL)
    end = await cell.driver.wait(handle)
    assert (end.code, end.signal) == (137, 9)
    await gone(handle.process)
    assert groups_left(cell.driver) == []


@pytest.mark.asyncio
async def test_keeper_and_init_killed_together(cell: Cell) -> None:
    """With both gone the task is dead and its code is unknown: that is said, not guessed."""
    handle = await cell.start("sleep 300")
    for process in (handle.keeper, handle.init):
        os.kill(process.pid, signal.SIGKILL)
    end = await cell.driver.wait(handle)
    assert end.code is None and "unknown" in end.reason
    await gone(handle.process)
    assert groups_left(cell.driver) == []


@pytest.mark.asyncio
async def test_a_killed_starter_is_begun_again(cell: Cell) -> None:
    """Tasks outlive the starter, and the next start starts another starter."""
    handle = await cell.start("sleep 300")
    os.kill(cell.driver.starter.pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, cell.driver.starter.pid, os.WEXITED | os.WNOWAIT)
    end, said = await cell.run("echo fine", cell.place("a2"))
    assert (end.code, said) == (0, "fine\n")
    assert is_alive(handle.process)


@pytest.mark.asyncio
async def test_the_next_life_adopts_what_runs(cell: Cell) -> None:
    """A task found alive is adopted under its pid, can be entered and stopped, and keeps its exit code."""
    run = cell.place()
    handle = await cell.start("sleep 300", run)
    cell.driver.starter.close()
    driver = again(cell)
    found = await driver.recover(run)
    assert isinstance(found, ProcessRun) and found.pid == handle.pid
    assert (await run_command(driver, found, ("cat", "/proc/2/comm"))).stdout == b"sh\n"
    await driver.signal(found, "SIGTERM")
    assert (await driver.wait(found)).code == 143
    driver.close()


@pytest.mark.asyncio
async def test_an_end_while_nobody_watched_is_found(cell: Cell) -> None:
    """A task that ended between two lives is found with its code; out of memory is still named."""
    run, hog = cell.place("a1"), cell.place("a2")
    first, second = await cell.start("exit 9", run), await cell.start("exec tail /dev/zero", hog)
    for handle in (first, second):
        await gone(handle.process, handle.init, handle.keeper)
    driver = again(cell)
    assert await driver.recover(run) == TaskExit(code=9)
    found = await driver.recover(hog)
    assert isinstance(found, TaskExit) and found.code == 137 and "out of memory" in found.reason
    assert groups_left(driver) == []
    driver.close()


@pytest.mark.asyncio
async def test_a_run_that_was_voided_never_begins(cell: Cell) -> None:
    """What the next life gave up is not started by an order that arrives late, and leaves nothing."""
    run = cell.place()
    assert await cell.driver.recover(run) == TaskMissing(started=False)
    with pytest.raises(StartRefused):
        await cell.start("touch /local/began", run)
    assert not is_there(run.places.task / "local" / "began")
    assert await cell.driver.recover(run) == TaskMissing(started=False)
    assert groups_left(cell.driver) == []


@pytest.mark.asyncio
async def test_after_a_reboot_nothing_is_claimed(cell: Cell) -> None:
    """With another kernel boot a run is gone: its pids name others now, and none of them is touched."""
    run = cell.place()
    handle = await cell.start("sleep 300", run)
    driver = ExecDriver(
        home=cell.home.top, kernel_boot="another", settings=ExecSettings(), found=cell.driver.found
    )
    driver.groups = None
    found = await driver.recover(run)
    assert isinstance(found, TaskMissing) and found.started and "rebooted" in found.reason
    assert is_alive(handle.process)


@pytest.mark.asyncio
async def test_a_command_runs_inside(cell: Cell) -> None:
    """A command beside a task has its user, processes, files, environment and limits, and separate outputs."""
    handle = await cell.start("sleep 300", env={"COLOUR": "blue"})
    script = "id -u; echo $COLOUR; cat /proc/2/comm; ls /; grep Seccomp: /proc/self/status; cat; echo bad >&2; exit 6"
    said = await run_command(cell.driver, handle, ("sh", "-c", script))
    words = said.stdout.decode().split()
    assert words[:3] == ["65534", "blue", "sh"]
    assert "alloc" in words and "root" not in words and words[-1] == "2"
    assert (said.stderr, said.code) == (b"bad\n", 6)
    with pytest.raises(TimeoutError):
        await run_command(cell.driver, handle, ("sleep", "300"), 0.2)
    groups = cell.driver.groups
    assert groups is not None
    name = group_name(handle.directory)
    # sh and its sleep are the task's own.
    await level(lambda: len(groups.members(name)) <= 2)


@pytest.mark.asyncio
async def test_a_terminal_inside(cell: Cell) -> None:
    """With a terminal a command knows its size, its changes, and Ctrl-C; the end has its code."""
    handle = await cell.start("sleep 300")
    session = await cell.driver.exec_stream(handle, ("sh",), tty=True)
    await session.resize(33, 44)
    heard = bytearray()

    async def until(part: bytes, times: int = 1) -> None:
        async with asyncio.timeout(WAIT_S):
            while heard.count(part) < times:
                stream, data = await session.read()
                assert stream == 1 and data
                heard.extend(data)

    await session.write(b"stty size\n")
    await until(b"33 44\r\n")
    # What cat repeats shows that it runs.
    await session.write(b"cat\nhello\n")
    await until(b"hello", 2)
    heard.clear()
    await session.write(b"\x03")
    # The terminal forgets what is typed before the prompt is back.
    await until(b"$ ")
    await session.write(b"exit 5\n")
    while (await session.read())[1]:
        pass
    assert await session.wait() == 5
    await session.close()


@pytest.mark.asyncio
async def test_a_terminal_is_the_tasks_own(cell: Cell) -> None:
    """Its name is one of the task's devpts: `tty` and programs that open it by name find it, as the task's user."""
    handle = await cell.start("sleep 300")
    script = "tty && test -t 0 && echo by-name > $(tty) && echo by-tty > /dev/tty && ls /dev/pts"
    session = await cell.driver.exec_stream(handle, ("sh", "-c", script), tty=True)
    heard = b""
    while part := (await session.read())[1]:
        heard += part
    assert (await session.wait(), heard.split()) == (
        0,
        [b"/dev/pts/0", b"by-name", b"by-tty", b"0", b"ptmx"],
    )
    await session.close()


@pytest.mark.asyncio
async def test_a_terminal_of_a_task_that_ended_is_refused(cell: Cell) -> None:
    """A command that finds no terminal has no output, and says why; here another process has the pid."""
    handle = await cell.start("sleep 300")
    order = EnterOrder(
        pid=handle.pid,
        start_ticks=handle.process.start_ticks + 1,
        argv=(b"true",),
        env=(),
        work_dir=b"/",
        jail=cell.driver.jail_of(handle),
        tty=True,
    )
    session = await open_session(cell.driver.starter, order)
    assert (await session.read())[1] == b""
    with pytest.raises(StartRefused, match="the task has ended"):
        await session.wait()
    await session.close()


@pytest.mark.asyncio
async def test_a_command_that_nobody_hears_is_ended(cell: Cell) -> None:
    """When who asked lets go, the command inside is killed; the task is not."""
    handle = await cell.start("sleep 300")
    session = await cell.driver.exec_stream(handle, ("sh", "-c", "echo $$; sleep 301"), tty=False)
    assert (await session.read())[1]
    await session.close()
    groups = cell.driver.groups
    assert groups is not None
    name = group_name(handle.directory)
    await level(lambda: len(groups.members(name)) <= 2)
    assert is_alive(handle.process)


@pytest.mark.asyncio
async def test_a_command_in_what_has_ended_is_refused(cell: Cell) -> None:
    """A task that is over cannot be entered, nor the process that has its pid now."""
    handle = await cell.start("sleep 300")
    await cell.driver.stop(handle)
    await cell.driver.wait(handle)
    with pytest.raises(StartRefused, match="ended"):
        await run_command(cell.driver, handle, ("true",))
    mine = psutil.Process()
    stat = OsProcess(mine.pid, handle.process.start_ticks)
    wrong = msgspec.structs.replace(handle, process=stat)
    with pytest.raises(StartRefused, match="ended"):
        await run_command(cell.driver, wrong, ("true",))


@pytest.mark.asyncio
async def test_use_is_told(cell: Cell) -> None:
    """Statistics are those of the whole task: a child's memory and time count."""
    handle = await cell.start(
        "sh -c 'x=$(head -c 20000000 /dev/zero | tr \"\\0\" a); echo up; sleep 300'"
    )
    await text_of(cell.home.places("a1", "main").stdout, "up")
    found = await cell.driver.stats(handle)
    assert found.cpu_ns > 0
    assert found.memory_bytes > 19_000_000


def everything(cell: Cell) -> dict[str, object]:
    """All that starts and stops could leave: processes, descriptors, mounts, cgroups."""
    groups = cell.driver.groups
    assert groups is not None
    place = str(cell.top)
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return {
        # In the keepers' group is the starter alone.
        "keepers": groups.members("keepers") == [cell.driver.starter.pid],
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mounts": [line for line in mounts.splitlines() if place in line],
        "groups": groups_left(cell.driver),
        "files": sorted(path.name for path in cell.home.top.iterdir()),
    }


async def settled(cell: Cell) -> dict[str, object]:
    """The same once it no longer changes: what ended a moment ago is closed by then, also what a cycle held."""
    found = everything(cell)
    async with asyncio.timeout(WAIT_S):
        while True:
            with warnings.catch_warnings():
                # What an earlier test of this lane left to be collected is not of this one.
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()
            await asyncio.sleep(0.2)
            now = everything(cell)
            if now == found:
                return now
            found = now


STARTS = 300 if is_full() else 90


@pytest.mark.asyncio
async def test_many_starts_leave_nothing(cell: Cell) -> None:
    """Starts and stops, by end, signal and kill, leave no process, descriptor, mount, cgroup or directory."""
    await cell.run("true", cell.place("first"))
    directories = AllocDirs(cell.home.top, memory=False)
    directories.remove("first")
    before = await settled(cell)

    async def one(number: int) -> None:
        run = cell.place(f"b{number}")
        handle = await cell.start(
            ("exit 0", "sleep 300", "setsid sleep 301 & sleep 300")[number % 3], run
        )
        cell.live.remove(handle)
        if number % 3 == 1:
            await cell.driver.signal(handle, "SIGTERM")
        elif number % 3 == 2:
            await cell.driver.stop(handle)
        await cell.driver.wait(handle)
        await asyncio.to_thread(directories.remove, run.alloc_id)

    for first in range(0, STARTS, 10):
        await asyncio.gather(*(one(number) for number in range(first, first + 10)))
    assert not list((cell.home.top / "alloc").iterdir())
    assert await settled(cell) == before
