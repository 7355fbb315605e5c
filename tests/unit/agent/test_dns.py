"""Services in DNS: which names there are, what an answer holds, and what a question that is none gets."""

import asyncio
import struct
from typing import Any

import dnslib  # type: ignore[import-untyped]
import pytest

from services.agent.dns import listener, responder
from services.agent.dns.listener import QuestionRate
from services.agent.dns.names import NamedService, Nothing, host_name, read_name
from services.agent.dns.responder import Responder
from services.agent.dns.settings import dns_settings
from services.agent.inputs.templates.followed_values import DataUnusable
from services.agent.inputs.templates.service_directory import KnownService
from shared.errors import ConfigInvalid
from shared.gotemplate.data import NamedInstance

RCODES = ("NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED")


def instance(number: int, port: int = 80, tags: tuple[str, ...] = (), **more: Any) -> NamedInstance:
    return NamedInstance(
        **{"id": f"i{number}", "address": f"10.0.0.{number}", "port": port, "tags": tags, **more}
    )


def known(*instances: NamedInstance, status: str = "passing") -> KnownService:
    return KnownService(1, instances, (status,) * len(instances))


class Services:
    """Services in memory; `None` is not known yet, and a text is why it cannot be used."""

    def __init__(self, **services: KnownService | str | None) -> None:
        self.services = services

    async def resolve(self, label: str) -> tuple[KnownService, ...]:
        """See ServiceNames."""
        found = self.services.get(label, ())
        if found is None:
            await asyncio.Event().wait()
        if isinstance(found, str):
            raise DataUnusable(found)
        return (found,) if isinstance(found, KnownService) else ()


def question(name: str, kind: str = "A", udp_bytes: int = 0) -> bytes:
    found = dnslib.DNSRecord.question(name, kind)
    if udp_bytes:
        found.add_ar(dnslib.EDNS0(udp_len=udp_bytes))
    return bytes(found.pack())


def answered(by: Responder, data: bytes, *, is_udp: bool = True) -> Any:
    """The answer, as dnslib reads it."""
    return dnslib.DNSRecord.parse(asyncio.run(by.answer(data, is_udp=is_udp)))


def ask(name: str, kind: str = "A", **services: KnownService | str | None) -> Any:
    one = Responder(Services(**services), zone="caravan", ttl_s=3)
    return answered(one, question(name, kind))


def texts(found: Any) -> list[str]:
    return [f"{dnslib.QTYPE[one.rtype]} {one.rdata}" for one in found.rr]


def code(found: Any) -> str:
    return RCODES[found.header.rcode]


WEB = known(instance(1, 8001, ("v1", "Blue")), instance(2, 8002, ("v1.2",)))


@pytest.mark.parametrize(
    ("name", "kind", "answer"),
    [
        ("web.service.caravan", "A", ["A 10.0.0.1", "A 10.0.0.2"]),
        ("WEB.Service.CARAVAN", "A", ["A 10.0.0.1", "A 10.0.0.2"]),
        ("web.service.caravan", "ANY", ["A 10.0.0.1", "A 10.0.0.2"]),
        ("blue.web.service.caravan", "A", ["A 10.0.0.1"]),
        ("v1.2.web.service.caravan", "A", ["A 10.0.0.2"]),
        ("web.service.caravan", "AAAA", []),
        ("web.service.caravan", "TXT", []),
        (
            "_web._tcp.service.caravan",
            "SRV",
            ["SRV 1 1 8001 0a000001.addr.caravan.", "SRV 1 1 8002 0a000002.addr.caravan."],
        ),
        ("_web._blue.service.caravan", "SRV", ["SRV 1 1 8001 0a000001.addr.caravan."]),
        ("blue.web.service.caravan", "SRV", ["SRV 1 1 8001 0a000001.addr.caravan."]),
        ("0a000001.addr.caravan", "A", ["A 10.0.0.1"]),
        ("0a000001.addr.caravan", "AAAA", []),
        (f"{'0' * 31}1.addr.caravan", "AAAA", ["AAAA ::1"]),
    ],
)
def test_a_service_has_names(name: str, kind: str, answer: list[str]) -> None:
    """By its name, a tag, or in the form of RFC 2782; of a kind that there is none of: no record and no error."""
    found = ask(name, kind, web=WEB)
    assert (code(found), texts(found)) == ("NOERROR", answer)
    assert all(one.ttl == 3 for one in found.rr)
    assert (found.header.aa, found.header.ra, found.header.tc) == (1, 0, 0)
    assert bool(found.auth) == (not answer)


@pytest.mark.parametrize("port", [-1, 0, 65_536, 10**30])
def test_an_instance_without_a_port_hides_no_other(port: int) -> None:
    """It has no SRV record; those beside it have."""
    found = ask("web.service.caravan", "SRV", web=known(instance(1, port=port), instance(2)))
    assert (code(found), texts(found)) == ("NOERROR", ["SRV 1 1 80 0a000002.addr.caravan."])


def test_a_target_comes_with_its_address() -> None:
    """SRV records bring the addresses along; an address that is a host's name is the target itself."""
    found = ask(
        "web.service.caravan", "SRV", web=known(instance(1), instance(2, address="db.Local"))
    )
    assert texts(found) == ["SRV 1 1 80 0a000001.addr.caravan.", "SRV 1 1 80 db.local."]
    assert [(str(one.rname), str(one.rdata)) for one in found.ar] == [
        ("0a000001.addr.caravan.", "10.0.0.1")
    ]
    named = ask("web.service.caravan", "A", web=known(instance(2, address="db.local")))
    assert (code(named), named.rr) == ("NOERROR", [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nope.service.caravan", "NXDOMAIN"),
        ("green.web.service.caravan", "NXDOMAIN"),
        ("web.nope.caravan", "NXDOMAIN"),
        ("x.addr.caravan", "NXDOMAIN"),
        ("caravan", "NOERROR"),
        ("service.caravan", "NOERROR"),
        ("_tcp.service.caravan", "NOERROR"),
        ("2.web.service.caravan", "NOERROR"),
        ("example.org", "REFUSED"),
        ("web.service.caravan.org", "REFUSED"),
        ("xcaravan", "REFUSED"),
        (".", "REFUSED"),
    ],
)
def test_what_has_no_record(name: str, expected: str) -> None:
    """Unknown names do not exist, those with others below them do, and other zones are refused."""
    found = ask(name, web=WEB)
    assert (code(found), found.rr) == (expected, [])
    ends = [(str(one.rname), one.rdata.times[4]) for one in found.auth]
    assert ends == ([] if expected == "REFUSED" else [("caravan.", 3)])


@pytest.mark.parametrize(
    ("status", "count"),
    [("passing", 1), ("warning", 1), ("pending", 0), ("critical", 0), ("unknown", 0)],
)
def test_only_what_works_is_named(status: str, count: int) -> None:
    """Checks that warn are good enough; a name of which none works exists without records."""
    found = ask("web.service.caravan", web=known(instance(1), status=status))
    assert (code(found), len(found.rr)) == ("NOERROR", count)


def test_what_is_not_known_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer says that a service is not there before the node knows; and no fault of ours ends the answers."""
    monkeypatch.setattr(responder, "WAIT_S", 0)
    for service in (None, "a part of the list"):
        assert code(ask("web.service.caravan", web=service)) == "SERVFAIL"
    broken = Responder(Services(web=KnownService(1, (instance(1),))), zone="caravan", ttl_s=0)
    assert code(answered(broken, question("web.service.caravan"))) == "SERVFAIL"
    assert broken.failures == 1
    assert code(answered(broken, question("0a000001.addr.caravan"))) == "NOERROR"


def test_each_answer_begins_at_another_instance() -> None:
    """Clients take the first address: in turn it is each one's."""
    one = Responder(Services(web=known(*map(instance, (1, 2, 3)))), zone="caravan", ttl_s=0)
    found = [texts(answered(one, question("web.service.caravan"))) for _ in range(3)]
    assert {tuple(sorted(each)) for each in found} == {("A 10.0.0.1", "A 10.0.0.2", "A 10.0.0.3")}
    assert {each[0] for each in found} == {"A 10.0.0.1", "A 10.0.0.2", "A 10.0.0.3"}


@pytest.mark.parametrize("kind", ["A", "SRV"])
@pytest.mark.parametrize(("asked", "most"), [(0, 512), (100, 512), (900, 900), (4096, 1232)])
def test_an_answer_by_udp_is_never_long(kind: str, asked: int, most: int) -> None:
    """What does not fit is left out and marked, so that the asker comes again by TCP, where all of it fits."""
    many = known(
        *(instance(n % 250, n, address=f"10.0.{n // 250}.{n % 250}") for n in range(1, 1_000))
    )
    one = Responder(Services(web=many), zone="caravan", ttl_s=0)
    data = question("web.service.caravan", kind, asked)
    found = asyncio.run(one.answer(data, is_udp=True))
    assert most // 2 < len(found) <= most
    assert dnslib.DNSRecord.parse(found).header.tc == 1
    whole = answered(one, question("web.service.caravan", kind), is_udp=False)
    assert (len(whole.rr), whole.header.tc) == (responder.ANSWERS_MAX, 0)


def packet(flags: int = 0, counts: tuple[int, ...] = (1, 0, 0, 0), body: bytes = b"") -> bytes:
    return struct.pack("!HHHHHH", 7, flags, *counts) + body


NAME = b"\3web\7service\7caravan\0"
ASKED = NAME + b"\0\1\0\1"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ""),
        (b"x" * 11, ""),
        (packet(flags=0x8000, body=ASKED), ""),
        (packet(flags=0x2800, body=ASKED), "NOTIMP"),
        (packet(counts=(0, 0, 0, 0)), "FORMERR"),
        (packet(counts=(2, 0, 0, 0), body=ASKED * 2), "FORMERR"),
        (packet(counts=(1, 1, 0, 0), body=ASKED), "FORMERR"),
        (packet(counts=(1, 0, 0, 65_535), body=ASKED), "FORMERR"),
        (packet(body=ASKED[:-1]), "FORMERR"),
        (packet(body=b"\xc0\x0c\0\1\0\1"), "FORMERR"),
        (packet(body=b"\xff\xff"), "FORMERR"),
        (packet(body=b"\x40" + b"a" * 64 + b"\0\0\1\0\1"), "FORMERR"),
        (packet(body=b"\1a" * 130 + b"\0\0\1\0\1"), "FORMERR"),
        (packet(body=ASKED + b"\0" * 500), "FORMERR"),
        (packet(body=NAME + b"\0\1\0\3"), "REFUSED"),
        (packet(body=ASKED), "NOERROR"),
        (packet(body=NAME + b"\0\1\0\xff"), "NOERROR"),
    ],
)
def test_what_is_no_question_is_answered_in_a_few_bytes_or_not_at_all(
    data: bytes, expected: str
) -> None:
    """No loop of pointers or count is followed, and two servers never answer each other."""
    one = Responder(Services(web=known(instance(1))), zone="caravan", ttl_s=0)
    found = asyncio.run(one.answer(data, is_udp=True))
    assert (RCODES[found[3] & 15] if found else "") == expected
    assert found[:2] == (data[:2] if found else b"")
    if expected not in {"", "NOERROR"}:
        assert len(found) == 12


def test_a_version_of_edns_that_is_not_known_is_named() -> None:
    """It is answered with BADVERS, of which the upper bits are in the record of EDNS."""
    asked = dnslib.DNSRecord.question("web.service.caravan")
    asked.add_ar(dnslib.EDNS0(version=1, udp_len=1232))
    one = Responder(Services(), zone="caravan", ttl_s=0)
    found = answered(one, bytes(asked.pack()))
    assert (found.header.rcode, found.ar[0].edns_rcode, found.rr) == (0, 1, [])


def test_a_zone_may_have_several_labels() -> None:
    """Names are read from the end; what stands alone in the place of a kind is none."""
    zone = ("dc1", "example", "org")
    assert read_name(("a", "service", *zone), zone) == NamedService("a")
    assert read_name(("a", "b", *zone), zone) == Nothing(exists=False)
    assert read_name(zone[1:], zone) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [("Db.Local.", "db.local"), ("a b", ""), ("", ""), ("x" * 64, ""), ("a." * 150 + "a", "")],
)
def test_only_a_hosts_name_is_a_target(text: str, name: str) -> None:
    """The address of an instance may be any text of its job."""
    assert host_name(text) == name


def test_questions_are_counted_by_second_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """One address cannot use up what others may ask; long answers count more, refused questions are not kept."""
    monkeypatch.setattr(listener, "TOTAL_MAX", 5)
    monkeypatch.setattr(listener, "SOURCE_MAX", 3)
    now_s = [0.0]
    rate = QuestionRate(lambda: now_s[0])
    assert [rate.allows("a") for _ in range(4)] == [True, True, True, False]
    assert [rate.allows("b") for _ in range(3)] == [True, True, False]
    assert not any(rate.allows(str(n)) for n in range(100))
    assert len(rate._sources) == 2
    now_s[0] = 1.5
    assert rate.allows("a")
    rate.answered("a", 2_048)
    assert not rate.allows("a")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"": "10.0.0.1"}, "not address:port"),
        ({"": "here:53"}, "not address:port"),
        ({"": "10.0.0.1:0"}, "port must be 1 to 65535"),
        ({"": "0.0.0.0:53"}, "one address of the node"),
        ({"": "[::]:53"}, "one address of the node"),
        ({"": "10.0.0.1:53", "_ZONE": "a..b"}, "not a domain"),
        ({"": "10.0.0.1:53", "_ZONE": "Caravan"}, "not a domain"),
        ({"": "10.0.0.1:53", "_TTL": "6"}, "0 to 5"),
    ],
)
def test_a_bad_setting_is_named(change: dict[str, str], says: str) -> None:
    """An agent does not start with it, and never answers on all addresses of its node."""
    with pytest.raises(ConfigInvalid, match=says):
        dns_settings({f"CARAVAN_AGENT_DNS{name}": text for name, text in change.items()})


def test_the_node_says_where_it_answers() -> None:
    """Jobs find the address among its attributes; without the setting there is none."""
    assert dns_settings({}).attributes() == {}
    found = dns_settings(
        {"CARAVAN_AGENT_DNS": "[fd00::1]:53", "CARAVAN_AGENT_DNS_ZONE": "dc1.local"}
    )
    assert found.attributes() == {
        "unique.dns.address": "fd00::1",
        "dns.port": "53",
        "dns.zone": "dc1.local",
    }


def test_without_its_package_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what to install; an agent without the setting needs no package."""
    monkeypatch.setattr("shared.extras.find_spec", lambda _name: None)
    assert dns_settings({}).dns == ""
    with pytest.raises(ConfigInvalid, match=r"install caravan-orchestrator\[agent\]"):
        dns_settings({"CARAVAN_AGENT_DNS": "10.0.0.1:53"})
