"""Names of the zone: which service, tag or address one stands for.

    NAME.service.ZONE       TAG.NAME.service.ZONE       _NAME._tcp.service.ZONE (RFC 2782)       HEX.addr.ZONE

The last one is the target of SRV records: an address in hexadecimal digits, 8 or 32. Next: `responder.py`.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

SERVICE, ADDRESS = "service", "addr"
#: In the place of a tag: any instance.
_PROTOCOLS = ("_tcp", "_udp")
_HEX = re.compile(r"[0-9a-f]{8}|[0-9a-f]{32}")
_HOST = re.compile(
    r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
)
_V4_DIGITS = 8

Address = IPv4Address | IPv6Address


class NamedService(NamedTuple):
    """A service; with `tag` those of its instances that have it."""

    name: str
    tag: str = ""


class Nothing(NamedTuple):
    """A name without records; `exists`: others stand below it."""

    exists: bool


def read_name(
    labels: Sequence[str], zone: Sequence[str]
) -> NamedService | Address | Nothing | None:
    """Say what a name stands for, in lower case; None: it is in no zone of ours."""
    if tuple(labels[len(labels) - len(zone) :]) != tuple(zone) or len(labels) < len(zone):
        return None
    *rest, kind = labels[: len(labels) - len(zone)] or [""]
    if not rest:
        return Nothing(exists=kind in {"", SERVICE, ADDRESS})
    if kind == ADDRESS:
        return _address(rest)
    if kind != SERVICE:
        return Nothing(exists=False)
    *tags, name = rest
    if not name.startswith("_"):
        return NamedService(name, ".".join(tags))
    # Of `_NAME._TAG` the second part alone is no name, and has some below it.
    if len(tags) == 1 and tags[0].startswith("_"):
        return NamedService(tags[0][1:], "" if name in _PROTOCOLS else name[1:])
    return Nothing(exists=not tags)


def address_name(address: Address, zone: str) -> str:
    """Return the name that stands for an address."""
    return f"{address.packed.hex()}.{ADDRESS}.{zone}"


def host_name(text: str) -> str:
    """Return the address of an instance as the name of a host; empty: it is none."""
    found = text.lower().removesuffix(".")
    return found if _HOST.fullmatch(found) else ""


def _address(rest: Sequence[str]) -> Address | Nothing:
    if len(rest) != 1 or not _HEX.fullmatch(rest[0]):
        return Nothing(exists=False)
    packed = bytes.fromhex(rest[0])
    return IPv4Address(packed) if len(rest[0]) == _V4_DIGITS else IPv6Address(packed)
