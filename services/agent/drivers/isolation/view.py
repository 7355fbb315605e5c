"""The files that a confined task sees: its own directory as root, the node's programs in it read only, and no more.

Decides what is shown and where. The layout is Nomad's: `/local`, `/secrets`, `/tmp`, `/alloc` are the task's and its
allocation's, beside `/bin`, `/usr`, … of the node. Of `/etc` only what programs need to run is shown.
Nothing below the task's directory is trusted: it may hold links that an earlier run left. Each mount point is opened
without following anything and mounted on by its descriptor. Runs in a mount namespace of its own, as root; what it
mounts vanishes with the last process in there.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from services.agent.drivers.isolation import kernel
from services.agent.drivers.isolation.kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID

SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
ETC = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "default/locale",
    "fonts",
    "group",
    "host.conf",
    "hosts",
    "java*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.musl-x86_64.path",
    "localtime",
    "locale.conf",
    "login.defs",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki",
    "profile",
    "protocols",
    "python3*",
    "resolv.conf",
    "services",
    "ssl",
    "timezone",
]
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: Of /proc: what tells of the node's memory, keys and timers, or commands it. Root alone could, and nobody here is.
_MASKED = ("kcore", "keys", "timer_list", "sysrq-trigger", "kallsyms", "kmsg")
_FLAGS = MS_NOSUID | MS_NODEV
_READ_ONLY = kernel.MS_REMOUNT | MS_BIND | kernel.MS_RDONLY | MS_NOSUID | MS_NODEV


def open_below(top: str, path: str, *, make: bool = False) -> int:
    """Open a directory below `top`, following no link on the way. Raises OSError; the caller closes it."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in Path(path).relative_to(top).parts:
        above = fd
        try:
            fd = _step(above, part, make=make)
        finally:
            os.close(above)
    return fd


def _step(above: int, part: str, *, make: bool) -> int:
    if part == "..":
        raise OSError(1, f"{part} is no way down")
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=above)
    try:
        return os.open(
            part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above
        )
    except OSError as err:
        raise OSError(err.errno, f"{part} is no directory: {err.strerror}") from err


def build(
    *,
    top: str,
    task: str,
    shared: str,
    shown: tuple[str, ...],
    devices: tuple[str, ...],
) -> None:
    """Make the view and make it this process's root. Raises OSError."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    root = open_below(top, task)
    try:
        kernel.mount(_of(root), _of(root), flags=MS_BIND | kernel.MS_REC)
    finally:
        os.close(root)
    # The path leads to the new mount now; nobody but root can change it down to the task's directory.
    root = open_below(top, task)
    kernel.mount("", _of(root), flags=kernel.MS_REMOUNT | MS_BIND | _FLAGS)
    _system(root)
    _extra(root, shown)
    _etc(root)
    _dev(root, devices)
    _proc(root)
    within = open_below(top, shared)
    _bind(root, "alloc", lambda at: kernel.mount(_of(within), at, flags=MS_BIND | kernel.MS_REC))
    os.close(within)
    _bind(
        root, "alloc", lambda at: kernel.mount("", at, flags=kernel.MS_REMOUNT | MS_BIND | _FLAGS)
    )
    os.fchdir(root)
    os.close(root)
    kernel.pivot_root()


def _of(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _bind(root: int, path: str, work: Callable[[str], None], *, make: bool = True) -> None:
    """Do something at a mount point below the root, opened link by link."""
    fd = os.dup(root)
    for part in path.split("/"):
        above = fd
        try:
            fd = _step(above, part, make=make)
        finally:
            os.close(above)
    try:
        work(_of(fd))
    finally:
        os.close(fd)


def _show(root: int, source: str, path: str) -> None:
    """Show a directory of the node, read only."""
    _bind(root, path, lambda at: kernel.mount(source, at, flags=MS_BIND))
    _bind(root, path, lambda at: kernel.mount("", at, flags=_READ_ONLY), make=False)


def _system(root: int) -> None:
    for name in SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            _link(root, name, os.readlink(path).lstrip("/"))
        elif os.path.isdir(path):
            _show(root, path, name)


def _link(root: int, name: str, to: str) -> None:
    try:
        os.symlink(to, name, dir_fd=root)
    except FileExistsError:
        if os.readlink(name, dir_fd=root) != to:
            raise OSError(17, f"{name} stands in the way in the task's directory") from None


def _extra(root: int, shown: tuple[str, ...]) -> None:
    for path in shown:
        if os.path.isdir(path):
            _show(root, path, path.strip("/"))


def _etc(root: int) -> None:
    _bind(
        root,
        "etc",
        lambda at: kernel.mount("etc", at, "tmpfs", flags=_FLAGS, data="size=1m,mode=755"),
    )
    etc = os.open("etc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        for name in etc_names():
            _one_of_etc(etc, name)
        kernel.mount("", _of(etc), flags=_READ_ONLY)
    finally:
        os.close(etc)


def etc_names() -> list[str]:
    """What of `/etc` is shown, as far as it may be there."""
    heads = tuple(name[:-1] for name in ETC if name.endswith("*"))
    found = [name for name in os.listdir("/etc") if name.startswith(heads)]
    return sorted([*found, *(name for name in ETC if not name.endswith("*"))])


def _one_of_etc(etc: int, name: str) -> None:
    """A link is shown as what it leads to; what cannot be found is left out."""
    source, place = f"/etc/{name}", f"{_of(etc)}/{name}"
    try:
        is_directory = stat.S_ISDIR(os.stat(source).st_mode)
    except OSError:
        return
    if "/" in name:
        os.makedirs(os.path.dirname(place), exist_ok=True)
    if is_directory:
        os.mkdir(name, dir_fd=etc)
        kernel.mount(source, place, flags=MS_BIND)
        kernel.mount("", place, flags=_READ_ONLY)
    else:
        # A file alone is as safe as on the node: it is root's, and no task is.
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=etc))
        kernel.mount(source, place, flags=MS_BIND)


def _dev(root: int, devices: tuple[str, ...]) -> None:
    # A tmpfs, so that nothing of the node's /dev shows but what is named.
    data = "size=64k,mode=755"
    _bind(
        root,
        "dev",
        lambda at: kernel.mount("dev", at, "tmpfs", flags=MS_NOSUID | MS_NOEXEC, data=data),
    )
    dev = os.open("dev", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    place = _of(dev)
    try:
        for name in (*_DEVICES, *(path.removeprefix("/dev/") for path in devices)):
            if os.path.exists(f"/dev/{name}"):
                if "/" in name:
                    os.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
                os.close(os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
                kernel.mount(f"/dev/{name}", f"{place}/{name}", flags=MS_BIND)
        for name, to in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(f"/proc/self/{to}", f"{place}/{name}")
        os.mkdir(f"{place}/shm")
        flags = _FLAGS | MS_NOEXEC
        kernel.mount("shm", f"{place}/shm", "tmpfs", flags=flags, data="size=64m,mode=1777")
        os.mkdir(f"{place}/pts")
        flags = MS_NOSUID | MS_NOEXEC
        kernel.mount(
            "devpts",
            f"{place}/pts",
            "devpts",
            flags=flags,
            data="newinstance,ptmxmode=0666,mode=620",
        )
        os.symlink("pts/ptmx", f"{place}/ptmx")
        kernel.mount(
            "", place, flags=kernel.MS_REMOUNT | MS_BIND | kernel.MS_RDONLY | MS_NOSUID | MS_NOEXEC
        )
    finally:
        os.close(dev)


def _proc(root: int) -> None:
    # Only its own user's processes show: not init, nor others' where it shares the node's pids.
    flags = _FLAGS | MS_NOEXEC
    _bind(
        root,
        "proc",
        lambda at: kernel.mount("proc", at, "proc", flags=flags, data="hidepid=invisible"),
    )
    proc = os.open("proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        for name in _MASKED:
            if os.path.exists(f"{_of(proc)}/{name}"):
                kernel.mount("/dev/null", f"{_of(proc)}/{name}", flags=MS_BIND)
        if os.path.isdir(f"{_of(proc)}/sys"):
            kernel.mount(f"{_of(proc)}/sys", f"{_of(proc)}/sys", flags=MS_BIND)
            kernel.mount("", f"{_of(proc)}/sys", flags=_READ_ONLY)
    finally:
        os.close(proc)
