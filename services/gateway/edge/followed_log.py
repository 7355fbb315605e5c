"""What is made of records for one reader: past ones by a replay of its own, then new ones as the role applies them.

Decides how a reader goes from the past to the present without a gap or a record twice, and when it is too slow: it is
cut then, never skipped.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

import structlog

from schemas.envelope import LogRecord
from services.gateway.edge.faults import HttpFault, unavailable
from services.gateway.nomad.source import ShapeSource
from services.gateway.role import Gateway, RecordTimes
from shared.bus.connection.nats_client import BusClient
from shared.bus.log import snapshots
from shared.bus.log.log_reader import LogReader
from shared.core.decide.garbage import LogTimeIndex
from shared.core.runtime.messages import Record
from shared.core.state.state import TABLES, State
from shared.errors import BusUnavailable
from shared.query.historical_state import HistoricalState

log = structlog.get_logger()
HEARTBEAT_S = 30.0
#: Lines and bytes that wait for one reader; a slower one is cut, and resumes by its index.
LINES_MAX, BYTES_MAX = 10_000, 10 << 20
#: Records of a replay between two turns of the loop.
_SLICE = 64
#: Replays of the past at a time, for readers.
REPLAYS = asyncio.Semaphore(4)
#: Seq of a record and what was made of it; empty: nothing more up to that seq.
Line = tuple[int, bytes]


class LineMaker(Protocol):
    """Makes a line of a record, of one reader. `before` and `after` are called in turn."""

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """Look at what a record is about to change."""

    def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
        """The line of the record that was applied; empty: none."""


class LiveLines:
    """Follows the role for one reader from now on. Records before `first` make no line."""

    def __init__(self, role: Gateway, maker: LineMaker, first: int = 0) -> None:
        self._role = role
        self._maker = maker
        self._first = first
        self._lines: deque[Line] = deque()
        self._size = 0
        self._arrived = asyncio.Event()
        #: it was too slow, or the state jumped: nothing more comes.
        self.is_over = False

    def begin(self, state: State, seq: int) -> None:
        """A snapshot took the place of records: the reader would miss them."""
        del state
        if seq > self._role.seq:
            self._end()

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """Show the maker what the record is about to change."""
        if self.is_over:
            return
        try:
            self._maker.before(state, record, seq)
        except Exception:
            log.exception("gateway.line_failed", seq=seq)
            self._end()

    def after(self, state: State, record: LogRecord, seq: int) -> None:
        """Keep the line of a record."""
        del state
        if self.is_over:
            return
        try:
            line = self._maker.after(self._role.source, record, seq)
        except Exception:
            # A fault in a line must not end the role that applies the record.
            log.exception("gateway.line_failed", seq=seq)
            self._end()
            return
        if line and seq >= self._first:
            self._lines.append((seq, line))
            self._size += len(line)
            self.is_over = len(self._lines) > LINES_MAX or self._size > BYTES_MAX
            # Not for each record: one without a line must not put off the heartbeat.
            self._arrived.set()

    def _end(self) -> None:
        self.is_over = True
        self._arrived.set()

    async def lines(self, heartbeat_s: float) -> AsyncIterator[Line]:
        """Yield lines as they come, and an empty one after a while without."""
        while not (self.is_over and not self._lines):
            if self._lines:
                line = self._lines.popleft()
                self._size -= len(line[1])
                yield line
                continue
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), heartbeat_s)
            except TimeoutError:
                if not self._lines:
                    yield self._role.seq, b""


class FollowedLog:
    """The lines of one reader, from record `first` on; 0: from now. `begin` before `lines` finds faults early.

    `replays`: how many replays of the past run at a time; `heartbeat_s`: when an empty line says that nothing came.
    """

    def __init__(
        self,
        role: Gateway,
        bus: BusClient,
        maker: LineMaker,
        *,
        first: int,
        replays: asyncio.Semaphore = REPLAYS,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._role, self._bus = role, bus
        self._heartbeat_s = heartbeat_s
        self._maker = maker
        self._first = first
        self._replays = replays
        self._past: _Past | None = None

    async def begin(self) -> None:
        """Find the state before the first record. Raises HttpFault 410: it is not kept, 503."""
        if not 0 < self._first <= self._role.seq:
            return
        try:
            self._past = await _Past.at(self._bus, self._maker, self._first, replays=self._replays)
        except BusUnavailable as err:
            raise unavailable(str(err)) from err

    async def lines(self) -> AsyncGenerator[Line, None]:
        """Yield seqs and lines in order, and empty ones at times. Raises as `begin`, LogDropped, LogError."""
        live = LiveLines(self._role, self._maker, self._first)
        if self._past is None:
            # Records may have come since `begin` looked.
            await self.begin()
        past, self._past = self._past, None
        try:
            if past is None:
                self._role.follow(live)
            else:
                async for line in past.lines(self._role, live):
                    yield line
                # The state of the past is not needed any more.
                past = None
                yield self._role.seq, b""
            async for line in live.lines(self._heartbeat_s):
                yield line
        finally:
            self._role.unfollow(live)


class _Past:
    """A state that is moved on record by record until it is where the role is."""

    def __init__(
        self, log: LogReader, maker: LineMaker, first: int, replays: asyncio.Semaphore
    ) -> None:
        self._log = log
        self._replays = replays
        self._maker = maker
        self._first = first
        self._state = HistoricalState()
        older = LogTimeIndex()
        self._older, self._times = older, RecordTimes(older)

    @classmethod
    async def at(
        cls, bus: BusClient, maker: LineMaker, first: int, *, replays: asyncio.Semaphore
    ) -> "_Past":
        """Begin at the newest snapshot before a record. Raises HttpFault 410, 503; BusUnavailable."""
        log = LogReader(bus)
        kept = await log.first_seq()
        if first < kept:
            raise dropped(kept)
        if replays.locked():
            raise unavailable("too many readers replay the past")
        made = cls(log, maker, first, replays)
        # 0 would name the newest snapshot of all.
        restored = (
            await snapshots.restore_newest(bus, TABLES, last_seq=first - 1, quiet=True)
            if first > 1
            else None
        )
        if restored is not None:
            made._state.begin_at(restored)
            made._older.begin_at(restored.asides.marks)
        elif kept > 1:
            text = f"the log on this bus begins at {kept}, and no snapshot holds the state before {first}"
            raise HttpFault(410, text, {"X-Caravan-First-Seq": str(kept)})
        return made

    async def lines(self, role: Gateway, live: LiveLines) -> AsyncIterator[Line]:
        """Yield lines; ends when `live` follows without a gap. Raises BusUnavailable, LogDropped, LogError."""
        loop = asyncio.get_running_loop()
        async with self._replays:
            seq, heard_s = self._state.replica.next_seq, loop.time()
            while seq <= role.seq:
                batch = await self._log.read(seq)
                for record in batch:
                    if record.seq > role.seq:
                        break
                    line = self._line(record)
                    seq = record.seq + 1
                    if line or loop.time() - heard_s > HEARTBEAT_S:
                        yield record.seq, line
                        heard_s = loop.time()
                    if record.seq % _SLICE == 0:
                        await asyncio.sleep(0)
                if not batch:
                    await asyncio.sleep(0.05)
            # The role applies `seq` next. Nothing runs between this look and the line behind it.
            role.follow(live)

    def _line(self, record: Record) -> bytes:
        decoded = self._state.apply_with(
            record, lambda found: self._maker.before(self._state.state, found, record.seq)
        )
        if decoded is None:
            return b""
        self._times.note(record.seq, decoded.t_ns)
        if record.seq < self._first:
            return b""
        source = ShapeSource(self._state.state, self._state.histories, self._times.at)
        return self._maker.after(source, decoded, record.seq)


def dropped(first_seq: int) -> HttpFault:
    """410 for what is before the first kept record; the header names that one for programs."""
    text = f"the log on this bus begins at {first_seq}: an older index needs its archive"
    return HttpFault(410, text, {"X-Caravan-First-Seq": str(first_seq)})
