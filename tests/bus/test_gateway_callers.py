"""The gateway's pool of callers on a real server: a login that is taken away is dropped, others stay."""

import asyncio
import contextlib

import msgspec
import pytest

from services.gateway.edge import callers
from services.gateway.edge.callers import Caller, Callers
from services.gateway.edge.faults import HttpFault
from shared.bus.connection.nats_client import Login
from shared.bus.server.accounts import Credentials
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bounds import WAIT_S, level
from tests.bus.toys import Bus, run

pytestmark = pytest.mark.bus


async def taken_over(bus: Bus, user: str, password: str) -> None:
    """Wait until the server knows a user."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(BusUnavailable):
                async with bus.client(Login(url=bus.server.url, user=user, password=password)):
                    return
            await asyncio.sleep(0.02)


async def revoked(bus: Bus) -> tuple[Callers, Caller, Caller, Credentials]:
    """A pool with two callers, of whom `ci` has just lost its login; and the credentials from before."""
    await bus.bootstrap()
    known = bus.credentials.with_client("ci").with_client("other")
    await asyncio.to_thread(bus.server.reload, known)
    pool, found = Callers(bus.server.url), []
    for name, password in known.clients.items():
        await taken_over(bus, name, password)
        found.append(await pool.of_token(f"{name}:{password}"))
    clients = {name: one for name, one in known.clients.items() if name != "ci"}
    await asyncio.to_thread(bus.server.reload, msgspec.structs.replace(known, clients=clients))
    return pool, found[0], found[1], known


def test_a_revoked_login_is_refused_by_its_next_request(bus: Bus) -> None:
    """Its pooled connection does not outlive it: 403, nothing is sent with it; another login is served as before."""

    async def story() -> None:
        pool, gone, other, known = await revoked(bus)
        await level(lambda: gone.client.was_refused, "the server tells the connection")
        with pytest.raises(HttpFault) as err:
            await pool.of_token(f"ci:{known.clients['ci']}")
        assert err.value.status == 403
        assert len(pool) == 1
        with pytest.raises(BusUnavailable):
            await gone.client.request_bytes(subjects.query("cluster"), b"{}", timeout_s=1)
        assert await pool.of_token(f"other:{known.clients['other']}") is other
        assert other.client.bus.is_connected
        await pool.end()

    run(story())


def test_a_revoked_login_leaves_the_pool_without_a_request(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep closes its connection, so that it neither reconnects for hours nor takes a place; used or not."""
    monkeypatch.setattr(callers, "_SWEEP_S", 0.05)

    async def story() -> None:
        pool, gone, other, _ = await revoked(bus)
        gone.users = 1
        await level(lambda: len(pool) == 1, "the login is dropped")
        assert gone.client.bus.is_closed
        assert not other.client.bus.is_closed
        await pool.end()

    run(story())
