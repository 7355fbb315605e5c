"""Answers questions of DNS from what the node knows of services.

Decides which instances an answer names: those whose checks pass or warn, each answer beginning at another one. It never
asks another server. Next: `listener.py`, which brings questions.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import count
from typing import Protocol

import structlog

from services.agent.dns import messages
from services.agent.dns.messages import DnsQuestion, DnsReply, Resource
from services.agent.dns.names import (
    Address,
    NamedService,
    Nothing,
    address_name,
    host_name,
    read_name,
)
from services.agent.inputs.templates.followed_values import DataUnusable
from services.agent.inputs.templates.service_directory import KnownService
from shared.gotemplate.data import NamedInstance

#: Of checks of instances that are named.
ANSWERED = frozenset(("passing", "warning"))
#: Records of one answer.
ANSWERS_MAX = 128
_PORT_MAX = 65_535
#: Addresses that were read.
_KEPT_MAX = 4_096
#: What the node does not know yet is waited for so long.
WAIT_S = 2.0
_KINDS = {
    messages.A: (IPv4Address,),
    messages.AAAA: (IPv6Address,),
    messages.ANY: (IPv4Address, IPv6Address),
}
log = structlog.get_logger()


class ServiceNames(Protocol):
    """What a node knows of services."""

    async def resolve(self, label: str) -> tuple[KnownService, ...]:
        """See ServiceDirectory."""
        ...


class Responder:
    """The answers of one zone."""

    def __init__(self, services: ServiceNames, *, zone: str, ttl_s: int) -> None:
        self._services = services
        self._zone = zone
        self._labels = zone.split(".")
        self._ttl_s = ttl_s
        self._turns = count()
        #: questions whose answer failed for a reason that is ours.
        self.failures = 0

    async def answer(self, data: bytes, *, is_udp: bool) -> bytes:
        """Return the answer to a question; empty: it gets none. Raises nothing."""
        question = messages.read_question(data)
        if isinstance(question, bytes):
            return question
        bytes_max = question.udp_bytes if is_udp else messages.TCP_BYTES_MAX
        try:
            return messages.write_reply(question, await self._reply(question), bytes_max)
        except (TimeoutError, DataUnusable):
            pass
        except Exception as err:  # noqa: BLE001 - no question may end the agent's answers.
            self.failures += 1
            if not self.failures & (self.failures - 1):
                log.warning("dns.failed", reason=repr(err)[:200], count=self.failures)
        return messages.write_reply(question, DnsReply(code=messages.SERVFAIL), bytes_max)

    async def _reply(self, question: DnsQuestion) -> DnsReply:
        asked = read_name(question.labels, self._labels)
        match asked:
            case None:
                return DnsReply(code=messages.REFUSED)
            case Nothing():
                return self._none(exists=asked.exists)
            case NamedService():
                async with asyncio.timeout(WAIT_S):
                    found = await self._services.resolve(asked.name)
                return self._service(question, asked, found)
            case _:
                is_asked = isinstance(asked, _KINDS.get(question.kind, ()))
                return self._some([Resource("", asked)] if is_asked else [])

    def _service(
        self, question: DnsQuestion, asked: NamedService, found: Sequence[KnownService]
    ) -> DnsReply:
        pairs = [
            (one, status)
            for service in found
            for one, status in zip(service.instances, service.statuses, strict=True)
        ]
        tagged = [pair for pair in pairs if _has_tag(pair[0], asked.tag)]
        if not tagged:
            below = f".{asked.tag}"
            # A tag may have dots: what stands between them is a name, too.
            return self._none(exists=any(_lower_tag(one, below) for one, _ in pairs))
        good = [one for one, status in tagged if status in ANSWERED]
        turn = next(self._turns) % max(len(good), 1)
        good = good[turn:] + good[:turn]
        if question.kind == messages.SRV:
            return self._targets(good)
        kinds = _KINDS.get(question.kind, ())
        addresses: dict[Address, None] = {}
        for one in good:
            address = _address(one.address)
            if address is not None and isinstance(address, kinds):
                addresses[address] = None
            if len(addresses) == ANSWERS_MAX:
                break
        return self._some([Resource("", address) for address in addresses])

    def _targets(self, good: Sequence[NamedInstance]) -> DnsReply:
        places: dict[tuple[int, str], Address | None] = {}
        for one in good:
            address = _address(one.address)
            target = address_name(address, self._zone) if address else host_name(one.address)
            if 0 < one.port <= _PORT_MAX and target:
                places[one.port, target] = address
            if len(places) == ANSWERS_MAX:
                break
        more = {target: address for (_, target), address in places.items() if address}
        return self._some(
            [Resource("", place) for place in places],
            [Resource(target, address) for target, address in more.items()],
        )

    def _some(self, answers: Sequence[Resource], more: Sequence[Resource] = ()) -> DnsReply:
        """Return these records; without any, that there is none of this kind."""
        return DnsReply(answers=answers, more=more, zone=self._zone, ttl_s=self._ttl_s)

    def _none(self, *, exists: bool) -> DnsReply:
        code = messages.NOERROR if exists else messages.NXDOMAIN
        return DnsReply(code=code, zone=self._zone, ttl_s=self._ttl_s)


def _tags(one: NamedInstance) -> Iterator[str]:
    return (tag.lower() for tag in one.tags)


def _has_tag(one: NamedInstance, tag: str) -> bool:
    return not tag or tag in _tags(one)


def _lower_tag(one: NamedInstance, ending: str) -> bool:
    return any(tag.endswith(ending) for tag in _tags(one))


@lru_cache(_KEPT_MAX)
def _address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
