"""Driver plugins in Go and Rust, written from docs/driver-plugins.md alone with their standard libraries."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from services.agent.drivers.driver import StartRefused, TaskMissing
from shared.core.state.ids import alloc_id
from tests.bounds import LONG_S, level
from tests.integration.agent_node import job, projection
from tests.integration.test_agent_adoption import an_agent
from tests.integration.test_plugin_driver import (
    ONCE,
    a_driver,
    driver_pid,
    is_there,
    launch,
    next_pid,
    node_with,
    run_of,
    toy,
)

HERE = Path(__file__).parent
BUILDS = {
    "go": ("go", "build", "-o"),
    "rust": ("rustc", "--edition", "2021", "-o"),
}
SOURCES = {"go": ".", "rust": "main.rs"}
pytestmark = [
    pytest.mark.full("toolchains of Go and Rust"),
    pytest.mark.asyncio,
    pytest.mark.timeout(2 * LONG_S),
]


@pytest.fixture(scope="session", params=sorted(BUILDS))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a driver; skips where its toolchain is missing."""
    command = BUILDS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    made = tmp_path_factory.mktemp("built") / "toy"
    where = HERE / request.param
    subprocess.run([*command, made, SOURCES[request.param]], cwd=where, check=True, timeout=LONG_S)
    return made


@pytest.fixture
def top(tmp_path: Path, program: Path) -> Path:
    """A data directory with the driver beside it."""
    folder = tmp_path / "drivers"
    folder.mkdir(mode=0o755)
    shutil.copy2(program, folder / "toy")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


async def test_a_run_has_output_and_an_exit_code(top: Path) -> None:
    """A task's output is its log, its exit code its end; nothing of the run is kept."""
    spec = job(toy('echo "$WORD é"; pwd; exit 3'), RestartPolicy=ONCE)
    spec["TaskGroups"][0]["Tasks"][0]["Env"] = {"WORD": 'said "\n'}
    async with node_with(top, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code == 3
        assert node.output() == f'said "\n é\n{node.home.places(alloc_id(1), "main").task}\n'
    assert not list((top / "drivers" / "toy" / "state").iterdir())


async def test_a_task_outlives_driver_and_agent(top: Path) -> None:
    """The agent is killed -9, and in its next life the driver: the task runs on, and its end is found."""
    spec = job(toy("echo up; until test -e done; do sleep 0.05; done; exit 6"), RestartPolicy=ONCE)
    async with an_agent(top, spec, "--plugins") as agent:
        agent.hear(projection(5, 1))
        first = (await agent.until("running")).pid
        await agent.kill()
    assert is_there(first)
    async with node_with(top, spec) as node:
        node.hear(projection(6, 1))
        await node.until(lambda: node.status() == "running")
        before = await next_pid(top, 0)
        os.kill(before, signal.SIGKILL)
        await next_pid(top, before)
        (node.home.places(alloc_id(1), "main").task / "done").touch()
        await node.until(lambda: node.status() == "failed")
        assert node.task().exit_code == 6
        assert node.output() == "up\n"


async def test_verbs_may_be_repeated(top: Path) -> None:
    """A second start is the first one; an abandoned run never comes alive; an unknown one never began."""
    async with a_driver(top) as driver:
        run = run_of(top)
        handle = await driver.start(run, launch(command="sleep 300"))
        assert (await driver.start(run, launch(command="sleep 300"))).pid == handle.pid
        assert await driver.signal(handle, "SIGTERM")
        assert (await driver.wait(handle)).signal == signal.SIGTERM
        late = run_of(top, 2)
        started = await driver.start(late, launch(command="sleep 300"))
        await driver.abandon(late)
        await level(lambda: not is_there(started.pid))
        with pytest.raises(StartRefused, match="abandoned"):
            await driver.start(late, launch(command="sleep 300"))
        assert await driver.recover(run_of(top, 3)) == TaskMissing(started=False)


async def test_a_killed_task_is_its_end(top: Path) -> None:
    """A stop kills the task, and what it started."""
    async with a_driver(top) as driver:
        handle = await driver.start(run_of(top), launch(command="sleep 300 & echo $!; wait"))
        log = run_of(top).places.stdout
        await level(lambda: log.exists() and log.read_text().endswith("\n"))
        await driver.stop(handle)
        assert (await driver.wait(handle)).signal == signal.SIGKILL
        await level(lambda: not is_there(int(log.read_text())))
        assert driver_pid(top) > 0
