"""A network namespace of a task's own: the loopback, and nothing else. Decides nothing."""

import fcntl
import socket
import struct

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def raise_loopback() -> None:
    """Turn the loopback of this process's namespace on. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
        fcntl.ioctl(end, _SIOCSIFFLAGS, struct.pack("=16sh14x", b"lo", _IFF_UP))
