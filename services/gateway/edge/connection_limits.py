"""Bounds of single connections, which uvicorn has not: how many there are, and how long a request may take to arrive.

A request whose headers or body are not there in time is answered with 408, and its connection is closed, so that a
client that sends a byte now and then holds neither a task nor memory. Answers may take as long as they need.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

#: Bytes of a request's headers.
HEAD_BYTES_MAX = 64 * 1024
LATE = b"the request did not arrive in time"
#: What has arrived of the next request.
_NOTHING, _BEGUN, _HEAD = range(3)


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol with a deadline for what is to be read."""

    #: open connections of the server together.
    connections_max = 12_000
    #: time for a whole request, and for the first one to begin, seconds.
    request_s = 10.0

    _deadline: asyncio.TimerHandle | None = None
    _has_come = _NOTHING
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request, or refuse the connection."""
        super().connection_made(transport)
        self._expect()
        if len(self.connections) > self.connections_max:
            text = b"%d connections are open already" % self.connections_max
            self._refuse(b"503 Service Unavailable", text)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes. What is no request yet, as empty lines before one, has to become one in time."""
        if (cycle := self._newest()) is None or cycle.response_complete:
            self._expect()
        super().data_received(data)
        if self._has_come == _BEGUN:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                text = b"the headers exceed %d bytes" % HEAD_BYTES_MAX
                self._refuse(b"431 Request Header Fields Too Large", text)

    def handle_websocket_upgrade(self) -> None:
        """Hand over: a websocket has bounds of its own."""
        self._arrived()
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """Begin to wait for the end of a request."""
        super().on_message_begin()
        self._has_come, self._head_bytes = _BEGUN, 0
        self._expect()

    def on_headers_complete(self) -> None:
        """Continue with the body."""
        super().on_headers_complete()
        self._has_come = _HEAD

    def on_message_complete(self) -> None:
        """End the wait: the request is there, to its last byte."""
        self._arrived()
        super().on_message_complete()

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.request_s, self._expire)

    def _arrived(self) -> None:
        self._has_come = _NOTHING
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self.flow.read_paused:
            # What is late is the reading of it.
            self._expect()
        elif self._has_come == _NOTHING or self._is_answering():
            self.transport.close()
        else:
            self._refuse(b"408 Request Timeout", LATE)

    def _is_answering(self) -> bool:
        """Whether an answer has begun, so that another one would be taken for a part of it, or for the next."""
        if (cycle := self._newest()) is None:
            return False
        return cycle.response_started if self._has_come == _HEAD else not cycle.response_complete

    def _newest(self) -> RequestResponseCycle | None:
        """The newest request whose headers have come."""
        return self.cycle

    def _refuse(self, status: bytes, text: bytes) -> None:
        if not self.transport.is_closing():
            head = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d"
            answer = b"HTTP/1.1 %s\r\n" + head + b"\r\n\r\n%s"
            self.transport.write(answer % (status, len(text), text))
            self.transport.close()


def bounded_protocol(connections_max: int, request_s: float) -> type[BoundedProtocol]:
    """Make the protocol of the connections of one server."""
    bounds = {"connections_max": connections_max, "request_s": request_s}
    return type("BoundedProtocol", (BoundedProtocol,), bounds)
