"""Feed: what the socket gives goes to the frames at once, in the callback of the loop that read it.

Decides nothing of its own: it takes over a connection whose handshake nats-py has made, so that a message reaches its
handler without a stream, a future and a task in between, which cost a lone message more than its handling. What is no
message waits for the read loop, and everything behind it, in order. Knows no subject. Next: `connect.py`.
"""

import asyncio
from typing import Any

from shared.bus.frames import Frames


class Feed(asyncio.Protocol):
    """The protocol of a connection from its handshake on. `before` is nats-py's own: it still hears of the end."""

    def __init__(self, frames: Frames, before: Any) -> None:
        self._frames = frames
        self._before = before
        self._rest = bytearray()
        #: somebody reads what is no message: nothing may overtake it.
        self._is_slow = False
        self._wake = asyncio.Event()
        self._ended = False
        self._fault: Exception | None = None

    @staticmethod
    def over(frames: Frames, transport: Any) -> "Feed | None":
        """Take a connection over; None where it is no plain stream."""
        reader, writer = (getattr(transport, name, None) for name in ("_io_reader", "_io_writer"))
        if reader is None or writer is None:
            return None
        feed = Feed(frames, writer.transport.get_protocol())
        early = bytes(reader._buffer)  # noqa: SLF001 - read before anybody could take it over.
        reader._buffer.clear()  # noqa: SLF001
        writer.transport.set_protocol(feed)
        writer.transport.resume_reading()
        if reader.at_eof():
            feed.eof_received()
        if early:
            feed.data_received(early)
        return feed

    async def rest(self) -> bytes:
        """Wait for what is not to be handed over at once. Raises EOFError at the end, OSError when it broke."""
        self._is_slow = False
        if self._rest:
            # What came meanwhile begins with messages, most likely.
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
        """Hand over what can be; keep the rest for who waits in `rest`."""
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
        """Say so to whoever reads."""
        self._ended = True
        self._wake.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so to whoever reads, and to who made the connection."""
        self._fault = exc if isinstance(exc, OSError) else None
        self.eof_received()
        self._before.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on."""
        self._before.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
        self._before.resume_writing()
