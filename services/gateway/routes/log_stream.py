"""`/v1/caravan/log`: records of the log as they are, each seq once and in order, as JSON lines or server-sent events.

Records are read from the bus with the caller's login, so that the bus decides who may read the log; and only as fast
as the reader takes them, so that nothing waits for a slow one. No record is served before the gateway's replica has
checked it. Jobs and nodes of a record follow from the state before it: with such a filter the replica, or a replay,
names the seqs.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response

from schemas.base import Event
from schemas.envelope import RECORD_DECODER, LogRecord
from services.gateway.edge.agents import streamed
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault, permission_denied, unavailable
from services.gateway.edge.followed_log import FollowedLog, dropped
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.source import ShapeSource
from services.gateway.role import Gateway
from shared.bus.log.log_reader import LogReader
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.state.state import State
from shared.errors import BusUnavailable, LogDropped, LogError
from shared.query.event_scope import event_scope

#: Seconds after which a reader hears that nothing happened.
HEARTBEAT_S = 10.0
#: Records of one request to the bus where all are wanted, and where some are.
_BATCH, _SOME = 512, 64
_KINDS_MAX = 50
#: Pause where the stored log is behind the replica: another server of the bus answers.
_BEHIND_S = 0.05
_NO_END = 1 << 62
_SSE = "text/event-stream"
_JSON_CHECK = msgspec.json.Decoder(msgspec.Raw)


class RecordFilter:
    """Which records are wanted: those with an event of one of the kinds that is about the job and the node."""

    def __init__(self, *, kinds: tuple[str, ...] = (), job: str = "", node: str = "") -> None:
        self._kinds = kinds
        self._job = job
        self._node = node
        self._is_wanted = False
        #: the last seq that is wanted: a mark behind it ends the search.
        self.last = 0

    @property
    def needs_state(self) -> bool:
        """Whether the state before a record decides."""
        return bool(self._job or self._node)

    def has_kind(self, record: Record) -> bool:
        """Whether a stored record is of a kind that is wanted; what cannot be read is of the kind `foreign`."""
        if not self._kinds:
            return True
        try:
            decoded = RECORD_DECODER.decode(record.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return "foreign".startswith(self._kinds)
        if not decoded.events:
            return decoded.kind.startswith(self._kinds)
        return any(self._of_kind(event) for event in decoded.events)

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """As a LineMaker: decide by the state before the record."""
        del seq
        self._is_wanted = any(self._concerns(state, event) for event in record.events)

    def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
        """As a LineMaker: a mark for a record that is wanted, or behind the last one."""
        del source, record
        return b"+" if self._is_wanted or 0 < self.last < seq else b""

    def _of_kind(self, event: Event) -> bool:
        return str(event.__struct_config__.tag).startswith(self._kinds or ("",))

    def _concerns(self, state: State, event: Event) -> bool:
        if not self._of_kind(event):
            return False
        about = event_scope(state, event)
        is_job = not self._job or self._job in about.jobs
        return is_job and (not self._node or self._node in about.nodes)


class LogRange(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader asked for. `last` 0: no end."""

    first: int
    last: int
    is_followed: bool
    is_sse: bool


def log_range(call: Call) -> LogRange:
    """Read the parameters; the header Last-Event-ID goes before `from`. Raises HttpFault 400."""
    is_sse = _SSE in call.connection.headers.get("accept", "")
    is_followed = call.flag("follow", default=is_sse)
    first, last = call.number("from"), call.number("to")
    seen = call.connection.headers.get("last-event-id", "")
    if seen:
        if not seen.isascii() or not seen.isdigit() or len(seen) > 18:
            raise HttpFault(400, f"the header Last-Event-ID must be a seq, was {seen[:50]!r}")
        first = int(seen) + 1
    elif first < 0 or last < 0:
        raise HttpFault(400, "from and to are seqs of the log, from 1 on")
    elif not first and not is_followed:
        raise HttpFault(400, "from is required without follow: from=1 reads the whole log")
    first = first or call.role.seq + 1
    if last and last < first and not seen:
        raise HttpFault(400, f"to must not be below from: {last} is below {first}")
    return LogRange(first=first, last=last, is_followed=is_followed, is_sse=is_sse)


def record_filter(call: Call) -> RecordFilter:
    """Read the filters. Raises HttpFault 400."""
    words = [one.strip() for text in call.texts("kinds") for one in text.split(",")]
    kinds = tuple(one for one in words if one)
    if len(kinds) > _KINDS_MAX:
        raise HttpFault(400, f"kinds takes at most {_KINDS_MAX} prefixes, was {len(kinds)}")
    return RecordFilter(kinds=kinds, job=call.text("job"), node=call.text("node"))


async def stream_log(call: Call) -> object:
    """Records from a seq on. Raises HttpFault 400, 403, 410: the log does not begin so early, 503."""
    wanted, filtered = log_range(call), record_filter(call)
    is_done = bool(wanted.last) and wanted.first > wanted.last
    if wanted.is_sse and (is_done or (not wanted.is_followed and wanted.first > call.role.seq)):
        # A browser that resumes behind the end stops asking.
        return Response(status_code=204)
    log = await _readable_log(call, wanted.first)
    records = _Records(call.role, log, filtered, wanted)
    followed = None
    if filtered.needs_state:
        filtered.last = records.end
        followed = FollowedLog(call.role, call.server.bus, filtered, first=wanted.first)
        await followed.begin()
    form = record_event if wanted.is_sse else record_line

    async def parts() -> AsyncIterator[bytes]:
        found = records.named(followed) if followed is not None else records.all()
        try:
            async for record in found:
                if record is not None:
                    yield form(record)
                else:
                    yield b": nothing new\n\n" if wanted.is_sse else b"{}\n"
        except (HttpFault, BusUnavailable, LogDropped, LogError):
            # The answer has begun: it ends here, and the reader resumes by its seq.
            return

    return streamed(call, parts(), _SSE if wanted.is_sse else "application/x-ndjson")


async def _readable_log(call: Call, first: int) -> LogReader:
    """The log as the caller may read it. Raises HttpFault 403, 410, 503."""
    client = call.caller.client
    log, denied = LogReader(client.bus), client.denied
    try:
        kept = await log.first_seq()
    except BusUnavailable as err:
        if client.denied > denied:
            raise permission_denied("this login may not read the log") from err
        raise unavailable(str(err)) from err
    if first < kept:
        raise dropped(kept)
    return log


class _Records:
    """The records of one reader; None: nothing came for a while."""

    def __init__(
        self, role: Gateway, log: LogReader, filtered: RecordFilter, wanted: LogRange
    ) -> None:
        self._role = role
        self._log = log
        self._filter = filtered
        self._wanted = wanted
        self._batch: dict[int, Record] = {}
        #: the last seq that is to be served.
        self.end = wanted.last or _NO_END
        if not wanted.is_followed:
            self.end = min(self.end, role.seq)

    async def all(self) -> AsyncIterator[Record | None]:
        """Yield every record of the kinds. Raises BusUnavailable, LogDropped."""
        loop = asyncio.get_running_loop()
        seq, heard_s = self._wanted.first, loop.time()
        while seq <= self.end:
            if seq > self._role.seq:
                async for _ in self._silence(seq):
                    yield None
                heard_s = loop.time()
            last = min(self.end, self._role.seq, seq + _BATCH - 1)
            batch = await self._log.read(seq, last - seq + 1)
            for record in batch:
                _expect(record, seq)
                seq += 1
                is_wanted = self._filter.has_kind(record)
                if is_wanted or loop.time() - heard_s > HEARTBEAT_S:
                    yield record if is_wanted else None
                    heard_s = loop.time()
            await asyncio.sleep(0 if batch else _BEHIND_S)

    async def named(self, followed: FollowedLog) -> AsyncIterator[Record | None]:
        """Yield the records that a replica names. Raises BusUnavailable, LogDropped."""
        if self._wanted.first > self.end:
            return
        async for seq, mark in followed.lines():
            if mark and seq <= self.end:
                if seq >= self._wanted.first:
                    yield await self._one(seq)
            elif seq >= self.end:
                return
            else:
                yield None

    async def _silence(self, seq: int) -> AsyncIterator[None]:
        """Wait for a record to be applied; yields each time that nothing came for a while."""
        reached = asyncio.Event()
        self._role.when_at(seq, reached.set)
        while not reached.is_set():
            try:
                await asyncio.wait_for(reached.wait(), HEARTBEAT_S)
            except TimeoutError:
                yield

    async def _one(self, seq: int) -> Record:
        """The record of a seq; those behind it are often wanted next. Raises BusUnavailable, LogDropped."""
        if seq not in self._batch:
            self._batch = {one.seq: one for one in await self._log.read(seq, _SOME)}
        record = self._batch.get(seq)
        if record is None:
            raise _missing(seq)
        return record


def _expect(record: Record, seq: int) -> None:
    """Refuse a gap: a server with a damaged block leaves messages out. Raises BusUnavailable."""
    if record.seq != seq:
        raise _missing(seq)


def _missing(seq: int) -> BusUnavailable:
    return BusUnavailable(f"the stored log does not hand out record {seq}")


def record_line(record: Record) -> bytes:
    """A record as one line. What no applier wrote is named without its bytes."""
    try:
        is_ours = is_framed(record.data) and b"\n" not in record.data
        body = bytes(_JSON_CHECK.decode(record.data)) if is_ours else b"null"
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = b"null"
    subject = msgspec.json.encode(record.subject)
    return b'{"seq":%d,"subject":%s,"record":%s}\n' % (record.seq, subject, body)


def record_event(record: Record) -> bytes:
    """A record as a server-sent event, whose id is its seq."""
    return b"id: %d\nevent: record\ndata: %s\n" % (record.seq, record_line(record))


ENDPOINTS = (Endpoint(pattern="/v1/caravan/log", summary="Records of the log.", read=stream_log),)
