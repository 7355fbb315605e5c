"""Streams to a client of node RPC: frames out within a window, input in, an end when the client is silent.

Decides how many frames may be unacknowledged and how long silence lasts. Independent of the bus: `send` publishes a
frame, and returns False when it cannot.
"""

import asyncio
import contextlib
from collections.abc import Callable

from schemas.jobs import ErrorDetail
from schemas.node_rpc import Frame, SessionInput
from shared.errors import CommandInvalid

#: Bytes of a frame; base64 makes a third more of it.
FRAME_BYTES = 32 * 1024
#: Frames that the reader has not said to have seen.
WINDOW = 32
#: Inputs that wait to be taken.
INPUTS_MAX = 16
#: A reader that is silent for so long has left; and the interval of keep-alive frames.
IDLE_TIMEOUT_S = 30.0
KEEPALIVE_S = 5.0
INPUT_BYTES_MAX = 64 * 1024
_RETRY_S = 0.1


class FrameSender:
    """One stream to a reader; `watch` runs beside the sender."""

    def __init__(self, send: Callable[[Frame], bool], *, silent_s: float = IDLE_TIMEOUT_S) -> None:
        self._send = send
        self._silent_s = silent_s
        self._number = 0
        self._seen = 0
        self._taken = 0
        self._room = asyncio.Event()
        self._room.set()
        self._closed = asyncio.Event()
        self._heard_s = asyncio.get_running_loop().time()
        self.inputs: asyncio.Queue[SessionInput] = asyncio.Queue(INPUTS_MAX)
        #: the reader wants no more than what there is now.
        self.is_ending = False
        self.is_over = False

    def take(self, one: SessionInput) -> None:
        """Take what the reader says. Raises CommandInvalid: `busy` (say it again), or a gap in its inputs."""
        self._heard_s = asyncio.get_running_loop().time()
        self._seen = max(self._seen, min(one.seen, self._number))
        if self._number - self._seen < WINDOW:
            self._room.set()
        if not one.number or one.number <= self._taken:
            return
        if one.number != self._taken + 1:
            text = f"input {one.number} received after input {self._taken}: inputs are missing"
            raise CommandInvalid("conflict", text, "number")
        if len(one.data) > INPUT_BYTES_MAX:
            text = f"input of {len(one.data)} bytes exceeds {INPUT_BYTES_MAX} bytes"
            raise CommandInvalid("invalid", text, "data")
        try:
            self.inputs.put_nowait(one)
        except asyncio.QueueFull:
            raise CommandInvalid("busy", "input buffer is full; retry") from None
        self._taken = one.number
        self.is_ending = self.is_ending or one.is_end

    async def give(self, data: bytes, source: int = 1) -> None:
        """Send bytes, when the reader has room for them."""
        for at in range(0, len(data), FRAME_BYTES):
            await self._room.wait()
            self._number += 1
            await self._sent(
                Frame(number=self._number, source=source, data=data[at : at + FRAME_BYTES])
            )
            if self._number - self._seen >= WINDOW:
                self._room.clear()

    async def end(self, *, exit_code: int | None = None, error: ErrorDetail | None = None) -> None:
        """Send the last frame; the window does not hold it back."""
        if not self.is_over:
            self.is_over = True
            self._number += 1
            await self._sent(
                Frame(number=self._number, is_end=True, exit_code=exit_code, error=error)
            )

    def close(self) -> None:
        """End the stream: its reader has left."""
        self._closed.set()

    async def watch(self) -> None:
        """Send keep-alive frames; returns when the reader has left or is silent for too long."""
        loop = asyncio.get_running_loop()
        while loop.time() - self._heard_s < self._silent_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), min(KEEPALIVE_S, self._silent_s / 4))
                return
            self._send(Frame())

    @property
    def silence(self) -> ErrorDetail | None:
        """Why a stream ends whose reader neither left nor was heard; None: the reader left."""
        if self._closed.is_set():
            return None
        text = f"nothing was heard from the reader for {self._silent_s:g} s: send `seen` to `session` every 10 s"
        if not self._room.is_set():
            text += f"; {WINDOW} frames ({WINDOW * FRAME_BYTES >> 10} KiB) wait for it"
        return ErrorDetail(code="gone", message=text)

    async def _sent(self, frame: Frame) -> None:
        while not self._send(frame):  # noqa: ASYNC110 - the bus is away, or does not read.
            await asyncio.sleep(_RETRY_S)
