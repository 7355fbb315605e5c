"""The connection: nats-py's client with a short way in and out for bytes, and the rules that keep it honest.

Decides how bytes reach handlers: synchronously, headers unparsed, no queue between (a queue drops when it is
full, and a task per message breaks batching). Decides that nothing is kept for later while the bus is away: a
write that its sender has given up on must not appear in the log afterwards. Knows no role and no stream.
Next: `sources.py`.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from shared.bus import subjects
from shared.bus.feed import Feed
from shared.bus.frames import Frames, Handler
from shared.errors import BusUnavailable

#: A subject that cannot smuggle a second protocol line. Wildcards are the server's matter.
_SUBJECT = re.compile(r"[!-~]+")
_STATUS_LINE = b"NATS/1.0\r\n"
_USERINFO = re.compile(r"//[^/,]*@")
#: More than this unsent means that the server does not read: what comes now is dropped, its sender sends it again.
_UNSENT_BYTES_MAX = 64 << 20
_SWEEP_S = 0.25
_CANCEL_AGAIN_S = 0.05
#: A stream without a leader answers nothing at all: short, so that the first moment with one is not missed by much.
_API_S = 1.5

#: Takes the header block and body of an answer; (b"", None) when none came in time.
Answered = Callable[[bytes, bytes | None], None]


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Where and as whom to connect. Without user: the server decides (`up` maps such clients to PUBLIC)."""

    url: str
    name: str = "caravan"
    user: str = ""
    password: str = ""
    #: inboxes must be ours by permission; empty: `_INBOX.<user>`, or `_INBOX` without user.
    inbox: str = ""
    connect_timeout_s: float = 2.0


def without_login(url: str) -> str:
    """The URL, or several with commas, as it may be shown: users and passwords left out."""
    return _USERINFO.sub("//", url)


def status(headers: bytes) -> int:
    """Status code of a header block, 0 for an ordinary message."""
    if not headers or headers.startswith(_STATUS_LINE):
        return 0
    return int(headers[9:12])


def header(headers: bytes, name: bytes) -> bytes:
    """Value of the last header `name`, empty if there is none: the server adds its own behind the sender's."""
    at = headers.rfind(b"\r\n" + name + b":")
    if at < 0:
        return b""
    start = at + len(name) + 3
    return headers[start : headers.index(b"\r\n", start)].strip()


def header_block(**fields: str) -> bytes:
    """Build a header block; `nats_msg_id` becomes `Nats-Msg-Id`. An id's line breaks are refused with ValueError."""
    lines = [b"NATS/1.0"]
    for name, value in fields.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"line break in header {name}: {value!r}")
        key = (
            "Nats-TTL"
            if name == "nats_ttl"
            else "-".join(part.capitalize() for part in name.split("_"))
        )
        lines.append(f"{key}: {value}".encode())
    return b"\r\n".join(lines) + b"\r\n\r\n"


class BusClient(Client):
    """nats-py's client; `listen`, `send` and `call` are the short way. Callbacks must not raise."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[int, Handler] = {}
        self._calls: dict[bytes, tuple[float, Answered]] = {}
        self._call_number = 0
        self._call_prefix = b""
        self._flushes = False
        self._sweeper: asyncio.Task[None] | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        self.dropped = 0
        self._frames = self._ps = Frames(self, self._handlers, self._handler_failed)

    # ---- in ----

    async def listen(self, subject: str, handler: Handler, queue: str = "") -> int:
        """Subscribe; returns the number to give to `forget`. Survives reconnects."""
        # The number is taken before the subscription is sent, so that no message finds no handler.
        self._handlers[self._sid + 1] = handler
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        made: Subscription = await self.subscribe(subject, queue=queue, future=never)
        return made._id  # noqa: SLF001

    def forget(self, number: int) -> None:
        """Unsubscribe at once: a pull that still waits at the server is then not served into the void."""
        self._handlers.pop(number, None)
        if self._subs.pop(number, None) is not None and self.is_connected:
            self._write(b"UNSUB %d\r\n" % number)

    async def leave(self, number: int) -> None:
        """Unsubscribe; what the server has sent by then is handed over still."""
        if self.is_connected:
            self._write(b"UNSUB %d\r\n" % number)
            with contextlib.suppress(errors.Error):
                await self.flush()
        self.forget(number)

    def _handler_failed(self, err: Exception) -> None:
        """End who listens: nats-py would drop what a handler could not take, and go on with a hole."""
        if self.on_failure is None:
            raise err
        self.on_failure(err)

    async def _read_loop(self) -> None:
        """Read what is no message of ours; those are handed over as they come (`feed.py`)."""
        feed = Feed.over(self._frames, self._transport)
        if feed is None:
            await super()._read_loop()
            return
        with contextlib.suppress(asyncio.CancelledError):
            while not (self.is_closed or self.is_reconnecting or self._transport is None):
                try:
                    await self._frames.parse(await feed.rest())
                except EOFError:
                    err = errors.UnexpectedEOF()
                    await self._error_cb(err)
                    await self._process_op_err(err)
                    return
                except (errors.ProtocolError, OSError) as err:
                    await self._process_op_err(err)
                    return

    # ---- out ----

    def send(self, subject: str, data: bytes, reply: bytes = b"", headers: bytes = b"") -> bool:
        """Publish without waiting. False: dropped, because the bus is away or does not read, or it is too large."""
        fits = len(data) + len(headers) <= self._max_payload
        if not self.is_connected or not fits or self._unsent() > _UNSENT_BYTES_MAX:
            self.dropped += 1
            return False
        if not _SUBJECT.fullmatch(subject):
            raise ValueError(f"{subject!r} is no subject")
        head = subject.encode() + (b" " + reply if reply else b"")
        if headers:
            line = b"HPUB %s %d %d\r\n" % (head, len(headers), len(headers) + len(data))
            self._write(line + headers + data + b"\r\n")
        else:
            self._write(b"PUB %s %d\r\n%s\r\n" % (head, len(data), data))
        return True

    def _write(self, frame: bytes) -> None:
        """Queue a frame; all that one turn of the loop queued is written at once, at its end."""
        self._pending.append(frame)
        self._pending_data_size += len(frame)
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def flush_now(self) -> None:
        """Write what is queued: whoever has queued all that it wants spares a lone message a turn of the loop."""
        if self._pending:
            self._flush_now()

    def _flush_now(self) -> None:
        self._flushes = False
        if self.is_connected and self._transport is not None and self._pending:
            self._transport.writelines(self._pending)
            self._pending = []
            self._pending_data_size = 0

    def _unsent(self) -> int:
        """Bytes that the server has not taken yet."""
        writer = getattr(self._transport, "_io_writer", None)
        buffered = 0 if writer is None else writer.transport.get_write_buffer_size()
        return self._pending_data_size + int(buffered)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Ping behind what waits to be written; nats-py's own overtakes it, and `flush` would be no barrier."""
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        self._write(b"PING\r\n")

    # ---- calls ----

    async def start_calls(self) -> None:
        """Listen for answers; once per client."""
        prefix = self.new_inbox()
        self._call_prefix = f"{prefix}.".encode()
        await self.listen(f"{prefix}.*", self._answered)
        self._sweeper = asyncio.create_task(self._sweep())

    def call(
        self,
        subject: str,
        data: bytes,
        done: Answered,
        *,
        headers: bytes = b"",
        timeout_s: float = 2.0,
    ) -> bool:
        """Publish and hand the answer to `done`, or None when it did not come in time (False: could not be sent)."""
        self._call_number += 1
        reply = self._call_prefix + b"%d" % self._call_number
        if not self.send(subject, data, reply, headers):
            asyncio.get_running_loop().call_soon(done, b"", None)
            return False
        self._calls[reply] = (time.monotonic() + timeout_s, done)
        return True

    async def request_raw(
        self, subject: str, data: bytes, *, headers: bytes = b"", timeout_s: float = 2.0
    ) -> tuple[bytes, bytes]:
        """Publish and wait for (headers, body). Raises BusUnavailable: no answer, or nobody to answer."""
        answer: asyncio.Future[tuple[bytes, bytes | None]] = (
            asyncio.get_running_loop().create_future()
        )

        def done(head: bytes, body: bytes | None) -> None:
            if not answer.done():
                answer.set_result((head, body))

        sent = self.call(subject, data, done, headers=headers, timeout_s=timeout_s)
        head, body = await answer
        if not sent:
            why = f"the bus is away, does not read, or {len(data)} bytes are too many"
            raise BusUnavailable(f"cannot ask on {subject}: {why}")
        if body is None:
            raise BusUnavailable(f"no answer on {subject} within {timeout_s} s")
        if status(head) == 503:
            raise BusUnavailable(f"nobody answers on {subject}")
        return head, body

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Ask JetStream's API. Raises BusUnavailable: whoever has no leader just now does not answer; ask again."""
        return (await self.request_raw(subject, body, timeout_s=_API_S))[1]

    def _answered(self, subject: bytes, _reply: bytes, headers: bytes, data: bytes) -> None:
        found = self._calls.pop(subject, None)
        if found is not None:
            found[1](headers, data)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            late = [key for key, (deadline, _) in self._calls.items() if deadline <= now]
            for key in late:
                _, done = self._calls.pop(key)
                try:
                    done(b"", None)
                except Exception as err:
                    if self.on_failure is None:
                        raise
                    self.on_failure(err)

    # ---- life ----

    def discard_unsent(self) -> None:
        """Forget what was not written: the next connection must not send it. Calls in flight stay unanswered."""
        self._pending.clear()
        self._pending_data_size = 0

    async def end(self) -> None:
        """Close for good; unsent bytes are written first where the bus is there."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        with contextlib.suppress(Exception):
            if self.is_connected:
                await self.flush(1)
        with contextlib.suppress(Exception):
            await self.close()


class Callbacks(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a connection wants to be told; each is called in the loop, and must not raise."""

    lost: Callable[[], None] | None = None
    back: Callable[[], None] | None = None
    closed: Callable[[], None] | None = None
    error: Callable[[Exception], None] | None = None


async def connect(login: Login, told: Callbacks | None = None) -> BusClient:
    """Connect once, each server tried once; afterwards the client reconnects for ever by itself.

    Raises BusUnavailable with the reason, within the timeout; a refused port or password is told at once.
    """
    client = BusClient()
    attempt = _Attempt(client, told or Callbacks(), servers=login.url.split(","))
    trying = asyncio.create_task(attempt.connect(login))
    refused = asyncio.create_task(attempt.failed.wait())
    try:
        done, _ = await asyncio.wait(
            {trying, refused},
            timeout=login.connect_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
    except asyncio.CancelledError:
        await _end(trying, refused)
        await client.end()
        raise
    await _end(trying, refused)
    if trying in done and trying.exception() is None:
        attempt.connected = True
        await client.start_calls()
        return client
    fault = telling(attempt.faults)
    if fault is None and trying in done:
        fault = trying.exception()
    await client.end()
    why = f"no answer in {login.connect_timeout_s} s"
    if fault is not None:
        why = str(fault) or type(fault).__name__
    raise BusUnavailable(f"no bus at {without_login(login.url)}: {why}") from fault


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they end: nats-py takes a cancellation amid an attempt for a fault, and tries on for ever."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)


def telling(faults: Sequence[BaseException]) -> BaseException | None:
    """Choose the fault to tell: what a server said, even when it then hung up, else the last one."""
    said = [fault for fault in faults if not isinstance(fault, OSError)] or faults
    return said[-1] if said else None


class _Attempt:
    """The first connection of a client: until it stands, its owner is told nothing."""

    def __init__(self, client: BusClient, told: Callbacks, *, servers: list[str]) -> None:
        self._client = client
        self._told = told
        self._servers = servers
        self.faults: list[BaseException] = []
        self.failed = asyncio.Event()
        self.connected = False

    async def connect(self, login: Login) -> None:
        """Try each server, under the rules of this module."""
        await self._client.connect(
            self._servers,
            name=login.name,
            user=login.user or None,
            password=login.password or None,
            inbox_prefix=login.inbox or (f"_INBOX.{login.user}" if login.user else "_INBOX"),
            # Nothing is buffered while away: a late write would surprise everybody.
            pending_size=0,
            ping_interval=2,
            max_outstanding_pings=2,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]
            connect_timeout=login.connect_timeout_s,  # type: ignore[arg-type]
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            closed_cb=self._closed,
            error_cb=self._error,
        )

    async def _error(self, err: Exception) -> None:
        if not self.connected:
            self.faults.append(err)
            if len(self.faults) >= len(self._servers):
                self.failed.set()
        elif self._told.error is not None:
            self._told.error(err)

    async def _lost(self) -> None:
        self._client.discard_unsent()
        if self.connected and self._told.lost is not None:
            self._told.lost()

    async def _back(self) -> None:
        if self._told.back is not None:
            self._told.back()

    async def _closed(self) -> None:
        if self.connected and self._told.closed is not None:
            self._told.closed()


async def server_fsyncs(login: Login) -> bool:
    """Ask the server itself, as SYS, whether it fsyncs every write. Raises BusUnavailable."""
    client = await connect(login)
    try:
        _, body = await client.request_raw(subjects.SYS_JETSTREAM, b"")
    finally:
        await client.end()
    return msgspec.json.decode(body, type=_Jsz).data.config.sync_always


class _JszConfig(msgspec.Struct):
    sync_always: bool = False


class _JszData(msgspec.Struct):
    config: _JszConfig = msgspec.field(default_factory=_JszConfig)


class _Jsz(msgspec.Struct):
    data: _JszData = msgspec.field(default_factory=_JszData)
