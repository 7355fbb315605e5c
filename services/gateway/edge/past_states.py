"""States of past moments: a few are kept, each is moved on by replay or begun anew at the nearest snapshot.

Decides which kept state serves a seq: requests for one moment wait for one state. A state is looked at by one request
at a time, since it moves, and leaves snapshots in memory on its way. The newest events that it was moved on by are kept
in words: a page shows them with each moment, and words need the state before each record.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import msgspec

from schemas.envelope import RECORD_DECODER, LogRecord
from services.gateway.change_index import ChangeIndex
from services.gateway.edge.faults import HttpFault, unavailable
from services.gateway.edge.kept_snapshots import KeptSnapshot, KeptSnapshots, take_snapshot
from services.gateway.edge.live_feed import RecordLine, record_lines
from shared.bus.connection.nats_client import BusClient
from shared.bus.log import snapshots
from shared.bus.log.log_reader import LogReader
from shared.bus.log.stored_records import BATCH_RECORDS
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.runtime.restored import Restored
from shared.core.state.state import TABLES
from shared.errors import BusUnavailable, LogDropped
from shared.query.historical_state import HistoricalState

T = TypeVar("T")
#: States kept, and records by which one is moved on rather than begun anew at a snapshot.
KEPT_MAX, MOVE_MAX = 4, 5_000
#: Records before a moment whose events are kept in words: as many as the console shows with it.
LINES_KEPT = 25
#: Records before a moment that are put in words at all: a snapshot farther away is kept without those that led to it.
DESCRIBED_MAX = 8 * LINES_KEPT
#: Replays at a time, and seconds that a request waits for its turn.
REPLAYS_MAX, TURN_S = 2, 20.0
#: CPU time of a replay behind which a snapshot is kept; at least three times of what making one takes.
_SNAPSHOT_S = 0.04
#: Longest time that a replay holds the loop.
_SLICE_S = 0.005


class RecordReader(Protocol):
    """Reads a log by seq."""

    async def first_seq(self) -> int:
        """Where it begins; 0: it is empty."""

    async def read(self, seq: int, records: int = BATCH_RECORDS) -> list[Record]:
        """Read some records from `seq` on, at most so many; empty at the end. Raises LogDropped."""


class PastSource(Protocol):
    """Where past states come from."""

    @property
    def log(self) -> RecordReader:
        """The log. Raises HttpFault 503 where it cannot be reached."""

    async def restore(self, last_seq: int) -> Restored | None:
        """Restore the newest known state not behind `last_seq`; None: there is none."""


class BusSource:
    """The log and the snapshots of a bus. `reach`: both connections; raises HttpFault 503 without a bus."""

    def __init__(self, reach: Callable[[], tuple[BusClient, LogReader]]) -> None:
        self._reach = reach

    @property
    def log(self) -> LogReader:
        """The stored log."""
        return self._reach()[1]

    async def restore(self, last_seq: int) -> Restored | None:
        """Restore the newest snapshot."""
        bus, _ = self._reach()
        return await snapshots.restore_newest(bus, TABLES, last_seq=last_seq, quiet=True)


#: Seq of a record, and its events in words.
_Told = tuple[int, list[RecordLine]]
_NOTE_ENCODER = msgspec.msgpack.Encoder()
_NOTE = msgspec.msgpack.Decoder(list[_Told])


class _Kept:
    """A state. `bound`: the seq that it is moved to."""

    def __init__(self, bound: int) -> None:
        self.past = HistoricalState()
        self.has_begun = False
        self.bound = bound
        self._changes = ChangeIndex(self.past.state)
        #: events of consecutive records up to the present one.
        self.lines: deque[_Told] = deque(maxlen=LINES_KEPT)
        #: CPU time of its replay since the last snapshot.
        self.replayed_s = 0.0
        self.lock = asyncio.Lock()
        self.used_s = time.monotonic()

    def begin_at(self, restored: Restored, known: KeptSnapshot | None = None) -> None:
        """Begin at a snapshot; `known`: it was kept in memory."""
        self.past.begin_at(restored)
        self._changes.begin_at(restored.replica.seq, {} if known is None else known.indexes)
        if known is not None and known.note:
            self.lines.extend(_NOTE.decode(known.note))

    def apply(self, record: Record) -> None:
        """Apply the next record without words. Raises LogError."""
        self.lines.clear()
        decoded = self.past.apply(record)
        if decoded is not None:
            self._changes.after(decoded, record.seq)

    def describe(self, record: Record) -> list[RecordLine]:
        """Apply the next record; its events in words. Raises LogError."""
        lines: list[RecordLine] = []

        def describe(found: LogRecord) -> None:
            lines.extend(record_lines(self.past.state, found, record.seq))

        decoded = self.past.apply_with(record, describe)
        if decoded is not None:
            self._changes.after(decoded, record.seq)
        elif is_framed(record.data):
            # Of a writer that was no longer the leader: it changes nothing, and is shown.
            describe(RECORD_DECODER.decode(record.data))
        self.lines.append((record.seq, lines))
        return lines

    def snapshot(self, others: Sequence[KeptSnapshot]) -> KeptSnapshot:
        """The present state, and the events that led to it where all that are shown are known."""
        told = list(self.lines)
        return take_snapshot(
            self.past.replica,
            self._changes.tables(),
            asides=self.past.asides(),
            lease=self.past.answers.lease,
            replay_s=self.replayed_s,
            others=others,
            note=_NOTE_ENCODER.encode(told) if len(told) == LINES_KEPT else b"",
        )


class PastStates:
    """States by seq, of one log. `snapshots`: those that are known from the beginning."""

    def __init__(self, source: PastSource, snapshots: KeptSnapshots | None = None) -> None:
        self._source = source
        self._snapshots = KeptSnapshots() if snapshots is None else snapshots
        self._kept: list[_Kept] = []
        self._replays = asyncio.Semaphore(REPLAYS_MAX)
        #: CPU time that the last snapshot took.
        self._snapshot_s = 0.0

    async def read(self, seq: int, read: Callable[[HistoricalState], T]) -> T:
        """What `read` makes of the state behind `seq`.

        Raises HttpFault: 410 before the first kept record, 503 without the bus or a turn.
        """
        async with self._turn(), self._at(seq) as kept:
            return read(kept.past)

    async def events(self, first: int, last: int) -> list[RecordLine]:
        """Events of some records in words, oldest first. Raises HttpFault as `read`."""
        lines: list[RecordLine] = []
        if last - first < LINES_KEPT:
            async with self._turn(), self._at(last) as kept:
                if kept.lines and kept.lines[0][0] <= first:
                    return [one for seq, told in kept.lines if seq >= first for one in told]

        async with self._turn(), self._at(first - 1, bound=last) as kept:
            await self._move(kept, last, lines)
        return lines

    @asynccontextmanager
    async def _at(self, seq: int, *, bound: int = 0) -> AsyncIterator[_Kept]:
        """A kept state at a seq, for this request alone. `bound`: to where the request moves it on."""
        kept = self._chosen(seq, max(seq, bound))
        async with kept.lock:
            if not kept.has_begun:
                await self._begin(kept, seq)
            await self._move(kept, seq)
            yield kept

    def _chosen(self, seq: int, bound: int) -> _Kept:
        """A kept state that is or will be at or little before a seq, else a new one."""
        near = [one for one in self._kept if self._moves_to(one.bound, seq)]
        if near:
            found = max(near, key=lambda one: one.bound)
        else:
            found = _Kept(bound)
            self._kept.append(found)
            # The one that was not used longest leaves.
            free = [one for one in self._kept if one is not found and not one.lock.locked()]
            if len(self._kept) > KEPT_MAX and free:
                self._kept.remove(min(free, key=lambda one: one.used_s))
        found.bound = bound
        found.used_s = time.monotonic()
        return found

    def _moves_to(self, bound: int, seq: int) -> bool:
        """Whether a state is moved on to a seq: where two snapshots lie between, the later one is nearer."""
        return bound <= seq <= bound + MOVE_MAX and self._snapshots.count(bound, seq) < 2

    async def _begin(self, kept: _Kept, seq: int) -> None:
        """Begin a state at the newest snapshot before a seq, from which on the events that lead there are known."""
        known = self._snapshots.newest(seq)
        if known is not None and not known.note:
            known = self._snapshots.newest(seq - LINES_KEPT) or known
        stored = None
        if known is None or seq - known.seq > MOVE_MAX:
            stored = await self._source.restore(max(seq, 1))
        if stored is not None and (known is None or stored.replica.seq > known.seq):
            kept.begin_at(stored)
        elif known is not None:
            kept.begin_at(await asyncio.to_thread(known.restored), known)
        kept.has_begun = True

    async def _move(self, kept: _Kept, seq: int, lines: list[RecordLine] | None = None) -> None:
        """Move a kept state on; `lines` gets the events on the way. Raises as `_slices`: the state is dropped."""

        def apply(record: Record) -> None:
            if lines is not None:
                lines.extend(kept.describe(record))
            elif record.seq > seq - DESCRIBED_MAX:
                kept.describe(record)
            else:
                kept.apply(record)

        try:
            async for took_s in _slices(kept.past, self._source.log, seq, apply):
                kept.replayed_s += took_s
                if kept.replayed_s > max(_SNAPSHOT_S, 3 * self._snapshot_s):
                    await self._keep(kept)
        except Exception:
            # A record may be half applied.
            self._kept = [one for one in self._kept if one is not kept]
            raise

    async def _keep(self, kept: _Kept) -> None:
        """Keep a snapshot of where a state is, unless there is one."""
        seq = kept.past.replica.seq
        around = self._snapshots.around(seq)

        def timed() -> KeptSnapshot:
            began_s = time.thread_time()
            made = kept.snapshot(around)
            self._snapshot_s = time.thread_time() - began_s
            return made

        if seq not in {one.seq for one in around}:
            self._snapshots.put(await asyncio.to_thread(timed))
        kept.replayed_s = 0.0

    async def replay(self, seq: int) -> HistoricalState:
        """A state of its own at `seq`. Raises HttpFault as `read`."""
        past = HistoricalState()
        async with self._turn():
            restored = await self._source.restore(seq)
            if restored is not None:
                past.begin_at(restored)
            async for _ in _slices(past, self._source.log, seq, past.apply):
                pass
        return past

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            await asyncio.wait_for(self._replays.acquire(), TURN_S)
        except TimeoutError as err:
            raise unavailable("too many requests replay the past") from err
        try:
            yield
        except BusUnavailable as err:
            raise unavailable(str(err)) from err
        except LogDropped as err:
            text = (
                f"the log on this bus begins at {err.first_seq}: an older moment needs its archive"
            )
            raise HttpFault(410, text) from err
        finally:
            self._replays.release()


async def _slices(
    past: HistoricalState, log: RecordReader, seq: int, apply: Callable[[Record], object]
) -> AsyncIterator[float]:
    """Apply records up to a seq; yields the CPU seconds of each slice. Raises LogError, LogDropped, BusUnavailable."""
    while past.replica.seq < seq:
        batch = await log.read(past.replica.next_seq, min(seq - past.replica.seq, BATCH_RECORDS))
        if not batch:
            raise BusUnavailable(f"the stored log ends at {past.replica.seq}, before {seq}")
        began_s = time.thread_time()
        for record in batch:
            apply(record)
            if (took_s := time.thread_time() - began_s) > _SLICE_S:
                yield took_s
                await asyncio.sleep(0)
                began_s = time.thread_time()
        yield time.thread_time() - began_s
