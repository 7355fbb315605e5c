"""`caravan alloc exec`: run a command in the environment of a task, with its output, input and exit code."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence

import msgspec

from schemas.node_rpc import ExecAsk
from services.cli.runtime import terminal
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.contexts import require_choice
from services.cli.runtime.node_client import (
    JSON_BYTES_MAX,
    CliNodeStream,
    find_alloc,
    select_task,
)
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.node_stream import NodeStream, new_session_id
from shared.bus.connection.public_client import Client

_STDERR = 2


class AllocExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """`alloc exec --json`."""

    allocation: str
    task: str
    exit_code: int
    stdout: str
    stderr: str


def execute(
    out: CommandOutput,
    *,
    alloc_id: str,
    command: Sequence[str],
    task: str,
    interactive: bool,
    tty: bool,
) -> int:
    """Run a command in the environment of a task; returns its exit code."""
    if out.is_json and (tty or interactive):
        raise CliError("usage", "--json cannot be combined with -i or -t")
    # Nothing is printed beside the command's own output.
    require_choice()

    async def work(client: Client) -> int:
        answer = await find_alloc(client, alloc_id)
        one = answer.allocation
        rows, columns = terminal.terminal_size(sys.stdout.fileno())
        ask = ExecAsk(
            alloc_id=one.id,
            task=select_task(answer, task),
            session=new_session_id(),
            command=tuple(command),
            tty=tty,
            rows=rows,
            columns=columns,
        )
        async with CliNodeStream(client, one.node, "exec", ask) as stream:
            if out.is_json:
                return await _one_object(out, stream, ask)
            return await talk(stream, keys=interactive or tty, tty=tty)

    return with_bus(work)


async def talk(stream: NodeStream, *, keys: bool, tty: bool) -> int:
    """Print what a command says and, with `keys`, send it what is typed; returns its exit code. Raises CliError."""
    with contextlib.ExitStack() as stack:
        changes: asyncio.Queue[None] = asyncio.Queue()
        if tty:
            stack.enter_context(terminal.raw_mode(sys.stdin.fileno()))
            stack.enter_context(terminal.on_resize(lambda: changes.put_nowait(None)))
        typing = asyncio.create_task(_type(stream, changes, keys=keys))
        try:
            async for frame in stream.frames():
                await asyncio.to_thread(_write, frame.data, frame.source)
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)
    return _code(stream)


async def _type(stream: NodeStream, changes: asyncio.Queue[None], *, keys: bool) -> None:
    """Send input and terminal sizes, one after the other."""
    if not keys:
        await stream.send(is_end=True)
        return
    read = terminal.KeyReader(sys.stdin.fileno())
    taking = asyncio.create_task(read.take())
    changing = asyncio.create_task(changes.get())
    is_open = True
    try:
        while True:
            waiting = {taking, changing} if is_open else {changing}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if changing.done():
                changing = asyncio.create_task(changes.get())
                rows, columns = terminal.terminal_size(sys.stdout.fileno())
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


async def captured(stream: NodeStream) -> tuple[int, str, str]:
    """Return exit code and the last of both outputs of a command without input. Raises CliError."""
    ending = asyncio.create_task(stream.send(is_end=True))
    texts = {1: b"", _STDERR: b""}
    try:
        async for frame in stream.frames():
            texts[frame.source] = (texts.get(frame.source, b"") + frame.data)[-JSON_BYTES_MAX:]
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    outputs = [texts[one].decode("utf-8", "replace") for one in (1, _STDERR)]
    return _code(stream), outputs[0], outputs[1]


async def _one_object(out: CommandOutput, stream: NodeStream, ask: ExecAsk) -> int:
    code, stdout, stderr = await captured(stream)
    out.result(
        AllocExecResult(
            allocation=ask.alloc_id, task=ask.task, exit_code=code, stdout=stdout, stderr=stderr
        )
    )
    return code


def _code(stream: NodeStream) -> int:
    """The command's exit code; 128 + number if a signal ended it, as in a shell."""
    code = stream.exit_code
    if code is None:
        raise CliError("failed", "the command ended; exit code unknown")
    return 128 - code if code < 0 else code


def _write(data: bytes, source: int) -> None:
    stream = sys.stderr.buffer if source == _STDERR else sys.stdout.buffer
    stream.write(data)
    stream.flush()
