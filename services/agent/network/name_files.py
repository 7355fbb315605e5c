"""resolv.conf and hosts of a group: what its tasks resolve names with.

A name server on the node's own loopback cannot be reached from a namespace: the servers that it asks itself are used.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from shared.core.runtime.network_messages import PrepareNetwork

_RESOLV_CONF = Path("/etc/resolv.conf")
#: Where resolvers that listen on the loopback keep the list of the servers that they ask.
_UPSTREAM = (
    Path("/run/systemd/resolve/resolv.conf"),
    Path("/run/NetworkManager/no-stub-resolv.conf"),
)


def resolv_conf(order: PrepareNetwork, host_texts: Iterable[str], default: tuple[str, ...]) -> str:
    """Write the file: what the group says, else `default`, else the first text of the node that names a server.

    `host_texts`: resolv.conf of the node and of what stands behind it, in order.
    """
    servers, searches, options = order.dns_servers, order.dns_searches, order.dns_options
    if not servers:
        found = [_parsed(text) for text in host_texts]
        named = next((one for one in found if one["nameserver"]), None)
        servers = default or tuple(named["nameserver"] if named else ())
        if found:
            searches = searches or tuple((named or found[0])["search"])
            options = options or tuple((named or found[0])["options"])
    lines = [f"nameserver {one}" for one in servers]
    lines += [f"search {' '.join(searches)}"] if searches else []
    lines += [f"options {' '.join(options)}"] if options else []
    return "".join(f"{line}\n" for line in lines)


def hosts_file(order: PrepareNetwork) -> str:
    """Write the file: the loopback, and the group's own name."""
    own = order.address.partition("/")[0]
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return "".join(f"{line}\n" for line in (*lines, f"{own} {order.hostname}"))


def host_texts() -> list[str]:
    """Read what the node has."""
    found = []
    for path in (_RESOLV_CONF, *_UPSTREAM):
        try:
            found.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return found


def _parsed(text: str) -> dict[str, list[str]]:
    """Read a resolv.conf, without servers on the loopback; the last `search` counts, as for the C library."""
    found: dict[str, list[str]] = {"nameserver": [], "search": [], "options": []}
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if word == "nameserver" and rest and _is_reachable(rest[0]):
            found["nameserver"].append(rest[0])
        elif word in ("search", "domain"):
            found["search"] = rest
        elif word == "options":
            found["options"] += rest
    return found


def _is_reachable(server: str) -> bool:
    try:
        address = ip_address(server.partition("%")[0])
    except ValueError:
        return False
    return address.version == 4 and not address.is_loopback and not address.is_unspecified
