"""Last values that the view publishes, followed by name over the agent's own connection: what this node knows of them.

Only what was asked for is subscribed to and read. What is known stays known while the bus is away. A published message
may be lost: each value is read again after a reconnect, and when nothing was heard of it for a while. Next:
`service_directory.py` and `variable_directory.py`, which decide what a value means.
"""

import asyncio
import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import structlog

from shared.bus.connection.nats_client import BusClient, header_number, status
from shared.errors import CaravanError
from shared.protocol import subjects

#: Followed at a time, by all templates of the node.
FOLLOWED_MAX = 4_096
#: A value is followed so long after the last question.
LINGER_S = 60.0
#: Reads in flight, and how long each may take.
READS_MAX = 32
_READ_S = 2.0
#: A value of which nothing was heard is read again within this time.
SILENCE_S = 30.0
#: A new subscription may not have reached the server of the publisher when the value is read first.
_FIRST_SILENCE_S = 9.0
#: Between two tries where there is no answer, or no value yet.
_RETRY_S = 1.0
#: A reconnect is noticed so late at most.
POLL_S = 0.25
_STREAM = "VIEW"
_NOT_FOUND = 404
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
log = structlog.get_logger()

#: Cluster, incarnation and seq of a value.
Stamp = tuple[str, int, int]


class DataUnusable(CaravanError):
    """Data of which only a part is known, or that may not be read. A template is not rendered from a part.

    `version`: as of a known value, to be passed to `changed`; 0: waiting does not help.
    """

    def __init__(self, reason: str, version: int = 0) -> None:
        super().__init__(reason)
        self.version = version


class ViewValue(NamedTuple):
    """What was read. `fault`: why templates cannot use it; `aside`: what makes no other version when it changes."""

    stamp: Stamp
    content: Any = ()
    fault: str = ""
    aside: Any = ()


class Awaited:
    """Something that questions wait for. `version` 0: it is not known yet."""

    def __init__(self, now_s: float) -> None:
        self.version = 0
        #: questions that wait.
        self.holders = 0
        self.used_s = now_s
        self.waiters: dict[asyncio.Future[None], None] = {}

    def is_unused(self, now_s: float, linger_s: float) -> bool:
        """Say whether the last question was so long ago."""
        return not self.holders and now_s - self.used_s >= linger_s

    def tell(self) -> None:
        """Wake all waiting questions."""
        for told in self.waiters:
            if not told.done():
                told.set_result(None)


async def wait_for(
    ones: Sequence[Awaited], holds: Callable[[], bool], clock: Callable[[], float]
) -> None:
    """Wait until it holds; whatever becomes known of one of them may make it so."""
    for one in ones:
        one.holders += 1
    try:
        while not holds():
            told = asyncio.get_running_loop().create_future()
            for one in ones:
                one.waiters[told] = None
            try:
                await told
            finally:
                for one in ones:
                    one.waiters.pop(told, None)
    finally:
        for one in ones:
            one.holders -= 1
            one.used_s = clock()


class FollowedValue(Awaited):
    """A value that is followed."""

    def __init__(self, name: str, subject: str, now_s: float) -> None:
        super().__init__(now_s)
        self.name = name
        self.subject = subject
        self.content: Any = ()
        self.aside: Any = ()
        #: why it cannot be used.
        self.fault = ""
        self.stamp: Stamp = ("", 0, 0)
        #: of its subscription; 0: there is none on this connection.
        self.number = 0
        self.read_s = now_s
        self.is_asked = False
        #: on this connection.
        self.reads = 0

    def is_outdated_by(self, stamp: Stamp) -> bool:
        """Say whether a value is newer, or of another cluster."""
        is_other = not self.version or stamp[0] != self.stamp[0]
        return is_other or stamp[1:] > self.stamp[1:]


class FollowedValues(ABC):
    """The values that templates of this node ask for. `run` reads; the rest may be called in the same loop."""

    #: of what there are too many.
    what = "values"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: messages that could not be read, or were about something else.
        self.ignored = 0
        self.clock = clock
        self._followed: dict[str, FollowedValue] = {}
        #: version 1 is that of names that nothing can have.
        self._versions = count(2)
        self.wake = asyncio.Event()
        self._bus: BusClient | None = None
        self._reconnects = 0
        #: of connections: answers to an earlier one are not waited for.
        self._generation = 0
        self._in_flight = 0
        self._silent_since_s: float | None = None
        #: nodes do not read the same value at the same time.
        self._salt = secrets.randbits(32)

    # ---- what the kinds of values decide ----

    @abstractmethod
    def _subject(self, name: str) -> str:
        """Where the value of a name is published."""

    @abstractmethod
    def _value(self, name: str, data: bytes) -> ViewValue | None:
        """Decode a value; None: it is of another name. Raises what a decoder raises."""

    @abstractmethod
    def _absent(self, one: FollowedValue) -> None:
        """There is no value. A bus that was started again has lost all of them."""

    @abstractmethod
    def _learned(self, one: FollowedValue) -> None:
        """Something else is known of a value."""

    @abstractmethod
    def _reconnected(self) -> None:
        """No answer to what was asked before comes any more."""

    # ---- what is asked ----

    @property
    def is_following(self) -> bool:
        """Whether any value is followed."""
        return bool(self._followed)

    @property
    def silent_s(self) -> float:
        """How long the bus has not answered, so that what is known may be outdated; 0: it does."""
        return 0.0 if self._silent_since_s is None else self.clock() - self._silent_since_s

    # ---- reading ----

    async def run(self, bus: Callable[[], BusClient | None]) -> None:
        """Read values that were asked for. `bus`: the agent's connection; None: there is none yet."""
        while True:
            self.wake.clear()
            await self.look(bus())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), POLL_S if self.is_following else None)

    async def look(self, bus: BusClient | None) -> None:
        """Subscribe and read what is due."""
        now_s = self.clock()
        self._forget_unused(now_s)
        if bus is None or not bus.is_connected:
            self._note_silence(now_s)
            return
        self._note_connection(bus, now_s)
        for one in [one for one in self._followed.values() if not one.number]:
            try:
                number = await bus.listen(one.subject, partial(self._heard, one))
            except Exception as err:  # noqa: BLE001 - closed meanwhile: the next look has another client.
                log.info("values.awaited", what=self.what, reason=str(err) or type(err).__name__)
                return
            if self._followed.get(one.name) is one:
                one.number = number
            else:
                bus.forget(number)
        for one in self._followed.values():
            if self._in_flight >= READS_MAX:
                break
            if one.number and not one.is_asked and one.read_s <= now_s:
                one.is_asked = True
                self._read(bus, one.subject, partial(self._answered, one))

    # ---- inside: questions ----

    async def _read_once(self, name: str) -> FollowedValue:
        """Wait until something is known, be it a part. Raises DataUnusable: too many are followed."""
        one = self._follow(name)
        await self._wait([one], lambda: one.version > 0)
        return one

    async def _known(self, name: str) -> FollowedValue:
        one = await self._read_once(name)
        if one.fault:
            raise DataUnusable(one.fault, one.version)
        return one

    def _follow(self, name: str) -> FollowedValue:
        now_s = self.clock()
        one = self._followed.get(name)
        if one is None:
            if len(self._followed) >= FOLLOWED_MAX:
                self._forget_unused(now_s, linger_s=0.0)
            if len(self._followed) >= FOLLOWED_MAX:
                text = f"templates of this node ask for more than {FOLLOWED_MAX} {self.what}"
                raise DataUnusable(text)
            one = self._followed[name] = FollowedValue(name, self._subject(name), now_s)
            self.wake.set()
        one.used_s = now_s
        return one

    async def _wait(self, ones: Sequence[FollowedValue], holds: Callable[[], bool]) -> None:
        await wait_for(ones, holds, self.clock)

    def _forget_unused(self, now_s: float, linger_s: float = LINGER_S) -> None:
        unused = [one for one in self._followed.values() if one.is_unused(now_s, linger_s)]
        for one in unused:
            del self._followed[one.name]
            if one.number and self._bus is not None:
                self._bus.forget(one.number)

    # ---- inside: the bus ----

    def _note_connection(self, bus: BusClient, now_s: float) -> None:
        """After a reconnect read everything again; another client has none of our subscriptions."""
        reconnects = bus.stats["reconnects"]
        if bus is self._bus and reconnects == self._reconnects:
            return
        is_other = bus is not self._bus
        self._bus, self._reconnects = bus, reconnects
        self._generation += 1
        self._in_flight = 0
        self._reconnected()
        for one in self._followed.values():
            one.number = 0 if is_other else one.number
            one.is_asked, one.reads, one.read_s = False, 0, now_s

    def _note_silence(self, now_s: float) -> None:
        if self._silent_since_s is None and self._followed:
            self._silent_since_s = now_s

    def _read(
        self, bus: BusClient, subject: str, done: Callable[[bytes, bytes | None], None]
    ) -> None:
        """Read a last value; `done` gets headers and body, None: no answer."""
        generation = self._generation
        self._in_flight += 1

        def answered(headers: bytes, body: bytes | None) -> None:
            if generation != self._generation:
                return
            self._in_flight -= 1
            if self._in_flight <= READS_MAX // 2:
                self.wake.set()
            done(headers, body)

        ask = subjects.js_direct_get(_STREAM, subject)
        bus.call(ask, b"", answered, timeout_s=_READ_S)

    def _answered(self, one: FollowedValue, headers: bytes, body: bytes | None) -> None:
        """Take a last value; that there is none says nothing: a bus that was started again has lost all of them."""
        one.is_asked = False
        one.read_s = self.clock() + _RETRY_S
        if body is not None and header_number(headers, b"Nats-Sequence"):
            self._note_read(one)
            self._take(one, body)
        elif status(headers) != _NOT_FOUND:
            self._note_silence(self.clock())
        else:
            self._absent(one)

    def _note_read(self, one: FollowedValue) -> None:
        one.reads += 1
        self._note_current(one)

    def _note_current(self, one: FollowedValue) -> None:
        """A value was heard of: it is read again after a silence, soon after the first read of a connection."""
        self._silent_since_s = None
        if one.reads:
            silence_s = _FIRST_SILENCE_S if one.reads == 1 else SILENCE_S
            part = crc32(one.name.encode(), self._salt) % 1_000 / 1_000
            one.read_s = self.clock() + silence_s * (1 + 2 * part) / 3

    def _heard(self, one: FollowedValue, *message: bytes) -> None:
        self._take(one, message[-1])

    def _take(self, one: FollowedValue, data: bytes) -> None:
        """Take a value, unless it is older than what is known. Must not raise: the connection would end."""
        found = self._decoded(one.name, data)
        if found is not None:
            self._note_current(one)
            if one.is_outdated_by(found.stamp):
                self._learn(one, found)

    def _decoded(self, name: str, data: bytes) -> ViewValue | None:
        """Read a value; None: it is not one of this name."""
        try:
            found = self._value(name, data)
        except _UNREADABLE:
            found = None
        if found is None:
            self._ignore(name)
        return found

    def _ignore(self, name: str) -> None:
        """Count a value that cannot be used, and log the first, the second, the fourth, and so on."""
        self.ignored += 1
        if not self.ignored & (self.ignored - 1):
            log.warning("value.unreadable", what=self.what, name=name or "all", count=self.ignored)

    def _learn(self, one: FollowedValue, found: ViewValue) -> None:
        """Note what is known now; where it is something else, wake all waiting questions."""
        one.stamp, one.aside = found.stamp, found.aside
        if one.version and (found.content, found.fault) == (one.content, one.fault):
            return
        one.version, one.content, one.fault = next(self._versions), found.content, found.fault
        one.tell()
        self._learned(one)
