"""`caravan alloc logs --shipped`: the output of a task that its node shipped to the bus, also when the node is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from schemas.allocations import TERMINAL_STATUSES
from schemas.bounds import bounded_decoder
from schemas.shipped_logs import ShippedLogs
from services.cli.alloc.shipped_text import LastLines, ShippedText
from services.cli.runtime.closed_pipe import ending_with_reader
from services.cli.runtime.node_client import JSON_BYTES_MAX, find_alloc
from services.cli.runtime.output import CliError, CommandOutput, short_id
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import NoResponders, direct_get_batch
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: How often --follow looks, and how long nothing may come after the end of the allocation.
_LOOK_S = 1.0
_QUIET_LOOKS = 5
_MESSAGE = bounded_decoder(ShippedLogs)


class ShippedSource(msgspec.Struct, frozen=True):
    """One output of one task."""

    node: str
    alloc_id: str
    task: str
    stream: str

    @property
    def subject(self) -> str:
        """Where its node publishes it, and no other can."""
        return subjects.shipped_logs(self.node, self.alloc_id, self.task)


class _Reading:
    """Reads one output from the stream, each message once."""

    def __init__(self, client: Client, source: ShippedSource) -> None:
        self._client = client
        self._source = source
        self._next_seq = 1
        self.text = ShippedText(source.stream)

    async def texts(self) -> AsyncIterator[str]:
        """What came since the last time. Raises CliError."""
        try:
            while batch := await direct_get_batch(
                self._client.bus,
                streams.LOGS.name,
                self._next_seq,
                subject=self._source.subject,
            ):
                self._next_seq = batch[-1].seq + 1
                for one in batch:
                    # Nodes write it: what cannot be read is missing.
                    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                        for text in self.text.add(_MESSAGE.decode(one.data)):
                            yield text
        except NoResponders as err:
            text = (
                "the bus has no stream LOGS: its servers need their configuration of this release"
            )
            raise CliError("unavailable", text) from err


async def print_shipped(
    client: Client, out: CommandOutput, source: ShippedSource, *, follow: bool, tail: int | None
) -> None:
    """Print it; with `follow` until the allocation has ended and nothing more comes. Raises CliError."""
    reading = _Reading(client, source)
    last = LastLines(tail) if tail else None
    async for text in reading.texts():
        if last is not None:
            last.add([text])
        elif tail is None:
            await _write(out, text)
    if last is not None:
        await _write(out, last.text())
    if not follow:
        _refuse_nothing(reading.text, source)
        return
    async with ending_with_reader():
        await _follow(client, out, reading, source)


async def shipped_text(
    client: Client, source: ShippedSource, tail: int | None
) -> tuple[str, ShippedText]:
    """Return the end of it, for one object, and what it was made from. Raises CliError."""
    reading = _Reading(client, source)
    last, kept = LastLines(tail) if tail else None, ""
    async for text in reading.texts():
        if last is not None:
            last.add([text])
        elif tail is None:
            kept = (kept + text)[-JSON_BYTES_MAX:]
    _refuse_nothing(reading.text, source)
    return (kept if last is None else last.text())[-JSON_BYTES_MAX:], reading.text


def _refuse_nothing(text: ShippedText, source: ShippedSource) -> None:
    if not text.size and not text.lost:
        where = f"task {source.task} of allocation {short_id(source.alloc_id)}"
        why = "a job ships output with logs { ship = true }"
        raise CliError("not_found", f"no {source.stream} of {where} was shipped; {why}")


async def _follow(
    client: Client, out: CommandOutput, reading: _Reading, source: ShippedSource
) -> None:
    quiet = 0
    while quiet < _QUIET_LOOKS:
        await asyncio.sleep(_LOOK_S)
        size, has_ended = reading.text.size, False
        with contextlib.suppress(BusUnavailable):
            async for text in reading.texts():
                await _write(out, text)
        with contextlib.suppress(CliError, BusUnavailable):
            found = await find_alloc(client, source.alloc_id)
            has_ended = found.allocation.client_status in TERMINAL_STATUSES
        quiet = quiet + 1 if has_ended and reading.text.size == size else 0


async def _write(out: CommandOutput, text: str) -> None:
    # In a thread: the reader of the pipe may pause (less).
    await asyncio.to_thread(out.write, text.encode("utf-8", "replace"))
