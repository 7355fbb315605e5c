"""The node's side of all networks: its bridge, the links of groups on it, the table of rules, and their probe.

Blocking; called in threads. Everything is made so that making it again changes nothing. Raises OSError.
"""

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterable
from hashlib import blake2b
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

import structlog

from services.agent.drivers.isolation import kernel
from services.agent.network import namespaces
from services.agent.network.places import INTERFACE, LINK_PREFIX
from services.agent.network.ruleset import GroupRules, table_text
from services.agent.network.settings import PREFIX, BridgeSettings, gateway_of
from shared.core.runtime.network_messages import PortMapping

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_LOWEST_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_FILTERED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_LOCALNET = "/proc/sys/net/ipv4/conf/{}/route_localnet"
#: Chain of Docker's that its own rules leave to others: what it accepts, Docker's drop does not reach.
_DOCKER_CHAIN = "DOCKER-USER"
_log = structlog.get_logger()


class NodeBridge:
    """The bridge of one agent."""

    def __init__(self, settings: BridgeSettings, *, is_trial: bool = False) -> None:
        self.settings = settings
        self._is_trial = is_trial
        self._making = threading.Lock()
        #: whether the bridge was said to keep groups apart.
        self._parted = False
        #: the table as the kernel lists it after it was written.
        self._listed = ""

    # ---- bridge ----

    def ensure(self, subnets: Iterable[str]) -> bool:
        """Make the bridge, with an address in its own subnet and in those. Returns whether anything was missing.

        One thread at a time: two groups may need it at once.
        """
        with self._making:
            return self._ensure(subnets)

    def _ensure(self, subnets: Iterable[str]) -> bool:
        name, changed = self.settings.name, False
        if not is_there(name):
            namespaces.run("ip", "link", "add", name, "address", _mac(name), "type", "bridge")
            changed = True
        wanted = {self.settings.gateway, *(gateway_of(IPv4Network(one)) for one in subnets)}
        listed = namespaces.run("ip", "-o", "addr", "show", "dev", name)
        for address in sorted(wanted - set(listed.split())):
            namespaces.run("ip", "addr", "add", address, "dev", name)
            changed = True
        namespaces.run("ip", "link", "set", name, "up")
        _write(Path(_LOCALNET.format(name)), "1")
        if _write(_FORWARD, "1") and not self._is_trial:
            _log.warning("network.forwarding", reason="the node forwards packets from now on")
        return changed

    def links(self) -> frozenset[str]:
        """Names of the links of groups on the bridge."""
        if not is_there(self.settings.name):
            return frozenset()
        lines = namespaces.run("ip", "-o", "link", "show", "master", self.settings.name)
        names = (
            line.split(": ")[1].partition("@")[0] for line in lines.splitlines() if ": " in line
        )
        return frozenset(name for name in names if name.startswith(LINK_PREFIX))

    def connect(self, link: str, namespace: Path, address: str) -> None:
        """Give a namespace its link to the bridge and its address, anew if there is anything less than both."""
        if link in self.links() and _has_address(namespace, address):
            return
        disconnect(link)
        peer = ("peer", "name", INTERFACE, "netns", str(namespace))
        namespaces.run("ip", "link", "add", link, "type", "veth", *peer)
        namespaces.run("ip", "link", "set", link, "master", self.settings.name, "up")
        self._part(link)
        gateway = gateway_of(IPv4Interface(address).network).partition("/")[0]

        def configure() -> None:
            kernel.raise_loopback()
            # The ports are the group's own: no task needs a privilege for a low one.
            _write(_LOWEST_PORT, "0")
            namespaces.run("ip", "addr", "add", address, "dev", INTERFACE)
            namespaces.run("ip", "link", "set", INTERFACE, "up")
            namespaces.run("ip", "route", "add", "default", "via", gateway)

        namespaces.inside(namespace, configure)

    def part_links(self, links: Iterable[str]) -> None:
        """Part links anew where the kernel filters on bridges now, or does not any more."""
        if self._is_parted() != self._parted:
            for link in sorted(links):
                self._part(link)

    def _part(self, link: str) -> None:
        self._parted = self._is_parted()
        flags = ("hairpin", "on", "isolated", "on" if self._parted else "off")
        namespaces.run("ip", "link", "set", link, "type", "bridge_slave", *flags)

    def _is_parted(self) -> bool:
        """Say whether the bridge itself keeps groups apart.

        Where rules see what passes the bridge (module br_netfilter), they do; the bridge would drop what a port of the
        node leads to, too.
        """
        if not self.settings.isolates_groups:
            return False
        try:
            return _FILTERED.read_text(encoding="ascii").strip() == "0"
        except FileNotFoundError:
            return True

    # ---- rules ----

    def write_rules(self, groups: Iterable[GroupRules]) -> None:
        """Replace the table by that of these groups."""
        namespaces.run("nft", "-f", "-", text=table_text(self.settings, groups))
        self._listed = self._list()
        self._pass_docker()

    def has_rules(self) -> bool:
        """Say whether the table is as it was written."""
        with contextlib.suppress(OSError):
            return bool(self._listed) and self._list() == self._listed
        return False

    def remove(self) -> None:
        """Remove bridge and table: no group is left."""
        with contextlib.suppress(OSError):
            namespaces.run("nft", "delete", "table", "inet", self.settings.table)
        for link in self.links():
            disconnect(link)
        disconnect(self.settings.name)
        self._listed = ""

    def _list(self) -> str:
        return namespaces.run("nft", "list", "table", "inet", self.settings.table)

    def _pass_docker(self) -> None:
        """Let groups through the rules of a Docker Engine, which drops all that it does not forward itself."""
        if not namespaces.program("iptables"):
            return
        tables = ("iptables", "-w", "5")
        with contextlib.suppress(OSError):
            namespaces.run(*tables, "-n", "-L", _DOCKER_CHAIN)
            for side in ("-i", "-o"):
                rule = (_DOCKER_CHAIN, side, self.settings.name, "-j", "ACCEPT")
                try:
                    namespaces.run(*tables, "-C", *rule)
                except OSError:
                    namespaces.run(*tables, "-I", *rule)

    # ---- probe ----

    def probe(self, top: Path) -> str:
        """Try all of it in a namespace that is gone afterwards. Returns why it does not work; empty: it does."""
        for name in namespaces.PROGRAMS:
            if not namespaces.program(name):
                return f"program {name} is not installed"
        scratch = top / "netns" / ".probe" / "net"
        try:
            if taken := _overlap(self.settings):
                return taken
            try:
                namespaces.make(scratch)
                namespaces.inside(scratch, self._try)
            finally:
                namespaces.release(scratch)
                scratch.parent.rmdir()
        except OSError as err:
            return f"{err.strerror or err}" + (f": {err.filename}" if err.filename else "")
        return ""

    def _try(self) -> None:
        """Make a bridge, a link and a table in the namespace of this thread."""
        trial = NodeBridge(self.settings, is_trial=True)
        trial.ensure(())
        link, address = f"{LINK_PREFIX}probe", str(IPv4Interface(self.settings.gateway) + 1)
        namespaces.run("ip", "link", "add", link, "type", "veth", "peer", "name", "probe1")
        namespaces.run("ip", "link", "set", link, "master", self.settings.name, "up")
        flags = ("hairpin", "on", "isolated", "on")
        namespaces.run("ip", "link", "set", link, "type", "bridge_slave", *flags)
        prefix = self.settings.subnet.partition("/")[2]
        ports = (PortMapping(label="probe", host=1, inside=1),)
        rules = GroupRules(address=f"{address.partition('/')[0]}/{prefix}", ports=ports)
        namespaces.run("nft", "-f", "-", text=table_text(self.settings, [rules]))


def is_there(link: str) -> bool:
    """Say whether the namespace of this thread has a link."""
    try:
        return socket.if_nametoindex(link) > 0
    except OSError:
        return False


def disconnect(link: str) -> None:
    """Remove a link, and with it the end inside a namespace."""
    if is_there(link):
        try:
            namespaces.run("ip", "link", "delete", link)
        except OSError:
            # It may have gone with its namespace in the meantime.
            if is_there(link):
                raise


def _has_address(namespace: Path, address: str) -> bool:
    def look() -> bool:
        shown = namespaces.run("ip", "-o", "addr", "show", "dev", INTERFACE, "up")
        routes = namespaces.run("ip", "-4", "route", "show", "default")
        return address in shown.split() and INTERFACE in routes.split()

    try:
        return namespaces.inside(namespace, look)
    except OSError:
        return False


def _mac(name: str) -> str:
    """Address of the bridge: a bridge without one of its own changes it with its links."""
    digest = blake2b(name.encode(), digest_size=5).digest()
    return ":".join(f"{byte:02x}" for byte in (2, *digest))


def _write(path: Path, text: str) -> bool:
    """Set a value of the kernel; says whether it was another one."""
    if path.read_text(encoding="ascii").strip() == text:
        return False
    path.write_text(text, encoding="ascii")
    return True


def _overlap(settings: BridgeSettings) -> str:
    """Say which route of the node the subnet would hide; empty: none."""
    own = IPv4Network(settings.subnet)
    for line in namespaces.run("ip", "-4", "-o", "route", "show", "table", "main").splitlines():
        words = line.split()
        if not words or words[0] in ("default", "unreachable", "blackhole", "prohibit"):
            continue
        with contextlib.suppress(ValueError):
            taken = ipaddress.IPv4Network(words[0], strict=False)
            if taken.overlaps(own) and settings.name not in words:
                return f"subnet {own} overlaps the route to {taken}; set {PREFIX}SUBNET"
    return ""
