"""A pull consumer without acknowledgements, asked continuously: credit out, messages in, made again when it is lost.

Decides flow: never more than `credit` messages requested or unanswered, asked again at half. Decides loss: silence for
two and a half heartbeats, a deleted consumer, a jump of the consumer's own count. Independent of the meaning of
messages. Next: `shared/bus/log/log_replay.py`.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from schemas.base import SECOND_NS
from shared.bus.connection.nats_client import BusClient, header, header_number, status
from shared.bus.jetstream.streams import ApiError
from shared.errors import BusUnavailable
from shared.protocol import subjects
from shared.protocol.id_tokens import id_token

_EXPIRES_S = 30
_HEARTBEAT_S = 1
#: Of a consumer that successive holders share: the requests of one that stands still, whose connection lives on, must
#: be over when its successor's begin, or the server would deliver to it what nothing handles. No lease ends
#: sooner (`leader_election.py`).
SHARED_EXPIRES_NS, _SHARED_HEARTBEAT_NS = 3 * SECOND_NS // 2, SECOND_NS // 2
_SILENCE_S = 2.5
#: A shared consumer without a puller keeps messages for so long; that of a dead worker must not stay forever.
_DURABLE_IDLE_NS = 300 * SECOND_NS
_OWN_IDLE_NS = 10 * SECOND_NS
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 0.05, 1.0

#: What the server puts before the position of a message that it delivers.
_DELIVERED = b"$JS.ACK."

_names = itertools.count(1)


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a consumer under the server's own field names. Units: nanoseconds."""

    name: str = ""
    durable_name: str = ""
    ack_policy: str = msgspec.field(default="")
    deliver_policy: str = "all"
    opt_start_seq: int = 0
    filter_subject: str = ""
    inactive_threshold: int = 0
    num_replicas: int = 0
    mem_storage: bool = False


class _Create(msgspec.Struct, frozen=True):
    stream_name: str
    config: ConsumerConfig


class _Created(msgspec.Struct, frozen=True):
    error: ApiError | None = None


class _Next(msgspec.Struct, frozen=True):
    batch: int
    expires: int = _EXPIRES_S * SECOND_NS
    idle_heartbeat: int = _HEARTBEAT_S * SECOND_NS


class _NextNoWait(msgspec.Struct, frozen=True):
    batch: int
    no_wait: bool = True


class DeliveryPosition(msgspec.Struct, frozen=True):
    """Where a message stands: in its stream, in its consumer, and how many follow it."""

    stream_seq: int
    consumer_seq: int
    pending: int


class CurrentConnection:
    """The present connection; a new one takes its place when the client had to be rebuilt."""

    def __init__(self, bus: BusClient, fail: Callable[[BaseException], None] | None = None) -> None:
        self.bus = bus
        self._fail = fail

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run beside the loop. What it raises ends the shell: a source that died in silence would be a hole."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        err = None if task.cancelled() else task.exception()
        if err is not None and self._fail is not None:
            self._fail(err)


#: Takes position, subject, headers, body.
DeliveryHandler = Callable[[DeliveryPosition, bytes, bytes, bytes], None]


def delivery_position(reply: bytes) -> DeliveryPosition:
    """Read the position from a delivery's acknowledgement subject, with or without a domain in it."""
    tokens = reply.split(b".")
    at = 4 if len(tokens) == 9 else 6
    return DeliveryPosition(int(tokens[at + 1]), int(tokens[at + 2]), int(tokens[at + 4]))


class PullConsumer:
    """One consumer. With `durable` it is shared by successive holders, else it is our own and starts at `start()`."""

    def __init__(
        self,
        link: CurrentConnection,
        *,
        stream: str,
        deliver: DeliveryHandler,
        credit: int,
        owner: str,
        durable: str = "",
        subject: str = "",
        start: Callable[[], int] = lambda: 1,
        batch_window_s: float = 0.0,
    ) -> None:
        self._link = link
        self._stream = stream
        self._deliver = deliver
        self._credit = credit
        self._owner = id_token(owner)
        self._durable = durable
        self._subject = subject
        self._start = start
        #: batch window: the first message is delivered at once, those after it together after so many seconds.
        self._batch_window_s = batch_window_s
        self._pulse: asyncio.TimerHandle | None = None
        self._consumer = ""
        self._listening = 0
        self._inbox = ""
        self._asked = 0
        self._held = 0
        self._consumer_seq = 0
        self._heard = 0.0
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        self.made = 0

    def open(self) -> None:
        """Create the consumer (again) and pull; retried until it works or `close`."""
        self._unlisten()
        if self._opening is not None:
            self._opening.cancel()
        self._opening = self._link.spawn(self._open())

    def close(self) -> None:
        """Stop at once."""
        self._closed = True
        self._unlisten()
        if self._opening is not None:
            self._opening.cancel()

    def give_back(self, count: int = 1) -> None:
        """Return credit of messages that were taken care of."""
        self._held -= count
        self._ask()

    async def _open(self) -> None:
        pause = _BACKOFF_FIRST_S
        while not self._closed:
            try:
                await self._create()
                await self._listen()
            except BusUnavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _BACKOFF_MAX_S)
            else:
                self.made += 1
                await self._watch()
                await asyncio.sleep(_BACKOFF_FIRST_S)

    async def _create(self) -> None:
        bus = self._link.bus
        self._consumer = self._durable or f"{self._owner}-{next(_names)}"
        config = ConsumerConfig(
            name=self._consumer,
            durable_name=self._durable,
            ack_policy="none",
            deliver_policy="all" if self._durable else "by_start_sequence",
            opt_start_seq=0 if self._durable else max(1, self._start()),
            filter_subject=self._subject,
            inactive_threshold=_DURABLE_IDLE_NS if self._durable else _OWN_IDLE_NS,
            num_replicas=0 if self._durable else 1,
            mem_storage=True,
        )
        subject = subjects.js_consumer_create(self._stream, self._consumer, self._subject)
        answer = await bus.ask(subject, msgspec.json.encode(_Create(self._stream, config)))
        error = msgspec.json.decode(answer, type=_Created).error
        if error is not None:
            raise BusUnavailable(
                f"consumer {self._consumer} on {self._stream}: {error.description}"
            )

    async def _listen(self) -> None:
        bus = self._link.bus
        self._asked, self._consumer_seq = 0, 0
        self._heard = time.monotonic()
        self._inbox = bus.new_inbox()
        self._listening = await bus.listen(self._inbox, self._on_message)
        self._ask()

    async def _watch(self) -> None:
        """Return when the consumer has fallen silent, so that it is made again."""
        while self._listening:
            await asyncio.sleep(_HEARTBEAT_S / 2)
            if self._asked > 0 and time.monotonic() - self._heard > _SILENCE_S:
                self._unlisten()

    def _unlisten(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        if self._listening:
            self._link.bus.forget(self._listening)
            self._listening = 0

    def _ask(self) -> None:
        if self._batch_window_s:
            if self._listening and not self._asked and self._pulse is None:
                self._send_next(_Next(1))
            return
        room = self._credit - self._asked - self._held
        if self._listening and room > 0 and room * 2 >= self._credit:
            shared = (SHARED_EXPIRES_NS, _SHARED_HEARTBEAT_NS) if self._durable else ()
            self._send_next(_Next(room, *shared))

    def _send_next(self, wanted: _Next | _NextNoWait) -> None:
        subject = subjects.js_consumer_next(self._stream, self._consumer)
        if self._link.bus.send(subject, msgspec.json.encode(wanted), self._inbox.encode()):
            if self._asked == 0:
                self._heard = time.monotonic()
            self._asked += wanted.batch

    def _ask_for_more(self) -> None:
        """The batch window is over: request the available messages, up to the credit."""
        self._pulse = None
        room = self._credit - self._held
        if room > 0:
            self._send_next(_NextNoWait(room))
        else:
            self._rest()

    def _rest(self) -> None:
        self._pulse = asyncio.get_running_loop().call_later(
            self._batch_window_s, self._ask_for_more
        )

    def _on_message(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        if not self._listening:
            return
        self._heard = time.monotonic()
        # By its reply subject: a stored message may have been given headers that look like a status.
        if not reply.startswith(_DELIVERED):
            self._on_status(headers)
            return
        at = delivery_position(reply)
        if not self._durable and at.consumer_seq != self._consumer_seq + 1:
            self._unlisten()
            return
        self._consumer_seq = at.consumer_seq
        self._asked = max(0, self._asked - 1)
        self._held += 1
        if self._batch_window_s and not self._asked and self._pulse is None:
            self._rest()
        self._deliver(at, subject, headers, data)

    def _on_status(self, headers: bytes) -> None:
        code = status(headers)
        if code == 100:
            return
        has_unserved = bool(header(headers, b"Nats-Pending-Messages"))
        if self._batch_window_s and code in {404, 408}:
            # There is nothing more, or the one did not come in time.
            self._asked = 0
            self._ask()
            return
        if code == 408 or (code == 409 and has_unserved):
            unserved = header_number(headers, b"Nats-Pending-Messages")
            self._asked = max(0, self._asked - unserved)
            self._ask()
        else:
            # Consumer deleted, no responders: it is made again.
            self._unlisten()
