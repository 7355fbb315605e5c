"""`/v1/client/allocation/<id>/exec`: a command beside a task, over a websocket of JSON texts."""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from schemas.node_rpc import ActionAsk, ExecAsk
from services.gateway.edge.agents import HttpNodeStream
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.routes.client_files import alloc_place, task_of
from shared.bus.connection.node_stream import new_session_id

#: A session without a word of its client for so long ends; clients say something every ten seconds.
IDLE_S = 60.0
_HANDSHAKE_S = 10.0
_COMMAND_WORDS_MAX = 1_000
_STDERR = 2


#: What is asked: node, verb, and the request.
SessionAsk = tuple[str, str, ExecAsk | ActionAsk]


async def run_command(call: Call) -> None:
    """Run a command until it ends or its client leaves. Raises HttpFault."""
    await run_session(call, partial(_ask, call))


def _ask(call: Call) -> SessionAsk:
    alloc_id, node = alloc_place(call)
    ask = ExecAsk(
        alloc_id=alloc_id,
        task=task_of(call),
        session=new_session_id(),
        command=_command(call),
        tty=call.flag("tty"),
    )
    return node, "exec", ask


async def run_session(call: Call, make_ask: Callable[[], SessionAsk]) -> None:
    """Run what `make_ask` asks for, once the caller is known, until it ends or its client leaves. Raises HttpFault."""
    socket = call.connection
    assert isinstance(socket, WebSocket)
    if call.flag("ws_handshake"):
        await _log_in(call, socket)
    # A login that came by the handshake is counted here: its connection must not be closed as idle.
    call.caller.users += 1
    try:
        await _run(call, socket, make_ask)
    finally:
        call.caller.users -= 1


async def _run(call: Call, socket: WebSocket, make_ask: Callable[[], SessionAsk]) -> None:
    await call.wait_for_seq(call.server.promised_seq)
    node, verb, ask = make_ask()
    async with HttpNodeStream(call.caller.client, node, verb, ask) as stream:
        typing = asyncio.create_task(_type(socket, stream))
        printing = asyncio.create_task(_print(socket, stream))
        try:
            done, _ = await asyncio.wait((typing, printing), return_when=asyncio.FIRST_COMPLETED)
            if printing not in done and typing.result():
                # The input is over, the output is not.
                done, _ = await asyncio.wait((printing,))
            for task in done:
                task.result()
        finally:
            for task in (typing, printing):
                task.cancel()
            await asyncio.gather(typing, printing, return_exceptions=True)
    if printing.done() and not printing.cancelled() and stream.exit_code is not None:
        code = 128 - stream.exit_code if stream.exit_code < 0 else stream.exit_code
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await _send(socket, {"exited": True, "result": {"exit_code": code}})
            await socket.close()


async def _log_in(call: Call, socket: WebSocket) -> None:
    """Read the login from the first message: a browser cannot send headers. Raises HttpFault 403."""
    try:
        first = await asyncio.wait_for(_receive(socket), _HANDSHAKE_S)
    except (TimeoutError, WebSocketDisconnect) as err:
        raise HttpFault(400, "the first message must be the handshake") from err
    if first.get("version") != 1:
        raise HttpFault(400, "the handshake must have version 1")
    call.caller = await call.server.callers.of_token(str(first.get("auth_token", "")))


def _command(call: Call) -> tuple[str, ...]:
    """The command: a JSON list of words in the parameter. Raises HttpFault 400."""
    try:
        words = msgspec.json.decode(call.text("command"), type=tuple[str, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise HttpFault(400, f"command is not a JSON list of words: {err}") from err
    if not 0 < len(words) <= _COMMAND_WORDS_MAX:
        raise HttpFault(400, "command is not present")
    return words


async def _type(socket: WebSocket, stream: HttpNodeStream) -> bool:
    """Send what the client types until it leaves, or there is no more input. Raises HttpFault."""
    while True:
        try:
            one = await asyncio.wait_for(_receive(socket), IDLE_S)
        except TimeoutError as err:
            raise HttpFault(400, f"no message of the client in {IDLE_S:.0f} s") from err
        except WebSocketDisconnect:
            return False
        stdin, size = one.get("stdin"), one.get("tty_size")
        if isinstance(stdin, dict):
            is_end = bool(stdin.get("close"))
            try:
                data = base64.b64decode(str(stdin.get("data", "") or ""), validate=True)
            except binascii.Error as err:
                raise HttpFault(400, "stdin.data is not base64") from err
            try:
                await stream.send(data, is_end=is_end)
            except HttpFault as err:
                if err.status != 404:
                    raise
                # The command has ended before it read this: its output and exit code are on their way.
                return True
        if isinstance(size, dict):
            rows, columns = _size(size.get("height")), _size(size.get("width"))
            if rows and columns:
                await stream.send(rows=rows, columns=columns)


def _size(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 10_000 else 0


async def _print(socket: WebSocket, stream: HttpNodeStream) -> None:
    """Send what the command prints until it ends. Raises HttpFault."""
    with contextlib.suppress(WebSocketDisconnect):
        async for frame in stream.frames():
            name = "stderr" if frame.source == _STDERR else "stdout"
            await _send(socket, {name: {"data": base64.b64encode(frame.data).decode()}})
        for name in ("stdout", "stderr"):
            await _send(socket, {name: {"close": True}})


async def _send(socket: WebSocket, value: dict[str, Any]) -> None:
    await socket.send_text(msgspec.json.encode(value).decode())


async def _receive(socket: WebSocket) -> dict[str, Any]:
    """One message of the client. Raises HttpFault 400, WebSocketDisconnect."""
    found = await socket.receive()
    if found["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(found.get("code", 1000))
    raw = found.get("text") or found.get("bytes") or "{}"
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise HttpFault(400, f"a message is not a JSON object: {err}") from err


ENDPOINTS = (
    Endpoint(
        pattern="/v1/client/allocation/{alloc}/exec",
        summary="Run a command beside a task.",
        read=run_command,
        is_socket=True,
    ),
)
