"""Reads the whole log, generation by generation, by direct get: for clients with no other permission.

Decides from which stream a seq is read. An error names the dropped part of the log, and where the rest begins. Next:
`client.py`.
"""

from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream.direct_get import NoResponders, direct_get_batch
from shared.bus.jetstream.streams import GENERATIONS
from shared.bus.log.stored_records import BATCH_RECORDS, read_batch
from shared.core.runtime.chain import ends_generation
from shared.core.runtime.messages import Record
from shared.errors import LogDropped
from shared.protocol import subjects


class LogReader:
    """Remembers where generations begin; any number of reads."""

    def __init__(self, bus: BusClient) -> None:
        self._bus = bus
        #: number and first seq of each generation with records.
        self._firsts: dict[int, int] = {}
        #: seq of the last record that was read, if it ended no generation.
        self._open_seq = 0

    async def first_seq(self) -> int:
        """Where what is left of the log begins; 0: nowhere. Raises BusUnavailable."""
        if not self._firsts:
            await self._look()
        return min(self._firsts.values(), default=0)

    async def read(self, seq: int, records: int = BATCH_RECORDS) -> list[Record]:
        """Read up to a batch from `seq` on; empty at the end. Raises BusUnavailable, LogDropped."""
        first = await self.first_seq()
        if not first:
            return []
        if seq < first:
            raise LogDropped(first)
        return await self._read(seq, records) or await self._read_newer(seq, records)

    async def _read(self, seq: int, records: int) -> list[Record]:
        number = max(n for n, first in self._firsts.items() if first <= seq)
        last = min((first for first in self._firsts.values() if first > seq), default=0)
        most = min(records, last - seq) if last else records
        batch = await read_batch(self._bus, subjects.log_stream(number), seq, most)
        self._open_seq = batch[-1].seq if batch else self._open_seq
        for at, record in enumerate(batch):
            if ends_generation(record):
                self._open_seq = 0
                return batch[: at + 1]
        return batch

    async def _read_newer(self, seq: int, records: int) -> list[Record]:
        """At the end of what is known there may be a generation that is not known yet."""
        known = len(self._firsts)
        if seq == self._open_seq + 1:
            return []
        await self._look()
        return await self._read(seq, records) if len(self._firsts) > known else []

    async def _look(self) -> None:
        """Read the first record of each generation, from the newest known one on."""
        number = max(self._firsts, default=0) + 1
        failure = None
        while number <= GENERATIONS[-1]:
            try:
                found = await direct_get_batch(
                    self._bus, subjects.log_stream(number), 1, messages=1
                )
            except NoResponders as err:
                failure = failure or err
                if self._firsts:
                    return
            else:
                if found:
                    self._firsts[number] = found[0].seq
                elif number == 1:
                    return
            number += 1
        if not self._firsts and failure is not None:
            raise failure
