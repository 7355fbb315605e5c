"""Requests to a node's agent for a caller, and answers that are streamed."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from starlette.responses import StreamingResponse

from schemas.jobs import ErrorDetail
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault, of_refusal
from shared.bus.connection.node_stream import NodeStream
from shared.protocol import subjects

T = TypeVar("T", bound=msgspec.Struct)
#: A reader that takes nothing for so long is cut.
SILENT_S = 60.0
_ANSWER_S = 30.0


class HttpNodeStream(NodeStream):
    """A stream of a node's agent. Raises HttpFault."""

    def fault(self, code: str, message: str, path: str = "") -> Exception:
        """The fault of an answer."""
        return of_refusal({"code": code, "message": message, "path": path})


async def ask_agent(
    call: Call, node: str, verb: str, body: msgspec.Struct, *, answer: type[T]
) -> T:
    """Ask an agent with the caller's login. Raises HttpFault."""
    raw = await call.request_raw(
        subjects.node_rpc(node, verb), msgspec.json.encode(body), _ANSWER_S
    )
    try:
        found = msgspec.json.decode(raw, type=answer)
    except msgspec.MsgspecError as err:
        raise HttpFault(502, f"the answer of node {node} cannot be read: {err}") from err
    error: ErrorDetail | None = getattr(found, "error", None)
    if error is not None:
        raise of_refusal(msgspec.to_builtins(error))
    return found


def streamed(call: Call, parts: AsyncIterator[bytes], media_type: str) -> StreamingResponse:
    """Answer with parts as they come: never compressed, since they would wait in a buffer."""
    return StreamingResponse(_held(call, parts), 200, media_type=media_type)


async def _held(call: Call, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Keep the caller's connection while the stream lasts; end where its reader takes nothing."""
    call.caller.users += 1
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    try:
        async for part in parts:
            # Between this and the next turn the part is written: a reader that takes nothing holds it up.
            alarm = loop.call_later(SILENT_S, task.cancel) if task is not None else None
            try:
                yield part
            finally:
                if alarm is not None:
                    alarm.cancel()
    finally:
        call.caller.users -= 1
