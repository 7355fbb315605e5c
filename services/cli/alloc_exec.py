"""`caravan alloc exec`: a command beside a task, with its output here, its input from here, and its exit code."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from schemas.hands import ExecAsk
from services.cli import terminal
from services.cli.asking import with_bus
from services.cli.handing import FrameStream, alloc_of, new_session, only_task
from services.cli.output import CliError, Output
from shared.bus.client import Client

#: What `--json` holds of each output at the most: its end.
_TEXT_BYTES_MAX = 1 << 20
_STDERR = 2


def execute(
    out: Output, *, alloc_id: str, command: Sequence[str], task: str, interactive: bool, tty: bool
) -> int:
    """Run a command beside a task; returns its exit code."""
    if out.is_json and (tty or interactive):
        raise CliError("usage", "--json prints one object: without -i and -t")

    async def work(client: Client) -> int:
        answer = await alloc_of(client, alloc_id)
        one = answer.allocation
        rows, columns = terminal.size(sys.stdout.fileno())
        ask = ExecAsk(
            alloc_id=one.id,
            task=only_task(answer, task),
            session=new_session(),
            command=tuple(command),
            tty=tty,
            rows=rows,
            columns=columns,
        )
        async with FrameStream(client, one.node, "exec", ask) as stream:
            if out.is_json:
                return await _one_object(out, stream, ask)
            return await _talk(stream, keys=interactive or tty, tty=tty)

    return with_bus(work)


async def _talk(stream: FrameStream, *, keys: bool, tty: bool) -> int:
    with contextlib.ExitStack() as stack:
        changes: asyncio.Queue[None] = asyncio.Queue()
        if tty:
            stack.enter_context(terminal.raw(sys.stdin.fileno()))
            stack.enter_context(terminal.resized(lambda: changes.put_nowait(None)))
        typing = asyncio.create_task(_type(stream, changes, keys=keys))
        try:
            async for frame in stream.frames():
                await asyncio.to_thread(_write, frame.data, frame.source)
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)
    return _code(stream)


async def _type(stream: FrameStream, changes: asyncio.Queue[None], *, keys: bool) -> None:
    """Send keys and changes of size, one after the other."""
    if not keys:
        await stream.send(is_end=True)
        return
    read = terminal.Keys(sys.stdin.fileno())
    taking = asyncio.create_task(read.take())
    changing = asyncio.create_task(changes.get())
    is_open = True
    try:
        while True:
            waiting = {taking, changing} if is_open else {changing}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if changing.done():
                changing = asyncio.create_task(changes.get())
                rows, columns = terminal.size(sys.stdout.fileno())
                await stream.send(rows=rows, columns=columns)
            if is_open and taking.done():
                data = taking.result()
                await stream.send(data, is_end=not data)
                is_open = bool(data)
                if is_open:
                    taking = asyncio.create_task(read.take())
    finally:
        taking.cancel()
        changing.cancel()


async def _one_object(out: Output, stream: FrameStream, ask: ExecAsk) -> int:
    ending = asyncio.create_task(stream.send(is_end=True))
    said = {1: b"", _STDERR: b""}
    try:
        async for frame in stream.frames():
            said[frame.source] = (said.get(frame.source, b"") + frame.data)[-_TEXT_BYTES_MAX:]
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    code = _code(stream)
    out.result(
        {
            "allocation": ask.alloc_id,
            "task": ask.task,
            "exit_code": code,
            "stdout": said[1].decode("utf-8", "replace"),
            "stderr": said[_STDERR].decode("utf-8", "replace"),
        }
    )
    return code


def _code(stream: FrameStream) -> int:
    """The command's exit code; what a signal ended counts as in a shell."""
    code = stream.exit_code
    if code is None:
        raise CliError("failed", "the command ended, nobody knows how")
    return 128 - code if code < 0 else code


def _write(data: bytes, source: int) -> None:
    stream = sys.stderr.buffer if source == _STDERR else sys.stdout.buffer
    stream.write(data)
    stream.flush()
