"""Which addresses an artifact may be fetched from: not the node's own, not its metadata service, not the bus.

Decides by the address that is connected to, after the name was resolved: the connection goes to the checked address.
"""

import ipaddress
import socket
from collections.abc import Iterable

from services.agent.inputs.artifacts.fetch_order import FetchRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Metadata services that are not link-local.
_METADATA = frozenset(
    ipaddress.ip_address(one)
    for one in (
        *("100.100.100.200", "168.63.129.16"),
        # AWS, its pod identity, Google, Scaleway: unique local, not link-local.
        *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42"),
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AddressRules:
    """The operator's rules. Raises ValueError for a network that cannot be read."""

    def __init__(self, allow: Iterable[str] = (), refused_hosts: Iterable[str] = ()) -> None:
        self._allow = [ipaddress.ip_network(one) for one in allow]
        self._refused_hosts = tuple(refused_hosts)

    def resolve(self, host: str, port: int) -> str:
        """Return the first address of a host that is allowed. Raises FetchRefused, OSError for an unknown name."""
        refused = {one for name in self._refused_hosts for one in _addresses(name, 0)}
        reasons = []
        for one in _addresses(host, port):
            reason = self.refusal(one, refused)
            if not reason:
                return str(one)
            reasons.append(reason)
        raise FetchRefused(
            reasons[0] if reasons else f"{host} has no address", recoverable=not reasons
        )

    def refusal(self, address: Address, refused: Iterable[Address] = ()) -> str:
        """Say why an address is refused; empty: it is not."""
        inner = _inner(address)
        if any(inner in network or address in network for network in self._allow):
            return ""
        kind = ""
        if inner in refused:
            kind = "an address of the bus"
        elif inner in _METADATA:
            kind = "a metadata service"
        elif inner.is_loopback or inner.is_unspecified:
            kind = "the node's own address"
        elif inner.is_link_local:
            kind = "link-local"
        elif inner.is_multicast or inner.is_reserved:
            kind = "reserved"
        if not kind:
            return ""
        return f"address {inner} is {kind}; only an operator can allow it (CARAVAN_AGENT_ARTIFACT_ALLOW)"


def _inner(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _addresses(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)
    texts = [str(one[4][0]).partition("%")[0] for one in found]
    return [ipaddress.ip_address(text) for text in dict.fromkeys(texts)]
