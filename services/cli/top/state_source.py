"""States that `caravan top` shows: the newest one, which follows the log, and one of the past."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from schemas.envelope import LogRecord
from shared.core.runtime.messages import Record
from shared.core.runtime.restored import Restored
from shared.display.event_text import EventLine, describe_decoded
from shared.display.time_marks import TimeMarks
from shared.query.historical_state import HistoricalState

#: Events kept beside a state, and records by which a past state is moved on rather than begun anew.
EVENTS_KEPT, MOVE_MAX = 200, 5_000
#: Longest time that a replay holds the loop.
_SLICE_S = 0.02


class LogSource(Protocol):
    """The log that states are made from. Its methods raise CaravanError."""

    #: it does not grow.
    is_archive: bool

    def read(self, first: int, last: int = 0) -> AsyncIterator[Record]:
        """Yield records; `last` 0: up to the end."""

    def read_until(self, text: str, first: int) -> AsyncIterator[Record]:
        """Yield records up to a seq or a time."""

    def follow(self, first: int) -> AsyncIterator[Record]:
        """Yield records forever."""

    async def first_seq(self) -> int:
        """Seq of the first record that is there."""

    async def end_seq(self) -> int:
        """Seq of the last record; 0: not known."""

    async def restored(self, text: str) -> Restored | None:
        """The newest snapshot not after a seq or a time; None without one. The empty text: the newest of all."""


class ShownState:
    """A state, and the newest events that led to it."""

    def __init__(self, restored: Restored | None = None, marks: TimeMarks | None = None) -> None:
        self.past = HistoricalState()
        self.events: deque[EventLine] = deque(maxlen=EVENTS_KEPT)
        self._marks = marks
        if restored is not None:
            self.past.begin_at(restored)
        if marks is not None:
            marks.begin(self.past.state, self.seq)

    @property
    def seq(self) -> int:
        """Seq of the last record."""
        return self.past.replica.seq

    @property
    def next_seq(self) -> int:
        """Seq of the record to apply next."""
        return self.past.replica.next_seq

    def apply(self, record: Record) -> None:
        """Apply the next record. Raises LogError."""

        def look(decoded: LogRecord) -> None:
            self.events.extend(describe_decoded(decoded, record.seq, self.past.state))
            if self._marks is not None:
                self._marks.before(self.past.state, decoded, record.seq)

        self.past.apply_with(record, look)

    async def take(
        self, records: AsyncIterator[Record], applied: Callable[[], None] = lambda: None
    ) -> None:
        """Apply records, leaving time to the loop. Raises what the log raises."""
        async for record in paced(records):
            self.apply(record)
            applied()


async def paced(records: AsyncIterator[Record]) -> AsyncIterator[Record]:
    """The same records, giving the loop its turn between them."""
    began_s = time.monotonic()
    async for record in records:
        yield record
        if time.monotonic() - began_s > _SLICE_S:
            await asyncio.sleep(0)
            began_s = time.monotonic()


class Moments:
    """States of one log, by seq."""

    def __init__(self, source: LogSource) -> None:
        self.source = source
        self.marks = TimeMarks()
        self.live = ShownState(None, self.marks)
        self._past: ShownState | None = None

    async def open(self, applied: Callable[[int], None] = lambda _: None) -> None:
        """Bring the live state to the end of the log; `applied` hears how far it is. Raises CaravanError."""
        end = await self.source.end_seq()
        restored = (
            await self._restored(end - EVENTS_KEPT) if end else await self.source.restored("")
        )
        self.live = ShownState(restored, self.marks)
        await self.live.take(self.source.read(self.live.next_seq), lambda: applied(self.live.seq))

    async def follow(self, changed: Callable[[], None]) -> None:
        """Apply what is appended, forever. Raises CaravanError."""
        await self.live.take(self.source.follow(self.live.next_seq), changed)

    async def at(self, seq: int) -> ShownState:
        """The state behind a seq. Raises CaravanError."""
        if seq >= self.live.seq:
            return self.live
        past, self._past = self._past, None
        if past is None or not past.seq <= seq <= past.seq + MOVE_MAX:
            past = await self.begun(seq)
        try:
            await past.take(self.source.read(past.next_seq, seq))
        except asyncio.CancelledError:
            # The next moment may be near: what was replayed is kept.
            self._past = past
            raise
        self._past = past
        return past

    async def at_time(self, text: str) -> ShownState:
        """The state at a time like 2026-01-31T12:00:00. Raises CaravanError."""
        past = ShownState(await self.source.restored(text))
        await past.take(self.source.read_until(text, past.next_seq))
        self._past = past
        return past

    async def reached(self, text: str) -> ShownState | None:
        """The state at a seq or a time; None: the live one. Raises CaravanError, for a seq beyond the end too."""
        past = await self.at_time(text)
        return past if past.seq < self.live.seq else None

    async def begun(self, seq: int) -> ShownState:
        """A state of its own, little before a seq."""
        return ShownState(await self._restored(seq - EVENTS_KEPT))

    async def alone(self, seq: int) -> ShownState:
        """A state of its own at a seq. Raises CaravanError."""
        past = await self.begun(seq)
        await past.take(self.source.read(past.next_seq, seq))
        return past

    async def _restored(self, seq: int) -> Restored | None:
        return await self.source.restored(str(seq)) if seq > 0 else None
