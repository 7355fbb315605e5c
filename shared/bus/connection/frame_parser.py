"""Frame parser: turns the bytes of one socket read into calls of message handlers.

Decides how a chunk is split into messages: in one pass, with one pattern for each message, and without a task, a queue
or an await. Up to fifty thousand heartbeats arrive a second; nats-py's parser takes several times as long for one as
the role itself. Frames that are not messages (PING, INFO, errors), and messages of subscriptions that nats-py serves,
are left to nats-py. Does not interpret payloads. Next: `nats_client.py`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from nats.protocol.parser import Parser

#: A raw handler takes subject, reply, header block and body as they came.
MessageHandler = Callable[[bytes, bytes, bytes, bytes], None]

#: The server writes two spaces where an answer of its own has no reply subject. To it a subject is any bytes but these
#: four: a form feed that ended ours would end the connection.
_MSG = re.compile(rb"MSG ([^ \t\r\n]+) (\d+) +(?:([^ \t\r\n]+) )?(\d+)\r\n")
_HMSG = re.compile(rb"HMSG ([^ \t\r\n]+) (\d+) +(?:([^ \t\r\n]+) )?(\d+) (\d+)\r\n")
_END = b"\r\n"


class FrameParser(Parser):
    """nats-py's parser with a short way for messages of `handlers`, by subscription number."""

    def __init__(
        self,
        client: Any,
        handlers: Mapping[int, MessageHandler],
        failed: Callable[[Exception], None],
    ) -> None:
        self._client = client
        self._handlers = handlers
        #: called with what a handler raised; without a callback of the client it raises again.
        self._failed = failed
        self._resets = 0
        self._needed = 0
        #: a message that nats-py serves itself, and where the next frame begins.
        self._foreign: tuple[tuple[int, bytes, bytes, bytes, bytes | None], int] | None = None
        super().__init__(client)

    def reset(self) -> None:
        """Forget an unfinished frame: the next bytes come from another connection."""
        super().reset()
        self._needed = 0
        self._resets += 1

    async def parse(self, data: bytes = b"") -> None:
        """Take a chunk; an unfinished frame at its end waits for the next one. Raises nats-py's ProtocolError."""
        if self.buf:
            self.buf += data
            if len(self.buf) < self._needed:
                return
            data = bytes(self.buf)
            self.buf = bytearray()
        self._needed = 0
        resets = self._resets
        at = 0
        while at < len(data):
            at = await self._messages(data, at)
            line_end = data.find(_END, at)
            if self._needed or line_end < 0:
                self.buf = bytearray(data[at:])
                return
            # A line of the protocol. It is alone in nats-py's buffer, so that nothing else is read there.
            self.buf = bytearray(data[at : line_end + 2])
            await super().parse()
            if resets != self._resets:
                return
            self.buf = bytearray()
            at = line_end + 2

    def take(self, data: bytes) -> bytes:
        """Hand over the messages that a chunk begins with, at once; returns what is left for `parse`."""
        if self.buf:
            if not self._needed:
                return data
            self.buf += data
            if len(self.buf) < self._needed:
                return b""
            data = bytes(self.buf)
            self.buf = bytearray()
            self._needed = 0
        at = self._hand_over(data, 0)
        self._foreign = None
        if self._needed:
            self.buf = bytearray(data[at:])
            return b""
        return data[at:]

    async def _messages(self, data: bytes, at: int) -> int:
        """Hand over the messages that begin at `at`; returns where the first incomplete or other frame begins."""
        at = self._hand_over(data, at)
        while self._foreign is not None:
            (sid, subject, reply, body, headers), stop = self._foreign
            self._foreign = None
            await self._client._process_msg(sid, subject, reply, body, headers)  # noqa: SLF001
            at = self._hand_over(data, stop)
        return at

    def _hand_over(self, data: bytes, at: int) -> int:
        """Hand messages over up to one that has no handler here, which is put aside with where the next one begins."""
        size = len(data)
        handlers = self._handlers
        plain = _MSG.match
        while at < size:
            found = plain(data, at)
            if found is not None:
                subject, sid, reply, whole = found.groups()
                start = body = found.end()
                stop = start + int(whole)
            else:
                found = _HMSG.match(data, at)
                if found is None:
                    return at
                subject, sid, reply, head, whole = found.groups()
                start = found.end()
                body, stop = start + int(head), start + int(whole)
            if stop + 2 > size:
                self._needed = stop + 2 - at
                return at
            headers = data[start:body] if body > start else b""
            handler = handlers.get(int(sid))
            if handler is None:
                message = (int(sid), subject, reply or b"", data[body:stop], headers or None)
                self._foreign = message, stop + 2
                return at
            try:
                handler(subject, reply or b"", headers, data[body:stop])
            except Exception as err:  # noqa: BLE001 - nats-py would drop it and continue with a hole.
                self._failed(err)
            at = stop + 2
        return at
