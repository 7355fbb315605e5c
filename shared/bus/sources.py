"""The other sources of inputs: core subscriptions, shared consumers on memory streams, streams read from a position.

Decides how their messages get tokens and credit. Knows no meaning. Next: `shell.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from shared.bus import streams, subjects
from shared.bus.connect import BusClient, header, status
from shared.bus.frames import Handler
from shared.bus.inbox import Inbox, Tokens
from shared.bus.pull import Link, Position, Pull
from shared.core.role import Listen, Message, Read, Work

#: A Listen source of this name gets the present last value as its first message, after each connect.
PROJECTION = "projection"
_AGAIN_S = 0.5

#: Subscribes in its own way, once a client, and hands each message over as subject, reply, header block and body.
Carrier = Callable[[BusClient, Listen, Handler], Awaitable[None]]


class Listener:
    """A core subscription; with `carrier`, one that is made and read elsewhere in this process."""

    def __init__(
        self,
        link: Link,
        inbox: Inbox,
        tokens: Tokens,
        *,
        source: Listen,
        carrier: Carrier | None = None,
    ) -> None:
        self._link = link
        self._inbox = inbox
        self._tokens = tokens
        self._source = source
        self._carrier = carrier
        self._subscribed: BusClient | None = None

    async def subscribe(self) -> None:
        """Subscribe, once a client: one that reconnects does it again by itself."""
        bus = self._link.bus
        if self._subscribed is bus:
            return
        if self._carrier is not None:
            await self._carrier(bus, self._source, self._on_message)
        else:
            await bus.listen(self._source.subject, self._on_message, self._source.queue)
        self._subscribed = bus

    def look(self) -> None:
        """Deliver the last value that was published while nobody listened."""
        if self._source.name == PROJECTION:
            subject = self._source.subject
            ask = subjects.js_direct_get(streams.stream_of(subject), subject)
            self._link.bus.call(ask, b"", partial(self._looked, subject))

    def _looked(self, subject: str, headers: bytes, body: bytes | None) -> None:
        code = status(headers)
        if body is None or code == 503:
            asyncio.get_running_loop().call_later(_AGAIN_S, self.look)
        elif not code:
            self._inbox.put(Message(self._source.name, subject, body, self._tokens.new()))

    def _on_message(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        message = Message(
            self._source.name,
            subject.decode(),
            data,
            self._tokens.new(),
            bool(reply),
            0,
            header(headers, b"Nats-Msg-Id").decode(errors="replace") if headers else "",
        )
        if reply:
            self._tokens.hold(message, reply, None)
        self._inbox.put(message)


class Puller:
    """A Work or Read source: opened and closed by the role."""

    def __init__(
        self, link: Link, inbox: Inbox, tokens: Tokens, *, source: Work | Read, owner: str
    ) -> None:
        self._link = link
        self._inbox = inbox
        self._tokens = tokens
        self._source = source
        self._owner = f"{owner}-{source.name}"
        self._next = 1
        self._pull: Pull | None = None

    def open(self, start: int) -> None:
        """Start, or start again from `start`; what was delivered before is forgotten."""
        self.close()
        self._next = max(1, start)
        source = self._source
        self._pull = Pull(
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

    def _deliver(self, at: Position, subject: bytes, headers: bytes, data: bytes) -> None:
        pull = self._pull
        assert pull is not None
        if isinstance(self._source, Read):
            self._next = at.stream_seq + 1
        message = Message(
            self._source.name,
            subject.decode(),
            data,
            self._tokens.new(),
            False,
            at.stream_seq,
            header(headers, b"Nats-Msg-Id").decode(errors="replace") if headers else "",
        )
        self._tokens.hold(message, b"", pull.give_back)
        self._inbox.put(message)


class _Purge(msgspec.Struct, frozen=True):
    seq: int
