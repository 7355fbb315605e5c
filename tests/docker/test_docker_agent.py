"""A whole agent with driver docker: a job's allocation is a container, through restarts of the agent, to its end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.agent.drivers.docker.container_spec import HostCpu
from services.agent.drivers.docker.driver import DockerDriver
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.executor.data_dir import DataDir
from shared.core.state.ids import alloc_id
from tests.bounds import level
from tests.docker.engine import IMAGE, OwnEngine
from tests.integration.agent_node import Node, job, projection

pytestmark = pytest.mark.asyncio


def box_task(script: str, name: str = "main", **config: Any) -> dict[str, Any]:
    """A docker task that runs a shell script."""
    options = {"image": IMAGE, "command": "sh", "args": ["-c", script], **config}
    return {"Name": name, "Driver": "docker", "Config": options, "Resources": {"MemoryMB": 64}}


@contextlib.asynccontextmanager
async def a_node(engine: OwnEngine, top: Path, spec: dict[str, Any]) -> AsyncIterator[Node]:
    """An agent on the engine of the tests."""
    made: list[DockerDriver] = []

    def docker(home: DataDir) -> Iterator[DockerDriver]:
        driver = DockerDriver(
            DockerSettings(host=engine.url),
            data_dir=home.top,
            node_id="n1",
            home_id=home.host_id,
            kernel_boot=home.kernel_boot,
            machine=HostCpu(core_mhz=1000, cores=2),
        )
        made.append(driver)
        yield driver

    node = Node(top, spec, more=docker)
    node.turn()
    try:
        yield node
    finally:
        await node.close()
        for driver in made:
            driver.close()
        # A connection is closed one turn of the loop after the request to close it.
        await asyncio.sleep(0.01)


def of_home(engine: OwnEngine, node: Node) -> list[Any]:
    """Containers of one agent."""
    label = f"com.caravan.home={node.home.host_id}"
    return engine.client.containers.list(all=True, filters={"label": label})


async def test_a_container_outlives_its_agent_and_ends_in_order(
    engine: OwnEngine, top: Path
) -> None:
    """A service in a container is adopted by the next agent under the same pid, and stops by SIGTERM."""
    script = (
        'trap "echo bye; exit 0" TERM; echo hello $NOMAD_ALLOC_INDEX; while :; do sleep 0.1; done'
    )
    spec = job(box_task(script))
    async with a_node(engine, top, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        pid = node.task().pid
        labels = of_home(engine, node)[0].labels
        assert (labels["com.caravan.job"], labels["com.caravan.task"]) == ("j", "main")
    async with a_node(engine, top, spec) as node:
        await node.until(lambda: node.status() == "running" and node.task().pid == pid)
        node.hear(projection(6, 1))
        await level(lambda: "hello 1" in node.output())
        node.hear(projection(7))
        await node.until(lambda: node.status() == "complete")
        assert node.output() == "hello 1\nbye\n"
        assert of_home(engine, node) == []


async def test_a_job_that_asks_for_the_node_fails_for_good(engine: OwnEngine, top: Path) -> None:
    """What was not refused where it was submitted is refused by the node, with its reason in the task's events."""
    spec = job(box_task("true", privileged=True), RestartPolicy={"Attempts": 9, "Delay": 10**12})
    async with a_node(engine, top, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert "privileged is not allowed on this node (CARAVAN_DOCKER_ALLOW_PRIVILEGED)" in str(
            node.task().events
        )
        assert node.task().restarts == 0
        assert of_home(engine, node) == []


async def test_exit_code_and_reason_reach_the_report(engine: OwnEngine, top: Path) -> None:
    """A batch task that runs out of memory fails with the code and the reason."""
    spec = job(box_task("x=$(yes | head -c 300000000); echo $x"), kind="batch")
    async with a_node(engine, top, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert (node.task().exit_code, node.task().signal) == (137, 9)
        assert "OOM Killed" in str(node.task().events)


async def test_containers_end_with_their_agent_as_their_job_says(
    engine: OwnEngine, top: Path
) -> None:
    """The leader has its own signal and time, then the sidecar, then poststop runs; the next life runs them again."""
    say = "say() { echo $* >> /alloc/data/said; }; "
    loop = "while :; do sleep 0.1; done"
    web = box_task(
        say + f'trap "say web USR1; sleep 1; say web done; exit 0" USR1; say web up; {loop}', "web"
    )
    web |= {"Leader": True, "KillSignal": "SIGUSR1", "KillTimeout": 60 * 10**9}
    proxy = box_task(
        say + f'trap "say proxy QUIT; exit 0" QUIT; say proxy up; {loop}',
        "proxy",
        stop_signal="SIGQUIT",
    )
    proxy |= {
        "Lifecycle": {"Hook": "prestart", "Sidecar": True},
        "KillTimeout": 60 * 10**9,
        "KillSignal": "SIGQUIT",
    }
    bye = {**box_task(say + "say bye", "bye"), "Lifecycle": {"Hook": "poststop"}}
    spec = job(proxy, web, bye)

    async with a_node(engine, top, spec) as node:
        said = node.home.places(alloc_id(1), "web").shared / "data" / "said"
        node.hear(projection(5, 1))
        await level(lambda: said.exists() and said.read_text() == "proxy up\nweb up\n")
        await node.end_tasks(at_once=False)
        told = ["proxy up", "web up", "web USR1", "web done", "proxy QUIT", "bye"]
        assert said.read_text().splitlines() == told
        assert of_home(engine, node) == []
    async with a_node(engine, top, spec) as node:
        node.hear(projection(6, 1))
        await level(lambda: said.read_text().count("web up") == 2)
        await node.until(lambda: node.status() == "running")
        await node.end_tasks()
        assert of_home(engine, node) == []
