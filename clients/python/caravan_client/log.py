"""The event log: records in order, each with its checksum and its link to the one before checked.

Source: docs/any-language.md, "Read the log". A log is a chain of streams, LOG_1, LOG_2 and so on; seqs run on.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from nats.aio.msg import Msg

from caravan_client.connection import Connection
from caravan_client.errors import LogDamaged, NoAnswer

#: Records asked for at a time.
_BATCH = 256
#: Seconds between two looks at the end of the log.
_PAUSE_S = 0.25
#: The last bytes of a record: `,"sum":"<32 hex digits>"}`.
_SUM_BYTES = 42
#: Generations of a log; there are at most 64.
_GENERATIONS = 64


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log. A transaction has `events`, each an object with its `type`."""

    #: set by the reader: the position in the log.
    seq: int = 0
    #: tx, lease, checkpoint or roll.
    kind: str
    epoch: int = 0
    #: log time, ns since 1970.
    t_ns: int = 0
    events: tuple[dict[str, Any], ...] = ()
    causes: Any = ()
    prev: str = ""
    sum: str = ""


class Log:
    """Reads the log by direct get, as any user may."""

    def __init__(self, connection: Connection) -> None:
        """Read on this connection."""
        self._connection = connection

    async def records(
        self, first: int = 1, last: int = 0, *, follow: bool = False
    ) -> AsyncIterator[Record]:
        """Yield records from seq `first` to `last` (0: the current end); with `follow` also new ones, without end.

        Skips what is not of the chain; raises `LogDamaged` on a wrong checksum or link.
        """
        seq, before = first, ""
        generation = await self._generation(seq)
        while not last or seq <= last:
            count = min(_BATCH, last - seq + 1) if last else _BATCH
            found = ended = False
            async for message in self._connection.slice_of(f"LOG_{generation}", seq, count):
                found = True
                at = int((message.headers or {})["Nats-Sequence"])
                record = _own_record(message, generation)
                seq = at + 1
                if record is None:
                    continue
                if before and record.prev != before:
                    raise LogDamaged(f"record {at} does not continue the chain")
                before = record.sum
                yield msgspec.structs.replace(record, seq=at)
                if record.kind == "roll":
                    ended = True
                    break
            if ended:
                generation = await self._generation(seq, above=generation)
            elif not found:
                if not follow:
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _generation(self, seq: int, *, above: int = 0) -> int:
        """Find the stream that holds a seq: the newest one that begins at or below it."""
        best = 0
        for generation in range(above + 1, _GENERATIONS + 1):
            try:
                first = [m async for m in self._connection.slice_of(f"LOG_{generation}", 1, 1)]
            except NoAnswer:
                break
            if not first:
                # Dropped, or not there.
                if best:
                    break
                continue
            begins = int((first[0].headers or {})["Nats-Sequence"])
            if begins > seq:
                break
            best = generation
        return best or above or 1


def _own_record(message: Msg, generation: int) -> Record | None:
    """Return the record of a message; None: it is foreign to the log."""
    headers = list((message.headers or {}).items())
    expected = ("Nats-Expected-Stream", f"LOG_{generation}")
    data = message.data
    if (
        expected not in headers
        or not data.startswith(b'{"kind":"')
        or b'"sum":"' not in data[-_SUM_BYTES:]
    ):
        return None
    record = msgspec.json.decode(data, type=Record)
    if hashlib.blake2b(data[:-_SUM_BYTES], digest_size=16).hexdigest() != record.sum:
        raise LogDamaged(f"record {dict(headers).get('Nats-Sequence')} has a wrong checksum")
    return record
