"""The log into the role: from its first missing seq on in batches, then the tail, without a hole.

Decides when a role has caught up and when the log on this bus is not the one that was replayed. A hole is read again
from the stream's leader once; if it stays, the role sees it and stops. Decides which messages were appended to the log
at all: what the server itself put there for somebody is marked, and is foreign to every reader. Knows no event.
Next: `append.py`.
"""

import asyncio
import base64
from collections.abc import Callable

import msgspec

from shared.bus import streams, subjects
from shared.bus.connect import BusClient
from shared.bus.direct import BATCH_MESSAGES, read_stored
from shared.bus.inbox import Inbox
from shared.bus.pull import Link, Position, Pull
from shared.core.role import CaughtUp, Record
from shared.errors import BusUnavailable

BATCH_RECORDS = BATCH_MESSAGES
#: Records are transactions of up to 512 KiB: this many must fit into what the server keeps for a slow reader.
TAIL_CREDIT = 128
#: Stands before the bytes of a message that nobody with the right to write the log has appended.
SMUGGLED = b"not appended to this stream: "


class _MessageGet(msgspec.Struct, frozen=True):
    seq: int


class Stored(msgspec.Struct, frozen=True):
    """One message as `STREAM.MSG.GET` shows it; hdrs and data are base64."""

    subject: str
    seq: int
    data: str = ""
    hdrs: str = ""


class _MessageGot(msgspec.Struct, frozen=True):
    message: Stored | None = None
    error: streams.ApiError | None = None


def as_record(stream: str, seq: int, *, subject: str, headers: bytes, data: bytes) -> Record:
    """Make a record of a stored message; one that was not appended to this very stream is marked, and so is foreign.

    Whoever may read a stream can name `log.<g>.tx` as the place to answer to, and the server obeys without looking at
    permissions: the answer may be any text that he stored elsewhere before. But it keeps the headers of that message,
    and no other stream takes one that expects to be stored in ours. So that header, where `append.py` puts it, proves
    that somebody who may publish to the log did. (It stands first: a decoy before it could hide it from the server.)
    """
    lines = headers.split(b"\r\n", 3)
    is_ours = (
        len(lines) == 4
        and lines[1].startswith(b"Nats-Msg-Id: ")
        and b"Nats-Expected" not in lines[1]
        and lines[2] == b"Nats-Expected-Stream: " + stream.encode()
    )
    return Record(seq, subject, data if is_ours else SMUGGLED + data)


async def read_batch(
    bus: BusClient, stream: str, seq: int, records: int = BATCH_RECORDS
) -> list[Record]:
    """Read up to a batch from `seq` on by direct get; empty at the end. Raises BusUnavailable.

    Any replica may answer. One with a damaged block leaves messages out: the caller checks the numbers.
    """
    return [
        as_record(stream, one.seq, subject=one.subject, headers=one.headers, data=one.data)
        for one in await read_stored(bus, stream, seq, messages=records)
    ]


async def read_one(bus: BusClient, stream: str, seq: int) -> Record | None:
    """Read one message from the stream's leader; None where there is none. Raises BusUnavailable."""
    body = await bus.ask(subjects.js_message_get(stream), msgspec.json.encode(_MessageGet(seq)))
    answer = msgspec.json.decode(body, type=_MessageGot)
    if answer.message is not None:
        found = answer.message
        headers, data = base64.b64decode(found.hdrs), base64.b64decode(found.data)
        return as_record(stream, found.seq, subject=found.subject, headers=headers, data=data)
    if answer.error is not None and answer.error.code != 404:
        raise BusUnavailable(f"{stream} at seq {seq}: {answer.error.description}")
    return None


class LogReplay:
    """Feeds records to the inbox, in order of seq; `rewind` starts again anywhere."""

    def __init__(self, link: Link, inbox: Inbox, *, stream: str, owner: str) -> None:
        self._link = link
        self._inbox = inbox
        self._stream = stream
        self._owner = owner
        self._next = 1
        self._end = 0
        self._created = ""
        self._highest = 0
        self._unstepped = 0
        self._stepped = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._tail: Pull | None = None
        self.caught_up = False
        self.first_caught_up: Callable[[], None] | None = None
        self.pending = 0

    @property
    def next_seq(self) -> int:
        """What will be handed over next."""
        return self._next

    def rewind(self, seq: int) -> None:
        """Deliver from `seq` on, and say so when what is the end now has been reached."""
        self.stop()
        self._next = max(1, seq)
        self.caught_up = False
        self._unstepped = 0
        self._running = self._link.spawn(self._run())

    def resume(self) -> None:
        """Go on behind the last record, after the bus was away."""
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
        pause = 0.05
        while True:
            try:
                await self._look()
                await self._catch_up()
            except streams.BusRefused:
                raise
            except BusUnavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
            else:
                break
        self._unstepped = 0
        self._tail = Pull(
            self._link,
            stream=self._stream,
            deliver=self._on_tail,
            credit=TAIL_CREDIT,
            owner=f"{self._owner}-log",
            start=lambda: self._next,
        )
        self._tail.open()

    async def _look(self) -> None:
        """Find the end of the log, and make sure that it is the log we know."""
        found = await streams.info(self._link.bus, self._stream, lost=True)
        if found is None:
            raise streams.BusRefused(f"stream {self._stream} is missing")
        state = found.state
        if self._created and found.created != self._created:
            raise streams.BusRefused(f"stream {self._stream} is another one than before")
        if state.last_seq < self._highest or state.last_seq + 1 < self._next:
            seen = max(self._highest, self._next - 1)
            raise streams.BusRefused(
                f"{self._stream} ends at {state.last_seq}, but {seen} was replayed"
            )
        if state.missing or (state.damage and not self._highest):
            # Who has replayed all that is there knows that only an unacknowledged write was torn.
            raise streams.BusRefused(f"{self._stream} is damaged: {state.damage}")
        self._created = found.created
        self._end = state.last_seq
        self._say_caught_up()

    async def _catch_up(self) -> None:
        while self._next <= self._end:
            batch = await read_batch(self._link.bus, self._stream, self._next)
            if not batch:
                # This replica lags behind or is damaged; the leader knows.
                one = await read_one(self._link.bus, self._stream, self._next)
                batch = [one] if one is not None else []
                if one is None:
                    raise BusUnavailable(
                        f"{self._stream} has nothing at {self._next} of {self._end}"
                    )
            self._stepped.clear()
            for record in await self._whole(batch):
                self._hand_over(record)
            await self._stepped.wait()

    async def _whole(self, batch: list[Record]) -> list[Record]:
        """Fill holes of a batch from the stream's leader; what stays a hole, the role will see."""
        expected = self._next
        if batch[0].seq == expected and batch[-1].seq - expected + 1 == len(batch):
            return batch
        by_seq = {record.seq: record for record in batch if record.seq >= expected}
        for seq in range(expected, batch[-1].seq + 1):
            if seq not in by_seq:
                found = await read_one(self._link.bus, self._stream, seq)
                if found is None:
                    break
                by_seq[seq] = found
        return [by_seq[seq] for seq in sorted(by_seq)]

    def _on_tail(self, at: Position, subject: bytes, headers: bytes, data: bytes) -> None:
        self.pending = at.pending
        if at.stream_seq < self._next:
            self._unstepped += 1
            return
        if at.stream_seq > self._next:
            # Read the hole again, from another replica or the leader.
            self._end = max(self._end, at.stream_seq)
            self.resume()
            return
        name = subject.decode()
        self._hand_over(
            as_record(self._stream, at.stream_seq, subject=name, headers=headers, data=data)
        )

    def _hand_over(self, record: Record) -> None:
        self._unstepped += 1
        self._next = record.seq + 1
        self._highest = max(self._highest, record.seq)
        self._inbox.put(record)
        self._say_caught_up()

    def _say_caught_up(self) -> None:
        if not self.caught_up and self._next > self._end:
            self.caught_up = True
            self._inbox.put(CaughtUp(self._end))
            if self.first_caught_up is not None:
                self.first_caught_up()
                self.first_caught_up = None
