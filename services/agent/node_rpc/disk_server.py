"""Gives the data of ended allocations to the nodes of those that replace them, on `disk.<node>.<asker>.<verb>`.

Decides who gets it: the asker whom the bus lets speak under that name, and only where the log says that its allocation
replaces the one whose data it wants, and that this one has ended. Next: `disk_archive.py`.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import structlog

from schemas.base import Wire
from schemas.bounds import bounded_decoder
from schemas.disks import DiskAsk
from schemas.jobs import ErrorDetail
from schemas.node_rpc import Frame, SessionAnswer, SessionInput
from services.agent.disk_source import ENDED, ask_disk_source
from services.agent.executor.data_dir import DataDir
from services.agent.executor.executor import TaskExecutor
from services.agent.node_rpc.disk_archive import read_disk
from services.agent.node_rpc.open_streams import OpenStreams
from services.agent.node_rpc.stream import FrameSender
from shared.bus.connection.frame_parser import MessageHandler
from shared.bus.connection.nats_client import BusClient
from shared.bus.server.accounts import inbox_prefix, node_user
from shared.core.runtime.messages import Listen
from shared.errors import CommandInvalid
from shared.protocol import subjects
from shared.protocol.id_tokens import token_id

#: Disks that are read at a time; further askers try again.
STREAMS_MAX = 8
TASKS_MAX = 1_000
_SNAPSHOT, _SESSION = subjects.NODE_DISK_VERBS
_ASK, _INPUT = bounded_decoder(DiskAsk), bounded_decoder(SessionInput)
#: A disk that hangs holds up other disks at the most.
_pool = ThreadPoolExecutor(STREAMS_MAX, "disks")
_log = structlog.get_logger()


class DiskServer:
    """One per agent. The shell delivers messages to `carry`; `executor` returns the executor."""

    def __init__(
        self, *, node_id: str, home: DataDir, executor: Callable[[], TaskExecutor]
    ) -> None:
        self._node_id = node_id
        self._home = home
        self._executor = executor
        self._streams = OpenStreams(node_id, STREAMS_MAX)
        self._bus: BusClient | None = None

    async def carry(self, bus: BusClient, source: Listen, _deliver: MessageHandler) -> None:
        """Listen; nothing of it is for the role."""
        self._bus = bus
        await bus.listen(source.subject, partial(self._take, bus))

    def _take(self, bus: BusClient, *message: bytes) -> None:
        subject, reply, _, data = message
        _, _, token, verb = subject.decode(errors="replace").split(".")
        answer = partial(_publish, bus, reply.decode(errors="replace")) if reply else _say_nothing
        try:
            asker = token_id(token)
            # An answer goes to the asker alone, never into what this node may publish beside.
            if not reply.startswith(_inbox(asker)) and (reply or verb != _SESSION):
                return
            self._begin(verb, asker, data, answer)
        except CommandInvalid as fault:
            answer(_refused(verb, fault.code, fault.message))
        except (ValueError, msgspec.MsgspecError, RecursionError) as err:
            answer(_refused(verb, "invalid", str(err)))

    def _begin(self, verb: str, asker: str, data: bytes, answer: Callable[[Wire], bool]) -> None:
        if verb == _SESSION:
            self._streams.take(_INPUT.decode(data))
            answer(SessionAnswer())
            return
        if verb != _SNAPSHOT:
            raise CommandInvalid("invalid", f"unknown verb {verb[:40]!r}")
        ask = _ASK.decode(data)
        if len(ask.tasks) > TASKS_MAX:
            raise CommandInvalid("invalid", f"more than {TASKS_MAX} tasks", "tasks")
        self._streams.open(ask.session, partial(self._give, asker, ask), answer)

    async def _give(self, asker: str, ask: DiskAsk, stream: FrameSender) -> None:
        """Send the archive to its end. Raises CommandInvalid for an asker who may not have it."""
        await self._check(asker, ask)
        _log.info("disk.asked", alloc=ask.previous, successor=ask.alloc_id, node=asker)
        names = tuple(self._home.places(ask.previous, one).task.name for one in ask.tasks)
        pieces = read_disk(self._home.top, ask.previous, names)
        sent = 0
        loop = asyncio.get_running_loop()
        while part := await loop.run_in_executor(_pool, _gathered, pieces):
            sent += len(part)
            await stream.give(part)
        _log.info("disk.sent", alloc=ask.previous, node=asker, bytes=sent)

    async def _check(self, asker: str, ask: DiskAsk) -> None:
        try:
            found = await ask_disk_source(self._bus, self._node_id, ask.alloc_id)
        except CommandInvalid as err:
            # This view may be behind the one that the asker has heard.
            raise CommandInvalid("unavailable", err.message) from err
        known = (found.node_id, found.previous, found.previous_node)
        if known != (asker, ask.previous, self._node_id):
            _log.warning("disk.refused", alloc=ask.previous, node=asker)
            text = "the log does not say that this allocation replaces that one, on these nodes"
            raise CommandInvalid("forbidden", text)
        if found.previous_status not in ENDED or self._executor().runs(ask.previous):
            raise CommandInvalid("unavailable", f"allocation {ask.previous} has not ended")


def _gathered(pieces: Iterator[bytes]) -> bytes:
    """Read pieces that make a few frames; empty: there are no more."""
    found: list[bytes] = []
    size = 0
    for one in pieces:
        found.append(one)
        size += len(one)
        if size >= 1 << 18:
            break
    return b"".join(found)


def _inbox(asker: str) -> bytes:
    return f"{inbox_prefix(node_user(asker))}.".encode()


def _refused(verb: str, code: str, message: str) -> Wire:
    error = ErrorDetail(code=code, message=message)
    if verb == _SESSION:
        return SessionAnswer(error=error)
    return Frame(number=1, is_end=True, error=error)


def _say_nothing(_: Wire) -> bool:
    """Drop it: the sender wants no answer."""
    return True


def _publish(bus: BusClient, reply: str, answer: Wire) -> bool:
    return bus.send(reply, msgspec.json.encode(answer))
