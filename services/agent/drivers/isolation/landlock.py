"""Landlock: rights over files that a process gives up forever, for itself and all it starts.

Decides which rights a rule carries, by the version the kernel speaks. Needs no privilege. Source: the kernel's
Documentation/userspace-api/landlock.rst; numbers are the same on every architecture.
"""

import ctypes
import os
import stat

from services.agent.drivers.isolation.kernel import check, libc

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
#: refer came with version 2, truncate with 3, ioctl on devices with 5.
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1
#: What a rule on a file, not a directory, may carry.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
READ = _EXECUTE | _READ_FILE | _READ_DIR
#: abstract sockets and signals, from version 6 on, stay among the task's own processes.
_SCOPES = 3


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return what version the kernel speaks; 0: none, or it was turned off at boot."""
    return max(int(libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), _VERSION)), 0)


def restrict(
    *, read: tuple[str, ...], write: tuple[str, ...], opened: tuple[int, ...] = ()
) -> None:
    """Give up everything but reading and executing below `read` and all below `write`. Needs no_new_privs.

    What is not there, or below a directory that this user may not enter, is left out. `opened`: files that may be
    opened again, as /dev/stdout. Raises OSError.
    """
    speaks = version()
    if not speaks:
        raise OSError(95, "this kernel has no Landlock")
    rights = _FIRST
    rights |= (_REFER if speaks >= 2 else 0) | (_TRUNCATE if speaks >= 3 else 0)
    rights |= _IOCTL if speaks >= 5 else 0
    size = 24 if speaks >= 6 else 16 if speaks >= 4 else 8
    asked = _Ruleset(fs=rights, scoped=_SCOPES if speaks >= 6 else 0)
    made = libc.syscall(ctypes.c_long(_CREATE), ctypes.byref(asked), ctypes.c_size_t(size), 0)
    ruleset = check(int(made), "landlock_create_ruleset")
    try:
        for paths, allowed in ((read, READ), (write, rights)):
            for path in paths:
                _allow(ruleset, path, allowed & rights)
        for fd in opened:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                _add(ruleset, fd, rights & _OF_FILES, f"descriptor {fd}")
        check(int(libc.syscall(ctypes.c_long(_RESTRICT), ruleset, 0)), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        # A path that cannot be reached needs no rule: it stays out of reach.
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            allowed &= _OF_FILES
        _add(ruleset, fd, allowed, path)
    finally:
        os.close(fd)


def _add(ruleset: int, fd: int, allowed: int, about: str) -> None:
    rule = _Beneath(allowed=allowed, parent=fd)
    done = libc.syscall(ctypes.c_long(_ADD), ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    check(int(done), f"landlock rule for {about}")
