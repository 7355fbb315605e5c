"""Streams to an operator: frames out, no more of them than the reader takes; input in; an end when he falls silent.

Decides how many frames may be on their way and how long silence lasts. Must not know what is streamed, nor the bus:
`send` publishes a frame, False where it could not.
"""

import asyncio
import contextlib
from collections.abc import Callable

from schemas.hands import Frame, SessionInput
from schemas.jobs import ErrorDetail
from shared.errors import CommandInvalid

#: Bytes of a frame; base64 makes a third more of it.
FRAME_BYTES = 32 * 1024
#: Frames that the reader has not said to have seen.
WINDOW = 32
#: Inputs that wait to be taken.
INPUTS_MAX = 16
#: Who says nothing for so long is gone; and how often a sign of life is given.
SILENT_S = 30.0
SIGN_S = 5.0
INPUT_BYTES_MAX = 64 * 1024
_RETRY_S = 0.1


class Stream:
    """One stream. `run` it beside whoever gives."""

    def __init__(self, send: Callable[[Frame], bool], *, silent_s: float = SILENT_S) -> None:
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
            text = f"input {one.number} after input {self._taken}: some are missing"
            raise CommandInvalid("conflict", text, "number")
        if len(one.data) > INPUT_BYTES_MAX:
            text = f"{len(one.data)} bytes, at most {INPUT_BYTES_MAX} are taken at once"
            raise CommandInvalid("invalid", text, "data")
        try:
            self.inputs.put_nowait(one)
        except asyncio.QueueFull:
            raise CommandInvalid("busy", "the command has not read what was sent before") from None
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
        """End it for its reader, who is gone."""
        self._closed.set()

    async def watch(self) -> None:
        """Give signs of life; returns when the reader has left, or has been silent for too long."""
        loop = asyncio.get_running_loop()
        while loop.time() - self._heard_s < self._silent_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), min(SIGN_S, self._silent_s / 4))
                return
            self._send(Frame())

    async def _sent(self, frame: Frame) -> None:
        while not self._send(frame):  # noqa: ASYNC110 - the bus is away, or does not read.
            await asyncio.sleep(_RETRY_S)
