"""A container's output into the task's log files: where every other driver has it, rotated as theirs is.

Decides from where on the engine is asked again after any interruption: each line of the engine's own log bears a time;
the last one written is kept beside the run. A line is written twice only when the agent is killed between its write and
that note.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from services.agent.backoff import Backoff
from services.agent.drivers.docker.engine import (
    DockerEngine,
    EngineRefused,
    EngineUnavailable,
    cancel_task,
    container_path,
    demultiplex,
)
from services.agent.drivers.docker.events import RETRY_MAX_S, RETRY_S
from services.agent.drivers.driver import DriverRun
from services.agent.safe_open import open_log

#: `2026-01-02T03:04:05.000000000Z ` before each line.
STAMP = 31
#: Lines in one turn of the loop.
_LINES_PER_YIELD = 64
_log = structlog.get_logger()


class LogAppender:
    """One output of a task, for appending; opened at the first line."""

    def __init__(self, top: Path, path: Path) -> None:
        #: above this, no task writes.
        self._top = top
        self._path = path
        self._fd = -1
        self.lost_bytes = 0

    def write(self, data: bytes) -> None:
        """Append; what cannot be written is counted and lost, as with a task that writes itself."""
        try:
            if self._fd < 0 or os.fstat(self._fd).st_nlink == 0:
                self.close()
                self._fd = open_log(self._top, self._path)
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as err:
            if not self.lost_bytes:
                _log.warning("logs.not_written", path=str(self._path), error=str(err))
            self.lost_bytes += len(data)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ContainerLogCopy:
    """Copies one run's output as long as it runs, and what is left after its end."""

    def __init__(self, engine: DockerEngine, run: DriverRun, container: str, *, tty: bool) -> None:
        self._engine = engine
        self._container = container
        self._tty = tty
        places = run.places
        self._files = {
            1: LogAppender(places.shared, places.stdout),
            2: LogAppender(places.shared, places.stderr),
        }
        self._note = run.directory / "log"
        #: time of the last line written, and how many lines with that very time were.
        self._last, self._same = self._read_note()
        self._note_fd = -1
        #: the task of `follow`, on the loop that it runs on.
        self._follower: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Follow from where the last life stopped."""
        work = self._follow()
        self._follower = asyncio.get_running_loop().create_task(work, name="docker logs")

    def abandon(self) -> None:
        """Stop following; the next life continues from here."""
        cancel_task(self._follower)

    async def finish(self, patience_s: float = 5.0) -> None:
        """After the end: copy what is left, and close. Raises nothing."""
        follower, self._follower = self._follower, None
        loop = asyncio.get_running_loop()
        if follower is not None and follower.get_loop() is loop:
            done, _ = await asyncio.wait({follower}, timeout=patience_s)
            if not done:
                follower.cancel()
                await asyncio.wait({follower}, timeout=1)
        with contextlib.suppress(EngineUnavailable, EngineRefused, TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._copy(follow=False)
        for file in self._files.values():
            file.close()
        if self._note_fd >= 0:
            os.close(self._note_fd)
            self._note_fd = -1

    async def _follow(self) -> None:
        pause = Backoff(RETRY_S, RETRY_MAX_S)
        while True:
            try:
                await self._copy(follow=True)
            except EngineUnavailable:
                await asyncio.sleep(pause.take())
            except EngineRefused:
                return
            else:
                # The stream ended: with the container, or with an engine that restarts; `finish` looks once more.
                if await self._has_ended():
                    return
                await asyncio.sleep(pause.pause)

    async def _has_ended(self) -> bool:
        try:
            found = await self._engine.call(_running, self._container)
        except EngineUnavailable:
            return False
        except EngineRefused:
            return True
        return not found

    async def _copy(self, *, follow: bool) -> None:
        since = _seconds(self._last)
        path = container_path(
            self._container,
            "logs",
            stdout=1,
            stderr=1,
            timestamps=1,
            follow=int(follow),
            since=since,
        )
        reader, writer = await self._engine.open("GET", path)
        skip_time, skip = self._last, self._same
        count = 0
        try:
            async for source, data in _tty_lines(reader) if self._tty else demultiplex(reader):
                stamp, text = data[: STAMP - 1], data[STAMP:]
                if stamp < skip_time:
                    continue
                if stamp == skip_time and skip:
                    # Written in an earlier try.
                    skip -= 1
                    continue
                self._files.get(source, self._files[1]).write(text)
                self._wrote(stamp)
                count += 1
                if count % _LINES_PER_YIELD == 0:
                    # A container with much output must not delay the others.
                    await asyncio.sleep(0)
        finally:
            writer.close()

    def _wrote(self, stamp: bytes) -> None:
        self._same = self._same + 1 if stamp == self._last else 1
        self._last = stamp
        with contextlib.suppress(OSError):
            if self._note_fd < 0:
                self._note_fd = os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Always as long: the new one covers the old.
            os.pwrite(self._note_fd, b"%b %12d\n" % (stamp, self._same), 0)

    def _read_note(self) -> tuple[bytes, int]:
        try:
            words = self._note.read_bytes().split()
        except OSError:
            return b"", 0
        if len(words) == 2 and words[1].isdigit():
            return words[0], int(words[1])
        return b"", 0


def _running(api: Any, container: str) -> bool:
    state = api.inspect_container(container)["State"]
    return bool(state["Running"])


def _seconds(stamp: bytes) -> str:
    """The engine's `since`: seconds and nanoseconds since 1970; 0: from the beginning."""
    if not stamp:
        return "0"
    moment = datetime.fromisoformat(f"{stamp[:19].decode()}+00:00")
    return f"{int(moment.timestamp())}.{stamp[20:29].decode()}"


async def _tty_lines(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """An answer with a terminal has no frames: a line is what one entry of the log was."""
    while True:
        try:
            yield 1, await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as err:
            if err.partial:
                yield 1, err.partial
            return
        except (asyncio.LimitOverrunError, ConnectionError):
            return
