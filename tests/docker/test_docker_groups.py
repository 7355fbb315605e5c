"""Containers in the network of their group: one namespace with other drivers, held by a container of ours."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from services.agent.drivers.docker.container_spec import HostCpu, pause_name
from services.agent.drivers.docker.driver import DockerDriver
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.executor.data_dir import DataDir
from services.agent.network.settings import BridgeSettings
from shared.core.state.ids import alloc_id
from tests.docker.engine import IMAGE, OwnEngine
from tests.integration.agent_node import Node, job, projection, sh
from tests.integration.bridge_node import PORTS, bridged, own_network, release_all, server, within
from tests.integration.test_group_networks import answered, places

pytestmark = [pytest.mark.full("needs an engine, root and network namespaces"), pytest.mark.asyncio]
PORT = 20_001


@pytest.fixture
def node_top(top: Path) -> Iterator[Path]:
    """A data directory on a node that has a network of its own."""
    with own_network(top):
        try:
            yield top
        finally:
            release_all(top)


def _docker(engine: OwnEngine) -> Any:
    def make(home: DataDir) -> list[Any]:
        return [
            DockerDriver(
                DockerSettings(host=engine.url),
                data_dir=home.top,
                node_id="n1",
                home_id=home.host_id,
                kernel_boot=home.kernel_boot,
                machine=HostCpu(core_mhz=2000, cores=2),
            )
        ]

    return make


@contextlib.asynccontextmanager
async def a_node(engine: OwnEngine, node_top: Path) -> AsyncIterator[Node]:
    """A node with docker whose group has a container and a plain process."""
    look = "cat /etc/hosts /etc/resolv.conf; hostname; env; exec sleep 300"
    config = {"image": IMAGE, "command": "sh", "args": ["-c", look]}
    box = {"Name": "box", "Driver": "docker", "Config": config}
    dns = {"Servers": ["192.0.2.53"]}
    spec = job(box, sh(server("hello"), "web"), **bridged(**PORTS, Hostname="web.one", DNS=dns))
    found = Node(node_top, spec, more=_docker(engine), bridge=BridgeSettings())
    found.turn()
    try:
        yield found
    finally:
        await found.end_tasks()
        await found.close()
        for driver in found.edge._drivers.values():
            driver.close()  # type: ignore[attr-defined]


async def test_a_container_shares_the_network_of_its_group(
    engine: OwnEngine, node_top: Path
) -> None:
    """The loopback, port, names and resolver are the group's; a dead holder restarts all tasks in a new namespace."""
    async with a_node(engine, node_top) as node:
        said = await _live(engine, node)
    lost = "network of the group is lost: the container that has its namespace ended"
    assert said == {"box": [lost], "web": [lost]}


async def _live(engine: OwnEngine, node: Node) -> dict[str, list[str]]:
    """Let the group live, lose its holder, and end; returns why each task was restarted."""
    top = node.home.top
    node.hear(projection(5, 1, ports={1: (PORT,)}))
    await node.until(lambda: node.status() == "running")
    await answered("hello", f"127.0.0.1:{PORT}")
    space = Path(f"/proc/{node.task(name='box').pid}/ns/net")
    await answered("hello", "127.0.0.1:80", *within(space))
    text = node.output(name="box")
    assert "web.one" in text and "192.0.2.53" in text and "NOMAD_PORT_http=80" in text
    holder = pause_name(alloc_id(1), node.home.host_id)
    before = {name: node.task(name=name).pid for name in ("box", "web")}
    engine.client.containers.get(holder).kill()
    await node.until(lambda: all(node.task(name=name).restarts == 1 for name in before))
    await node.until(
        lambda: all(node.task(name=name).pid not in {0, before[name]} for name in before)
    )
    said = {
        name: [one.message for one in node.task(name=name).events if one.kind == "Restart Signaled"]
        for name in before
    }
    await answered("hello", f"127.0.0.1:{PORT}")
    node.hear(projection(6))
    await node.until(lambda: node.status() == "complete")
    await node.edge.settle()
    assert not places(top).directory.exists()
    with pytest.raises(docker.errors.NotFound):
        engine.client.containers.get(holder)
    return said
