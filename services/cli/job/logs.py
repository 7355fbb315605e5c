"""`caravan job logs`: the output of all running tasks of a job in one stream, each line with where it comes from.

Lines are printed in the order in which they arrive; a line is never cut by another one.
"""

import asyncio
import contextlib
from typing import NamedTuple

import msgspec

from schemas.allocations import TERMINAL_STATUSES
from schemas.job_answers import JobAnswer
from schemas.node_answers import AllocsAnswer
from schemas.node_rpc import LogsAsk
from schemas.projections import AllocSummary, Query
from services.cli.runtime.bus_client import query_view, resolve_job, with_bus
from services.cli.runtime.closed_pipe import ending_with_reader
from services.cli.runtime.node_client import (
    JSON_BYTES_MAX,
    CliNodeStream,
    asked_lines,
    find_alloc,
)
from services.cli.runtime.output import CliError, CommandOutput, short_id
from shared.bus.connection.node_stream import new_session_id
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable

#: Tasks that are read at a time, each by one request to its node.
STREAMS_MAX = 100
#: A line above this many bytes is printed in parts.
LINE_BYTES_MAX = 16_384
#: How often --follow looks for new allocations.
_LOOK_S = 1.0
_STREAMS = ("stdout", "stderr")
_ALLOCS_MAX = 1_000


class JobLogLine(msgspec.Struct, frozen=True):
    """One line of a task."""

    allocation: str
    task: str
    stream: str
    text: str


class JobLogsResult(msgspec.Struct, frozen=True):
    """`job logs --json`. `unread`: tasks whose output could not be read, and why."""

    job: str
    lines: list[JobLogLine]
    unread: list[str]


class _Source(NamedTuple):
    """One output of one task."""

    alloc: AllocSummary
    task: str
    stream: str

    @property
    def name(self) -> str:
        """What stands before its lines."""
        return f"{short_id(self.alloc.id)} {self.task}"


class LineSplitter:
    """Whole lines of chunks of bytes."""

    def __init__(self) -> None:
        self._rest = b""

    def lines(self, data: bytes) -> list[bytes]:
        """The lines that a chunk completes, without their ends; an endless one in parts."""
        *found, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_BYTES_MAX:
            found.append(self._rest[:LINE_BYTES_MAX])
            self._rest = self._rest[LINE_BYTES_MAX:]
        return found

    def rest(self) -> list[bytes]:
        """What stands behind the last end of a line."""
        left, self._rest = self._rest, b""
        return [left] if left else []


class _JobLogs:
    """The streams of a job's tasks. `print_line` gets each line."""

    def __init__(self, client: Client, out: CommandOutput, *, ask: LogsAsk, job_id: str) -> None:
        self._client = client
        self._out = out
        self._ask = ask
        self.job_id = job_id
        self._running: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self.lines: list[JobLogLine] = []
        self.unread: list[str] = []
        self.read = 0

    async def run(self) -> None:
        """Read what there is; with follow until the job has ended and all is printed."""
        try:
            await self._begin_new()
            if not self._running:
                raise CliError("not_found", f"no task of job {self.job_id} has started yet")
            while self._ask.follow and not await self._is_over():
                await asyncio.sleep(_LOOK_S)
                with contextlib.suppress(CliError, BusUnavailable):
                    await self._begin_new()
            await asyncio.gather(*self._running.values())
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _begin_new(self) -> None:
        for one in await self._sources():
            key = (one.alloc.id, one.task, one.stream)
            if key in self._running:
                continue
            if len(self._running) >= STREAMS_MAX:
                self._skip(one, f"more than {STREAMS_MAX} outputs are read")
                return
            self._running[key] = asyncio.create_task(self._read(one))

    async def _sources(self) -> list[_Source]:
        """Outputs of the running allocations, or where none runs of those that have ended."""
        query = Query(job_id=self.job_id, limit=_ALLOCS_MAX)
        answer = await query_view(self._client, "allocs", AllocsAnswer, query)
        running = [one for one in answer.allocations if one.client_status == "running"]
        ended = [one for one in answer.allocations if one.client_status in ("complete", "failed")]
        # While a job is followed its ended ones were read before, or are of an older version.
        chosen = running if running or self._running else ended
        found = []
        for one in chosen:
            tasks = sorted((await find_alloc(self._client, one.id)).tasks)
            only = [name for name in tasks if self._ask.task in ("", name)]
            if tasks and not only:
                known = ", ".join(tasks)
                text = f"job {self.job_id} has no task {self._ask.task!r}, only {known}"
                raise CliError("not_found", text)
            streams = (self._ask.stream,) if self._ask.stream in _STREAMS else _STREAMS
            found += [_Source(one, name, stream) for name in only for stream in streams]
        return found

    async def _read(self, one: _Source) -> None:
        ask = msgspec.structs.replace(
            self._ask,
            alloc_id=one.alloc.id,
            task=one.task,
            stream=one.stream,
            session=new_session_id(),
        )
        splitter = LineSplitter()
        try:
            async with CliNodeStream(self._client, one.alloc.node, "logs", ask) as stream:
                watch = asyncio.create_task(self._until_ended(stream, one.alloc.id))
                try:
                    async for frame in stream.frames():
                        await self._print(one, splitter.lines(frame.data))
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
            self.read += 1
        except (CliError, BusUnavailable) as err:
            self._skip(one, str(err))
        await self._print(one, splitter.rest())

    async def _until_ended(self, stream: CliNodeStream, alloc_id: str) -> None:
        """End a stream that is followed when its allocation has ended."""
        while self._ask.follow:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(CliError, BusUnavailable):
                status = (await find_alloc(self._client, alloc_id)).allocation.client_status
                if status in TERMINAL_STATUSES:
                    await stream.send(is_end=True)
                    return

    async def _print(self, one: _Source, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._out.is_json:
            shown = [line.decode("utf-8", "replace") for line in lines]
            self.lines += [JobLogLine(one.alloc.id, one.task, one.stream, text) for text in shown]
            return
        head = f"{one.name} | ".encode()
        # In a thread: streams must be kept alive while the reader pauses (less). One call a chunk keeps lines whole.
        await asyncio.to_thread(self._out.write, b"".join(head + line + b"\n" for line in lines))

    def _skip(self, one: _Source, why: str) -> None:
        text = f"{one.name} {one.stream}: {why}"
        if text not in self.unread:
            self.unread.append(text)
            self._out.note(text)

    async def _is_over(self) -> bool:
        """Whether nothing more can come: every stream has ended and the job starts nothing new."""
        if not all(task.done() for task in self._running.values()):
            return False
        try:
            answer = await query_view(self._client, "job", JobAnswer, Query(id=self.job_id))
        except CliError as err:
            return err.code == "not_found"
        except BusUnavailable:
            return False
        return answer.job.status.startswith("dead")


def logs(
    out: CommandOutput, *, job_id: str, task: str, stderr: bool, follow: bool, tail: int | None
) -> int:
    """Print the output of a job's tasks; with `follow` also of those that start later, until the job has ended."""
    if follow and out.is_json:
        raise CliError("usage", "--json cannot be combined with --follow")
    if tail is not None and tail < 0:
        raise CliError("usage", "--tail must not be negative")
    ask = LogsAsk(
        alloc_id="",
        task=task,
        session="",
        stream="stderr" if stderr else "",
        follow=follow,
        tail=asked_lines(tail),
    )

    async def work(client: Client) -> int:
        found = _JobLogs(client, out, ask=ask, job_id=await resolve_job(client, job_id))
        leaving = ending_with_reader() if follow else contextlib.nullcontext()
        async with leaving:
            await found.run()
        if found.unread and not found.read:
            raise CliError("unavailable", found.unread[0])
        if out.is_json:
            out.result(JobLogsResult(found.job_id, _newest(found.lines), found.unread))
        return 0

    return with_bus(work)


def _newest(lines: list[JobLogLine]) -> list[JobLogLine]:
    """The last lines, as many as an answer may hold."""
    size, first = 0, len(lines)
    while first and size + len(lines[first - 1].text) <= JSON_BYTES_MAX:
        first -= 1
        size += len(lines[first].text)
    return lines[first:]
