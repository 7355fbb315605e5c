"""Validation of the networks of a group: modes, ports, names, and what tasks may say beside a network of the group."""

import re
from ipaddress import ip_address

import msgspec

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.identifiers import name_error
from shared.jobspec.compile.ports import group_networks
from shared.jobspec.drivers.registry import driver_traits
from shared.jobspec.network_modes import BRIDGE, HOST, NONE
from shared.jobspec.nomad.job import TaskGroup
from shared.jobspec.nomad.placement import Dns, Network, Port

PORT_MAX = 65_535
#: Ports of one group.
PORTS_MAX = 100
HOSTNAME_MAX = 63
_DNS_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
_DNS_WORD = re.compile(r"[!-~]+")
#: Of each list in `dns`.
_DNS_ENTRIES_MAX = 16
#: Options of a container that its group's network decides in mode bridge, and what to use instead.
_OF_THE_GROUP = {
    "hostname": "set hostname in the group's network block",
    "dns_servers": "set dns in the group's network block",
    "dns_search_domains": "set dns in the group's network block",
    "dns_options": "set dns in the group's network block",
    "extra_hosts": "all tasks of the group share one hosts file",
    "network_aliases": "the group is in no network by name",
    "port_map": "set `to` of the group's port",
    "sysctl": "the namespace is the group's",
}


def check_ports(faults: ErrorList, group: TaskGroup, path: str) -> None:
    """Find what is wrong with the networks of a group and of its tasks."""
    total = 0
    labels: dict[str, set[str]] = {}
    numbers: dict[int, str] = {}
    for below, network in group_networks(group):
        here = f"{path}.{below}"
        # A label of the group is every task's; one of a task, as old files have it, is that task's alone.
        own = labels.setdefault(below.partition(".")[0] if below.startswith("Tasks") else "", set())
        known = (labels.get("", own), own)
        _mode(faults, group, network, here)
        total += len(network.reserved_ports) + len(network.dynamic_ports)
        if total > PORTS_MAX:
            faults.add(here, f"{total} ports in the group, at most {PORTS_MAX} are allowed")
            return
        for at, port in enumerate(network.reserved_ports):
            _port(faults, port, known, path=f"{here}.ReservedPorts[{at}]")
            _static(faults, port, numbers, f"{here}.ReservedPorts[{at}].Value")
            if port.ignore_collision and network.mode == BRIDGE:
                text = "is only for mode host: two groups cannot have one port of a node"
                faults.add(f"{here}.ReservedPorts[{at}].IgnoreCollision", text)
        for at, port in enumerate(network.dynamic_ports):
            _port(faults, port, known, path=f"{here}.DynamicPorts[{at}]")
            if port.static:
                text = f"a static port belongs under ReservedPorts, was {port.static}"
                faults.add(f"{here}.DynamicPorts[{at}].Value", text)
    _bridge(faults, group, path)


def _mode(faults: ErrorList, group: TaskGroup, network: Network, path: str) -> None:
    mode = network.mode
    if mode.startswith("cni/"):
        text = "networks of CNI plugins are not built yet; mode bridge needs none"
        faults.add(f"{path}.Mode", text)
    elif mode not in {"", HOST, BRIDGE, NONE}:
        faults.add(f"{path}.Mode", f"must be host, bridge or none, was {mode[:80]!r}")
    if network.hostname and (text := _hostname_error(network.hostname)):
        faults.add(f"{path}.Hostname", text)
    if network.dns is not None:
        _dns(faults, network.dns, f"{path}.DNS")
    plain = [task for task in group.tasks if driver_traits(task.driver).is_on_host_network]
    if mode == NONE and plain:
        name, driver = plain[0].name, plain[0].driver
        text = f"task {name!r} uses {driver}, which has the node's network; use exec or docker"
        faults.add(f"{path}.Mode", text)


def _hostname_error(name: str) -> str:
    """Describe what is wrong with a host name: labels of DNS, in all as long as the kernel takes."""
    if "${" in name:
        return "is not interpolated: the group has no variables; use a plain name"
    if len(name) > HOSTNAME_MAX or not all(map(_DNS_LABEL.fullmatch, name.split("."))):
        text = "must be a DNS name: letters, digits, dots and dashes"
        return f"{text}, at most {HOSTNAME_MAX}, was {name[:80]!r}"
    return ""


def _dns(faults: ErrorList, dns: Dns, path: str) -> None:
    lists = (("Servers", dns.servers), ("Searches", dns.searches), ("Options", dns.options))
    for name, texts in lists:
        if len(texts) > _DNS_ENTRIES_MAX:
            faults.add(f"{path}.{name}", f"{len(texts)} entries, at most {_DNS_ENTRIES_MAX}")
            continue
        for at, text in enumerate(texts):
            if "${" in text:
                continue
            if name == "Servers" and not _is_address(text):
                faults.add(f"{path}.{name}[{at}]", f"must be an address, was {text[:80]!r}")
            elif not _DNS_WORD.fullmatch(text):
                faults.add(f"{path}.{name}[{at}]", f"must be one word, was {text[:80]!r}")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


# ---- mode bridge ----


def _bridge(faults: ErrorList, group: TaskGroup, path: str) -> None:
    """Find what cannot be beside a network of the group."""
    for number, task in enumerate(group.tasks):
        for at, network in enumerate(task.resources.networks):
            if network.mode == BRIDGE:
                here = f"{path}.Tasks[{number}].Resources.Networks[{at}].Mode"
                faults.add(here, "mode bridge belongs to the network block of the group")
    if not any(network.mode == BRIDGE for network in group.networks):
        return
    if len(group.networks) > 1:
        text = f"{len(group.networks)} network blocks, a group in mode bridge has one"
        faults.add(f"{path}.Networks[1]", text)
    for number, task in enumerate(group.tasks):
        if driver_traits(task.driver).joins_container:
            _container(faults, bytes(task.config), f"{path}.Tasks[{number}].Config")


def _container(faults: ErrorList, config: bytes, path: str) -> None:
    """Find options of a container that its group decides; one with a network of its own publishes nothing."""
    try:
        said = msgspec.json.decode(config)
    except msgspec.DecodeError:
        return
    if not isinstance(said, dict):
        return
    if said.get("network_mode"):
        for name in ("ports", "port_map"):
            if said.get(name):
                text = (
                    "the group publishes its ports; a task with network_mode is not in its network"
                )
                faults.add(f"{path}.{name}", text)
        return
    for name, text in _OF_THE_GROUP.items():
        if said.get(name):
            faults.add(f"{path}.{name}", f"cannot be set in a group with mode bridge: {text}")


# ---- ports ----


def _port(faults: ErrorList, port: Port, known: tuple[set[str], set[str]], *, path: str) -> None:
    if text := name_error(port.label):
        faults.add(f"{path}.Label", text)
    elif any(port.label in labels for labels in known):
        faults.add(f"{path}.Label", f"another port of the group is named {port.label!r}")
    known[1].add(port.label)
    faults.within(path, ".To", port.to, (-1, PORT_MAX))


def _static(faults: ErrorList, port: Port, numbers: dict[int, str], path: str) -> None:
    if not 1 <= port.static <= PORT_MAX:
        faults.add(path, f"must be 1 to {PORT_MAX}, was {port.static}")
    elif numbers.get(port.static) == port.host_network:
        faults.add(path, f"another port of the group has the number {port.static}")
    numbers[port.static] = port.host_network
