"""Networks of groups on this very kernel: what tasks of a group share, what outlives the agent, what is kept apart."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.agent.drivers.exec.isolated_drivers import isolated_drivers
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.network import namespaces
from services.agent.network.group_networks import GroupNetworks
from services.agent.network.node_bridge import disconnect
from services.agent.network.places import NetworkPlaces, link_name
from services.agent.network.settings import BridgeSettings
from shared.core.runtime.agent_messages import AllocKept
from shared.core.runtime.network_messages import PrepareNetwork
from shared.core.state.ids import alloc_id
from shared.errors import CaravanError
from tests.bounds import level
from tests.integration.agent_node import Node, job, projection, sh
from tests.integration.bridge_node import (
    PORTS,
    ask,
    bridged,
    own_network,
    release_all,
    server,
    within,
)
from tests.integration.exec_node import NEEDED, need
from tests.integration.test_agent_adoption import an_agent

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.full("needs root, network namespaces, bridges and nft of the machine's kernel"),
]
PORT = 20_001


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """A data directory on a node that has a network of its own."""
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    data = tmp_path / "data"
    data.mkdir()
    with own_network(data):
        try:
            yield data
        finally:
            release_all(data)


@contextlib.asynccontextmanager
async def a_node(top: Path, spec: dict[str, Any], **bridge: Any) -> AsyncIterator[Node]:
    """A node that makes networks, with its tasks ended at last."""

    def isolated(home: Any) -> Any:
        return isolated_drivers(home.top, home.kernel_boot, ExecSettings())

    node = Node(top, spec, more=isolated, bridge=BridgeSettings(**bridge))
    node.turn()
    try:
        yield node
    finally:
        await node.end_tasks()
        await node.close()
        for driver in node.edge._drivers.values():
            driver.close()  # type: ignore[attr-defined]


def isolated(script: str, name: str, **more: Any) -> dict[str, Any]:
    """A task of driver exec that runs a shell script."""
    return {**sh(script, name, **more), "Driver": "exec"}


def places(top: Path, key: int = 1) -> NetworkPlaces:
    """Where the network of an allocation is."""
    return NetworkPlaces(top, alloc_id(key))


def kept_address(node: Node) -> str:
    """Address in the journal."""
    kept = [one for one in node.home.journal.current() if isinstance(one, AllocKept)]
    return kept[-1].address


def filter_on_bridges(value: str) -> None:
    """Say whether rules see what passes a bridge, where the kernel can."""
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if switch.exists():
        switch.write_text(value)


async def answered(expected: str, address: str, *inside: str) -> None:
    """Wait for an answer."""
    for _ in range(200):
        if await asyncio.to_thread(ask, address, *inside) == expected:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{address} does not answer {expected!r}")


async def test_tasks_of_a_group_share_loopback_ports_and_names(top: Path) -> None:
    """Two drivers, one network: the loopback between tasks, the port of the node, hosts, variables; nothing after."""
    need(*NEEDED)
    look = "cat /etc/hosts; env | grep ALLOC_ADDR; ip -o addr show; exec sleep 300"
    tasks = isolated(server("hello"), "web"), isolated(look, "look"), sh("exec sleep 300", "plain")
    async with a_node(top, job(*tasks, **bridged(**PORTS, Hostname="web.one"))) as node:
        node.hear(projection(5, 1, ports={1: (PORT,)}))
        await node.until(lambda: node.status() == "running")
        await answered("hello", f"127.0.0.1:{PORT}")
        await answered("hello", f"172.27.64.1:{PORT}")
        for task in ("look", "plain"):
            space = Path(f"/proc/{node.task(name=task).pid}/ns/net")
            assert namespaces.identity(space) == namespaces.identity(places(top).namespace)
            await answered("hello", "127.0.0.1:80", *within(space))
        own = kept_address(node).partition("/")[0]
        await level(lambda: f"inet {own}/20" in node.output(name="look"))
        text = node.output(name="look")
        assert f"{own} web.one" in text and f"NOMAD_ALLOC_ADDR_http={own}:80" in text
        # By the node's port, from inside: also where it leads back.
        await answered("hello", f"172.27.64.1:{PORT}", *within(places(top).namespace))
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        await level(lambda: not places(top).directory.exists())
        assert "20001" not in await asyncio.to_thread(namespaces.run, "nft", "list", "ruleset")


async def test_a_killed_agents_network_is_taken_over(top: Path) -> None:
    """After kill -9 the next agent finds the namespace, address, port and task that there were, and makes none anew."""
    spec = job(sh(server("hello"), "main"), **bridged(**PORTS))
    async with an_agent(top, spec, "--bridge") as agent:
        agent.hear(projection(5, 1, ports={1: (PORT,)}))
        pid = (await agent.until("running")).pid
        await answered("hello", f"127.0.0.1:{PORT}")
        before = namespaces.identity(places(top).namespace)
        await agent.kill()
    await answered("hello", f"127.0.0.1:{PORT}")
    async with a_node(top, spec) as node:
        await node.until(lambda: node.status() == "running" and node.task().pid)
        await node.until(lambda: "Recovered" in [one.kind for one in node.task().events])
        assert (node.task().pid, node.task().restarts) == (pid, 0)
        assert namespaces.identity(places(top).namespace) == before
        await answered("hello", f"127.0.0.1:{PORT}")
        inside = await asyncio.to_thread(
            namespaces.inside,
            places(top).namespace,
            lambda: namespaces.run("ip", "-o", "addr", "show", "dev", "eth0"),
        )
        assert kept_address(node) in inside


async def test_what_is_broken_is_made_again(top: Path) -> None:
    """A lost link and lost rules are put back under the task; a lost namespace restarts it, in a new one, once."""
    spec = job(sh(server("hello"), "main"), **bridged(**PORTS))
    async with a_node(top, spec) as node:
        node.hear(projection(5, 1, ports={1: (PORT,)}))
        await node.until(lambda: node.status() == "running")
        await answered("hello", f"127.0.0.1:{PORT}")
        pid, address = node.task().pid, kept_address(node)
        await asyncio.to_thread(disconnect, link_name(node.home.host_id, alloc_id(1)))
        await asyncio.to_thread(namespaces.run, "nft", "flush", "ruleset")
        await node.networks.look()
        await answered("hello", f"127.0.0.1:{PORT}")
        assert (node.task().pid, node.task().restarts) == (pid, 0)
        await asyncio.to_thread(namespaces.release, places(top).namespace)
        await node.networks.look()
        await node.until(lambda: node.task().restarts == 1 and node.task().pid not in {0, pid})
        said = [one.message for one in node.task().events if one.kind == "Restart Signaled"]
        assert said == ["network of the group is lost: its namespace is gone"]
        await answered("hello", f"127.0.0.1:{PORT}")
        assert kept_address(node) == address


async def test_a_network_that_cannot_be_made_fails_the_allocation(top: Path) -> None:
    """No task starts; the allocation is failed, and its tasks say why."""
    (top / "netns").mkdir(exist_ok=True)
    (top / "netns" / alloc_id(1)).touch()
    async with a_node(top, job(sh("exec sleep 300"), **bridged(**PORTS))) as node:
        node.hear(projection(5, 1, ports={1: (PORT,)}))
        await node.until(lambda: node.status() == "failed")
        kinds = [(one.kind, one.message.partition(":")[0]) for one in node.task().events]
        assert ("Setup Failure", "network") in kinds
        assert "Started" not in dict(kinds)


async def test_a_port_that_a_process_of_the_node_has_is_not_led_away(top: Path) -> None:
    """The allocation fails with that reason, and no rule ever takes the port from who listens there."""
    listener = await asyncio.start_server(lambda _r, w: w.close(), "0.0.0.0", PORT)
    async with listener, a_node(top, job(sh("exec sleep 300"), **bridged(**PORTS))) as node:
        node.hear(projection(5, 1, ports={1: (PORT,)}))
        await node.until(lambda: node.status() == "failed")
        said = [one.message for one in node.task().events if one.kind == "Setup Failure"]
        assert said == [f"network: port {PORT} (http) is in use by another process of this node"]
        assert not places(top).directory.exists()


class _NoEngine:
    """An engine that is not reachable."""

    async def hold(self, alloc_id: str, hostname: str) -> int:
        raise CaravanError("not reachable")

    async def holder(self, alloc_id: str) -> int:
        return -1

    async def let_go(self, alloc_id: str) -> None:
        raise CaravanError("not reachable")


async def test_a_network_without_containers_ends_without_an_engine(top: Path) -> None:
    """Where no container engine answers, the network of plain processes is gone at once, with its ports."""
    async with a_node(top, job(sh("exec sleep 300"), **bridged(**PORTS))) as node:
        node.networks._pause = _NoEngine()
        node.hear(projection(5, 1, ports={1: (PORT,)}))
        await node.until(lambda: node.status() == "running")
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        await node.edge.settle()
        assert not places(top).directory.exists()
        assert str(PORT) not in await asyncio.to_thread(namespaces.run, "nft", "list", "ruleset")


async def test_one_group_that_cannot_be_repaired_keeps_no_other_from_it(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links of other groups and the rules of all are put back all the same."""
    spec = job(sh(server("hello"), "main"), **bridged(**PORTS))
    async with a_node(top, spec) as node:
        node.hear(projection(5, 1, 2, ports={1: (PORT,), 2: (PORT + 1,)}))
        await node.until(lambda: (node.status(1), node.status(2)) == ("running", "running"))
        first = next(iter(node.networks._groups))
        build = node.networks._build

        def broken(order: PrepareNetwork, pid: int) -> None:
            if order.alloc_id == first:
                raise OSError(28, "no space left")
            build(order, pid)

        for key in (1, 2):
            await asyncio.to_thread(disconnect, link_name(node.home.host_id, alloc_id(key)))
        await asyncio.to_thread(namespaces.run, "nft", "flush", "ruleset")
        with monkeypatch.context() as patched:
            patched.setattr(node.networks, "_build", broken)
            await node.networks.look()
        await answered("hello", f"127.0.0.1:{PORT + (first == alloc_id(1))}")


async def test_a_node_that_is_retired_leaves_the_bridge_to_another_agent(top: Path) -> None:
    """Two agents of one machine have one bridge after another: what the other's groups use stays."""
    spec = job(sh(server("hello"), "main"), **bridged(**PORTS))
    async with an_agent(top, spec, "--bridge") as agent:
        agent.hear(projection(5, 1, ports={1: (PORT,)}))
        await agent.until("running")
        await agent.kill()
    other = GroupNetworks(top=top / "other", host_id="other", settings=BridgeSettings())
    await asyncio.to_thread(namespaces.make, NetworkPlaces(top / "other", alloc_id(9)).namespace)
    assert other.remove_all() == 1
    await other.close()
    await answered("hello", f"127.0.0.1:{PORT}")
    async with a_node(top, spec) as node:
        await node.until(lambda: node.status() == "running" and node.task().pid)


async def test_a_teardown_that_fails_ends_the_allocation_all_the_same(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocation is over; what is left is removed by the next look."""
    async with a_node(top, job(sh("exec sleep 300"), **bridged(**PORTS))) as node:
        node.hear(projection(5, 1, ports={1: (PORT,)}))
        await node.until(lambda: node.status() == "running")

        def refuse(path: Path) -> None:
            raise OSError(16, f"{path} is busy")

        with monkeypatch.context() as broken:
            broken.setattr(namespaces, "release", refuse)
            node.hear(projection(6))
            await node.until(lambda: node.status() == "complete")
            await node.edge.settle()
            assert places(top).directory.exists()
        await node.networks.look()
        assert not places(top).directory.exists()


@pytest.mark.parametrize("filtered", ["0", "1"])
async def test_groups_reach_what_others_publish_and_no_more(top: Path, filtered: str) -> None:
    """Another group's port is reached by the node's port alone, whether the kernel filters on bridges or not."""
    filter_on_bridges(filtered)
    spec = job(sh(server("hello"), "main"), **bridged(**PORTS))
    async with a_node(top, spec) as node:
        node.hear(projection(5, 1, 2, ports={1: (PORT,), 2: (PORT + 1,)}))
        await node.until(lambda: (node.status(1), node.status(2)) == ("running", "running"))
        inside = within(places(top, 2).namespace)
        await answered("hello", f"172.27.64.1:{PORT}", *inside)
        kept = {
            one.alloc.key: one.address
            for one in node.home.journal.current()
            if isinstance(one, AllocKept)
        }
        other = kept[1].partition("/")[0]
        assert "no answer" in await asyncio.to_thread(ask, f"{other}:80", *inside)


async def test_a_node_can_close_its_own_ports_to_groups(top: Path) -> None:
    """With isolate = node a listener of the node is reached by others, not by a group; what groups publish is."""
    listener = await asyncio.start_server(lambda _r, w: w.close(), "0.0.0.0", 0)
    port = listener.sockets[0].getsockname()[1]
    spec = job(sh(server("hello"), "main"), **bridged(**PORTS))
    async with listener, a_node(top, spec, isolate="node", port_range=(20_000, 20_100)) as node:
        node.hear(projection(5, 1, ports={1: (PORT,)}))
        await node.until(lambda: node.status() == "running")
        inside = within(places(top).namespace)
        await answered("hello", f"172.27.64.1:{PORT}", *inside)
        assert "timed out" in await asyncio.to_thread(ask, f"172.27.64.1:{port}", *inside)
        assert "timed out" not in await asyncio.to_thread(ask, f"172.27.64.1:{port}")


async def test_what_an_earlier_agent_left_is_swept(top: Path) -> None:
    """A network of an allocation that no journal knows goes with the first step of the next agent."""
    assert os.geteuid() == 0
    stranger = NetworkPlaces(top, alloc_id(9))
    await asyncio.to_thread(namespaces.make, stranger.namespace)
    spec = job(sh("exec sleep 300"), **bridged(**PORTS))
    async with an_agent(top, spec, "--bridge") as agent:
        agent.hear(projection(5, 1, ports={1: (PORT,)}))
        await agent.until("running")
        await agent.kill()
    async with a_node(top, spec):
        await level(lambda: not stranger.directory.exists())
