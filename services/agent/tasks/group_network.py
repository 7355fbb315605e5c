"""The network of a group in mode bridge: its address, and what a network says of ports and names.

Decides that tasks wait for their network, which address of the node's bridge an allocation gets, and what the node is
asked to make. Must not know how a namespace is made (`services/agent/network/`). Next: `network_monitor.py`.
"""

from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv4Network

from schemas.nodes import NodeSpec
from services.agent.tasks import task_resources
from services.agent.tasks.environment import alloc_network, node_variables, resolved_dns
from services.agent.tasks.resolved_group import ResolvedGroup
from services.agent.tasks.runtime_state import AllocRuntime, NetworkPhase
from shared.core.runtime.network_messages import PortMapping, PrepareNetwork
from shared.core.splitmix import splitmix64
from shared.jobspec.drivers.registry import driver_traits
from shared.jobspec.network_modes import BRIDGE, BRIDGE_SUBNET_ATTRIBUTE

#: Of a subnet: its own address, the bridge's, and that of all.
_TAKEN = 3


def uses_bridge(plan: ResolvedGroup | None) -> bool:
    """Say whether the tasks of a group share a network of their own."""
    return plan is not None and plan.network.mode == BRIDGE


def must_wait(alloc: AllocRuntime) -> bool:
    """Say whether tasks that could start wait for the network of their group, which is wanted from then on."""
    if not uses_bridge(alloc.plan) or alloc.network is NetworkPhase.READY:
        return False
    if alloc.network is NetworkPhase.NONE:
        alloc.network = NetworkPhase.WANTED
    return True


def bridge_subnet(node: NodeSpec) -> str:
    """Return the subnet of a node's bridge; empty: it has none."""
    return node.attributes.get(BRIDGE_SUBNET_ATTRIBUTE, "")


def choose_address(subnet: str, key: int, used: Iterable[str]) -> str:
    """Choose a free address of a subnet, with the length of its prefix; empty: all are used.

    The search begins where the allocation's key says: an address that was used a moment ago is not used again at once.
    `used`: addresses with or without a prefix length.
    """
    network = IPv4Network(subnet)
    count = network.num_addresses - _TAKEN
    first = int(network.network_address) + 2
    taken = {int(IPv4Interface(one).ip) for one in used}
    start = splitmix64(key) % max(count, 1)
    for step in range(min(count, len(taken) + 1)):
        number = first + (start + step) % count
        if number not in taken:
            return f"{IPv4Interface((number, network.prefixlen))}"
    return ""


def network_order(alloc: AllocRuntime, node: NodeSpec, *, adopt: bool) -> PrepareNetwork:
    """Say what the node makes for an allocation that has an address."""
    plan = alloc.plan
    assert plan is not None
    said = resolved_dns(alloc_network(alloc.desired, plan, node), node_variables(node))
    return PrepareNetwork(
        key=alloc.key,
        alloc_id=alloc.desired.alloc_id,
        address=alloc.address,
        hostname=said.hostname or alloc.desired.alloc_id[:12],
        ports=_mappings(alloc, plan, node),
        dns_servers=said.dns_servers,
        dns_searches=said.dns_searches,
        dns_options=said.dns_options,
        has_containers=any(driver_traits(one.driver).joins_container for one in plan.tasks),
        adopt=adopt,
    )


def _mappings(alloc: AllocRuntime, plan: ResolvedGroup, node: NodeSpec) -> tuple[PortMapping, ...]:
    addresses = task_resources.port_addresses(plan, node)
    found = {
        label: PortMapping(label=label, host=host, inside=inside, address=addresses.get(label, ""))
        for task in plan.tasks
        for label, (host, inside) in task_resources.task_ports(alloc.desired, plan, task).items()
    }
    return tuple(found[label] for label in sorted(found))
