"""System calls that Python does not have: namespaces, mounts, capabilities, and a few words to the kernel.

Raises OSError with what was attempted. Must not import more than it needs: it lives in the starter, and every keeper is
a fork of that. Linux only; numbers that differ between machines are in `seccomp.py`.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 32, 4096, 16384, 1 << 18, 1 << 19
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
#: Highest capability that is tried to be dropped; the kernel says EINVAL beyond its own last.
_CAPABILITIES_MAX = 64
_CAPABILITY_VERSION_3 = 0x20080522
#: The ones a task may be given by name, where the operator allows them (capability.h).
CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    "net_bind_service": 10,
    "net_raw": 13,
    "sys_chroot": 18,
    "mknod": 27,
    "audit_write": 29,
    "setfcap": 31,
}

#: Unlock the other end of a terminal; open it, without a path (ioctl_tty(2)).
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441

libc = ctypes.CDLL(None, use_errno=True)
#: The C library has no function for it.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}


def check(result: int, what: str) -> int:
    """Raise OSError naming `what` when a call said -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name for new ones; a pid namespace begins with the next child."""
    check(libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Enter the namespace that an open /proc/<pid>/ns file names."""
    check(libc.setns(fd, flags), "setns")


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, data: str = "") -> None:
    """Mount; empty texts are passed as no argument."""
    words = [os.fsencode(text) or None for text in (source, target, kind)]
    done = libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    check(done, f"mount {source or kind} at {target}")


def unmount(target: str) -> None:
    """Detach a mount and all below it; the last step of the path is not followed. Raises OSError."""
    check(libc.umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW), f"umount {target}")


def pivot_root() -> None:
    """Make the current directory the root, and detach the old one."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"pivot_root is not supported on {os.uname().machine}")
    check(libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def prctl(option: int, *values: int) -> int:
    """Say one word to the kernel about this process."""
    words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return int(libc.prctl(ctypes.c_int(option), *words))


def no_new_privileges() -> None:
    """Nothing that is executed from here on gains rights: no set-uid program, no file capability."""
    check(prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def set_process_name(name: str) -> None:
    """Set the name that `ps` shows, 15 bytes of it."""
    libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def limit_capabilities(keep: tuple[int, ...]) -> None:
    """Take every capability but `keep` out of what this process and its children can ever have."""
    for number in range(_CAPABILITIES_MAX):
        if number not in keep and prctl(_PR_CAPBSET_DROP, number) < 0:
            break


def set_capabilities(keep: tuple[int, ...], *, ambient: bool) -> None:
    """Hold exactly `keep`; `ambient`: and let an executed program hold them too."""
    bits = sum(1 << number for number in keep)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    held = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    check(libc.capset(header, held), "capset")
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for number in keep if ambient else ():
        check(prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number), "ambient capability")


def keep_capabilities() -> None:
    """Let the permitted ones survive the change of user that follows."""
    check(prctl(8, 1), "keepcaps")


def die_with_parent(signal_number: int) -> None:
    """Be sent a signal when the process that made this one ends."""
    check(prctl(_PR_SET_PDEATHSIG, signal_number), "pdeathsig")


def become_subreaper() -> None:
    """Be the parent of every process below this one whose own parent ends."""
    check(prctl(_PR_SET_CHILD_SUBREAPER, 1), "child_subreaper")


def close_on_exec() -> None:
    """Mark everything but 0, 1 and 2 to be closed when a program is executed."""
    close_range, mark = 436, 4
    if libc.syscall(ctypes.c_long(close_range), 3, ctypes.c_uint(0xFFFFFFFF), mark) < 0:
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(fd), int(fd) < 3)


def close_all_but(kept: int = -1) -> None:
    """Close everything above 2 but one descriptor: a path below /proc/self/fd leads to what is open.

    Raises OSError where the kernel has no such call and /proc is not there.
    """
    close_range, last = 436, 0xFFFFFFFF
    ranges = [(3, last)] if kept < 3 else [(3, kept - 1), (kept + 1, last)]
    for first, end in ranges:
        if first > end:
            continue
        words = (ctypes.c_uint(first), ctypes.c_uint(end), 0)
        if libc.syscall(ctypes.c_long(close_range), *words) < 0:
            for fd in os.listdir("/proc/self/fd"):
                if first <= int(fd) <= end:
                    with contextlib.suppress(OSError):
                        os.close(int(fd))


def raise_loopback() -> None:
    """Turn the loopback of this process's network namespace on."""
    set_flags, is_up = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
        fcntl.ioctl(end, set_flags, struct.pack("=16sh14x", b"lo", is_up))


def open_terminal(place: str) -> tuple[int, int]:
    """Open a new terminal of the devpts at `place`. Returns both ends, the master first."""
    master = os.open(f"{place}/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        return master, fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except BaseException:
        os.close(master)
        raise
