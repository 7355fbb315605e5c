"""The sockets of this node's tasks: one for each running task that has the token of its default identity.

A socket is there from before the start of a run until its end. An agent that starts again makes it anew for what it
adopts, from a record beside those of the run, which is on disk before the socket: the mark of the token, and whose the
socket is. Tokens are compared by their marks: that of any other task, allocation or identity is refused, also
without the bus. Bounds are those of one task: connections, a pace of requests, bytes and time of each.
"""

import asyncio
import contextlib
import hmac
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import structlog

from services.agent.drivers.driver import DriverRun, StartRefused
from services.agent.executor.data_dir import TaskDirs
from services.agent.inputs.identities.handler import TaskOwner
from services.agent.inputs.identities.token_times import kept_times, token_mark
from services.agent.inputs.thread_writes import write_in_thread
from services.agent.safe_open import open_below, open_regular, replace_below
from services.agent.task_api.http_messages import (
    HEAD_BYTES_MAX,
    ApiAnswer,
    ApiFault,
    ApiRequest,
    answer_bytes,
    fault_bytes,
    parse_head,
)
from services.agent.task_api.reads import ApiReader, TaskReads
from services.agent.task_api.socket_file import make_socket, remove_socket
from shared.protocol.identity_names import DEFAULT_IDENTITY

#: Of one task.
CONNECTIONS_MAX = 8
#: The head of the next request, and the taking of an answer, may last so long.
REQUEST_S, WRITE_S = 15.0, 15.0
#: What a task sends after the request that ends its connection is dropped, so many pieces of it.
DRAINED_MAX = 16
#: That a task went away which waits for an answer is noticed so late.
GONE_S = 1.0
#: Requests a second, after the first ones, which come at once.
PACE_PER_S, BURST = 50.0, 100
#: After a connection that could not be accepted.
_PAUSE_S = 1.0
_RECORD = "task-api.json"
_RECORD_BYTES_MAX = 4_096
_log = structlog.get_logger()


class TaskApiRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What another life of the agent needs to serve a run that it adopts."""

    #: of the token (token_times.py).
    mark: str
    uid: int = -1
    gid: int = -1


class _Pace:
    """A pace that is held by waiting."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_s = clock()

    async def hold(self) -> None:
        """Wait until one more is within the pace."""
        now_s = self._clock()
        self._next_s = max(self._next_s, now_s - BURST / PACE_PER_S) + 1 / PACE_PER_S
        if (pause_s := self._next_s - now_s) > 0:
            await asyncio.sleep(pause_s)


class _TaskSocket:
    """The socket of one run."""

    def __init__(self, made: socket.socket, mark: str, reader: ApiReader, reads: TaskReads) -> None:
        self._made = made
        self._mark = mark
        self._reader = reader
        self._reads = reads
        self._gate = asyncio.Semaphore(CONNECTIONS_MAX)
        self._pace = _Pace(asyncio.get_running_loop().time)
        self._work: set[asyncio.Task[None]] = set()
        self._spawn(self._accept())

    async def close(self) -> None:
        """End it with its connections."""
        work = list(self._work)
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        self._made.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Further connections wait in the kernel, and connect no more when these are too many.
            await self._gate.acquire()
            await self._pace.hold()
            try:
                connection, _ = await loop.sock_accept(self._made)
            except OSError as err:
                self._gate.release()
                _log.warning("task_api.accept_failed", task=self._reader.task, error=str(err))
                await asyncio.sleep(_PAUSE_S)
                continue
            self._spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(
                sock=connection, limit=HEAD_BYTES_MAX
            )
            try:
                while await self._one(reader, writer):
                    await self._pace.hold()
            finally:
                writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            # The task went away, or took no answer.
            pass
        finally:
            connection.close()
            self._gate.release()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; returns whether another may follow. Raises OSError, TimeoutError."""
        closes = True
        try:
            request = await _read(reader)
            closes = request.closes
            self._check(request)
            answer = await self._answer(reader, request)
            with_body = request.method != "HEAD"
            data = answer_bytes(answer, closes=closes, with_body=with_body)
        except ApiFault as fault:
            closes = closes or fault.closes
            data = fault_bytes(fault, closes=closes)
        writer.write(data)
        async with asyncio.timeout(WRITE_S):
            await writer.drain()
        if closes:
            writer.write_eof()
            async with asyncio.timeout(WRITE_S):
                # Its end says that the answer was read: an abort before could take it back.
                for _ in range(DRAINED_MAX):
                    if not await reader.read(HEAD_BYTES_MAX):
                        break
        return not closes

    async def _answer(self, reader: asyncio.StreamReader, request: ApiRequest) -> ApiAnswer:
        """Find the answer while the task waits for it. Raises ApiFault; ConnectionError: the task went away."""
        work = asyncio.ensure_future(self._reads.answer(self._reader, request))
        try:
            while True:
                await asyncio.wait({work}, timeout=GONE_S)
                if work.done():
                    return self._outcome(work)
                if reader.at_eof():
                    raise ConnectionResetError
        finally:
            work.cancel()

    def _outcome(self, work: "asyncio.Future[ApiAnswer]") -> ApiAnswer:
        """Take an answer that is there. Raises ApiFault."""
        try:
            return work.result()
        except ApiFault:
            raise
        except Exception as err:  # noqa: BLE001 - it costs its own request alone.
            # The text of an error may hold items.
            _log.warning("task_api.failed", task=self._reader.task, error=type(err).__name__)
            raise ApiFault(500, "the request could not be answered") from None

    def _check(self, request: ApiRequest) -> None:
        """Refuse what has no token, or another one. Raises ApiFault 401, 403."""
        token = request.headers.get("x-nomad-token", "")
        scheme, _, credential = request.headers.get("authorization", "").partition(" ")
        if not token and scheme.lower() == "bearer":
            token = credential.strip()
        if not token:
            raise ApiFault(401, "the token of the task is missing (X-Nomad-Token)")
        if not hmac.compare_digest(token_mark(token), self._mark):
            raise ApiFault(403, "this is not the token of the task. Permission denied")


async def _read(reader: asyncio.StreamReader) -> ApiRequest:
    """Read the head of a request. Raises ApiFault; IncompleteReadError: the connection ended."""
    try:
        async with asyncio.timeout(REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise ApiFault(408, f"no request within {REQUEST_S:.0f} s", closes=True) from None
    except asyncio.LimitOverrunError:
        text = f"the head of a request has at most {HEAD_BYTES_MAX} bytes"
        raise ApiFault(431, text, closes=True) from None
    return parse_head(head)


class TaskSockets:
    """The sockets of one agent's tasks, on its event loop."""

    def __init__(self, top: Path, owner: TaskOwner, reads: TaskReads) -> None:
        self._top = top
        self._owner = owner
        self._reads = reads
        self._open: dict[tuple[str, str], _TaskSocket] = {}

    async def start(
        self, run: DriverRun, *, driver: str, user: str, names: tuple[str, str]
    ) -> None:
        """Serve a run that is about to start, whose token is prepared; `names`: job and group. Raises OSError."""
        times = await asyncio.to_thread(kept_times, self._top, run.places.runs, DEFAULT_IDENTITY)
        if times is None:
            return
        try:
            uid, gid = self._owner(driver, user)
        except (ValueError, StartRefused):
            # The driver says so when it starts the run.
            return
        record = TaskApiRecord(mark=times.mark, uid=uid, gid=gid)
        data, path = msgspec.json.encode(record), run.places.runs / _RECORD
        await write_in_thread(
            lambda: replace_below(self._top, path, data, mode=0o600, owner=(-1, -1))
        )
        await self._serve(run, record, names)

    async def adopt(self, run: DriverRun, names: tuple[str, str]) -> None:
        """Serve a run of an earlier life of the agent, if that did. Raises OSError."""
        record = await asyncio.to_thread(self._kept, run.places)
        if record is not None:
            await self._serve(run, record, names)

    async def end(self, run: DriverRun) -> None:
        """End the socket of a run, if it has one."""
        one = self._open.pop((run.alloc_id, run.task), None)
        if one is not None:
            await one.close()
            await asyncio.to_thread(remove_socket, self._top, run.places.task / "secrets")

    async def close(self) -> None:
        """End all; the tasks run on, and the next life of the agent makes their sockets anew."""
        ones = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*(one.close() for one in ones))

    # ---- inside ----

    async def _serve(self, run: DriverRun, record: TaskApiRecord, names: tuple[str, str]) -> None:
        await self.end(run)
        folder = run.places.task / "secrets"
        made = await asyncio.to_thread(make_socket, self._top, folder, (record.uid, record.gid))
        reader = ApiReader(run.alloc_id, *names, run.task)
        self._open[run.alloc_id, run.task] = _TaskSocket(made, record.mark, reader, self._reads)

    def _kept(self, places: TaskDirs) -> TaskApiRecord | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            directory = open_below(self._top, places.runs)
            try:
                fd = open_regular(_RECORD, directory, os.O_RDONLY)
            finally:
                os.close(directory)
            with os.fdopen(fd, "rb") as file:
                return msgspec.json.decode(file.read(_RECORD_BYTES_MAX), type=TaskApiRecord)
        return None
