"""A connection to a bus of several servers, of which some stand still: they accept connections, and do nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from shared.bus.connection import nats_client, server_probe
from shared.bus.connection.nats_client import ConnectionCallbacks, Login, connect
from tests.bounds import WAIT_S

#: More than the kernel takes for a reader that stands still.
_MESSAGES, _BYTES = 30, 1 << 20
_INFO = b'INFO {"server_id":"x","server_name":"%s","version":"2.15.1","proto":1,"headers":true,"max_payload":%d}\r\n'


#: A server that takes a client, and reads nothing behind its handshake.
STUCK = "stuck"


@asynccontextmanager
async def _server(name: str) -> AsyncIterator[str]:
    """The address of a server; without a name it accepts connections alone."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if name:
            writer.write(_INFO % (name.encode(), _BYTES))
        while line := await reader.readline():
            if name and line == b"PING\r\n":
                writer.write(b"PONG\r\n")
                if name == STUCK:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                    return
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        yield f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for one in writers:
            one.transport.abort()  # type: ignore[attr-defined]


async def _leaves_stuck(*, ends: bool) -> str:
    """Send more than a server takes that reads no more; returns where the client is then, empty: it has ended."""
    back = asyncio.Event()
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(_server(name)) for name in (STUCK, "other")]
        callbacks = ConnectionCallbacks(back=back.set)
        client = await connect(Login(url=",".join(urls)), callbacks)
        assert nats_client.server_name(client) == STUCK
        for _ in range(_MESSAGES):
            assert client.send("x", b"y" * _BYTES)
        await asyncio.sleep(0)
        assert client._unsent()
        async with asyncio.timeout(WAIT_S):
            if not ends:
                await back.wait()
            used = "" if ends else nats_client.server_name(client)
            await client.end()
        assert client.is_closed
        return used


async def _connected_to(*names: str) -> str:
    """Connect to servers in this order; returns the name of the one that is used."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(_server(name)) for name in names]
        client = await connect(Login(url=",".join(urls)))
        used = nats_client.server_name(client)
        await client.end()
        return used


@pytest.fixture(autouse=True)
def _in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the addresses is kept, and an answer may take its time on a busy machine."""
    monkeypatch.setattr(nats_client, "shuffle", lambda _: None)
    monkeypatch.setattr(server_probe, "_ANSWER_S", WAIT_S)


@pytest.mark.parametrize("names", [("", "", "third"), ("", "second", ""), ("first", "", "")])
def test_a_server_that_stands_still_is_passed_over(names: tuple[str, ...]) -> None:
    """However many addresses before it are silent, the one that answers is used, within the time for one attempt."""
    assert asyncio.run(_connected_to(*names)) == "".join(names)


def test_a_server_that_reads_no_more_is_left() -> None:
    """What it has not taken keeps the client neither from another server nor from its end."""
    assert asyncio.run(_leaves_stuck(ends=False)) == "other"
    assert asyncio.run(_leaves_stuck(ends=True)) == ""
