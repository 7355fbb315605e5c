"""What a disk is fetched by: the log's word on the allocation that is replaced, and the archive of its node.

Decides nothing: how long to wait and when to give up is the handler's (`handler.py`).
"""

import contextlib
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Protocol

from schemas.disks import DiskAsk, DiskSourceAnswer
from services.agent.disk_source import ask_disk_source
from shared.bus.connection.nats_client import BusClient
from shared.bus.connection.node_stream import NodeStream, new_session_id
from shared.errors import BusUnavailable, CommandInvalid
from shared.protocol import subjects

#: Of a frame in JSON, and of those that wait to be taken: more than a sender that keeps to the window sends.
_FRAME_BYTES_MAX, _FRAMES_MAX = 64 * 1024, 128
_CODE_CHARS_MAX, _TEXT_CHARS_MAX = 40, 300


class DiskPeers(Protocol):
    """The view, and the agents of other nodes."""

    async def source(self, alloc_id: str) -> DiskSourceAnswer:
        """Say what an allocation of this node replaces. Raises CommandInvalid."""
        ...

    def archive(
        self, node_id: str, alloc_id: str, previous: str, tasks: tuple[str, ...]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the archive of an ended allocation, from its node. Raises CommandInvalid."""
        ...


class BusPeers:
    """They are asked over the agent's own connection."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        #: the agent's connection; None: there is none yet.
        self.bus: Callable[[], BusClient | None] = lambda: None

    async def source(self, alloc_id: str) -> DiskSourceAnswer:
        """See DiskPeers."""
        return await ask_disk_source(self.bus(), self._node_id, alloc_id)

    async def archive(
        self, node_id: str, alloc_id: str, previous: str, tasks: tuple[str, ...]
    ) -> AsyncGenerator[bytes, None]:
        """See DiskPeers."""
        bus = self.bus()
        if bus is None or not bus.is_connected:
            raise CommandInvalid("unavailable", "the bus is away")
        session = new_session_id()
        ask = DiskAsk(alloc_id=alloc_id, previous=previous, tasks=tasks, session=session)
        address = partial(subjects.node_disk, node_id, self._node_id)
        async with (
            _DiskStream(_Connection(bus), node_id, "snapshot", ask, address=address) as stream,
            contextlib.aclosing(stream.frames()) as frames,
        ):
            async for frame in frames:
                yield frame.data


class _Connection:
    """The agent's connection, as a stream needs it."""

    def __init__(self, bus: BusClient) -> None:
        self.bus = bus

    async def request_bytes(self, subject: str, _body: bytes, _timeout_s: float = 0) -> bytes:
        """Refuse: an archive has no input. Raises BusUnavailable."""
        raise BusUnavailable(f"no input is sent on {subject}")


class _DiskStream(NodeStream):
    """The stream of a node that is not trusted: what it sends is bounded, whether it keeps to the window or not."""

    def fault(self, code: str, message: str, path: str = "") -> Exception:
        return CommandInvalid(code[:_CODE_CHARS_MAX], message[:_TEXT_CHARS_MAX], path)

    def _hear(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        # What is left out is a gap, and a gap ends the stream.
        if len(data) <= _FRAME_BYTES_MAX and self._arrived.qsize() < _FRAMES_MAX:
            super()._hear(subject, reply, headers, data)
