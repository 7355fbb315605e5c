"""The log into the role: from its first missing seq on in batches, then the tail, without a hole.

Decides when a role has caught up and when the log on this bus is not the one that was replayed. A hole is read again
from the stream's leader once; if it stays, the role sees it and stops. One generation is read behind the other; at a
roll the tail moves to the next generation as soon as it exists. Independent of events. Next: `appender.py`.
"""

import asyncio
from collections.abc import Callable

from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection, DeliveryPosition, PullConsumer
from shared.bus.log import generations
from shared.bus.log.generations import ActiveGeneration, Generation
from shared.bus.log.stored_records import BATCH_RECORDS, as_record, read_batch, read_one
from shared.bus.shell.input_queue import InputQueue
from shared.core.runtime.chain import ends_generation
from shared.core.runtime.messages import CaughtUp, Record
from shared.errors import BusUnavailable, LogDamaged

#: Records are transactions of up to 512 KiB: this many must fit into what the server keeps for a slow reader.
TAIL_CREDIT = 128
_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0
#: So often in a row, with pauses, a record may be missing that the stream's leader counts; an election takes less.
_READS_MAX = 10


class LogReplay:
    """Feeds records to the inbox, in order of seq; `rewind` starts again anywhere."""

    def __init__(
        self,
        link: CurrentConnection,
        inbox: InputQueue,
        *,
        owner: str,
        head: ActiveGeneration | None = None,
        batch_window_s: float = 0.0,
    ) -> None:
        self._link = link
        self._batch_window_s = batch_window_s
        self._inbox = inbox
        self._head = head or ActiveGeneration()
        self._owner = owner
        self._next = 1
        self._end = 0
        self._chain: list[Generation] = []
        #: when each generation was created, by its number.
        self._created: dict[int, str] = {}
        self._highest = 0
        self._unstepped = 0
        #: the last record that was missing, and how often in a row.
        self._unreadable = (0, 0)
        self._stepped = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._tail: PullConsumer | None = None
        #: the stream that the tail is of.
        self._following = ""
        self.caught_up = False
        #: how far the log of a cluster once reached, by what was stored beside it.
        self.once_reached: dict[str, int] = {}
        self.on_first_catch_up: Callable[[], None] | None = None
        self.pending = 0

    @property
    def next_seq(self) -> int:
        """What will be handed over next."""
        return self._next

    def rewind(self, seq: int) -> None:
        """Deliver from `seq` on, and report when the present end has been reached."""
        self.stop()
        self._next = max(1, seq)
        self.caught_up = False
        self._unstepped = 0
        self._running = self._link.spawn(self._run())

    def resume(self) -> None:
        """Continue behind the last record after a reconnect."""
        self.stop()
        self._running = self._link.spawn(self._run())

    def stop(self) -> None:
        """Deliver nothing more."""
        if self._running is not None:
            self._running.cancel()
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def stepped(self) -> None:
        """The role has taken all that was delivered."""
        count, self._unstepped = self._unstepped, 0
        self._stepped.set()
        if count and self._tail is not None:
            self._tail.give_back(count)

    async def _run(self) -> None:
        pause = _PAUSE_S
        while True:
            try:
                await self._look()
                await self._catch_up()
            except streams.BusRefused:
                raise
            except BusUnavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX_S)
            else:
                if not self._is_behind_roll:
                    break
                await asyncio.sleep(_PAUSE_S)
        self._unstepped = 0
        self._following = self._head.stream
        self._tail = PullConsumer(
            self._link,
            stream=self._following,
            deliver=self._on_tail,
            credit=TAIL_CREDIT,
            owner=f"{self._owner}-log",
            start=lambda: self._next,
            batch_window_s=self._batch_window_s,
        )
        self._tail.open()

    async def _look(self) -> None:
        """Find the end of the log, and verify that it is the same log as before."""
        found = await generations.list_generations(self._link.bus)
        for one in found:
            if self._created.setdefault(one.number, one.created) != one.created:
                raise streams.BusRefused(f"stream {one.stream} was replaced since it was read")
        newest = found[-1]
        end = newest.state.last_seq if newest.state.messages else newest.first_seq - 1
        if end < self._highest or end + 1 < self._next:
            seen = max(self._highest, self._next - 1)
            raise streams.BusRefused(f"{newest.stream} ends at {end}, but {seen} was replayed")
        if fault := generations.describe_damage(found, read=self._highest):
            raise streams.BusRefused(fault)
        if generations.generation_holding(found, self._next) is None:
            begins = f"the log begins at {found[0].first_seq}: earlier records were dropped or lost"
            raise streams.BusRefused(f"{begins}, and no snapshot covers {self._next}")
        self._chain = found
        self._end = end
        self._head.goes_on(newest.number, newest.first_seq)
        self._report_caught_up()

    async def _catch_up(self) -> None:
        while self._next <= self._end and not self._is_behind_roll:
            batch = await self._read()
            self._stepped.clear()
            for record in await self._whole(batch):
                self._hand_over(record)
                if ends_generation(record):
                    break
            await self._stepped.wait()

    @property
    def _is_behind_roll(self) -> bool:
        """Whether the last record ended its generation and the next one is not known yet."""
        return 0 < self._head.rolled_at == self._next - 1

    async def _read(self) -> list[Record]:
        """Read on in the generation that holds the next seq. Raises BusUnavailable."""
        of = self._of_next()
        most = min(BATCH_RECORDS, (of.end or self._end) - self._next + 1)
        batch = await read_batch(self._link.bus, of.stream, self._next, most)
        if batch:
            return batch
        # This replica lags behind or is damaged: read from the leader.
        one = await read_one(self._link.bus, of.stream, self._next)
        if one is None:
            self._refuse_unreadable(of)
            raise BusUnavailable(f"{of.stream} has no record {self._next} of {self._end}")
        return [one]

    def _refuse_unreadable(self, of: Generation) -> None:
        """Give up on a record that the leader counts and does not have. Raises LogDamaged."""
        seq, times = self._unreadable
        self._unreadable = (self._next, times + 1 if seq == self._next else 1)
        if self._unreadable[1] >= _READS_MAX:
            text = f"{of.stream} holds records up to {self._end}, and this one cannot be read"
            raise LogDamaged(self._next, text)

    def _of_next(self) -> Generation:
        of = generations.generation_holding(self._chain, self._next)
        assert of is not None, self._next
        return of

    async def _whole(self, batch: list[Record]) -> list[Record]:
        """Fill holes of a batch from the stream's leader; what stays a hole, the role will see."""
        expected = self._next
        if batch[0].seq == expected and batch[-1].seq - expected + 1 == len(batch):
            return batch
        stream = self._of_next().stream
        by_seq = {record.seq: record for record in batch if record.seq >= expected}
        for seq in range(expected, batch[-1].seq + 1):
            if seq not in by_seq:
                found = await read_one(self._link.bus, stream, seq)
                if found is None:
                    break
                by_seq[seq] = found
        return [by_seq[seq] for seq in sorted(by_seq)]

    def _on_tail(self, at: DeliveryPosition, subject: bytes, headers: bytes, data: bytes) -> None:
        self.pending = at.pending
        if at.stream_seq < self._next:
            self._unstepped += 1
            return
        if at.stream_seq > self._next:
            # Read the hole again, from another replica or the leader.
            self._end = max(self._end, at.stream_seq)
            self.resume()
            return
        name, stream = subject.decode(), self._following
        record = as_record(stream, at.stream_seq, subject=name, headers=headers, data=data)
        self._hand_over(record)
        if ends_generation(record):
            self.resume()

    def _hand_over(self, record: Record) -> None:
        self._unstepped += 1
        self._next = record.seq + 1
        self._highest = max(self._highest, record.seq)
        if ends_generation(record):
            self._head.rolled(record.seq)
        self._inbox.put(record)
        self._report_caught_up()

    def _report_caught_up(self) -> None:
        if not self.caught_up and self._next > self._end:
            self.caught_up = True
            self._highest = max(self._highest, self._end)
            self._inbox.put(CaughtUp(self._end, self.once_reached))
            if self.on_first_catch_up is not None:
                self.on_first_catch_up()
                self.on_first_catch_up = None
