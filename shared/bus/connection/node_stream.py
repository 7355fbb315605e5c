"""Streams of a node's agent (logs, exec) as their reader has them: frames in order, acknowledged as they are read.

An agent sends no more frames than were acknowledged, so a slow reader slows its stream. Messages: schemas/node_rpc.py.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Protocol, Self

import msgspec

from schemas.disks import DiskAsk
from schemas.node_rpc import ActionAsk, ExecAsk, Frame, LogsAsk, SessionAnswer, SessionInput
from shared.bus.connection.nats_client import BusClient, status
from shared.errors import BusUnavailable, CaravanError
from shared.protocol import subjects

#: An agent sends a frame at least every five seconds.
NODE_SILENCE_S = 20.0
NODE_ANSWER_TIMEOUT_S = 30.0
_ACK_S = 4.0
#: Frames after which an acknowledgement is sent at once.
_ACK_FRAMES = 8
_BUSY_S = 0.05
_NO_RESPONDERS = 503


class StreamClient(Protocol):
    """Whose connection a stream uses."""

    @property
    def bus(self) -> BusClient:
        """The connection itself."""
        ...

    async def request_bytes(self, subject: str, body: bytes, timeout_s: float = ...) -> bytes:
        """Send input, and return the answer. Raises BusUnavailable."""
        ...


class NodeStream:
    """One stream of a node's agent, from its first frame to its last. Use as `async with`.

    `address`: subject of a verb, where it is not one of node RPC.
    """

    def __init__(
        self,
        client: StreamClient,
        node: str,
        verb: str,
        body: LogsAsk | ExecAsk | ActionAsk | DiskAsk,
        *,
        address: Callable[[str], str] | None = None,
    ) -> None:
        self._client = client
        self._node = node
        self._address = address or partial(subjects.node_rpc, node)
        self._subject = self._address(verb)
        self._body = body
        self._arrived: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._listens = 0
        self._seen = 0
        self._acknowledged = 0
        self._inputs = 0
        self._is_over = False
        self._ack_task: asyncio.Task[None] | None = None
        self.exit_code: int | None = None

    def fault(self, code: str, message: str, path: str = "") -> Exception:
        """The error to raise for a fault: of the agent, or `unavailable`. Overridden by each kind of client."""
        return CaravanError(f"{code}: {path or self._node}: {message}")

    async def __aenter__(self) -> Self:
        bus = self._client.bus
        inbox = bus.new_inbox()
        self._listens = await bus.listen(inbox, self._hear)
        if not bus.send(self._subject, msgspec.json.encode(self._body), inbox.encode()):
            raise self.fault("unavailable", "connection to the bus lost")
        self._ack_task = asyncio.create_task(self._ack_periodically())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ack_task is not None:
            self._ack_task.cancel()
        self._client.bus.forget(self._listens)
        if not self._is_over:
            self._send_input(SessionInput(session=self._body.session, close=True))
            with contextlib.suppress(Exception):
                await self._client.bus.flush(1)

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield frames with data in order; `exit_code` is set after the last. Raises `fault`."""
        while True:
            try:
                frame = await asyncio.wait_for(self._arrived.get(), NODE_SILENCE_S)
            except TimeoutError as err:
                text = f"node {self._node} stopped responding"
                raise self.fault("unavailable", text) from err
            if frame is None:
                raise self.fault("unavailable", node_unreachable(self._node))
            if not frame.number:
                continue
            if frame.number != self._seen + 1 and not frame.error:
                raise self.fault("unavailable", f"output of node {self._node} was lost")
            if frame.is_end:
                self._is_over = True
                self.exit_code = frame.exit_code
                if frame.error is not None:
                    raise self.fault(frame.error.code, frame.error.message, frame.error.path)
                return
            yield frame
            self._seen = frame.number
            if self._seen - self._acknowledged >= _ACK_FRAMES:
                self._acknowledge()

    async def send(
        self, data: bytes = b"", *, is_end: bool = False, rows: int = 0, columns: int = 0
    ) -> None:
        """Send input; returns when the agent has received it. Raises `fault`."""
        self._inputs += 1
        one = SessionInput(
            session=self._body.session,
            number=self._inputs,
            data=data,
            is_end=is_end,
            seen=self._seen,
            rows=rows,
            columns=columns,
        )
        subject, raw = self._address("session"), msgspec.json.encode(one)
        while not self._is_over:
            try:
                found = await self._client.request_bytes(subject, raw, NODE_ANSWER_TIMEOUT_S)
            except BusUnavailable as err:
                raise self.fault("unavailable", node_unreachable(self._node)) from err
            error = msgspec.json.decode(found, type=SessionAnswer).error
            if error is None:
                return
            if error.code != "busy":
                raise self.fault(error.code, error.message, error.path)
            await asyncio.sleep(_BUSY_S)

    def _hear(self, _subject: bytes, _reply: bytes, headers: bytes, data: bytes) -> None:
        if status(headers) == _NO_RESPONDERS:
            self._arrived.put_nowait(None)
            return
        try:
            self._arrived.put_nowait(msgspec.json.decode(data, type=Frame))
        except msgspec.MsgspecError:
            self._arrived.put_nowait(None)

    async def _ack_periodically(self) -> None:
        while True:
            await asyncio.sleep(_ACK_S)
            self._acknowledge()

    def _acknowledge(self) -> None:
        self._acknowledged = self._seen
        self._send_input(SessionInput(session=self._body.session, seen=self._seen))

    def _send_input(self, one: SessionInput) -> None:
        self._client.bus.send(self._address("session"), msgspec.json.encode(one))


def node_unreachable(node: str) -> str:
    """Say that an agent does not answer."""
    return f"node {node}: its agent does not answer (see caravan node status {node})"


def new_session_id() -> str:
    """A random stream name of 128 bits."""
    return secrets.token_hex(16)
