"""Passes the bytes of the socket to the frame parser at once, in the callback of the loop that read them.

It takes over a connection whose handshake nats-py has made, so that a message reaches its handler without a stream, a
future and a task in between, which cost a lone message more than its handling. What is not a message waits for the read
loop, and everything behind it, in order. Independent of subjects. Next: `nats_client.py`.
"""

import asyncio
from typing import Any

from shared.bus.connection.frame_parser import FrameParser


class FrameProtocol(asyncio.Protocol):
    """The protocol of a connection from its handshake on. `before` is nats-py's own: it still hears of the end."""

    def __init__(self, frames: FrameParser, before: Any) -> None:
        self._frames = frames
        self._before = before
        self._rest = bytearray()
        #: another reader handles everything that is not a message: nothing may overtake it.
        self._is_slow = False
        self._wake = asyncio.Event()
        self._ended = False
        self._fault: Exception | None = None

    @staticmethod
    def over(frames: FrameParser, transport: Any) -> "FrameProtocol | None":
        """Take a connection over; None if it is not a plain stream."""
        reader, writer = (getattr(transport, name, None) for name in ("_io_reader", "_io_writer"))
        if reader is None or writer is None:
            return None
        feed = FrameProtocol(frames, writer.transport.get_protocol())
        early = bytes(reader._buffer)  # noqa: SLF001 - read before another reader could take it over.
        reader._buffer.clear()  # noqa: SLF001
        writer.transport.set_protocol(feed)
        writer.transport.resume_reading()
        if reader.at_eof():
            feed.eof_received()
        if early:
            feed.data_received(early)
        return feed

    async def rest(self) -> bytes:
        """Wait for bytes that are left to nats-py. Raises EOFError at the end, OSError if the connection broke."""
        self._is_slow = False
        if self._rest:
            # Bytes that arrived meanwhile most likely begin with messages.
            self.data_received(b"")
        while not self._rest:
            if self._ended:
                raise self._fault or EOFError
            self._wake.clear()
            await self._wake.wait()
        self._is_slow = True
        rest = bytes(self._rest)
        self._rest.clear()
        return rest

    def data_received(self, data: bytes) -> None:
        """Deliver complete messages; keep other bytes for `rest`."""
        if self._is_slow:
            self._rest += data
            return
        if self._rest:
            data = bytes(self._rest) + data
            self._rest.clear()
        left = self._frames.take(data)
        if left:
            self._rest += left
            self._is_slow = True
            self._wake.set()

    def eof_received(self) -> None:
        """Notify the reader."""
        self._ended = True
        self._wake.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the reader and the owner of the connection."""
        self._fault = exc if isinstance(exc, OSError) else None
        self.eof_received()
        self._before.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on."""
        self._before.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
        self._before.resume_writing()
