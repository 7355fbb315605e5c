"""Checks that the ports of an allocation are free on this node, before its first task starts.

Decides what counts as taken: a TCP listener or a UDP socket anywhere on the machine that is not the allocation's. The
cluster avoids conflicts between its allocations; this finds other processes. Next: `alloc_dirs.py`.
"""

import contextlib
import errno
import socket


def find_port_in_use(ports: dict[str, tuple[int, int]], shared: tuple[str, ...]) -> str:
    """Describe a port that is in use; empty: none. `shared`: labels that other allocations may hold too."""
    for label in sorted(ports):
        number = ports[label][0]
        if label not in shared and _is_taken(number):
            return f"port {number} ({label}) is in use by another process of this node"
    return ""


def _is_taken(number: int) -> bool:
    return any(
        _is_bound(family, kind, number)
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        for family in (socket.AF_INET, socket.AF_INET6)
    )


def _is_bound(family: int, kind: int, number: int) -> bool:
    address = "0.0.0.0" if family == socket.AF_INET else "::"  # noqa: S104
    with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            # As a server does: closing connections do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((address, number))
        except OSError as err:
            return err.errno == errno.EADDRINUSE
    return False
