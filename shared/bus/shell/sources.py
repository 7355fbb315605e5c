"""The other sources of inputs: core subscriptions, shared consumers on memory streams, streams read from a position.

Decides how their messages get tokens and credit. Independent of the meaning of messages. Next: `shell.py`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from shared.bus.connection.frame_parser import MessageHandler
from shared.bus.connection.nats_client import (
    BusClient,
    header,
    header_fault,
    is_subject,
    status,
)
from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection, DeliveryPosition, PullConsumer
from shared.bus.jetstream.sender_proof import NOT_MARKED, is_bare_mark, is_marked, stream_marked
from shared.bus.shell.input_queue import InputQueue, MessageTokens
from shared.core.runtime.messages import Listen, Message, Read, Work
from shared.protocol import subjects

#: A Listen source of this name gets the present last value as its first message, after each connect.
PROJECTION = "projection"
_RETRY_S = 0.5
#: Subjects refused as reply addresses: a client could have this service publish there.
_NO_REPLY = frozenset(
    {"log", "cmd", "eval", "node", "view", "jobs", "dead", "api", "query", "hb", "presence"}
)

#: Subscribes in its own way, once a client, and hands each message over as subject, reply, header block and body.
SubscribeFunction = Callable[[BusClient, Listen, MessageHandler], Awaitable[None]]


def may_reply_to(subject: str) -> bool:
    """Return whether an answer may be published there."""
    first = subject.partition(".")[0]
    return first not in _NO_REPLY and not first.startswith("$") and is_subject(subject)


def read_message(
    source: str,
    subject: bytes,
    headers: bytes,
    data: bytes,
    *,
    token: int,
    reply: bool = False,
    stream_seq: int = 0,
    stream: str = "",
) -> Message:
    """Create a message from raw bytes; never raises. `fault`: not UTF-8, a bad header block, or a missing mark.

    `stream`: where it has to have been sent to; empty: anywhere.
    """
    fault = msg_id = trace = ""
    try:
        name = subject.decode()
    except UnicodeDecodeError:
        name, fault = subject.decode(errors="replace"), "the subject is not UTF-8"
    if stream and is_bare_mark(stream, headers):
        return Message(source, name, data, token, reply, stream_seq, "", fault)
    if headers:
        fault = fault or header_fault(headers)
        # Of two ids that differ in invalid bytes alone replacing them would make one.
        with contextlib.suppress(UnicodeDecodeError):
            msg_id = header(headers, b"Nats-Msg-Id").decode()
        trace = (header(headers, b"traceparent") or header(headers, b"Traceparent")).decode(
            "ascii", "replace"
        )
    if stream and not is_marked(stream, headers):
        fault = fault or NOT_MARKED
    return Message(source, name, data, token, reply, stream_seq, msg_id, fault, trace)


class SubscriptionSource:
    """A core subscription; with `carrier`, one that is made and read elsewhere in this process."""

    def __init__(
        self,
        link: CurrentConnection,
        inbox: InputQueue,
        tokens: MessageTokens,
        *,
        source: Listen,
        carrier: SubscribeFunction | None = None,
    ) -> None:
        self._link = link
        self._inbox = inbox
        self._tokens = tokens
        self._source = source
        self._carrier = carrier
        self._subscribed: BusClient | None = None
        #: its messages are last values of this stream.
        self._stream = stream_marked(source.subject)

    async def subscribe(self) -> None:
        """Subscribe once per client: a reconnect subscribes again."""
        bus = self._link.bus
        if self._subscribed is bus:
            return
        if self._carrier is not None:
            await self._carrier(bus, self._source, self._on_message)
        else:
            await bus.listen(self._source.subject, self._on_message, self._source.queue)
        self._subscribed = bus

    def look(self) -> None:
        """Deliver the last value that was published before this subscription."""
        if self._source.name == PROJECTION:
            subject = self._source.subject
            ask = subjects.js_direct_get(streams.stream_of(subject), subject)
            self._link.bus.call(ask, b"", partial(self._looked, subject))

    def _looked(self, subject: str, headers: bytes, body: bytes | None) -> None:
        code = status(headers)
        if body is None or code == 503:
            asyncio.get_running_loop().call_later(_RETRY_S, self.look)
        elif not code:
            token = self._tokens.new()
            self._inbox.put(
                read_message(
                    self._source.name,
                    subject.encode(),
                    headers,
                    body,
                    token=token,
                    stream=self._stream,
                )
            )

    def _on_message(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        message = read_message(
            self._source.name,
            subject,
            headers,
            data,
            token=self._tokens.new(),
            reply=bool(reply),
            stream=self._stream,
        )
        if reply:
            self._tokens.hold(message, reply, None)
        self._inbox.put(message)


class ConsumerSource:
    """A Work or Read source: opened and closed by the role."""

    def __init__(
        self,
        link: CurrentConnection,
        inbox: InputQueue,
        tokens: MessageTokens,
        *,
        source: Work | Read,
        owner: str,
    ) -> None:
        self._link = link
        self._inbox = inbox
        self._tokens = tokens
        self._source = source
        self._owner = f"{owner}-{source.name}"
        self._next = 1
        self._pull: PullConsumer | None = None

    def open(self, start: int) -> None:
        """Start, or start again from `start`; what was delivered before is forgotten."""
        self.close()
        self._next = max(1, start)
        source = self._source
        self._pull = PullConsumer(
            self._link,
            stream=source.stream,
            deliver=self._deliver,
            credit=source.credit,
            owner=self._owner,
            durable=source.durable if isinstance(source, Work) else "",
            subject=source.subject,
            start=lambda: self._next,
        )
        self._pull.open()

    def close(self) -> None:
        """Stop, and forget the tokens that are out."""
        if self._pull is not None:
            self._pull.close()
            self._pull = None
        self._tokens.forget_source(self._source.name)

    def reopen(self) -> None:
        """The bus was away: make the consumer again, behind what was delivered."""
        if self._pull is not None:
            self._pull.open()

    def purge(self, below: int) -> None:
        """Drop everything below `below` from the stream."""
        body = msgspec.json.encode(_Purge(below))
        self._link.bus.send(subjects.js_stream_purge(self._source.stream), body)

    def _deliver(self, at: DeliveryPosition, subject: bytes, headers: bytes, data: bytes) -> None:
        pull = self._pull
        assert pull is not None
        if isinstance(self._source, Read):
            self._next = at.stream_seq + 1
        message = read_message(
            self._source.name,
            subject,
            headers,
            data,
            token=self._tokens.new(),
            stream_seq=at.stream_seq,
            stream=self._source.stream,
        )
        self._tokens.hold(message, b"", pull.give_back)
        self._inbox.put(message)


class _Purge(msgspec.Struct, frozen=True):
    seq: int
