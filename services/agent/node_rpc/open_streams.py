"""The open streams of an agent by the names that their readers chose: opened, fed, watched, ended.

Decides how many there may be, and that a stream whose reader is silent ends with its work. Independent of the bus.
Next: `stream.py`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from schemas.base import Wire
from schemas.jobs import ErrorDetail
from schemas.node_rpc import SessionInput
from services.agent.drivers.driver import StartRefused
from services.agent.node_rpc.stream import FrameSender
from shared.errors import CommandInvalid

#: The last frame is tried to be sent for so long.
LAST_FRAME_S = 15.0
_log = structlog.get_logger()


class OpenStreams:
    """At most `most` streams of node `node_id`, on one event loop."""

    def __init__(self, node_id: str, most: int) -> None:
        self._node_id = node_id
        self._most = most
        self._streams: dict[str, FrameSender] = {}
        self._work: set[asyncio.Task[None]] = set()

    def take(self, one: SessionInput) -> None:
        """Take what the reader of a stream says. Raises CommandInvalid."""
        stream = self._streams.get(one.session)
        if stream is None:
            text = f"session not found on node {self._node_id} (it may have ended)"
            raise CommandInvalid("not_found", text, "session")
        if one.close:
            stream.close()
        else:
            stream.take(one)

    def open(
        self,
        name: str,
        work: Callable[[FrameSender], Coroutine[Any, Any, int | None]],
        answer: Callable[[Wire], bool],
    ) -> None:
        """Open a stream under the name that its reader chose, and have `work` fill it. Raises CommandInvalid."""
        if len(name) < 32 or len(name) > 64 or name in self._streams:
            text = "session must be 32 to 64 hex digits chosen by the client"
            raise CommandInvalid("invalid", text, "session")
        if len(self._streams) >= self._most:
            text = f"node {self._node_id} has too many open streams (limit {self._most})"
            raise CommandInvalid("unavailable", text)
        stream = self._streams[name] = FrameSender(answer)
        self._spawn(self._stream(name, stream, work(stream)))

    async def _stream(
        self, name: str, stream: FrameSender, work: Coroutine[Any, Any, int | None]
    ) -> None:
        giving = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(stream.watch())
        try:
            await asyncio.wait({giving, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not giving.done():
                giving.cancel()
                await asyncio.wait({giving})
                silence = stream.silence
                if silence is not None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stream.end(error=silence), LAST_FRAME_S)
                return
            code, error = _outcome(giving)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stream.end(exit_code=code, error=error), LAST_FRAME_S)
        finally:
            for task in (giving, watching):
                task.cancel()
            await asyncio.gather(giving, watching, return_exceptions=True)
            self._streams.pop(name, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _outcome(done: asyncio.Future[int | None]) -> tuple[int | None, ErrorDetail | None]:
    """Describe how a stream ended: exit code, or why there is none."""
    fault = None if done.cancelled() else done.exception()
    if done.cancelled():
        return None, ErrorDetail(code="gone", message="stream was closed")
    if fault is None:
        return done.result(), None
    if isinstance(fault, CommandInvalid):
        return None, ErrorDetail(code=fault.code, message=fault.message, path=fault.path)
    if isinstance(fault, StartRefused):
        return None, ErrorDetail(code="refused", message=str(fault))
    if isinstance(fault, TimeoutError):
        return None, ErrorDetail(code="failed", message="driver did not answer")
    _log.warning("hands.failed", error=repr(fault))
    return None, ErrorDetail(code="failed", message=repr(fault))
