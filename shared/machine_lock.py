"""Which machine this is, and a lock that one process of it holds: a copy of a directory has another lock file.

The lock is a name of the kernel (an abstract socket), so it ends with its holder and no copy takes it along. Containers
with a network of their own have names of their own.
"""

import fcntl
import os
import socket
from pathlib import Path

from shared.errors import ConfigInvalid

_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LENGTH = 32
_PID_CHARS = 64


def machine_id() -> str:
    """Id of this installation, by systemd's file; empty where there is none."""
    try:
        found = _MACHINE_ID.read_text().strip()
    except OSError:
        return ""
    return found if len(found) == _LENGTH else ""


def kernel_boot() -> str:
    """Id of this boot of the kernel: a pid means something within one boot only; empty where there is none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def is_this_boot(boot: str) -> bool:
    """Say whether pids noted under a boot may still be those processes; a boot that is not known counts as this one."""
    return boot in ("", kernel_boot())


def take_machine_lock(name: str, taken: str) -> socket.socket:
    """Take a name on this machine, until the socket is closed. Raises ConfigInvalid with `taken`: another has it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0caravan-{name}")
    except OSError as err:
        held.close()
        raise ConfigInvalid(taken) from err
    return held


def take_file_lock(path: Path, taken: str) -> int:
    """Lock a file for this process and write its pid; return the descriptor that holds the lock.

    Raises ConfigInvalid with `taken` and the pid of the process that has it, OSError when the disk is full or faulty.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        holder = os.read(fd, _PID_CHARS).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise ConfigInvalid(f"{taken}, pid {holder}") from err
    try:
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    except OSError as err:
        os.close(fd)
        # A write through a descriptor does not say of which file.
        err.filename = str(path)
        raise
    return fd
