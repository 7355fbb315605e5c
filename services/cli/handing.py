"""Asking a node's agent over the bus: which node it is, one answer, and streams of answers.

Decides what is said when a node is away or falls silent, and how a stream is kept going: what was taken is told, so
that no more comes than is read. Must not know what an agent does; its words are schemas/hands.py.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Self, TypeVar

import msgspec

from schemas.answers import AllocAnswer
from schemas.hands import ExecAsk, Frame, LogsAsk, SessionAnswer, SessionInput
from schemas.jobs import ErrorDetail
from schemas.projections import Query
from services.cli.asking import ask
from services.cli.output import CliError, short
from shared.bus import subjects
from shared.bus.client import Client
from shared.bus.connect import status
from shared.errors import BusUnavailable

T = TypeVar("T", bound=msgspec.Struct)
#: An agent gives a sign of life every five seconds.
SILENT_S = 20.0
ANSWER_S = 30.0
_ACK_S = 4.0
#: Frames after which their reader says so at once.
_ACK_FRAMES = 8
_BUSY_S = 0.05
_NOBODY = 503


async def alloc_of(client: Client, alloc_id: str) -> AllocAnswer:
    """Find an allocation and where it is. Raises CliError."""
    return await ask(client, "alloc", AllocAnswer, Query(id=alloc_id))


def only_task(answer: AllocAnswer, task: str) -> str:
    """Choose the task that is meant. Raises CliError where that is not clear."""
    known = sorted(answer.tasks)
    shown = short(answer.allocation.id)
    if task and (task in known or not known):
        return task
    if task:
        text = f"allocation {shown} has no task {task!r}, only {', '.join(known)}"
        raise CliError("not_found", text)
    if len(known) == 1:
        return known[0]
    if not known:
        raise CliError("not_found", f"no task of allocation {shown} was reported yet")
    raise CliError("usage", f"which task? {', '.join(known)}")


async def ask_node(
    client: Client, node: str, verb: str, body: msgspec.Struct, *, answer: type[T]
) -> T:
    """Ask a node's agent. Raises CliError with the agent's own code, or `unavailable` where it is away."""
    subject = subjects.hands(node, verb)
    try:
        raw = await client.request_bytes(subject, msgspec.json.encode(body), timeout_s=ANSWER_S)
    except BusUnavailable as err:
        raise CliError("unavailable", _away(node)) from err
    said = msgspec.json.decode(raw, type=answer)
    error: ErrorDetail | None = getattr(said, "error", None)
    if error is not None:
        raise CliError(error.code, error.message, path=error.path)
    return said


def _away(node: str) -> str:
    return f"node {node} is away: its agent does not answer (caravan node status {node})"


class FrameStream:
    """One stream of a node's agent, from its first frame to its last. Use as `async with`."""

    def __init__(self, client: Client, node: str, verb: str, body: LogsAsk | ExecAsk) -> None:
        self._client = client
        self._node = node
        self._subject = subjects.hands(node, verb)
        self._body = body
        self._arrived: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._listens = 0
        self._seen = 0
        self._said = 0
        self._inputs = 0
        self._is_over = False
        self._acking: asyncio.Task[None] | None = None
        self.exit_code: int | None = None

    async def __aenter__(self) -> Self:
        bus = self._client.bus
        inbox = bus.new_inbox()
        self._listens = await bus.listen(inbox, self._hear)
        if not bus.send(self._subject, msgspec.json.encode(self._body), inbox.encode()):
            raise CliError("unavailable", "the bus is away")
        self._acking = asyncio.create_task(self._keep_saying())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._acking is not None:
            self._acking.cancel()
        self._client.bus.forget(self._listens)
        if not self._is_over:
            self._tell(SessionInput(session=self._body.session, close=True))
            with contextlib.suppress(Exception):
                await self._client.bus.flush(1)

    async def frames(self) -> AsyncIterator[Frame]:
        """Yield what has data, in order; `exit_code` is known behind the last. Raises CliError."""
        while True:
            try:
                frame = await asyncio.wait_for(self._arrived.get(), SILENT_S)
            except TimeoutError as err:
                text = f"node {self._node} fell silent, or the bus between here and there"
                raise CliError("unavailable", text) from err
            if frame is None:
                raise CliError("unavailable", _away(self._node))
            if not frame.number:
                continue
            if frame.number != self._seen + 1 and not frame.error:
                text = f"output of node {self._node} was lost on its way"
                raise CliError("unavailable", text)
            if frame.is_end:
                self._is_over = True
                self.exit_code = frame.exit_code
                if frame.error is not None:
                    raise CliError(frame.error.code, frame.error.message, path=frame.error.path)
                return
            yield frame
            self._seen = frame.number
            if self._seen - self._said >= _ACK_FRAMES:
                self._say()

    async def send(
        self, data: bytes = b"", *, is_end: bool = False, rows: int = 0, columns: int = 0
    ) -> None:
        """Send input, and return when the agent has it. Raises CliError."""
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
        while not self._is_over:
            try:
                await ask_node(self._client, self._node, "session", one, answer=SessionAnswer)
            except CliError as err:
                if err.code != "busy":
                    raise
                await asyncio.sleep(_BUSY_S)
            else:
                return

    def _hear(self, _subject: bytes, _reply: bytes, headers: bytes, data: bytes) -> None:
        if status(headers) == _NOBODY:
            self._arrived.put_nowait(None)
            return
        try:
            self._arrived.put_nowait(msgspec.json.decode(data, type=Frame))
        except msgspec.MsgspecError:
            self._arrived.put_nowait(None)

    async def _keep_saying(self) -> None:
        while True:
            await asyncio.sleep(_ACK_S)
            self._say()

    def _say(self) -> None:
        self._said = self._seen
        self._tell(SessionInput(session=self._body.session, seen=self._seen))

    def _tell(self, one: SessionInput) -> None:
        self._client.bus.send(subjects.hands(self._node, "session"), msgspec.json.encode(one))


def new_session() -> str:
    """Draw the name of a stream: 128 bits."""
    return secrets.token_hex(16)
