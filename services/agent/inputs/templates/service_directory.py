"""What this node knows of services: for `nomadService` and `nomadServices` of templates, and for names in DNS.

Any node may read it. Only services that a template or a question by DNS asks for are followed (`followed_values.py`).
Next: `handler.py`, `services/agent/dns/`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from schemas.bounds import bounded_decoder
from schemas.projections import ServiceInstance, ServiceNamesProjection, ServiceProjection
from services.agent.inputs.templates.followed_values import (
    DataUnusable,
    FollowedValue,
    FollowedValues,
    Stamp,
    ViewValue,
)
from services.agent.inputs.templates.render_order import CHECKED
from shared.bus.connection.nats_client import header_number
from shared.gotemplate.data import NamedInstance, ServiceName
from shared.jobspec.service_names import registration_id
from shared.protocol import subjects

#: Stands for the list of names among the versions that are waited for.
ALL = ""
#: Services whose names differ in upper and lower case alone: one name in DNS.
SPELLINGS_MAX = 8
_SERVICE_DECODER = bounded_decoder(ServiceProjection)
_NAMES_DECODER = bounded_decoder(ServiceNamesProjection)


class KnownService(msgspec.Struct, frozen=True):
    """The instances of a service, in a fixed order. `version`: another one for other instances, at least 1."""

    version: int
    instances: tuple[NamedInstance, ...] = ()
    #: of the checks of each instance; another status is no other version.
    statuses: tuple[str, ...] = ()


class KnownNames(msgspec.Struct, frozen=True):
    """The services that have an instance, by name. `version`: another one for other names or tags, at least 1."""

    version: int
    names: tuple[ServiceName, ...] = ()


class ServiceSource(Protocol):
    """Where templates get services. Every method may be cancelled."""

    async def service(self, name: str) -> KnownService:
        """Return the instances of a service, none for an unknown name. Waits without limit. Raises DataUnusable."""
        ...

    async def services(self) -> KnownNames:
        """Return the names of all services. Waits without limit. Raises DataUnusable."""
        ...

    async def changed(self, seen: Mapping[str, int]) -> None:
        """Return when one of these services has another version than was seen; ALL stands for the list of names."""
        ...


class ServiceDirectory(FollowedValues):
    """The services that templates of this node ask for."""

    what = "services"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        #: without a value of their own: the list of names says whether they have an instance.
        self._unlisted: dict[str, None] = {}
        #: of the list with this version: names by their lower case.
        self._spelled_version = 0
        self._spelled: dict[str, list[str]] = {}

    # ---- what DNS asks ----

    async def resolve(self, label: str) -> tuple[KnownService, ...]:
        """Return the services with this name, in any case; of one with too many instances those that pass first.

        A name that the list leaves out is not followed. Waits without limit. Raises DataUnusable: of the list only a
        part is known, and the name is not in it.
        """
        listed = await self._read_once(ALL)
        if listed.version != self._spelled_version:
            self._spelled_version, self._spelled = listed.version, {}
            for one in listed.content:
                self._spelled.setdefault(one.name.lower(), []).append(one.name)
        names = self._spelled.get(label.lower(), [])[:SPELLINGS_MAX]
        if listed.fault and not names:
            raise DataUnusable(listed.fault, listed.version)
        found = [await self._read_once(name) for name in names]
        return tuple(KnownService(one.version, one.content, one.aside) for one in found)

    # ---- what templates ask ----

    async def service(self, name: str) -> KnownService:
        """See ServiceSource."""
        if not _may_exist(name):
            return KnownService(1)
        found = await self._known(name)
        return KnownService(found.version, found.content, found.aside)

    async def services(self) -> KnownNames:
        """See ServiceSource."""
        found = await self._known(ALL)
        return KnownNames(found.version, found.content)

    async def changed(self, seen: Mapping[str, int]) -> None:
        """See ServiceSource."""
        ones = [self._follow(name) for name in seen if name == ALL or _may_exist(name)]
        await self._wait(ones, lambda: any(one.version not in {0, seen[one.name]} for one in ones))

    # ---- values ----

    def _subject(self, name: str) -> str:
        return subjects.view_service(_plain(name)) if name else subjects.VIEW_SERVICE_NAMES

    def _value(self, name: str, data: bytes) -> ViewValue | None:
        return _names_value(data) if name == ALL else _service_value(name, data)

    def _absent(self, one: FollowedValue) -> None:
        if one.version and not one.content and not one.fault:
            self._note_read(one)
        elif one.name != ALL:
            self._look_up(one.name)

    def _learned(self, one: FollowedValue) -> None:
        """Questions were woken; nothing else follows."""

    def _reconnected(self) -> None:
        self._unlisted.clear()

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
            if _plain(one.name) not in listed and one.is_outdated_by(found.stamp):
                self._note_read(one)
                self._learn(one, ViewValue(found.stamp))


def _may_exist(name: str) -> bool:
    """Say whether a service can have this name."""
    try:
        subjects.view_service(_plain(name))
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    """Return the name of the service itself."""
    return name.removeprefix(CHECKED)


def _service_value(name: str, data: bytes) -> ViewValue | None:
    found = _SERVICE_DECODER.decode(data)
    if found.service != _plain(name):
        return None
    count = len(found.instances)
    fault = ""
    if found.total > count:
        fault = (
            f"service {name} has {found.total} instances, the list that nodes get ends at {count}"
        )
    statuses = tuple(one.status for one in found.instances)
    shown = _checked if name.startswith(CHECKED) else _named
    return ViewValue(_stamp(found), tuple(map(shown, found.instances)), fault, statuses)


def _names_value(data: bytes) -> ViewValue:
    found = _NAMES_DECODER.decode(data)
    count = len(found.services)
    fault = ""
    if found.total > count:
        fault = f"there are {found.total} services, the list that nodes get ends at {count}"
    return ViewValue(
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


def _checked(one: ServiceInstance) -> NamedInstance:
    """An instance with the status of its checks, and so another value when one of them changes."""
    return msgspec.structs.replace(_named(one), status=one.status, meta=one.meta)
