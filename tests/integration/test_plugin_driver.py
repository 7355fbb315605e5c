"""Drivers that are programs of the operator: their tasks outlive them and the agent; a bad one costs its own tasks."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.agent.drivers.driver import DriverRun, StartRefused, TaskExit, TaskMissing
from services.agent.drivers.plugin import driver as plugin_driver
from services.agent.drivers.plugin import process as plugin_process
from services.agent.drivers.plugin.driver import PluginDriver, PluginRun
from services.agent.drivers.plugin.programs import plugin_drivers
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import TaskLaunch
from shared.core.state.ids import alloc_id
from tests.bounds import WAIT_S, level, until
from tests.integration.agent_node import NODE, Node, job, plugins_beside, projection, sh
from tests.integration.test_agent_adoption import an_agent

pytestmark = pytest.mark.full("processes of plugins, not yet seen beside other tests")

TOY = Path(__file__).with_name("toy_driver.py")
ONCE = {"Attempts": 0, "Interval": 10**12, "Delay": 10**7, "Mode": "fail"}


def offer(top: Path, name: str = "toy") -> Path:
    """Put the driver into the folder beside a data directory."""
    folder = top.parent / "drivers"
    folder.mkdir(exist_ok=True, mode=0o755)
    program = folder / name
    program.write_text(f"#!{sys.executable}\n{TOY.read_text()}")
    program.chmod(0o755)
    return folder


def switch(top: Path) -> Path:
    """Make the driver's bad habit hold; it is ended when the file is gone."""
    file = top / "drivers" / "toy" / "state" / "habit"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return file


def toy(command: str, name: str = "main", **config: Any) -> dict[str, Any]:
    """A task of the driver."""
    return {"Name": name, "Driver": "toy", "Config": {"command": command, **config}}


@contextlib.asynccontextmanager
async def node_with(top: Path, spec: dict[str, Any]) -> AsyncIterator[Node]:
    """A node that has the driver; its tasks end with the test."""
    made: list[Any] = []

    def more(home: DataDir) -> list[Any]:
        made.extend(plugins_beside(home))
        return made

    node = Node(top, spec, more=more)
    node.turn()
    try:
        yield node
    finally:
        await node.end_tasks()
        await node.close()
        for one in made:
            one.close()


@contextlib.asynccontextmanager
async def a_driver(top: Path) -> AsyncIterator[PluginDriver]:
    """The driver by itself."""
    home = DataDir(top, NODE)
    (found,) = plugin_drivers(str(top.parent / "drivers"), home, os.environ)
    try:
        yield found
    finally:
        for key in found._claims.all():
            with contextlib.suppress(Exception):
                found._process.post("abandon", run=key).result(5)
        await asyncio.to_thread(found.close)
        home.close()


def run_of(top: Path, number: int = 1) -> DriverRun:
    """A run of the allocation 1."""
    shown = alloc_id(1)
    task = top / "alloc" / shown / "main"
    shared = top / "alloc" / shown / "alloc"
    from services.agent.executor.data_dir import TaskDirs

    places = TaskDirs(
        shared=shared,
        task=task,
        runs=top / "runs" / shown / "main",
        stdout=shared / "logs" / "main.stdout.0",
        stderr=shared / "logs" / "main.stderr.0",
    )
    return DriverRun(alloc_id=shown, task="main", number=number, places=places, key=1)


def launch(**config: Any) -> TaskLaunch:
    """A start with these options."""
    import msgspec

    return TaskLaunch(config=msgspec.Raw(msgspec.json.encode(config)))


def driver_pid(top: Path) -> int:
    """Process id of the driver that runs; 0: it is being started."""
    try:
        words = (top / "drivers" / "toy" / "process").read_text().split()
    except FileNotFoundError:
        return 0
    return int(words[0]) if words else 0


async def next_pid(top: Path, before: int) -> int:
    """Wait for another process of the driver."""
    return await level(lambda: (found := driver_pid(top)) != before and found)


def is_there(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A data directory with the driver beside it."""
    found = tmp_path / "data"
    found.mkdir()
    offer(found)
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that ends is started again at once."""
    monkeypatch.setattr(plugin_process, "RESTART_S", 0.05)
    monkeypatch.setattr(plugin_process, "RESTART_MAX_S", 0.1)


# ---- life ----


@pytest.mark.asyncio
async def test_a_task_of_a_plugin_lives_as_any_other(top: Path) -> None:
    """Its command runs in its directories with its variables, its output is its log, its exit code its end."""
    spec = job(
        toy('echo "$WORD $NOMAD_TASK_NAME"; pwd; echo err >&2; exit 3', retries="${meta.n}"),
        RestartPolicy=ONCE,
    )
    spec["TaskGroups"][0]["Tasks"][0] |= {"Env": {"WORD": "said"}, "Meta": {"n": "5"}}
    spec["TaskGroups"][0]["Tasks"][0]["Config"].pop("retries")
    async with node_with(top, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code == 3
        places = node.home.places(alloc_id(1), "main")
        assert node.output() == f"said main\n{places.task}\n"
        assert places.stderr.read_text() == "err\n"
    assert list((top / "drivers" / "toy" / "runs").iterdir()) == []


@pytest.mark.asyncio
async def test_a_stop_signals_then_kills(top: Path) -> None:
    """A stopped allocation gets its kill signal; what ignores it is killed."""
    stubborn = toy("trap '' INT TERM; echo up; while :; do sleep 0.05; done", "stubborn")
    stubborn["KillTimeout"] = 200_000_000
    mild = toy("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", "mild")
    mild["KillSignal"] = "SIGTERM"
    async with node_with(top, job(stubborn, mild)) as node:
        node.hear(projection(5, 1))
        await level(lambda: node.output(name="stubborn") == node.output(name="mild") == "up\n")
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        assert node.task(name="stubborn").signal == signal.SIGKILL


@pytest.mark.asyncio
async def test_commands_run_beside_a_task_and_its_use_is_known(top: Path) -> None:
    """Exec gives a session with input, output and an exit code; stats give numbers."""
    async with a_driver(top) as driver:
        handle = await driver.start(run_of(top), launch(command="sleep 300"))
        session = await driver.exec_stream(handle, ("sh", "-c", "cat; exit 4"), tty=False)
        await session.write(b"word\n")
        await session.write(b"")
        assert await session.read() == (1, b"word\n")
        assert await session.read() == (1, b"")
        assert await session.wait() == 4
        await session.close()
        assert (await driver.stats(handle)).memory_bytes == 4096
        assert await driver.signal(handle, "SIGTERM")
        with pytest.raises(ValueError, match="SIGNONSENSE"):
            await driver.signal(handle, "SIGNONSENSE")
        assert (await driver.wait(handle)).signal == signal.SIGTERM


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [{"memory_bytes": 2**64}, {"cpu_ns": 10**400}, {"cpu_ns": -1}])
async def test_a_use_that_no_task_has_is_refused(
    top: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, int]
) -> None:
    """A driver that lies about the use of its task does not end the samples of all tasks."""
    import msgspec

    async def call(verb: str, **_: object) -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(said))

    async with a_driver(top) as driver:
        monkeypatch.setattr(driver._process, "call", call)
        with pytest.raises(StartRefused, match="cpu_ns and memory_bytes"):
            await driver.stats(PluginRun(run_of(top), "0" * 32))


@pytest.mark.asyncio
async def test_bad_options_are_refused_for_good(top: Path) -> None:
    """What the schema does not take is refused on the node, with the path of each fault."""
    async with a_driver(top) as driver:
        with pytest.raises(StartRefused) as err:
            await driver.start(run_of(top), launch(comand="x", note=[{"txt": "y"}], mode="slow"))
    assert not err.value.recoverable
    for text in (
        "did you mean command?",
        "note[0].txt",
        "must be one of fast, safe",
        "command: is required",
    ):
        assert text in str(err.value)


# ---- what dies (S90) ----


@pytest.mark.asyncio
async def test_a_task_outlives_kills_of_its_driver(top: Path, quick: None) -> None:
    """The driver is killed -9 again and again: the task runs on under its pid, and its end is found."""
    spec = job(toy("echo up; until test -e done; do sleep 0.05; done; exit 6"), RestartPolicy=ONCE)
    async with node_with(top, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running" and node.output() == "up\n")
        for _ in range(3):
            pid = driver_pid(top)
            os.kill(pid, signal.SIGKILL)
            await next_pid(top, pid)
            assert node.status() == "running"
        os.kill(await next_pid(top, 0), signal.SIGKILL)
        (node.home.places(alloc_id(1), "main").task / "done").touch()
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code == 6
        assert node.output() == "up\n"


@pytest.mark.asyncio
async def test_a_start_that_the_driver_did_not_survive_is_repeated_once(
    top: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """A driver that is killed between its start and its answer is asked again, and starts nothing twice."""
    monkeypatch.setenv("CARAVAN_DRIVER_HABIT", "slow_start")
    switch(top)
    spec = job(toy("echo up; sleep 0.1; exit 2"), RestartPolicy=ONCE)
    async with node_with(top, spec) as node:
        node.hear(projection(5, 1))
        await level(lambda: node.output() == "up\n")
        switch(top).unlink()
        os.kill(driver_pid(top), signal.SIGKILL)
        await node.until(lambda: node.status() == "failed")
        assert node.output() == "up\n"
        assert node.task().exit_code == 2


@pytest.mark.asyncio
async def test_an_agents_kills_leave_nothing_half_done(top: Path) -> None:
    """The agent is killed -9 at any point: each step of the allocation's tasks is done once, in order."""
    order = top / "alloc" / alloc_id(1) / "alloc" / "data" / "order"
    note = '"$NOMAD_ALLOC_DIR/data/order"'
    first = toy(f"echo +a >> {note}; sleep 0.3; echo -a >> {note}", "first")
    first["Lifecycle"] = {"Hook": "prestart"}
    main = toy(f"echo +b >> {note}; sleep 0.3; echo -b >> {note}")
    spec = job(first, main, kind="batch", RestartPolicy=ONCE)

    def lines() -> list[str]:
        return order.read_text().split() if order.exists() else []

    for kill in range(3):
        async with an_agent(top, spec, "--plugins") as agent:
            agent.hear(projection(5 + kill, 1))
            await level(lambda least=kill: len(lines()) > least)
            await agent.kill()
    async with node_with(top, spec) as node:
        node.hear(projection(50, 1))
        await node.until(lambda: node.status() == "complete")
    assert lines() == ["+a", "-a", "+b", "-b"]


@pytest.mark.asyncio
async def test_a_lost_driver_claims_nothing(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its driver an adopted task keeps its state; with it again, the end is found."""
    monkeypatch.setattr(plugin_driver, "RECOVER_WAIT_S", 0.1)
    monkeypatch.setattr(plugin_process, "RESTART_S", 0.05)
    monkeypatch.setattr(plugin_process, "RESTART_MAX_S", 0.1)
    spec = job(toy("echo up; until test -e done; do sleep 0.05; done; exit 6"), RestartPolicy=ONCE)
    async with an_agent(top, spec, "--plugins") as agent:
        agent.hear(projection(5, 1))
        await agent.until("running")
        await agent.kill()
    program = top.parent / "drivers" / "toy"
    program.chmod(0o755 | 0o022)
    (top.parent / "drivers").rename(top.parent / "away")
    made: list[PluginDriver] = []

    def more(home: DataDir) -> list[Any]:
        # It is named by what was there at the start of the agent; it may not be run, now.
        (top.parent / "away").rename(top.parent / "drivers")
        program.chmod(0o755)
        made.extend(plugin_drivers(str(top.parent / "drivers"), home, os.environ))
        assert made[0]._process.ready_now(WAIT_S)
        program.chmod(0o777)
        os.kill(driver_pid(top), signal.SIGKILL)
        return made

    node = Node(top, spec, more=more)
    node.turn()
    try:
        node.hear(projection(6, 1))
        await node.until(lambda: node.status() == "running")
        await level(lambda: "can be changed by other users" in made[0]._process.off)
        assert made[0].fingerprint() == {"driver.toy.off": made[0]._process.off}
        (node.home.places(alloc_id(1), "main").task / "done").touch()
        assert node.status() == "running"
        program.chmod(0o755)
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code == 6
    finally:
        await node.end_tasks()
        await node.close()
        made[0].close()


# ---- a driver that cannot be used ----


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        ("new_api", "it speaks api 7, this agent speaks 1"),
        ("bad_schema", "config_schema: oneOf: this keyword is not understood"),
    ],
)
async def test_a_driver_that_cannot_be_used_is_not_offered(
    top: Path, monkeypatch: pytest.MonkeyPatch, habit: str, reason: str
) -> None:
    """The node has the reason as an attribute in place of the driver."""
    monkeypatch.setenv("CARAVAN_DRIVER_HABIT", habit)
    monkeypatch.setattr(plugin_driver, "START_WAIT_S", 0.1)
    async with a_driver(top) as driver:
        await level(lambda: driver._process.off)
        assert await asyncio.to_thread(driver.fingerprint) == {"driver.toy.off": reason}
        with pytest.raises(StartRefused, match=r"driver toy: (it|config_schema)"):
            await driver.start(run_of(top), launch(command="true"))


@pytest.mark.asyncio
async def test_a_driver_is_offered_under_its_own_name_alone(top: Path) -> None:
    """Attributes of a driver begin with its name: it can claim neither another driver nor the node's own."""
    async with a_driver(top) as driver:
        found = await asyncio.to_thread(driver.fingerprint)
    assert found["driver.toy"] == "1"
    assert (found["driver.toy.version"], found["driver.toy.api"]) == ("1.2", "1")
    assert found["driver.toy.capabilities"] == "exec"
    assert found["driver.toy.docker"] == "1"
    assert all(name.split(".")[:2] == ["driver", "toy"] for name in found)


def test_only_trusted_programs_with_free_names_are_drivers(top: Path, tmp_path: Path) -> None:
    """A program that others can change, a link, a built-in name, and a name that is no name are skipped."""
    folder = offer(top)
    for name in ("docker", "Upper", "open"):
        offer(top, name)
    (folder / "open").chmod(0o777)
    (folder / "link").symlink_to(folder / "toy")
    home = DataDir(top, NODE)
    found = plugin_drivers(str(folder), home, {})
    assert [one.name for one in found] == ["toy"]
    for one in found:
        one.close()
    home.close()


# ---- a driver that lies (S91, A11) ----


@pytest.mark.asyncio
async def test_a_late_start_never_comes_alive(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is answered after its time is abandoned, and again when its answer comes."""
    monkeypatch.setenv("CARAVAN_DRIVER_HABIT", "slow_start")
    switch(top)
    async with a_driver(top) as driver:
        run = run_of(top)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await driver.start(run, launch(command="sleep 300"))
        (key,) = driver._claims.all()
        await driver.abandon(run)
        state = top / "drivers" / "toy" / "state" / key
        await level((state / "exit").exists)
        await level(lambda: not is_there(int((state / "pid").read_text())))
        assert driver._claims.all() == {}
        assert await driver.recover(run) == TaskMissing(started=False)
        with pytest.raises(StartRefused, match="the run was abandoned"):
            await driver.start(run, launch(command="sleep 300"))


@pytest.mark.asyncio
@pytest.mark.parametrize("habit", ["huge", "garbage"])
async def test_a_bad_driver_costs_its_own_tasks_alone(
    top: Path, monkeypatch: pytest.MonkeyPatch, quick: None, habit: str
) -> None:
    """A GiB in one line, or a handle that is too long: its task does not start; another driver's task runs on."""
    monkeypatch.setenv("CARAVAN_DRIVER_HABIT", habit)
    monkeypatch.setattr(plugin_process, "LINE_BYTES_MAX", 1 << 20)
    switch(top)
    spec = job(sh("echo fine; exec sleep 300", "fine"), toy("sleep 300"), RestartPolicy=ONCE)
    async with node_with(top, spec) as node:
        node.hear(projection(5, 1))
        await level(lambda: node.output(name="fine") == "fine\n")
        if habit == "huge":
            pid = driver_pid(top)
            await next_pid(top, pid)
            switch(top).unlink()
            await node.until(lambda: node.task().state == "running")
        else:
            await node.until(lambda: node.status() == "failed")
            assert "a handle has at most 16384 bytes" in node.task().events[-2].message


@pytest.mark.asyncio
async def test_a_driver_that_does_not_answer_is_ended_and_started_again(
    top: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """A driver that says nothing at the handshake is not waited for; the next one is taken."""
    monkeypatch.setenv("CARAVAN_DRIVER_HABIT", "silent")
    monkeypatch.setattr(plugin_process, "HANDSHAKE_S", 1.0)
    switch(top)
    async with a_driver(top) as driver:
        await level(lambda: driver._process.off == "it did not answer in time")
        first = driver_pid(top)
        switch(top).unlink()
        assert (await driver._process.ready()).api == 1
        assert not is_there(first)
        assert driver._process.off == ""


@pytest.mark.asyncio
async def test_an_end_that_is_none_is_asked_for_again(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit code that is no number ends nothing: the run is looked for again until the driver says how it ended."""
    monkeypatch.setenv("CARAVAN_DRIVER_HABIT", "bad_exit")
    monkeypatch.setattr(plugin_driver, "RETRY_S", 0.05)
    switch(top)
    async with a_driver(top) as driver:
        handle = await driver.start(run_of(top), launch(command="sleep 0.3; exit 5"))
        end = await driver.wait(handle)
    assert end == TaskExit(code=5)


@pytest.mark.asyncio
async def test_a_driver_that_is_connected_is_the_only_one(top: Path) -> None:
    """Once the driver is connected no other process can connect."""
    async with a_driver(top) as driver:
        await driver._process.ready()
        stranger = socket.socket(socket.AF_UNIX)
        with stranger, pytest.raises(ConnectionRefusedError):
            stranger.connect(str(top / "drivers" / "toy" / "socket"))


def test_a_stranger_is_closed_while_the_driver_is_awaited(top: Path) -> None:
    """A connection of another process of the same user gets nothing; the driver's own is taken after it."""
    folder = top / "drivers" / "toy"
    folder.mkdir(parents=True)
    home = DataDir(top, NODE)
    program = top.parent / "drivers" / "toy"
    text = program.read_text()
    # The driver comes late, so that the stranger is first.
    program.write_text(
        text.replace("with socket.socket(", "time.sleep(0.5)\n    with socket.socket(")
    )
    (driver,) = plugin_drivers(str(top.parent / "drivers"), home, {})
    until((folder / "socket").exists)
    with socket.socket(socket.AF_UNIX) as stranger:
        until(lambda: stranger.connect_ex(str(folder / "socket")) == 0)
        assert stranger.recv(1) == b""
    assert driver._process.ready_now(WAIT_S)
    driver.close()
    home.close()


@pytest.mark.asyncio
async def test_what_the_journal_does_not_name_is_ended(top: Path) -> None:
    """A run of an earlier life that no journal names is abandoned; the driver of that life is killed."""
    home = DataDir(top, NODE)
    (old,) = plugin_drivers(str(top.parent / "drivers"), home, {})
    handle = await old.start(run_of(top), launch(command="sleep 300"))
    assert isinstance(handle, PluginRun)
    before = driver_pid(top)
    home.close()
    # As after kill -9, with a driver that does not notice: its connection stays open.
    async with a_driver(top) as driver:
        await driver._process.ready()
        await level(lambda: driver._claims.all() == {})
        await level(lambda: not is_there(handle.pid))
        assert not is_there(before)
    old.close()
