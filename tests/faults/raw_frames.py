"""A connection that sends any bytes as subject, headers and body: our own client refuses most of them."""

import asyncio
import json
from typing import Self

from shared.bus.connection.nats_client import Login
from tests.bounds import WAIT_S


class RawSender:
    """One user's connection. The server ends it where a frame breaks its protocol; then it connects again."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.sent = 0
        self.connects = 0

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    async def send(
        self, subject: bytes, body: bytes, *, headers: bytes = b"", reply: bytes = b""
    ) -> None:
        """Publish bytes; `headers` may be any block, or none."""
        if self._writer is None or self._writer.is_closing():
            await self._connect()
        assert self._writer is not None
        head = subject + (b" " + reply if reply else b"")
        if headers:
            line = b"HPUB %s %d %d\r\n" % (head, len(headers), len(headers) + len(body))
        else:
            line = b"PUB %s %d\r\n" % (head, len(body))
        self._writer.write(line + headers + body + b"\r\n")
        self.sent += 1
        try:
            await self._writer.drain()
        except ConnectionError:
            self._drop()

    async def settle(self) -> None:
        """Wait until the server has read everything."""
        if self._writer is None or self._writer.is_closing():
            return
        self._ponged = asyncio.Event()
        self._writer.write(b"PING\r\n")
        try:
            await asyncio.wait_for(self._ponged.wait(), WAIT_S)
        except TimeoutError:
            self._drop()

    async def _connect(self) -> None:
        self._drop()
        self._ponged = asyncio.Event()
        host, port = self._login.url.rpartition("@")[2].removeprefix("nats://").split(":")
        reader, self._writer = await asyncio.open_connection(host, int(port))
        options: dict[str, object] = {"verbose": False, "headers": True, "no_responders": True}
        if self._login.user:
            options |= {"user": self._login.user, "pass": self._login.password}
        self._writer.write(b"CONNECT %s\r\n" % json.dumps(options).encode())
        self._reading = asyncio.create_task(self._read(reader, self._writer))
        self.connects += 1

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the server's pings; what else it says does not matter."""
        try:
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
                elif line.startswith(b"PONG"):
                    self._ponged.set()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()
            self._ponged.set()

    def _drop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        self._reading = self._writer = None
