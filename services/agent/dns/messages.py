"""Questions of DNS as bytes, and the bytes of answers: the one module that knows dnslib. Needs the extra `agent`.

What may be in a question is looked at before dnslib reads it, which follows pointers by recursion and reads as many
records as the header says. An answer never exceeds what the asker takes: what does not fit is left out, and the answer
is marked as truncated. Source: RFC 1035, 2782, 6891. Next: `responder.py`.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

import dnslib  # type: ignore[import-untyped]
import msgspec

A, SOA, AAAA, SRV, OPT, ANY = 1, 6, 28, 33, 41, 255
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
_BADVERS = 1
_IN = 1
#: A question has one name and at most one record of EDNS; more is not read.
QUESTION_BYTES_MAX = 512
#: Of an answer by UDP: without EDNS, and what fits into a packet of any link; by TCP what its length can say.
_PLAIN_BYTES, UDP_BYTES_MAX, TCP_BYTES_MAX = 512, 1232, 65_535
_NAME_BYTES_MAX, _LABEL_BYTES_MAX = 254, 63
#: Kind and class of a question; a name that stands before; kind, class, ttl and length of a record; the record of EDNS.
_QUESTION_TAIL_BYTES, _POINTER_BYTES, _RECORD_BYTES, _EDNS_BYTES = 4, 2, 10, 11
_KEPT_MAX = 4_096
_HEADER, _SRV = struct.Struct("!HHHHHH"), struct.Struct("!HHH")
_IS_ANSWER, _RECURSION = 0x8000, 0x0100
_OPCODE = 0x7800

Address = IPv4Address | IPv6Address


class DnsQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `labels`: in lower case, from left to right."""

    record: Any
    labels: tuple[str, ...]
    kind: int
    #: longest answer by UDP.
    udp_bytes: int
    has_edns: bool = False


class Resource(NamedTuple):
    """One record. `name`: empty is the name that was asked for; `value`: an address, or port and target."""

    name: str
    value: Address | tuple[int, str]


class DnsReply(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered. `zone`: the one of an answer without records; empty: none is named."""

    code: int = NOERROR
    answers: Sequence[Resource] = ()
    #: addresses of targets; left out where they do not fit.
    more: Sequence[Resource] = ()
    zone: str = ""
    ttl_s: int = 0


def read_question(data: bytes) -> DnsQuestion | bytes:
    """Read a question. Returns the answer where it is none that can be served; empty: it gets none."""
    if len(data) < _HEADER.size:
        return b""
    number, flags, *counts = _HEADER.unpack_from(data)
    if flags & _IS_ANSWER:
        # Two servers must not answer each other.
        return b""
    if flags & _OPCODE:
        return _fault(number, flags, NOTIMP)
    questions, answers, authorities, more = counts
    if (questions, answers, authorities) != (1, 0, 0) or more > 1 or len(data) > QUESTION_BYTES_MAX:
        return _fault(number, flags, FORMERR)
    try:
        return _question(dnslib.DNSRecord.parse(data), number, flags)
    except Exception:  # noqa: BLE001 - dnslib raises what its parts raise, for bytes that others chose.
        return _fault(number, flags, FORMERR)


def write_reply(question: DnsQuestion, reply: DnsReply, bytes_max: int) -> bytes:
    """Write an answer of at most so many bytes. What fits is known before: it is written once."""
    asked = question.record.questions[0]
    room = bytes_max - _HEADER.size - len(_wire_name(asked.qname.label)) - _QUESTION_TAIL_BYTES
    room -= _EDNS_BYTES if question.has_edns else 0
    answers = _fitting(reply.answers, room)
    head = dnslib.DNSHeader(
        id=question.record.header.id,
        bitmap=0,
        qr=1,
        aa=int(reply.code != REFUSED),
        rd=question.record.header.rd,
        tc=int(len(answers) < len(reply.answers)),
        rcode=reply.code,
    )
    found = dnslib.DNSRecord(head, q=asked)
    found.add_answer(*(_record(one, asked.qname, reply.ttl_s) for one, _ in answers))
    if reply.zone and not reply.answers:
        found.add_auth(_authority(reply))
    for one, _ in _fitting(reply.more, room - sum(size for _, size in answers)):
        found.add_ar(_record(one, asked.qname, reply.ttl_s))
    if question.has_edns:
        found.add_ar(dnslib.EDNS0(udp_len=UDP_BYTES_MAX))
    return bytes(found.pack())


def _fitting(records: Sequence[Resource], room: int) -> list[tuple[Resource, int]]:
    """Return the first records that fit, each with the bytes that it takes at most."""
    found: list[tuple[Resource, int]] = []
    for one in records:
        name_bytes = len(one.name.encode()) + 2 if one.name else _POINTER_BYTES
        size = name_bytes + _RECORD_BYTES + len(_data(one.value)[1])
        room -= size
        if room < 0:
            break
        found.append((one, size))
    return found


def _fault(number: int, flags: int, code: int) -> bytes:
    """Return an answer without the question, which was not read."""
    flags = _IS_ANSWER | flags & (_OPCODE | _RECURSION) | code
    return _HEADER.pack(number, flags, 0, 0, 0, 0)


def _question(record: Any, number: int, flags: int) -> DnsQuestion | bytes:
    asked = record.questions[0]
    parts = [len(one) for one in asked.qname.label]
    if sum(parts) + len(parts) > _NAME_BYTES_MAX or max(parts, default=0) > _LABEL_BYTES_MAX:
        return _fault(number, flags, FORMERR)
    edns = next((one for one in record.ar if one.rtype == OPT), None)
    udp_bytes = min(max(edns.edns_len, _PLAIN_BYTES), UDP_BYTES_MAX) if edns else _PLAIN_BYTES
    found = DnsQuestion(
        record=record,
        labels=tuple(one.decode().lower() for one in asked.qname.label),
        kind=asked.qtype,
        udp_bytes=udp_bytes,
        has_edns=edns is not None,
    )
    if edns is not None and edns.edns_ver:
        return _bad_version(found)
    if asked.qclass not in {_IN, ANY}:
        return _fault(number, flags, REFUSED)
    return found


def _bad_version(question: DnsQuestion) -> bytes:
    head = dnslib.DNSHeader(id=question.record.header.id, bitmap=0, qr=1)
    answer = dnslib.DNSRecord(head, q=question.record.questions[0])
    answer.add_ar(dnslib.EDNS0(udp_len=UDP_BYTES_MAX, ext_rcode=_BADVERS))
    return bytes(answer.pack())


def _record(one: Resource, asked: Any, ttl_s: int) -> Any:
    kind, data = _data(one.value)
    return dnslib.RR(one.name or asked, kind, ttl=ttl_s, rdata=dnslib.RD(data))


@lru_cache(_KEPT_MAX)
def _data(value: Address | tuple[int, str]) -> tuple[int, bytes]:
    """Return the kind and the data of a record. The same ones are written again and again."""
    match value:
        case IPv4Address():
            return A, value.packed
        case IPv6Address():
            return AAAA, value.packed
        case port, target:
            return SRV, _SRV.pack(1, 1, port) + _wire_name(target.encode().split(b"."))


def _wire_name(labels: Sequence[bytes]) -> bytes:
    return b"".join(bytes((len(one),)) + one for one in labels) + b"\0"


def _authority(reply: DnsReply) -> Any:
    """Return the zone's SOA record: its last number is how long a resolver may keep that there is nothing."""
    times = (1, 3600, 600, 86_400, reply.ttl_s)
    data = dnslib.SOA(f"ns.{reply.zone}", f"hostmaster.{reply.zone}", times)
    return dnslib.RR(reply.zone, SOA, ttl=reply.ttl_s, rdata=data)
