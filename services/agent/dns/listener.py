"""Brings questions from UDP and TCP to a responder, and its answers back, within bounds.

Decides how many questions are taken: those of all askers together and of one address in a second, how many wait for
data, how many connections are open and for how long. What is beyond that is dropped by UDP and closed by TCP, and
nothing is queued. Next: `responder.py`.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from services.agent.dns.messages import QUESTION_BYTES_MAX
from services.agent.dns.responder import Responder
from services.agent.dns.settings import DnsSockets

#: Questions in a second: of all, and of one address.
TOTAL_MAX, SOURCE_MAX = 2_000, 500
#: Questions by UDP that wait for data.
WAITING_MAX = 256
CONNECTIONS_MAX, SOURCE_CONNECTIONS_MAX = 64, 16
#: A connection without a question for so long is closed; an answer is taken within this time.
IDLE_S = 10.0
#: Questions by UDP that are read in one turn of the event loop.
_TURN_MAX = 32
_LENGTH = 2
#: Of an answer, for each further question that it counts as.
_UNIT_BYTES = 1024


class QuestionRate:
    """How many questions are taken in a second. `clock`: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = 0
        self._sources: Counter[str] = Counter()
        self._total = 0

    def allows(self, source: str) -> bool:
        """Count a question. An address that is refused takes nothing from others."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._total = second, 0
            self._sources.clear()
        if self._total >= TOTAL_MAX or self._sources[source] >= SOURCE_MAX:
            return False
        self._count(source, 1)
        return True

    def answered(self, source: str, size: int) -> None:
        """Count a long answer as several questions: it took as much time."""
        self._count(source, size // _UNIT_BYTES)

    def _count(self, source: str, units: int) -> None:
        self._total += units
        self._sources[source] += units


class DnsListener:
    """Answers on these sockets while `run` runs."""

    def __init__(self, responder: Responder, sockets: DnsSockets) -> None:
        self._responder = responder
        self._sockets = sockets
        self._rate = QuestionRate()
        self._waiting: set[asyncio.Task[None]] = set()
        #: open connections, with the address of their other end.
        self._connections: dict[asyncio.StreamWriter, str] = {}

    async def run(self) -> None:
        """Answer until cancelled."""
        server = await asyncio.start_server(
            self._serve, sock=self._sockets.tcp, limit=QUESTION_BYTES_MAX + _LENGTH
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(self._sockets.udp, self._take_waiting)
        try:
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(self._sockets.udp)
            self._sockets.udp.close()
            server.close()
            for task in self._waiting:
                task.cancel()
            for writer in self._connections:
                writer.transport.abort()

    # ---- UDP ----

    def _take_waiting(self) -> None:
        """Take questions that have come, a few before anything else gets its turn."""
        for _ in range(_TURN_MAX):
            try:
                data, source = self._sockets.udp.recvfrom(QUESTION_BYTES_MAX + 1)
            except OSError:
                return
            if len(self._waiting) < WAITING_MAX and self._rate.allows(source[0]):
                task = asyncio.get_running_loop().create_task(self._send(data, source))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)

    async def _send(self, data: bytes, source: Any) -> None:
        found = await self._responder.answer(data, is_udp=True)
        self._rate.answered(source[0], len(found))
        # What the kernel does not take at once is dropped; the asker repeats its question.
        with contextlib.suppress(OSError):
            if found:
                self._sockets.udp.sendto(found, source)

    # ---- TCP ----

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions of one connection, one after the other."""
        source = str((writer.get_extra_info("peername") or ("",))[0])
        mine = sum(one == source for one in self._connections.values())
        if len(self._connections) >= CONNECTIONS_MAX or mine >= SOURCE_CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._connections[writer] = source
        try:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                while await self._exchange(source, reader, writer):
                    pass
                # What was answered last may be on its way.
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), IDLE_S)
        finally:
            del self._connections[writer]
            writer.transport.abort()

    async def _exchange(
        self, source: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one question; False: there is no next one. Raises EOFError, OSError, TimeoutError."""
        async with asyncio.timeout(IDLE_S):
            head = await reader.read(_LENGTH)
            if not head:
                return False
            head += await reader.readexactly(_LENGTH - len(head))
            length = int.from_bytes(head, "big")
            if length > QUESTION_BYTES_MAX or not self._rate.allows(source):
                return False
            data = await reader.readexactly(length)
        found = await self._responder.answer(data, is_udp=False)
        if not found:
            return False
        self._rate.answered(source, len(found))
        writer.write(len(found).to_bytes(_LENGTH, "big") + found)
        async with asyncio.timeout(IDLE_S):
            await writer.drain()
        return True
