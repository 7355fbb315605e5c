"""`caravan operator message list|show|drop`: inspect the messages that wait in JOBS or CMD, and delete one of them.

No message stops a service; this is for what should not be there at all: a secret sent by mistake, a flood, or a message
that a release handles wrongly. Only the administrator of the bus may delete a message.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from services.cli.runtime.bus_client import selected_bus_url
from services.cli.runtime.local_clusters import login_for
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.nats_client import BusClient, connect, header_fault
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.display.formats import format_size
from shared.protocol import subjects

T = TypeVar("T")
#: Streams whose messages are requests that wait; the log takes no deletion.
STREAMS = (streams.JOBS.name, streams.CMD.name)
_NOT_FOUND = 10037
_SHOWN_CHARS_MAX = 4_000


class StoredLine(msgspec.Struct, frozen=True, kw_only=True):
    """One message of `operator message list --json`. `fault`: why its headers cannot be read; empty: they can."""

    seq: int
    subject: str
    size: int
    time: str
    fault: str = ""


class MessageListResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator message list --json`. `total` counts all messages of the stream."""

    stream: str
    total: int
    messages: tuple[StoredLine, ...]


class MessageShowResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator message show --json`: the bytes as they are stored, in base64."""

    stream: str
    seq: int
    subject: str
    time: str
    fault: str
    headers_base64: str
    body_base64: str


class MessageDropResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator message drop --json`."""

    stream: str
    seq: int
    subject: str


class _Found(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    hdrs: str = ""
    data: str = ""
    time: str = ""

    @property
    def headers(self) -> bytes:
        return base64.b64decode(self.hdrs)

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.data)


class _Answer(msgspec.Struct, frozen=True):
    message: _Found | None = None
    success: bool = False
    error: streams.ApiError | None = None


def list_all(out: CommandOutput, *, stream: str, limit: int) -> int:
    """List the oldest messages of a stream. Raises CliError."""

    async def work(bus: BusClient) -> MessageListResult:
        info = await streams.info(bus, stream)
        if info is None:
            raise CliError("not_found", f"there is no stream {stream} on this bus")
        lines: list[StoredLine] = []
        at = info.state.first_seq
        while len(lines) < limit and (found := await _next(bus, stream, at)) is not None:
            lines.append(
                StoredLine(
                    seq=found.seq,
                    subject=found.subject,
                    size=len(found.body),
                    time=found.time,
                    fault=header_fault(found.headers),
                )
            )
            at = found.seq + 1
        return MessageListResult(stream=stream, total=info.state.messages, messages=tuple(lines))

    result = _as_admin(stream, work)
    out.result(result)
    for line in result.messages:
        fault = f"  {line.fault}" if line.fault else ""
        out.line(f"{line.seq}  {line.time}  {line.subject!r}  {format_size(line.size)}{fault}")
    out.line(f"{len(result.messages)} of {result.total} messages of {stream}")
    return 0


def show(out: CommandOutput, *, stream: str, seq: int) -> int:
    """Show one message with any bytes. Raises CliError."""

    async def work(bus: BusClient) -> _Found:
        return await _get(bus, stream, seq)

    found = _as_admin(stream, work)
    fault = header_fault(found.headers)
    out.result(
        MessageShowResult(
            stream=stream,
            seq=found.seq,
            subject=found.subject,
            time=found.time,
            fault=fault,
            headers_base64=found.hdrs,
            body_base64=found.data,
        )
    )
    out.line(f"{stream} {found.seq} on {found.subject!r}, stored {found.time}")
    if fault:
        out.line(f"fault    {fault}", "yellow")
    out.line(f"headers  {_shown(found.headers)}")
    out.line(f"body     {_shown(found.body)}")
    return 0


def drop(out: CommandOutput, *, stream: str, seq: int) -> int:
    """Delete one message: it gets no verdict, and no dead letter. Raises CliError."""

    async def work(bus: BusClient) -> _Found:
        found = await _get(bus, stream, seq)
        body = msgspec.json.encode({"seq": seq})
        answer = _decoded(await bus.ask(subjects.js_message_delete(stream), body))
        if not answer.success:
            why = answer.error.description if answer.error else "no reason given"
            raise CliError("unavailable", f"message {seq} of {stream} was not deleted: {why}")
        return found

    found = _as_admin(stream, work)
    out.result(MessageDropResult(stream=stream, seq=seq, subject=found.subject))
    out.line(f"message {seq} of {stream} deleted, it was on {found.subject!r}", "green")
    return 0


def _as_admin(stream: str, work: Callable[[BusClient], Awaitable[T]]) -> T:
    """Connect as the administrator, do the work, disconnect. Raises CliError, BusUnavailable."""
    if stream not in STREAMS:
        text = f"unknown stream {stream!r}; expected one of {', '.join(STREAMS)}"
        raise CliError("usage", text)

    async def run() -> T:
        login = login_for(selected_bus_url(), accounts.ADMIN)
        if login is None:
            text = "requires the bus administrator's password: set CARAVAN_CREDENTIALS to its file"
            raise CliError("config", text)
        bus = await connect(login)
        try:
            return await work(bus)
        finally:
            await bus.end()

    return asyncio.run(run())


async def _get(bus: BusClient, stream: str, seq: int) -> _Found:
    found = await _asked(bus, stream, {"seq": seq})
    if found is None:
        raise CliError("not_found", f"{stream} has no message {seq}")
    return found


async def _next(bus: BusClient, stream: str, seq: int) -> _Found | None:
    """Read the first message at or behind a position."""
    return await _asked(bus, stream, {"seq": seq, "next_by_subj": ">"})


async def _asked(bus: BusClient, stream: str, body: dict[str, int | str]) -> _Found | None:
    raw = await bus.ask(subjects.js_message_get(stream), msgspec.json.encode(body))
    answer = _decoded(raw)
    if answer.error is not None and answer.error.err_code != _NOT_FOUND:
        raise CliError("unavailable", f"stream {stream}: {answer.error.description}")
    return answer.message


def _decoded(raw: bytes) -> _Answer:
    # A subject may hold bytes that are not text.
    return msgspec.json.decode(raw.decode(errors="replace"), type=_Answer)


def _shown(data: bytes) -> str:
    text = ascii(data)[1:]
    more = len(text) - _SHOWN_CHARS_MAX
    return text if more <= 0 else f"{text[:_SHOWN_CHARS_MAX]} … {more} more characters"
