"""What an operator says of the bridge for networks of groups, from `CARAVAN_AGENT_BRIDGE_*`."""

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, ip_address

import msgspec

from services.agent.drivers.driver import split_list
from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid

PREFIX = "CARAVAN_AGENT_BRIDGE_"
NAME_DEFAULT = "caravan0"
#: Another one than Nomad's, so that both can run on one machine.
SUBNET_DEFAULT = "172.27.64.0/20"
ISOLATIONS = ("none", "groups", "node")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,13}")
_PREFIX_MAX = 29
_PORT_MAX = 65_535


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings."""

    #: off: no network for groups in mode bridge on this node.
    enabled: bool = True
    #: of the bridge; agents on one machine need different ones.
    name: str = NAME_DEFAULT
    subnet: str = SUBNET_DEFAULT
    #: what a group is kept from: none; groups (ports of other groups that these do not publish); node (also the ports
    #: of the node itself, but for DNS, the cluster's port range and `open`).
    isolate: str = "groups"
    #: ports of the node that groups reach although `isolate` is node.
    open: str = ""
    #: name servers of groups that name none; empty: those of the node that a namespace can reach.
    dns: str = ""
    #: first and last port that the cluster may pick; set by the agent.
    port_range: tuple[int, int] = (1, 0)

    @property
    def table(self) -> str:
        """Name of the table of rules."""
        return "caravan" if self.name == NAME_DEFAULT else f"caravan_{self.name}"

    @property
    def gateway(self) -> str:
        """The bridge's address, with the length of its prefix."""
        return gateway_of(IPv4Network(self.subnet))

    @property
    def isolates_groups(self) -> bool:
        """Whether a group reaches what others publish alone."""
        return self.isolate != "none"

    @property
    def isolates_node(self) -> bool:
        """Whether a group reaches some ports of the node alone."""
        return self.isolate == "node"

    @property
    def open_ports(self) -> tuple[int, ...]:
        """Ports of the node that all groups reach."""
        return tuple(sorted({int(one) for one in split_list(self.open)}))

    @property
    def dns_servers(self) -> tuple[str, ...]:
        """Name servers of groups that name none."""
        return split_list(self.dns)


def gateway_of(network: IPv4Network) -> str:
    """Return the first address of a network, with the length of its prefix."""
    return f"{network.network_address + 1}/{network.prefixlen}"


def bridge_settings(environ: Mapping[str, str], port_range: tuple[int, int]) -> BridgeSettings:
    """Read the settings. Raises ConfigInvalid."""
    found = settings_from(BridgeSettings, environ, prefix=PREFIX)
    if not _NAME.fullmatch(found.name):
        text = f"must be a letter and at most 13 more of a-z, 0-9 and _, was {found.name[:40]!r}"
        raise ConfigInvalid(f"{PREFIX}NAME: {text}")
    if found.isolate not in ISOLATIONS:
        text = f"must be one of {', '.join(ISOLATIONS)}, was {found.isolate[:40]!r}"
        raise ConfigInvalid(f"{PREFIX}ISOLATE: {text}")
    try:
        network = IPv4Network(found.subnet)
        for one in found.dns_servers:
            ip_address(one)
    except ValueError as err:
        raise ConfigInvalid(f"{PREFIX}SUBNET, {PREFIX}DNS: {err}") from err
    if network.prefixlen > _PREFIX_MAX:
        raise ConfigInvalid(f"{PREFIX}SUBNET: {found.subnet} has less than six addresses")
    for one in split_list(found.open):
        if not one.isdecimal() or not 1 <= int(one) <= _PORT_MAX:
            raise ConfigInvalid(f"{PREFIX}OPEN: {one[:40]!r} is not a port")
    return msgspec.structs.replace(found, subnet=str(network), port_range=port_range)
