"""Tasks on their nodes: output, commands beside a task, files, use, restarts and signals.

A stream is one request with numbered frames. The reader acknowledges each, and says that it is there every few seconds;
at most 32 frames are on their way.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import msgspec
from nats.errors import TimeoutError as NatsTimeoutError

from caravan_client.connection import REQUEST_S, Connection, token
from caravan_client.errors import Refused, StreamEnded
from caravan_client.messages import (
    AllocAnswer,
    AllocSummary,
    FileLine,
    FilePart,
    FilesAnswer,
    Frame,
    SessionAnswer,
    StatsAnswer,
    TaskAnswer,
)

#: A node sends a keep-alive every 5 s.
_SILENCE_S = 15.0
#: Bytes of one input message.
_INPUT_BYTES = 64 * 1024
#: Bytes of one part of a file.
_PART_BYTES = 256 * 1024


class Completed(NamedTuple):
    """A command that ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Tasks:
    """Requests to the node of an allocation, which is named by its id, a beginning of it, or `job.group[index]`."""

    def __init__(self, connection: Connection) -> None:
        """Send them on this connection."""
        self._connection = connection

    async def logs(
        self,
        alloc: str,
        task: str,
        *,
        stream: str = "stdout",
        follow: bool = False,
        tail: int = 0,
    ) -> AsyncIterator[bytes]:
        """Yield output of a task in pieces as they come.

        stream: stdout or stderr.
        follow: continue with new output until the allocation is over.
        tail: only so many lines from the end; 0: all that is kept.
        """
        at = await self._at(alloc)
        body = {"alloc_id": at.id, "task": task, "stream": stream, "follow": follow, "tail": tail}
        async for frame in self._frames(at, "logs", body):
            if frame.data:
                yield frame.data

    async def run(
        self, alloc: str, task: str, command: list[str], *, stdin: bytes = b""
    ) -> Completed:
        """Run a command beside a task, with its isolation, and wait for its end."""
        at, session = await self._at(alloc), uuid.uuid4().hex
        body = {"alloc_id": at.id, "task": task, "command": command}
        out: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        feeding: asyncio.Task[None] | None = None
        try:
            async for frame in self._frames(at, "exec", body, session=session):
                # The first frame shows that the command runs.
                if feeding is None:
                    feeding = asyncio.create_task(self._feed(at, session, stdin))
                out[frame.source] += frame.data
                if frame.is_end and frame.exit_code is not None:
                    return Completed(frame.exit_code, bytes(out[1]), bytes(out[2]))
        finally:
            if feeding is not None:
                feeding.cancel()
        raise StreamEnded("gone", "the command's stream ended without an exit code")

    async def list_files(self, alloc: str, path: str = "") -> tuple[FileLine, ...]:
        """List a directory below the allocation's."""
        at, files = await self._at(alloc), list[FileLine]()
        while True:
            body = {"alloc_id": at.id, "path": path, "offset": len(files)}
            answer = await self._connection.ask(self._subject(at, "fs_list"), body, FilesAnswer)
            files += answer.files
            if not answer.files or len(files) >= answer.total:
                return tuple(files)

    async def describe_file(self, alloc: str, path: str) -> FileLine:
        """Return kind, size, mode and time of one file."""
        at = await self._at(alloc)
        body = {"alloc_id": at.id, "path": path}
        answer = await self._connection.ask(self._subject(at, "fs_stat"), body, FilesAnswer)
        return answer.files[0]

    async def read_file(self, alloc: str, path: str) -> bytes:
        """Return the bytes of a file."""
        at, data = await self._at(alloc), bytearray()
        while True:
            body = {"alloc_id": at.id, "path": path, "offset": len(data), "limit": _PART_BYTES}
            part = await self._connection.ask(self._subject(at, "fs_read"), body, FilePart)
            data += part.data
            if not part.data or len(data) >= part.size:
                return bytes(data)

    async def usage(self, alloc: str) -> StatsAnswer:
        """Return what the tasks of an allocation use now."""
        at = await self._at(alloc)
        return await self._connection.ask(
            self._subject(at, "stats"), {"alloc_id": at.id}, StatsAnswer
        )

    async def restart(self, alloc: str, task: str = "") -> tuple[str, ...]:
        """Restart tasks, by default all that run; returns which."""
        return await self._order(alloc, "restart", {"task": task})

    async def signal(self, alloc: str, signal: str, task: str = "") -> tuple[str, ...]:
        """Send a signal by name (`SIGHUP`) to tasks, by default all that run; returns which."""
        return await self._order(alloc, "signal", {"task": task, "signal": signal})

    async def _order(self, alloc: str, verb: str, body: dict[str, str]) -> tuple[str, ...]:
        at = await self._at(alloc)
        answer = await self._connection.ask(
            self._subject(at, verb), {"alloc_id": at.id, **body}, TaskAnswer
        )
        return answer.tasks

    async def _at(self, alloc: str) -> AllocSummary:
        """Find an allocation, and so its node."""
        answer = await self._connection.ask("query.alloc", {"id": alloc}, AllocAnswer)
        return answer.allocation

    def _subject(self, at: AllocSummary, verb: str) -> str:
        return f"hands.{token(at.node)}.{verb}"

    async def _frames(
        self, at: AllocSummary, verb: str, body: Mapping[str, object], *, session: str = ""
    ) -> AsyncIterator[Frame]:
        """Yield the frames of a stream in order, and acknowledge them."""
        session, expected = session or uuid.uuid4().hex, 1
        inbox = self._connection.nats.new_inbox()
        replies = await self._connection.nats.subscribe(inbox)
        try:
            data = msgspec.json.encode({**body, "session": session})
            await self._connection.nats.publish(self._subject(at, verb), data, reply=inbox)
            while True:
                try:
                    message = await replies.next_msg(timeout=_SILENCE_S)
                except (TimeoutError, NatsTimeoutError) as error:
                    raise StreamEnded("gone", f"node {at.node!r} is silent") from error
                if (message.headers or {}).get("Status"):
                    raise StreamEnded("unavailable", f"node {at.node!r} is not connected")
                frame = msgspec.json.decode(message.data, type=Frame)
                if frame.number not in {0, expected}:
                    raise StreamEnded("gone", f"frame {frame.number} instead of {expected}")
                expected += frame.number > 0
                if frame.is_end and frame.error is not None:
                    raise Refused(frame.error)
                yield frame
                if frame.is_end:
                    return
                await self._say(at, session, seen=expected - 1)
        finally:
            await replies.unsubscribe()
            await self._say(at, session, close=True)

    async def _say(self, at: AllocSummary, session: str, **body: object) -> None:
        data = msgspec.json.encode({"session": session, **body})
        await self._connection.nats.publish(self._subject(at, "session"), data)

    async def _feed(self, at: AllocSummary, session: str, stdin: bytes) -> None:
        """Send the input of a command, then its end."""
        pieces = [stdin[n : n + _INPUT_BYTES] for n in range(0, len(stdin), _INPUT_BYTES)]
        for number, piece in enumerate([*pieces, b""], start=1):
            body = {"session": session, "number": number, "data": piece}
            if number > len(pieces):
                body["is_end"] = True
            while True:
                try:
                    await self._connection.ask(
                        self._subject(at, "session"), body, SessionAnswer, timeout_s=REQUEST_S
                    )
                except Refused as error:
                    # Its buffer is full: the same again.
                    if error.code != "busy":
                        return
                    await asyncio.sleep(0.05)
                else:
                    break
