"""`caravan alloc logs`: what a task wrote, from the agent that keeps it, wherever that is."""

import asyncio
import contextlib
import sys

from schemas.hands import LogsAsk
from services.cli.asking import with_bus
from services.cli.handing import FrameStream, alloc_of, new_session, only_task
from services.cli.output import CliError, Output
from shared.bus.client import Client

#: What `--json` holds of a log at the most: its end.
_TEXT_BYTES_MAX = 1 << 20
#: How often a follower looks whether the allocation still lives.
_LOOK_S = 2.0
_ENDED = ("complete", "failed", "lost")


def logs(out: Output, *, alloc_id: str, task: str, stderr: bool, follow: bool, tail: int) -> int:
    """Print what a task wrote; with `follow` go on until the allocation ended and all was printed."""
    if follow and out.is_json:
        raise CliError("usage", "--json prints one object, so it cannot follow")
    if tail < 0:
        raise CliError("usage", "--tail is a number of lines")
    source = "stderr" if stderr else "stdout"

    async def work(client: Client) -> int:
        answer = await alloc_of(client, alloc_id)
        one = answer.allocation
        ask = LogsAsk(
            alloc_id=one.id,
            task=only_task(answer, task),
            session=new_session(),
            stream=source,
            follow=follow,
            tail=tail,
        )
        async with FrameStream(client, one.node, "logs", ask) as stream:
            if out.is_json:
                await _one_object(out, stream, ask)
                return 0
            looking = asyncio.create_task(
                _until_ended(client, stream, one.id) if follow else _nothing()
            )
            try:
                async for frame in stream.frames():
                    # A thread: a reader who pauses (less) must not keep us from saying that we are there.
                    await asyncio.to_thread(_write, frame.data)
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
        return 0

    return with_bus(work)


async def _one_object(out: Output, stream: FrameStream, ask: LogsAsk) -> None:
    size, text = 0, b""
    async for frame in stream.frames():
        size += len(frame.data)
        text = (text + frame.data)[-_TEXT_BYTES_MAX:]
    out.result(
        {
            "allocation": ask.alloc_id,
            "task": ask.task,
            "stream": ask.stream,
            "size": size,
            "text": text.decode("utf-8", "replace"),
        }
    )


async def _until_ended(client: Client, stream: FrameStream, alloc_id: str) -> None:
    """When the allocation is over, want no more than there is."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(CliError):
            if (await alloc_of(client, alloc_id)).allocation.client_status in _ENDED:
                await stream.send(is_end=True)
                return


async def _nothing() -> None:
    return


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
