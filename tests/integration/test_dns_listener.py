"""DNS over real sockets: UDP and TCP at one address, and askers that misbehave."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import dnslib  # type: ignore[import-untyped]
import pytest

from services.agent.dns import listener
from services.agent.dns.listener import CONNECTIONS_MAX, DnsListener
from services.agent.dns.responder import Responder
from services.agent.dns.settings import open_sockets
from shared.errors import ConfigInvalid
from tests.bounds import WAIT_S, level
from tests.unit.agent.test_dns import Services, instance, known, question

pytestmark = pytest.mark.asyncio

MANY = known(*map(instance, range(1, 101)))


@contextlib.asynccontextmanager
async def listening(**services: Any) -> AsyncIterator[tuple[DnsListener, int]]:
    """A listener on this machine, and its port."""
    sockets = open_sockets("127.0.0.1", 0)
    one = DnsListener(Responder(Services(**services), zone="caravan", ttl_s=0), sockets)
    running = asyncio.create_task(one.run())
    try:
        yield one, sockets.tcp.getsockname()[1]
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def by_udp(port: int, *data: bytes) -> Any:
    """Send all of these, and return the first answer."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        one.connect(("127.0.0.1", port))
        for each in data:
            one.send(each)
        return dnslib.DNSRecord.parse(await asyncio.wait_for(loop.sock_recv(one, 65_535), WAIT_S))


async def sent(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(2, "big") + data)
    await writer.drain()


async def read(reader: asyncio.StreamReader) -> Any:
    async with asyncio.timeout(WAIT_S):
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        return dnslib.DNSRecord.parse(await reader.readexactly(length))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection on which nothing was answered."""
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S) == b""
    except ConnectionError:
        return True


async def test_what_is_truncated_by_udp_comes_whole_by_tcp() -> None:
    """Several questions of one connection are answered in their order, also when its other end is closed early."""
    async with listening(web=MANY) as (_, port):
        short = await by_udp(port, question("web.service.caravan"))
        assert (short.header.tc, 0 < len(short.rr) < 50) == (1, True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await sent(writer, question("web.service.caravan"))
        await sent(writer, question("nope.service.caravan"))
        writer.write_eof()
        whole = await read(reader)
        assert (len(whole.rr), whole.header.tc) == (100, 0)
        assert (await read(reader)).header.rcode == dnslib.RCODE.NXDOMAIN
        assert await is_closed(reader)
        writer.close()


async def test_bytes_that_are_no_question_end_nothing() -> None:
    """By UDP they are dropped or answered with an error, by TCP the connection is closed; the next asker is served."""
    async with listening(web=known(instance(1))) as (one, port):
        good = question("web.service.caravan")
        found = await by_udp(port, b"", b"\xff", b"x" * 2_000, b"\x80" * 12, good)
        assert found.header.rcode in {
            dnslib.RCODE.FORMERR,
            dnslib.RCODE.NOTIMP,
            dnslib.RCODE.NOERROR,
        }
        for data in (b"\xff\xff" + b"x" * 100, b"\0\2x", b"\0\0", b"\0\x0c" + b"\x80" * 12):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.write_eof()
            assert await is_closed(reader)
            writer.close()
        assert [str(each.rdata) for each in (await by_udp(port, good)).rr] == ["10.0.0.1"]
        assert not one._waiting


async def test_connections_are_bounded_and_end_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """One address gets some of all; what is beyond is closed at once, and an idle one makes room."""
    async with listening(web=known(instance(1))) as (one, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        await level(lambda: len(one._connections) == listener.SOURCE_CONNECTIONS_MAX)
        assert await is_closed(opened[-1][0])
        first_reader, first = opened[0]
        await sent(first, question("web.service.caravan"))
        assert len((await read(first_reader)).rr) == 1
        for _, writer in opened:
            writer.close()
        await level(lambda: not one._connections)
        monkeypatch.setattr(listener, "IDLE_S", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await is_closed(reader)
        writer.close()


async def test_a_question_that_waits_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the node does not know yet is waited for by few; what it knows is answered meanwhile."""
    monkeypatch.setattr(listener, "WAITING_MAX", 2)
    async with listening(web=known(instance(1)), late=None) as (one, port):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.connect(("127.0.0.1", port))
            asker.send(question("late.service.caravan"))
            await level(lambda: len(one._waiting) == 1)
            assert len((await by_udp(port, question("web.service.caravan"))).rr) == 1
            for _ in range(10):
                asker.send(question("late.service.caravan"))
            await level(lambda: len(one._waiting) == 2)


async def test_an_address_that_is_in_use_is_refused() -> None:
    """The agent does not start without the names that its operator wants, and the next one can bind again."""
    sockets = open_sockets("127.0.0.1", 0)
    port = sockets.tcp.getsockname()[1]
    with pytest.raises(
        ConfigInvalid, match=f"CARAVAN_AGENT_DNS=127.0.0.1:{port}: Address already in use"
    ):
        open_sockets("127.0.0.1", port)
    sockets.close()
    open_sockets("127.0.0.1", port).close()
