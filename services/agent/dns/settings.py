"""What an operator says of DNS, from `CARAVAN_AGENT_DNS` and `CARAVAN_AGENT_DNS_*`, and the sockets that it names."""

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid
from shared.extras import require

SETTING = "CARAVAN_AGENT_DNS"
PREFIX = "CARAVAN_AGENT_"
ADDRESS_ATTRIBUTE, ZONE_ATTRIBUTE = "unique.dns.address", "dns.zone"
_PORT_ATTRIBUTE = "dns.port"
TTL_MAX_S = 5
_PORT_MAX = 65_535
_BACKLOG = 64
_ZONE = re.compile(
    r"(?=.{1,100}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


class DnsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where names are answered. `dns`: address and port; empty: nowhere."""

    dns: str = ""
    dns_zone: str = "caravan"
    #: how long an answer may be kept, in seconds.
    dns_ttl: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """Address and port."""
        address, _, port = self.dns.rpartition(":")
        return str(ip_address(address.removeprefix("[").removesuffix("]"))), int(port)

    def attributes(self) -> dict[str, str]:
        """Node attributes: where jobs find the names."""
        if not self.dns:
            return {}
        address, port = self.place
        return {
            ADDRESS_ATTRIBUTE: address,
            _PORT_ATTRIBUTE: str(port),
            ZONE_ATTRIBUTE: self.dns_zone,
        }


class DnsSockets(NamedTuple):
    """Both of one address."""

    udp: socket.socket
    tcp: socket.socket

    def close(self) -> None:
        """Give up both."""
        self.udp.close()
        self.tcp.close()


def dns_settings(environ: Mapping[str, str]) -> DnsSettings:
    """Read the settings. Raises ConfigInvalid."""
    found = settings_from(DnsSettings, environ, prefix=PREFIX)
    if not found.dns:
        return found
    require("dnslib")
    try:
        address, port = found.place
    except ValueError as err:
        raise ConfigInvalid(f"{SETTING} is {found.dns[:80]!r}, not address:port: {err}") from err
    if not 1 <= port <= _PORT_MAX:
        raise ConfigInvalid(f"{SETTING}: the port must be 1 to {_PORT_MAX}")
    if ip_address(address).is_unspecified:
        # It would answer every network of the node, forged addresses included; and jobs need one address to ask.
        raise ConfigInvalid(f"{SETTING} must name one address of the node, not {address}")
    if not _ZONE.fullmatch(found.dns_zone):
        text = f"{SETTING}_ZONE is {found.dns_zone[:80]!r}, not a domain of small letters"
        raise ConfigInvalid(text)
    if not 0 <= found.dns_ttl <= TTL_MAX_S:
        raise ConfigInvalid(f"{SETTING}_TTL must be 0 to {TTL_MAX_S} seconds")
    return found


def open_sockets(address: str, port: int) -> DnsSockets:
    """Bind both; port 0: any that is free for both. Raises ConfigInvalid."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = DnsSockets(
        socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_STREAM)
    )
    try:
        # After a restart connections of the life before may still be closing.
        found.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.tcp.bind((address, port))
        found.udp.bind((address, found.tcp.getsockname()[1]))
        found.tcp.listen(_BACKLOG)
    except OSError as err:
        found.close()
        raise ConfigInvalid(f"{SETTING}={address}:{port}: {err.strerror or err}") from err
    for one in found:
        one.setblocking(False)
    return found
