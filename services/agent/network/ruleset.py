"""The agent's table of rules, written whole from the groups that live: what leads in, what leads out, what is dropped.

Decides every rule. Only text for `nft -f -`, which replaces the table in one transaction: there is nothing to remove,
and nothing is left over. Every chain begins and ends with a line of its own, as the program needs.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Interface

import msgspec

from services.agent.network.settings import BridgeSettings
from shared.core.runtime.network_messages import PortMapping

#: Before connections are tracked: an answer is seen here with the address that it was sent to.
_RAW, _DNAT, _FILTER, _SNAT = -300, -100, 0, 100
_LOOPBACK = "127.0.0.0/8"
DNS_PORT = 53


class GroupRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the table says of one group. `address`: with the length of its prefix."""

    address: str
    ports: tuple[PortMapping, ...] = ()


def table_text(settings: BridgeSettings, groups: Iterable[GroupRules]) -> str:
    """Write the table. The order of the groups does not matter."""
    ordered = sorted(groups, key=lambda one: IPv4Interface(one.address))
    subnets = {str(IPv4Interface(one.address).network) for one in ordered}
    subnets.add(settings.subnet)
    leads = [rule for one in ordered for rule in _leads(one)]
    bridge, table = settings.name, settings.table
    chains = [
        _chain("spoofed", "filter", "prerouting", _RAW, rules=_spoofed(bridge)),
        _chain("inbound", "nat", "prerouting", _DNAT, rules=leads),
        _chain("local", "nat", "output", _DNAT, rules=leads),
        _chain("source", "nat", "postrouting", _SNAT, rules=_source(bridge, sorted(subnets))),
        _chain("forward", "filter", "forward", _FILTER, rules=_forward(settings)),
        _chain("node", "filter", "input", _FILTER, rules=_node(settings)),
    ]
    lines = [f"table inet {table}", f"delete table inet {table}", f"table inet {table} {{"]
    return "\n".join([*lines, *chains, "}", ""])


def _chain(name: str, kind: str, hook: str, priority: int, *, rules: Sequence[str]) -> str:
    head = f"    type {kind} hook {hook} priority {priority}; policy accept;"
    return "\n".join([f"  chain {name} {{", head, *(f"    {rule}" for rule in rules), "  }"])


def _leads(group: GroupRules) -> list[str]:
    """Lead the node's ports to the group, at all addresses of the node or at one."""
    to = IPv4Interface(group.address).ip
    found = []
    for port in group.ports:
        where = f"ip daddr {port.address}" if port.address else "fib daddr type local"
        for kind in ("tcp", "udp"):
            rule = f"meta nfproto ipv4 {where} {kind} dport {port.host}"
            found.append(f"{rule} dnat ip to {to}:{port.inside}")
    return found


def _spoofed(bridge: str) -> list[str]:
    """Drop what a group sends to the node's own loopback, which `route_localnet` would let in."""
    return [f'iifname "{bridge}" ip daddr {_LOOPBACK} drop']


def _source(bridge: str, subnets: Sequence[str]) -> list[str]:
    return [
        *(f'ip saddr {one} oifname != "{bridge}" masquerade' for one in subnets),
        f'ip saddr {_LOOPBACK} oifname "{bridge}" masquerade',
        # A group that asks for a port of the node that leads to a group: the answer must come back this way.
        *(f'ip saddr {one} oifname "{bridge}" ct status dnat masquerade' for one in subnets),
    ]


def _forward(settings: BridgeSettings) -> list[str]:
    """Let in what a port leads to, and answers; what groups publish is all that others reach."""
    bridge = settings.name
    between = f'iifname "{bridge}" oifname "{bridge}"'
    rules = [
        f'oifname "{bridge}" ct state established,related accept',
        f'oifname "{bridge}" ct status dnat accept',
    ]
    if not settings.isolates_groups:
        rules.append(f"{between} accept")
    return [*rules, f'oifname "{bridge}" drop', f'iifname "{bridge}" accept']


def _node(settings: BridgeSettings) -> list[str]:
    """What groups may reach of the node itself: by default all of it, else names, the cluster's ports and a list."""
    if not settings.isolates_node:
        return []
    bridge = f'iifname "{settings.name}"'
    low, high = settings.port_range
    rules = [
        f"{bridge} ct state established,related accept",
        f"{bridge} meta l4proto {{ icmp, ipv6-icmp }} accept",
    ]
    allowed = [f"{DNS_PORT}", *(f"{low}-{high}",) * (low <= high), *map(str, settings.open_ports)]
    for kind in ("tcp", "udp"):
        rules += [f"{bridge} {kind} dport {one} accept" for one in dict.fromkeys(allowed)]
    return [*rules, f"{bridge} drop"]
