"""A connection to a bus of several servers, of which some stand still: they accept connections, and say nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from shared.bus.connection import nats_client, server_probe
from shared.bus.connection.nats_client import Login, connect
from tests.bounds import WAIT_S

_INFO = b'INFO {"server_id":"x","server_name":"%s","version":"2.15.1","proto":1,"headers":true,"max_payload":1024}\r\n'


@asynccontextmanager
async def _server(name: str) -> AsyncIterator[str]:
    """The address of a server; without a name it accepts connections alone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if name:
            writer.write(_INFO % name.encode())
        while line := await reader.readline():
            if name and line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        yield f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


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
