"""A node's directory of services on a real bus: with a real view and agent, and over a restart of the server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.envelope import ENCODER
from schemas.projections import ServiceInstance, ServiceProjection
from services.agent.inputs.templates.service_directory import ALL, ServiceDirectory
from shared.bus.connection.nats_client import BusClient, Login, connect
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.protocol import subjects
from tests.bounds import LONG_S, WAIT_S
from tests.bus.toys import Bus, run, until
from tests.bus.up import Up

pytestmark = pytest.mark.bus


@contextlib.asynccontextmanager
async def directory_of(login: Login) -> AsyncIterator[tuple[ServiceDirectory, BusClient]]:
    """A directory that reads with this login; a failure of it is the test's."""
    client = await connect(login)
    one = ServiceDirectory()
    reading = asyncio.create_task(one.run(lambda: client))
    try:
        yield one, client
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        await client.end()


def value(port: int, seq: int) -> bytes:
    instance = ServiceInstance(service="web", address="10.0.0.1", port=port, alloc=f"a{port}")
    return ENCODER.encode(
        ServiceProjection(cluster_id="c1", seq=seq, service="web", instances=(instance,), total=1)
    )


async def ports(one: ServiceDirectory, name: str = "web") -> list[int]:
    return [each.port for each in (await one.service(name)).instances]


def test_a_restart_of_the_bus_takes_nothing_away(bus: Bus) -> None:
    """VIEW is empty after it: what was known stays, and the first value that is published then is read."""

    async def story() -> None:
        await bus.bootstrap()
        async with directory_of(bus.node_login("n1")) as (one, client):
            asked = asyncio.ensure_future(one.service("web"))
            async with bus.client("view") as view:
                await view.request_raw(subjects.view_service("web"), value(1, 5))
            known = await asyncio.wait_for(asked, WAIT_S)
            assert [each.port for each in known.instances] == [1]
            await asyncio.to_thread(bus.server.kill)
            await asyncio.to_thread(bus.server.start)
            async with bus.client() as admin:
                await streams.ensure(admin, 1)
            await until(lambda: client.stats["reconnects"] and client.is_connected)
            assert (await one.service("web")).version == known.version
            waits = asyncio.ensure_future(one.changed({"web": known.version}))
            async with bus.client("view") as view:
                await view.request_raw(subjects.view_service("web"), value(2, 6))
            await asyncio.wait_for(waits, WAIT_S)
            assert await ports(one) == [2]

    run(story())


def job(folder: Path, port: int, tag: str, check: str = "true") -> str:
    """The file of a job with one instance of the service `shop`."""
    service: dict[str, Any] = {"Name": "shop", "PortLabel": str(port), "Tags": [tag]}
    service["Provider"] = "nomad"
    second = 1_000_000_000
    service["Checks"] = [
        {
            "Name": "up",
            "Type": "script",
            "TaskName": "t",
            "Command": "/bin/sh",
            "Args": ["-c", check],
            "Interval": second,
            "Timeout": 10 * second,
        }
    ]
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["10000"]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
    }
    group = {"Name": "g", "Count": 1, "Tasks": [task], "Services": [service]}
    path = folder / "shop.json"
    path.write_text(
        json.dumps({"Job": {"ID": "shop", "Datacenters": ["*"], "TaskGroups": [group]}})
    )
    return str(path)


async def followed(one: ServiceDirectory, name: str, holds: Any) -> Any:
    """What is known of a service, or of the names, once it holds; each look waits for a change."""
    async with asyncio.timeout(LONG_S):
        while True:
            found = await (one.service(name) if name else one.services())
            if holds(found):
                return found
            await one.changed({name: found.version})


def test_a_directory_follows_a_real_cluster(tmp_path: Path) -> None:
    """A service appears, moves to another port, fails its check, and vanishes; its name and tags with it."""
    up = Up(tmp_path, one_process=True)
    try:
        credentials = accounts.read_credentials(up.data_dir / "credentials.json")
        node = min(credentials.nodes)
        user, password = credentials.node_login(node)
        login = Login(url=up.said["url"], user=user, password=password)

        async def story() -> None:
            async with directory_of(login) as (one, _):
                assert await followed(one, "shop", lambda _: True) is not None
                assert await ports(one, "shop") == []
                assert (await one.services()).names == ()
                await asyncio.to_thread(up.documented, "job", "run", job(tmp_path, 8101, "v1"))
                found = await followed(one, "shop", lambda now: now.instances)
                (first,) = found.instances
                assert (first.port, first.tags, first.job_id) == (8101, ("v1",), "shop")
                (there,) = await asyncio.to_thread(up.allocs, "shop", "running")
                assert (first.alloc_id, first.node) == (there["id"], node)
                named = await followed(one, ALL, lambda now: now.names)
                assert [(each.name, each.tags) for each in named.names] == [("shop", ("v1",))]
                file = job(tmp_path, 8102, "v2", "exit 2")
                await asyncio.to_thread(up.documented, "job", "run", "--detach", file)
                moved = await followed(
                    one,
                    "shop",
                    lambda now: [each.port for each in now.instances] == [8102],
                )
                await asyncio.to_thread(until_critical, up)
                assert (await one.service("shop")).version == moved.version
                await followed(one, ALL, lambda now: now.names[0].tags == ("v2",))
                await asyncio.to_thread(up.documented, "job", "stop", "--purge", "shop")
                await followed(one, "shop", lambda now: not now.instances)
                await followed(one, ALL, lambda now: not now.names)

        asyncio.run(story())
    finally:
        up.end()


def until_critical(up: Up) -> None:
    """Wait until the view lists the instance as critical."""
    up.until(
        lambda: (
            [one["status"] for one in up.ask("service", id="shop").get("instances", [])]
            == ["critical"]
        ),
        "the check fails",
    )
