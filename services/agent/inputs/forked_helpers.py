"""The agent's end of helpers that are forked (`forking.py`): a socket for each, over which lines go to and fro.

The process that forks them ends when none was needed for a while.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Sequence

from services.agent.drivers.process.fork_server import ForkServer

#: Without work the process is ended: the next start pays for another.
IDLE_S = 300.0
#: Within that time a parent has ended a helper that is not awaited any more.
END_S = 5.0
_WORDS_CHARS_MAX = 300
_SAID_BYTES_MAX = 1 << 16


class Helper:
    """One that works."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: ForkServer,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._server = server
        self._last = b""

    async def ask(self, line: bytes) -> bytes:
        """Send a line, and return the one that comes back; empty: it ended."""
        try:
            self._writer.write(line + b"\n")
            await self._writer.drain()
            self._last = await self._reader.readline()
        except (OSError, ValueError):
            self._last = b""
        return self._last

    async def last_words(self) -> str:
        """Return the last line that it said, or that which its parent says of its end."""
        said = self._last
        try:
            said += await self._reader.readexactly(_SAID_BYTES_MAX)
        except asyncio.IncompleteReadError as err:
            said += err.partial
        except OSError:
            pass
        words = said.decode(errors="replace").strip() or self._server.said().strip()
        return words.rpartition("\n")[2][:_WORDS_CHARS_MAX]


class _HelperServer(ForkServer):
    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def code(self) -> str:
        return self._code


class Helpers:
    """Helpers that run one code, on one event loop."""

    def __init__(self, code: str) -> None:
        self._server = _HelperServer(code)
        self._count = 0
        self._idle: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def begin(self, line_bytes_max: int, fds: Sequence[int] = ()) -> AsyncIterator[Helper]:
        """Begin a helper; when the context ends it is killed, and gone. Raises OSError.

        `fds`: descriptors that it gets before the first line, beside a byte.
        """
        self._stay()
        self._count += 1
        ours, theirs = socket.socketpair()
        life, theirs_too = os.pipe()
        # The thread closes its ends, also when it is not awaited any more: a cancelled one might never run.
        loop = asyncio.get_running_loop()
        sent = loop.run_in_executor(None, self._hand_over, theirs, theirs_too)
        sent.add_done_callback(asyncio.Future.exception)
        try:
            if fds:
                socket.send_fds(ours, [b"\n"], fds)
            await asyncio.shield(sent)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=line_bytes_max)
            try:
                yield Helper(reader, writer, self._server)
            finally:
                writer.transport.abort()
        finally:
            ours.close()
            await self._ended(life)
            self._count -= 1
            if not self._count:
                self._idle = loop.call_later(IDLE_S, self._end_idle)

    def close(self) -> None:
        """End them all."""
        self._stay()
        self._server.close()

    async def _ended(self, life: int) -> None:
        """Wait until a helper has ended. A parent that does not end it is ended itself, and all its helpers with it."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(life, over.set)
        try:
            try:
                async with asyncio.timeout(END_S):
                    await over.wait()
            except TimeoutError:
                await asyncio.to_thread(self._server.close)
                await over.wait()
        finally:
            loop.remove_reader(life)
            os.close(life)

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_idle(self) -> None:
        # On the loop, so that no order comes meanwhile; it ends as soon as its socket is closed.
        self._idle = None
        self._server.close()

    def _hand_over(self, theirs: socket.socket, life: int) -> None:
        try:
            with theirs:
                self._server.hand_over(b"work", (theirs.fileno(), life))
        finally:
            os.close(life)
