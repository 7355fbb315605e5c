"""States of past moments: a few are kept, each is moved on by replay or begun anew at the nearest snapshot.

Decides which kept state serves a seq. A state is looked at by one request at a time, since it moves.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from services.gateway.edge.faults import HttpFault, unavailable
from shared.bus.connection.nats_client import BusClient
from shared.bus.log import snapshots
from shared.bus.log.log_reader import LogReader
from shared.bus.log.stored_records import BATCH_RECORDS
from shared.core.runtime.messages import Record
from shared.core.runtime.restored import Restored
from shared.core.state.state import TABLES
from shared.errors import BusUnavailable, LogDropped, LogError
from shared.query.historical_state import HistoricalState

T = TypeVar("T")
#: States kept, and records by which one is moved on rather than begun anew at a snapshot.
KEPT_MAX, MOVE_MAX = 4, 5_000
#: Replays at a time, and seconds that a request waits for its turn.
REPLAYS_MAX, TURN_S = 2, 20.0
#: Longest time that a replay holds the loop.
_SLICE_S = 0.02

#: Sees each record that a state is moved on by: the state is the one before it.
Look = Callable[[HistoricalState, Record], None]


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


class _Kept:
    def __init__(self) -> None:
        self.past = HistoricalState()
        self.lock = asyncio.Lock()
        self.used_s = 0.0

    @property
    def seq(self) -> int:
        return self.past.replica.seq


class PastStates:
    """States by seq, of one log."""

    def __init__(self, source: PastSource) -> None:
        self._source = source
        self._kept: list[_Kept] = []
        self._replays = asyncio.Semaphore(REPLAYS_MAX)

    async def read(
        self,
        seq: int,
        read: Callable[[HistoricalState], T],
        *,
        through: int = 0,
        look: Look | None = None,
    ) -> T:
        """What `read` makes of the state behind `seq`; then `look` sees the records up to `through`.

        Raises HttpFault: 410 before the first kept record, 503 without the bus or a turn.
        """
        log = self._source.log
        async with self._turn():
            kept = await self._nearest(seq)
            async with kept.lock:
                if kept.seq > seq:
                    # Another request moved it on since it was chosen.
                    kept = await self._begun(seq)
                kept.used_s = time.monotonic()
                try:
                    await _move(kept.past, log, seq)
                    found = read(kept.past)
                    if through > seq:
                        await _move(kept.past, log, through, look)
                except (LogError, LogDropped):
                    self._kept = [one for one in self._kept if one is not kept]
                    raise
                return found

    async def replay(self, seq: int, look: Look | None = None) -> HistoricalState:
        """A state of its own at `seq`. Raises HttpFault as `read`.

        `look` sees each record of the log before it is applied; without it the replay begins at a snapshot.
        """
        log = self._source.log
        past = HistoricalState()
        async with self._turn():
            if look is None:
                restored = await self._source.restore(seq)
                if restored is not None:
                    past.begin_at(restored)
            await _move(past, log, seq, look)
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

    async def _nearest(self, seq: int) -> _Kept:
        """A kept state at or little before a seq, else a new one."""
        near = [one for one in self._kept if one.seq <= seq <= one.seq + MOVE_MAX]
        return max(near, key=lambda one: one.seq) if near else await self._begun(seq)

    async def _begun(self, seq: int) -> _Kept:
        """A new state at the newest snapshot before a seq; the one that was not used longest leaves."""
        made = _Kept()
        restored = await self._source.restore(max(seq, 1))
        if restored is not None:
            made.past.begin_at(restored)
        made.used_s = time.monotonic()
        self._kept.append(made)
        if len(self._kept) > KEPT_MAX:
            free = [one for one in self._kept if one is not made and not one.lock.locked()]
            if free:
                self._kept.remove(min(free, key=lambda one: one.used_s))
        return made


async def _move(
    past: HistoricalState, log: RecordReader, seq: int, look: Look | None = None
) -> None:
    """Apply records up to a seq. Raises LogError, LogDropped, BusUnavailable."""
    while past.replica.seq < seq:
        batch = await log.read(past.replica.next_seq)
        if not batch:
            raise BusUnavailable(f"the stored log ends at {past.replica.seq}, before {seq}")
        began_s = time.monotonic()
        for record in batch:
            if record.seq > seq:
                break
            if look is not None:
                look(past, record)
            past.apply(record)
            if time.monotonic() - began_s > _SLICE_S:
                await asyncio.sleep(0)
                began_s = time.monotonic()
