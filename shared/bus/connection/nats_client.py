"""The connection: nats-py's client with a short way in and out for bytes, and the rules that keep it honest.

Decides how bytes reach handlers: synchronously, headers unparsed, no queue between (a queue drops when it is
full, and a task per message breaks batching). Decides that nothing is kept for later while the bus is away: a
write that its sender has abandoned must not appear in the log afterwards. Independent of roles and streams.
Next: `shared/bus/shell/sources.py`.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Sequence
from random import shuffle
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from shared.bus.connection.frame_parser import FrameParser, MessageHandler
from shared.bus.connection.frame_protocol import FrameProtocol
from shared.bus.connection.server_probe import first_to_answer
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: A subject that cannot smuggle a second protocol line. Wildcards are the server's matter.
_SUBJECT = re.compile(r"[!-~]+")
_VERSION = b"NATS/1.0"
_STATUS_LINE = _VERSION + b"\r\n"
#: Of a number in a header: 64 bits have no more.
_DIGITS_MAX = 20
_USERINFO = re.compile(r"//[^/,]*@")
#: More than this unsent means that the server does not read: what comes now is dropped, its sender sends it again.
_UNSENT_BYTES_MAX = 64 << 20
_SWEEP_S = 0.25
_CANCEL_AGAIN_S = 0.05
#: A stream without a leader answers nothing at all: short, so that the first moment with one is not missed by much.
_API_S = 1.5

#: Takes the header block and body of an answer; (b"", None) when none came in time.
ReplyCallback = Callable[[bytes, bytes | None], None]


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Address and user of a connection. Without `user`: those in the address, `nats://user:password@host`."""

    url: str
    name: str = "caravan"
    user: str = ""
    password: str = ""
    #: inboxes must be ours by permission; empty: `_INBOX.<user>`, or `_INBOX` without user.
    inbox: str = ""
    connect_timeout_s: float = 2.0


def redacted_url(url: str) -> str:
    """The URL, or several with commas, as it may be shown: users and passwords left out."""
    return _USERINFO.sub("//", url)


def is_subject(text: str) -> bool:
    """Return whether a text can be sent as a subject without breaking the protocol."""
    return _SUBJECT.fullmatch(text) is not None


def url_login(url: str) -> tuple[str, str]:
    """User and password in a URL, of several with commas in the first; empty without both."""
    parts = urlsplit(url.partition(",")[0])
    if not parts.username or not parts.password:
        return "", ""
    return unquote(parts.username), unquote(parts.password)


def url_with_login(url: str, user: str, password: str) -> str:
    """The URL, or several with commas, with user and password inside, in place of those that it has."""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    bare = redacted_url(url).split(",")
    return ",".join(one.replace("://", f"://{login}@", 1) for one in bare)


def status(headers: bytes) -> int:
    """Status code of a header block, 0 for an ordinary message and for a block that cannot be read.

    Use it only for answers of the server: a message stored by a client may look like a status.
    """
    if not headers or headers.startswith(_STATUS_LINE):
        return 0
    code = headers[9:12]
    return int(code) if headers.startswith(_VERSION) and code.isdigit() else 0


def header(headers: bytes, name: bytes) -> bytes:
    """Value of the last header `name`, empty if there is none: the server adds its own behind the sender's."""
    at = headers.rfind(b"\r\n" + name + b":")
    if at < 0:
        return b""
    start = at + len(name) + 3
    end = headers.find(b"\r\n", start)
    return headers[start : end if end >= 0 else len(headers)].strip()


def header_number(headers: bytes, name: bytes) -> int:
    """Value of a header that the server writes as a number, 0 where there is none."""
    value = header(headers, name)
    return int(value) if value.isdigit() and len(value) < _DIGITS_MAX else 0


def header_fault(headers: bytes) -> str:
    """Explain why a client's header block cannot be read; empty: it can. The server stores any bytes as headers."""
    if not headers:
        return ""
    if not headers.startswith(_STATUS_LINE):
        return "the header block does not begin with the line NATS/1.0"
    if not headers.endswith(b"\r\n\r\n"):
        return "the header block does not end with an empty line"
    lines = headers[len(_STATUS_LINE) : -4].split(b"\r\n")
    for number, line in enumerate(lines, 1):
        if b"\r" in line or b"\n" in line:
            return f"header {number} contains a line break"
        if line and b":" not in line:
            return f"header {number} has no colon"
    try:
        header(headers, b"Nats-Msg-Id").decode()
    except UnicodeDecodeError:
        return "the header Nats-Msg-Id is not UTF-8"
    return ""


def _as_utf8(text: bytes) -> bytes:
    return text if text.isascii() else text.decode(errors="replace").encode()


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
        self._handlers: dict[int, MessageHandler] = {}
        self._calls: dict[bytes, tuple[float, ReplyCallback]] = {}
        self._call_number = 0
        self._call_prefix = b""
        self._flushes = False
        self._sweeper: asyncio.Task[None] | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        self.dropped = 0
        self._frames = self._ps = FrameParser(self, self._handlers, self._handler_failed)

    @property
    def server_id(self) -> str:
        """Name of this start of the server that we are connected to."""
        return str(self._server_info.get("server_id", ""))

    # ---- in ----

    async def listen(self, subject: str, handler: MessageHandler, queue: str = "") -> int:
        """Subscribe; returns the number to pass to `forget`. Survives reconnects."""
        # The number is taken before the subscription is sent, so that no message finds no handler.
        self._handlers[self._sid + 1] = handler
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        made: Subscription = await self.subscribe(subject, queue=queue, future=never)
        return made._id  # noqa: SLF001

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Pass a message to nats-py, whose own parser raises for non-UTF-8 bytes, and closes the connection.

        Headers that cannot be read are left out: nats-py would unfold and split them in its own way.
        """
        readable = headers if headers and not header_fault(headers) else b""
        await super()._process_msg(sid, _as_utf8(subject), _as_utf8(reply), data, readable)

    def forget(self, number: int) -> None:
        """Unsubscribe at once: a pull that still waits at the server is then not served into the void."""
        self._handlers.pop(number, None)
        if self._subs.pop(number, None) is not None and self.is_connected:
            self._write(b"UNSUB %d\r\n" % number)

    async def leave(self, number: int) -> None:
        """Unsubscribe; messages that the server has already sent are still delivered."""
        if self.is_connected:
            self._write(b"UNSUB %d\r\n" % number)
            with contextlib.suppress(errors.Error):
                await self.flush()
        self.forget(number)

    def _handler_failed(self, err: Exception) -> None:
        """Report a failed handler, which ends the client: nats-py would drop the message and continue with a gap."""
        if self.on_failure is None:
            raise err
        self.on_failure(err)

    async def _read_loop(self) -> None:
        """Read frames for nats-py; our own messages are delivered on arrival (`frame_protocol.py`)."""
        feed = FrameProtocol.over(self._frames, self._transport)
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
            raise ValueError(f"{subject!r} is not a valid subject")
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
        """Write what is queued: after the last message of a batch this spares a turn of the loop."""
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

    async def _process_pong(self) -> None:
        """Answer the oldest ping, whose `flush` may be cancelled or timed out: nats-py's own would end reading then."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

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
        done: ReplyCallback,
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
        """Publish and wait for (headers, body). Raises BusUnavailable: no answer, or no responder."""
        answer: asyncio.Future[tuple[bytes, bytes | None]] = (
            asyncio.get_running_loop().create_future()
        )

        def done(head: bytes, body: bytes | None) -> None:
            if not answer.done():
                answer.set_result((head, body))

        sent = self.call(subject, data, done, headers=headers, timeout_s=timeout_s)
        head, body = await answer
        if not sent:
            why = f"the bus is unreachable or overloaded, or {len(data)} bytes exceed its limit"
            raise BusUnavailable(f"cannot send a request on {subject}: {why}")
        if body is None:
            raise BusUnavailable(f"no answer on {subject} within {timeout_s} s")
        if status(head) == 503:
            raise BusUnavailable(f"no responder on {subject}")
        return head, body

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Send a request to JetStream's API. Raises BusUnavailable: for example, a stream without a leader."""
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

    async def _process_op_err(self, e: Exception) -> None:
        """Cut a connection that failed, then reconnect: nats-py would wait until the server has read what is unsent."""
        if not (self.is_closed or self.is_reconnecting):
            self._cut()
        await super()._process_op_err(e)

    def _cut(self) -> None:
        """Drop the connection with what it has not written. One that stands still would never read it."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def end(self) -> None:
        """Close permanently; unsent bytes are written first where the bus is there and reads."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        with contextlib.suppress(Exception):
            if self.is_connected:
                await self.flush(1)
        if self._unsent():
            self.discard_unsent()
            self._cut()
        with contextlib.suppress(Exception):
            await self.close()


def server_name(client: Client) -> str:
    """Configured name of the server that a client is, or was last, connected to."""
    return str(client._server_info.get("server_name", ""))  # noqa: SLF001


class ConnectionCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks of the owner of a connection; each is called in the loop, and must not raise."""

    lost: Callable[[], None] | None = None
    back: Callable[[], None] | None = None
    closed: Callable[[], None] | None = None
    error: Callable[[Exception], None] | None = None


async def connect(login: Login, callbacks: ConnectionCallbacks | None = None) -> BusClient:
    """Connect, trying each server once, first one that answers; afterwards the client reconnects without a limit.

    Raises BusUnavailable with the reason, within the timeout; a refused port or password raises at once.
    """
    client = BusClient()
    attempt = _FirstConnection(
        client, callbacks or ConnectionCallbacks(), servers=login.url.split(",")
    )
    trying = asyncio.create_task(attempt.connect(login))
    refused = asyncio.create_task(attempt.failed.wait())
    try:
        done, _ = await asyncio.wait(
            {trying, refused},
            timeout=login.connect_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
    except asyncio.CancelledError:
        await _cancel_all(trying, refused)
        await client.end()
        raise
    await _cancel_all(trying, refused)
    if trying in done and trying.exception() is None:
        attempt.connected = True
        await client.start_calls()
        return client
    fault = most_informative_fault(attempt.faults)
    if fault is None and trying in done:
        fault = trying.exception()
    await client.end()
    why = f"no answer in {login.connect_timeout_s} s"
    if fault is not None:
        why = str(fault) or type(fault).__name__
    raise BusUnavailable(f"no bus at {redacted_url(login.url)}: {why}") from fault


async def _cancel_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they end: nats-py takes a cancellation amid an attempt for a fault, and tries on forever."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)


def most_informative_fault(faults: Sequence[BaseException]) -> BaseException | None:
    """Choose the error to report: a server's message, even if it closed the connection, else the last one."""
    said = [fault for fault in faults if not isinstance(fault, OSError)] or faults
    return said[-1] if said else None


class _FirstConnection:
    """The first connection of a client: until it is established, no callback of its owner is called."""

    def __init__(
        self, client: BusClient, callbacks: ConnectionCallbacks, *, servers: list[str]
    ) -> None:
        self._client = client
        self._callbacks = callbacks
        self._servers = servers
        self.faults: list[BaseException] = []
        self.failed = asyncio.Event()
        self.connected = False

    async def connect(self, login: Login) -> None:
        """Try each server, under the rules of this module."""
        user, password = (login.user, login.password) if login.user else url_login(login.url)
        await self._client.connect(
            await _answering_first(self._servers),
            name=login.name,
            user=user or None,
            password=password or None,
            inbox_prefix=login.inbox or (f"_INBOX.{user}" if user else "_INBOX"),
            # Nothing is buffered while disconnected: a late write would be unexpected.
            pending_size=0,
            ping_interval=2,
            max_outstanding_pings=2,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]
            connect_timeout=login.connect_timeout_s,  # type: ignore[arg-type]
            # The order is ours; a reconnect then tries the server that was lost last.
            dont_randomize=True,
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
        elif self._callbacks.error is not None:
            self._callbacks.error(err)

    async def _lost(self) -> None:
        self._client.discard_unsent()
        if self.connected and self._callbacks.lost is not None:
            self._callbacks.lost()

    async def _back(self) -> None:
        if self._callbacks.back is not None:
            self._callbacks.back()

    async def _closed(self) -> None:
        if self.connected and self._callbacks.closed is not None:
            self._callbacks.closed()


async def _answering_first(urls: list[str]) -> list[str]:
    """The addresses in a random order, one that answers first: a server that stands still takes connections, too.

    nats-py tries one after the other, and would wait for such a server as long as the whole attempt may take.
    """
    shuffle(urls)
    first = await first_to_answer(urls) if len(urls) > 1 else ""
    return sorted(urls, key=lambda one: one != first)


async def server_fsyncs(login: Login) -> bool:
    """Ask the server, as SYS, whether it fsyncs every write. Raises BusUnavailable."""
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
