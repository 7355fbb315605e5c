"""`caravan alloc logs`: the output of a task, sent by the node's agent, or as it was shipped to the bus."""

import asyncio
import contextlib

import msgspec

from schemas.allocations import TERMINAL_STATUSES
from schemas.node_rpc import LogsAsk
from services.cli.alloc.shipped_logs import ShippedSource, print_shipped, shipped_text
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.closed_pipe import ending_with_reader
from services.cli.runtime.node_client import (
    JSON_BYTES_MAX,
    CliNodeStream,
    asked_lines,
    find_alloc,
    select_task,
)
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.node_stream import NodeStream, new_session_id
from shared.bus.connection.public_client import Client

#: How often --follow checks whether the allocation has ended.
_LOOK_S = 2.0


class AllocLogsResult(msgspec.Struct, frozen=True):
    """`alloc logs --json`."""

    allocation: str
    task: str
    stream: str
    size: int
    text: str
    #: bytes that were not shipped, or are not kept any more.
    lost: int = 0


def logs(
    out: CommandOutput,
    *,
    alloc_id: str,
    task: str,
    stderr: bool,
    follow: bool,
    tail: int | None,
    shipped: bool = False,
) -> int:
    """Print the output of a task; with `follow` until the allocation has ended and all is printed."""
    if follow and out.is_json:
        raise CliError("usage", "--json cannot be combined with --follow")
    if tail is not None and tail < 0:
        raise CliError("usage", "--tail must not be negative")
    source = "stderr" if stderr else "stdout"

    async def work(client: Client) -> int:
        answer = await find_alloc(client, alloc_id)
        one = answer.allocation
        if shipped:
            place = ShippedSource(one.node, one.id, select_task(answer, task), source)
            await _shipped(out, client, place, follow=follow, tail=tail)
            return 0
        ask = LogsAsk(
            alloc_id=one.id,
            task=select_task(answer, task),
            session=new_session_id(),
            stream=source,
            follow=follow,
            tail=asked_lines(tail),
        )
        leaving = ending_with_reader() if follow else contextlib.nullcontext()
        async with leaving, CliNodeStream(client, one.node, "logs", ask) as stream:
            if out.is_json:
                await _one_object(out, stream, ask)
                return 0
            watch = asyncio.create_task(_until_ended(client, stream, one.id)) if follow else None
            try:
                async for frame in stream.frames():
                    # In a thread: the stream must be kept alive while the reader pauses (less).
                    await asyncio.to_thread(out.write, frame.data)
            finally:
                if watch is not None:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
        return 0

    return with_bus(work)


async def _shipped(
    out: CommandOutput, client: Client, place: ShippedSource, *, follow: bool, tail: int | None
) -> None:
    if not out.is_json:
        await print_shipped(client, out, place, follow=follow, tail=tail)
        return
    text, found = await shipped_text(client, place, tail)
    out.result(
        AllocLogsResult(place.alloc_id, place.task, place.stream, found.size, text, found.lost)
    )


async def _one_object(out: CommandOutput, stream: NodeStream, ask: LogsAsk) -> None:
    size, text = 0, b""
    async for frame in stream.frames():
        size += len(frame.data)
        text = (text + frame.data)[-JSON_BYTES_MAX:]
    shown = text.decode("utf-8", "replace")
    out.result(AllocLogsResult(ask.alloc_id, ask.task, ask.stream, size, shown))


async def _until_ended(client: Client, stream: NodeStream, alloc_id: str) -> None:
    """End the stream when the allocation has ended."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(CliError):
            if (await find_alloc(client, alloc_id)).allocation.client_status in TERMINAL_STATUSES:
                await stream.send(is_end=True)
                return
