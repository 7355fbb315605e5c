"""The scrub: reads the whole log in the background, so that damage on disk is found before the record is needed.

Decides its pace: a pass takes three quarters of an hour at most (10 GiB: 4 MiB/s). It follows the chain of sums as
every reader does, decodes no event and holds no state; what it finds goes to `put`. Next: `log_reader.py`.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from schemas.envelope import LeaseHeld, LogRecord
from shared.bus.connection.nats_client import BusClient
from shared.bus.log import generations
from shared.bus.log.log_reader import LogReader
from shared.core.runtime.chain import Chain, checked_body, undecodable
from shared.core.runtime.messages import LogScrubbed, Record
from shared.errors import BusUnavailable, LogDropped, LogError

_BATCH_RECORDS = 256
_PASS_S = 2700.0
_BYTES_PER_S_MIN = 1 << 20
#: What cannot be read so often in a row, while the bus answers otherwise, is damaged.
_READS_MAX = 3
_AGAIN_S = 1.0


class _RecordHead(msgspec.Struct):
    """The fields of a record that its chain needs."""

    kind: str
    epoch: int
    prev: str
    t_ns: int
    sum: str
    lease: LeaseHeld | None = None


_HEAD_DECODER = msgspec.json.Decoder(_RecordHead)


def _decode_head(seq: int, _subject: str, data: bytes) -> LogRecord | None:
    """Check the sum of a record and decode its head; None for a foreign one. Raises LogDamaged."""
    if not checked_body(seq, data):
        return None
    try:
        return _HEAD_DECODER.decode(data)  # type: ignore[return-value]
    except (ValueError, RecursionError) as err:
        raise undecodable(seq, err) from err


class ScrubPass:
    """One pass: takes every record in order. Raises LogDamaged."""

    def __init__(self) -> None:
        self._chain: Chain | None = None

    @property
    def next_seq(self) -> int:
        """The next seq to read; 0: the first existing record."""
        return self._chain.next_seq if self._chain is not None else 0

    def take(self, record: Record) -> None:
        """Follow the chain over one record."""
        if self._chain is None:
            self._chain = Chain(_decode_head)
            if record.seq > 1:
                self._begin_later(self._chain, record)
        self._chain.accept(record.seq, record.subject, record.data)

    def _begin_later(self, chain: Chain, record: Record) -> None:
        """Older generations were dropped: what the first record links to is taken as it is."""
        head = _decode_head(record.seq, record.subject, record.data)
        chain.next_seq = record.seq
        if head is not None:
            chain.head = head.prev
            chain.epoch = head.epoch if head.kind != "lease" else 0


async def scrub_log(
    bus: Callable[[], BusClient | None],
    read_seq: Callable[[], int],
    put: Callable[[LogScrubbed], None],
    *,
    pause_s: float,
) -> None:
    """Scrub forever, with `pause_s` between two passes. `read_seq`: up to where the log was applied."""
    while True:
        try:
            found = await _one_pass(bus, read_seq, put)
        except BusUnavailable:
            found = None
        if found is None:
            await asyncio.sleep(_AGAIN_S)
            continue
        put(found)
        await asyncio.sleep(pause_s)


async def _one_pass(
    bus: Callable[[], BusClient | None],
    read_seq: Callable[[], int],
    put: Callable[[LogScrubbed], None],
) -> LogScrubbed | None:
    """Read the log to the end that it had; None: there is no bus. Raises BusUnavailable."""
    link, end = bus(), read_seq()
    if link is None or not end:
        return None
    chain = await generations.list_generations(link)
    if fault := generations.describe_damage(chain, read=end):
        return LogScrubbed(seq=0, problem=fault)
    size = sum(one.state.bytes for one in chain)
    pace = max(size / _PASS_S, _BYTES_PER_S_MIN)
    reader, scrub, failed = LogReader(link), ScrubPass(), 0
    seq = await reader.first_seq()
    while seq <= end:
        began_s = time.monotonic()
        try:
            batch = await reader.read(seq, _BATCH_RECORDS)
        except LogDropped:
            # An operator dropped what was about to be read, or it is lost: the next pass says which.
            return None
        except BusUnavailable as err:
            failed += 1
            if failed >= _READS_MAX and await reader.first_seq():
                return LogScrubbed(seq=seq, problem=f"record {seq} cannot be read: {err}")
            await asyncio.sleep(_AGAIN_S)
            continue
        failed = 0 if batch else failed + 1
        if failed >= _READS_MAX:
            ends = f"the log can be read up to seq {seq - 1}, but {end} records were written"
            return LogScrubbed(seq=seq, problem=ends)
        try:
            for record in batch:
                scrub.take(record)
        except LogError as err:
            return LogScrubbed(seq=seq, problem=str(err))
        seq = scrub.next_seq or seq
        put(LogScrubbed(seq=seq - 1))
        took_s = time.monotonic() - began_s
        spent = sum(len(record.data) for record in batch)
        await asyncio.sleep(max(spent / pace - took_s, 0) if batch else _AGAIN_S)
    return LogScrubbed(seq=seq - 1, is_pass_done=True)
