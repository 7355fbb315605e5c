"""A proxy before an engine that makes it look newer: it serves other API versions, and refuses those below.

A request of a served version is passed on as the newest version that the engine really has; one request a connection.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

_VERSIONED = re.compile(rb"^(\w+) /v(\d+)\.(\d+)(/\S*) ")


class VersionGate:
    """Listens at `path` for the engine at `engine`; versions are minor numbers of API 1."""

    def __init__(self, path: str, engine: str, *, oldest: int, newest: int, real: int) -> None:
        self.path = path
        self._engine = engine
        self._oldest, self._newest, self._real = oldest, newest, real
        #: versions of the requests that were passed on and refused.
        self.passed: set[int] = set()
        self.refused: set[int] = set()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start listening."""
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, and close what is open."""
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.to_thread(Path(self.path).unlink, missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with _closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /version "):
                versions = {"ApiVersion": self._text(self._newest)}
                _reply(writer, b"200 OK", versions | {"MinAPIVersion": self._text(self._oldest)})
            elif (match := _VERSIONED.match(head)) and int(match[3]) < self._oldest:
                self.refused.add(int(match[3]))
                text = f"client version 1.{int(match[3])} is too old. Minimum supported API version"
                _reply(writer, b"400 Bad Request", {"message": f"{text} is 1.{self._oldest}"})
            else:
                assert match
                self.passed.add(int(match[3]))
                line = b"%b /v1.%d%b " % (match[1], self._real, match[4])
                await self._pass_on(line + head[match.end() :], reader, writer)

    async def _pass_on(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        below_reader, below = await asyncio.open_unix_connection(self._engine)
        if b"Connection: Upgrade" not in head:
            head = re.sub(rb"\r\nConnection: [^\r]*", b"", head)
            head = head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
        async with _closing(below):
            below.write(head)
            up = asyncio.ensure_future(_pump(reader, below))
            try:
                await _pump(below_reader, writer)
            finally:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)

    @staticmethod
    def _text(minor: int) -> str:
        return f"1.{minor}"


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        with contextlib.suppress(OSError, EOFError):
            yield
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _reply(writer: asyncio.StreamWriter, status: bytes, body: dict[str, str]) -> None:
    data = json.dumps(body).encode()
    writer.write(b"HTTP/1.1 %b\r\nConnection: close\r\n" % status)
    writer.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
