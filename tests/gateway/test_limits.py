"""Connections of one gateway: requests that arrive too slowly, too many of them, and what is answered then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.gateway.edge.context import GatewaySettings, ServerContext
from services.gateway.edge.server import HttpServer
from services.gateway.role import Gateway
from shared.bus.shell.shell import Shell
from tests.bounds import WAIT_S, level

#: The only path that reads a body without a login.
LOGIN = b"PUT /v1/caravan/login HTTP/1.1\r\nHost: localhost\r\n"
SHORT_S = 0.2
Story = Callable[["Server"], Awaitable[None]]


class Server:
    """A gateway without a bus, and connections to it."""

    def __init__(self, url: str) -> None:
        self.port = int(url.rpartition(":")[2])

    @contextlib.asynccontextmanager
    async def link(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, *parts: bytes) -> bytes:
        """What is answered to these parts until the connection is closed."""
        async with self.link() as (reader, writer):
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await asyncio.wait_for(reader.read(), WAIT_S)


def served(story: Story, **settings: Any) -> None:
    """Run a story against a server."""

    async def run() -> None:
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        shell = cast("Shell", SimpleNamespace(bus=None, is_ready=False, metrics=dict))
        own = GatewaySettings(port=0, **settings)
        context = ServerContext(Gateway(instance="g"), shell, own, None)
        task = asyncio.create_task(HttpServer(context, listening.set_result).serve())
        try:
            await story(Server(await asyncio.wait_for(listening, WAIT_S)))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (LOGIN + b"Content-Length: 20\r\n\r\n{", b"HTTP/1.1 408 "),
        (LOGIN + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"HTTP/1.1 408 "),
        (b"GET /v1/jobs HTTP/1.1\r\nHost: loc", b"HTTP/1.1 408 "),
        (b"G", b"HTTP/1.1 408 "),
        # Nothing was asked, so nothing is answered.
        (b"", b""),
        (b"\r\n\r\n", b""),
    ],
)
def test_a_request_that_does_not_arrive_is_ended(sent: bytes, answer: bytes) -> None:
    """A body, headers or a first line that stay away: 408 where something was asked, and the connection is closed."""

    async def story(server: Server) -> None:
        found = await server.ask(sent)
        assert found.startswith(answer), found
        assert (b"did not arrive in time" in found) is bool(answer)

    served(story, request_s=SHORT_S)


def test_bytes_that_trickle_do_not_prolong_a_request() -> None:
    """The time is that of the whole request: a client that sends a byte now and then is ended as well."""

    async def story(server: Server) -> None:
        async with server.link() as (reader, writer):
            writer.write(LOGIN + b"Content-Length: 1000000\r\n\r\n")
            answer = asyncio.create_task(reader.readline())
            while not answer.done():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(SHORT_S / 100)
            assert answer.result().startswith(b"HTTP/1.1 408 ")

    served(story, request_s=SHORT_S)


def test_what_was_answered_early_is_not_answered_again() -> None:
    """A request without a login is 403 before its body; the rest that stays away only ends the connection."""

    async def story(server: Server) -> None:
        found = await server.ask(
            b"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{"
        )
        assert (found.startswith(b"HTTP/1.1 403 "), found.count(b"HTTP/1.1")) == (True, 1)

    served(story, request_s=SHORT_S)


def test_an_idle_connection_keeps_its_next_request() -> None:
    """Between two requests there is no deadline of this kind; the second one has its own."""

    async def story(server: Server) -> None:
        async with server.link() as (reader, writer):
            for _ in range(2):
                writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
                assert head.startswith(b"HTTP/1.1 403 ")
                size = int(head.lower().partition(b"content-length: ")[2].split()[0])
                await asyncio.wait_for(reader.readexactly(size), WAIT_S)
                # Another connection is ended meanwhile, this one is not.
                assert await server.ask(b"") == b""
            assert not reader.at_eof()

    served(story, request_s=SHORT_S)


def test_one_connection_too_many_is_refused_and_another_has_its_place_later() -> None:
    """The bound refuses new ones with 503, while those that are open are answered."""

    async def story(server: Server) -> None:
        async with server.link() as (reader, writer), server.link():

            async def refused() -> bytes:
                return await server.ask(b"")

            found = await refused()
            assert found.startswith(b"HTTP/1.1 503 "), found
            assert b"2 connections" in found
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            line = await asyncio.wait_for(reader.readline(), WAIT_S)
            assert line.startswith(b"HTTP/1.1 307 ")

        async def is_free() -> bytes:
            return await server.ask(
                b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )

        answers: list[bytes] = []

        def is_served() -> bool:
            return bool(answers) and answers[-1].startswith(b"HTTP/1.1 307 ")

        while not is_served():
            answers.append(await asyncio.wait_for(is_free(), WAIT_S))
        await level(is_served)

    served(story, connections=2)


def test_headers_and_bodies_of_strangers_are_bounded() -> None:
    """Headers above 64 KiB are 431; without a login a body has 4 KiB."""

    async def story(server: Server) -> None:
        found = await server.ask(LOGIN + b"X: " + b"a" * 70_000)
        assert found.startswith(b"HTTP/1.1 431 "), found[:100]
        body = b'{"code":"%s"}' % (b"x" * 5_000)
        head = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        found = await server.ask(LOGIN + head + body)
        assert found.startswith(b"HTTP/1.1 413 "), found[:100]

    served(story)
