"""What this node knows of services: for `nomadService` and `nomadServices` of templates, which any node may read.

Follows the last values that the view publishes, only of services that a template asks for, over the agent's own
connection. What is known stays known while the bus is away. A published message may be lost: each value is read again
after a reconnect, and when nothing was heard of it for a while. Next: `handler.py`.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol, cast
from zlib import crc32

import msgspec
import structlog

from schemas.bounds import bounded_decoder
from schemas.projections import ServiceInstance, ServiceNamesProjection, ServiceProjection
from shared.bus.connection.nats_client import BusClient, header_number, status
from shared.errors import CaravanError
from shared.gotemplate.data import NamedInstance, ServiceName
from shared.jobspec.service_names import registration_id
from shared.protocol import subjects

#: Stands for the list of names among the versions that are waited for.
ALL = ""
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
_POLL_S = 0.25
_STREAM = "VIEW"
log = structlog.get_logger()
_NOT_FOUND = 404
_SERVICE_DECODER = bounded_decoder(ServiceProjection)
_NAMES_DECODER = bounded_decoder(ServiceNamesProjection)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Content = tuple[NamedInstance, ...] | tuple[ServiceName, ...]
#: Cluster, incarnation and seq of a value.
Stamp = tuple[str, int, int]


class KnownService(msgspec.Struct, frozen=True):
    """The instances of a service, in a fixed order. `version`: another one for other instances, at least 1."""

    version: int
    instances: tuple[NamedInstance, ...] = ()


class KnownNames(msgspec.Struct, frozen=True):
    """The services that have an instance, by name. `version`: another one for other names or tags, at least 1."""

    version: int
    names: tuple[ServiceName, ...] = ()


class ServiceUnusable(CaravanError):
    """A service of which only a part is known, or too many services. A template is not rendered from a part.

    `version`: as of a known value, to be passed to `changed`; 0: waiting does not help.
    """

    def __init__(self, reason: str, version: int = 0) -> None:
        super().__init__(reason)
        self.version = version


class ServiceSource(Protocol):
    """Where templates get services. Every method may be cancelled."""

    async def service(self, name: str) -> KnownService:
        """Return the instances of a service, none for an unknown name. Waits without limit. Raises ServiceUnusable."""
        ...

    async def services(self) -> KnownNames:
        """Return the names of all services. Waits without limit. Raises ServiceUnusable."""
        ...

    async def changed(self, seen: Mapping[str, int]) -> None:
        """Return when one of these services has another version than was seen; ALL stands for the list of names."""
        ...


class _Followed:
    """A value that is followed. `version` 0: it is not known yet."""

    def __init__(self, name: str, now_s: float) -> None:
        self.name = name
        self.subject = subjects.view_service(name) if name else subjects.VIEW_SERVICE_NAMES
        self.version = 0
        self.content: Content = ()
        #: why it cannot be used.
        self.fault = ""
        self.stamp: Stamp = ("", 0, 0)
        #: of its subscription; 0: there is none on this connection.
        self.number = 0
        self.read_s = now_s
        self.is_asked = False
        #: on this connection.
        self.reads = 0
        #: questions that wait.
        self.holders = 0
        self.used_s = now_s
        self.waiters: dict[asyncio.Future[None], None] = {}

    def is_outdated_by(self, stamp: Stamp) -> bool:
        """Say whether a value is newer, or of another cluster."""
        is_other = not self.version or stamp[0] != self.stamp[0]
        return is_other or stamp[1:] > self.stamp[1:]


class ServiceDirectory:
    """The services that templates of this node ask for. `run` reads; the rest may be called in the same loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: messages that could not be read, or were about another service.
        self.ignored = 0
        self._clock = clock
        self._followed: dict[str, _Followed] = {}
        #: version 1 is that of names that no service can have.
        self._versions = count(2)
        self._wake = asyncio.Event()
        self._bus: BusClient | None = None
        self._reconnects = 0
        #: of connections: answers to an earlier one are not waited for.
        self._generation = 0
        self._in_flight = 0
        #: without a value of their own: the list of names says whether they have an instance.
        self._unlisted: dict[str, None] = {}
        self._silent_since_s: float | None = None
        #: nodes do not read the same value at the same time.
        self._salt = secrets.randbits(32)

    # ---- what templates ask ----

    async def service(self, name: str) -> KnownService:
        """See ServiceSource."""
        if not _may_exist(name):
            return KnownService(1)
        found = await self._known(name)
        return KnownService(found.version, cast("tuple[NamedInstance, ...]", found.content))

    async def services(self) -> KnownNames:
        """See ServiceSource."""
        found = await self._known(ALL)
        return KnownNames(found.version, cast("tuple[ServiceName, ...]", found.content))

    async def changed(self, seen: Mapping[str, int]) -> None:
        """See ServiceSource."""
        ones = [self._follow(name) for name in seen if name == ALL or _may_exist(name)]
        await self._wait(ones, lambda: any(one.version not in {0, seen[one.name]} for one in ones))

    @property
    def silent_s(self) -> float:
        """How long the bus has not answered, so that what is known may be outdated; 0: it does."""
        return 0.0 if self._silent_since_s is None else self._clock() - self._silent_since_s

    # ---- reading ----

    async def run(self, bus: Callable[[], BusClient | None]) -> None:
        """Read values that were asked for. `bus`: the agent's connection; None: there is none yet."""
        while True:
            self._wake.clear()
            await self.look(bus())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _POLL_S if self._followed else None)

    async def look(self, bus: BusClient | None) -> None:
        """Subscribe and read what is due."""
        now_s = self._clock()
        self._forget_unused(now_s)
        if bus is None or not bus.is_connected:
            self._note_silence(now_s)
            return
        self._note_connection(bus, now_s)
        for one in [one for one in self._followed.values() if not one.number]:
            try:
                number = await bus.listen(one.subject, partial(self._heard, one))
            except Exception as err:  # noqa: BLE001 - closed meanwhile: the next look has another client.
                log.info("services.awaited", reason=str(err) or type(err).__name__)
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

    async def _known(self, name: str) -> _Followed:
        one = self._follow(name)
        await self._wait([one], lambda: one.version > 0)
        if one.fault:
            raise ServiceUnusable(one.fault, one.version)
        return one

    def _follow(self, name: str) -> _Followed:
        now_s = self._clock()
        one = self._followed.get(name)
        if one is None:
            if len(self._followed) >= FOLLOWED_MAX:
                self._forget_unused(now_s, linger_s=0.0)
            if len(self._followed) >= FOLLOWED_MAX:
                text = f"templates of this node ask for more than {FOLLOWED_MAX} services"
                raise ServiceUnusable(text)
            one = self._followed[name] = _Followed(name, now_s)
            self._wake.set()
        one.used_s = now_s
        return one

    async def _wait(self, ones: Sequence[_Followed], holds: Callable[[], bool]) -> None:
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
                one.used_s = self._clock()

    def _forget_unused(self, now_s: float, linger_s: float = LINGER_S) -> None:
        unused = [
            one
            for one in self._followed.values()
            if not one.holders and now_s - one.used_s >= linger_s
        ]
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
        self._unlisted.clear()
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
                self._wake.set()
            done(headers, body)

        ask = subjects.js_direct_get(_STREAM, subject)
        bus.call(ask, b"", answered, timeout_s=_READ_S)

    def _answered(self, one: _Followed, headers: bytes, body: bytes | None) -> None:
        """Take a last value; that there is none says nothing: a bus that was started again has lost all of them."""
        one.is_asked = False
        one.read_s = self._clock() + _RETRY_S
        if body is not None and header_number(headers, b"Nats-Sequence"):
            self._note_read(one)
            self._take(one, body)
        elif status(headers) != _NOT_FOUND:
            self._note_silence(self._clock())
        elif one.version and not one.content and not one.fault:
            self._note_read(one)
        elif one.name != ALL:
            self._look_up(one.name)

    def _note_read(self, one: _Followed) -> None:
        one.reads += 1
        self._note_current(one)

    def _note_current(self, one: _Followed) -> None:
        """A value was heard of: it is read again after a silence, soon after the first read of a connection."""
        self._silent_since_s = None
        if one.reads:
            silence_s = _FIRST_SILENCE_S if one.reads == 1 else SILENCE_S
            part = crc32(one.name.encode(), self._salt) % 1_000 / 1_000
            one.read_s = self._clock() + silence_s * (1 + 2 * part) / 3

    def _look_up(self, name: str) -> None:
        """Ask the list of names whether a service has an instance."""
        is_asked = bool(self._unlisted)
        self._unlisted[name] = None
        if not is_asked and self._bus is not None:
            self._read(self._bus, subjects.VIEW_SERVICE_NAMES, self._looked_up)

    def _looked_up(self, headers: bytes, body: bytes | None) -> None:
        """What the list leaves out has no instance: a view publishes it behind the values of all services."""
        names, self._unlisted = list(self._unlisted), {}
        if body is None or not header_number(headers, b"Nats-Sequence"):
            return
        found = self._decoded(ALL, body)
        if found is None:
            return
        listed = {each.name for each in found.content}
        for one in filter(None, map(self._followed.get, names)):
            if one.name not in listed and one.is_outdated_by(found.stamp):
                self._note_read(one)
                self._learn(one, _Value(found.stamp))

    def _heard(self, one: _Followed, *message: bytes) -> None:
        self._take(one, message[-1])

    def _take(self, one: _Followed, data: bytes) -> None:
        """Take a value, unless it is older than what is known. Must not raise: the connection would end."""
        found = self._decoded(one.name, data)
        if found is not None:
            self._note_current(one)
            if one.is_outdated_by(found.stamp):
                self._learn(one, found)

    def _decoded(self, name: str, data: bytes) -> "_Value | None":
        """Read a value; None: it is not one of this service."""
        try:
            found = _names_value(data) if name == ALL else _service_value(name, data)
        except _UNREADABLE:
            found = None
        if found is None:
            self._ignore(name)
        return found

    def _ignore(self, name: str) -> None:
        """Count a value that cannot be used, and log the first, the second, the fourth, and so on."""
        self.ignored += 1
        if not self.ignored & (self.ignored - 1):
            log.warning("service.unreadable", service=name or "names", count=self.ignored)

    def _learn(self, one: _Followed, found: "_Value") -> None:
        """Note what is known now; where it is something else, wake all waiting questions."""
        one.stamp = found.stamp
        if one.version and (found.content, found.fault) == (one.content, one.fault):
            return
        one.version, one.content, one.fault = next(self._versions), found.content, found.fault
        for told in one.waiters:
            if not told.done():
                told.set_result(None)


class _Value(NamedTuple):
    stamp: Stamp
    content: Content = ()
    fault: str = ""


def _may_exist(name: str) -> bool:
    """Say whether a service can have this name."""
    try:
        subjects.view_service(name)
    except ValueError:
        return False
    return True


def _service_value(name: str, data: bytes) -> _Value | None:
    found = _SERVICE_DECODER.decode(data)
    if found.service != name:
        return None
    count = len(found.instances)
    fault = ""
    if found.total > count:
        fault = (
            f"service {name} has {found.total} instances, the list that nodes get ends at {count}"
        )
    return _Value(_stamp(found), tuple(map(_named, found.instances)), fault)


def _names_value(data: bytes) -> _Value:
    found = _NAMES_DECODER.decode(data)
    count = len(found.services)
    fault = ""
    if found.total > count:
        fault = f"there are {found.total} services, the list that nodes get ends at {count}"
    return _Value(
        _stamp(found), tuple(ServiceName(one.name, one.tags) for one in found.services), fault
    )


def _stamp(value: ServiceProjection | ServiceNamesProjection) -> Stamp:
    return value.cluster_id, value.incarnation, value.seq


def _named(one: ServiceInstance) -> NamedInstance:
    """An instance as templates have it: all are listed, as in Nomad, whatever their checks say."""
    return NamedInstance(
        id=registration_id(one),
        name=one.service,
        node=one.node,
        address=one.address,
        port=one.port,
        datacenter=one.datacenter,
        tags=tuple(sorted(one.tags)),
        job_id=one.job,
        alloc_id=one.alloc,
    )
