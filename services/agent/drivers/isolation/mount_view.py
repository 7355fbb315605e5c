"""The files that a confined task sees: its own directory as root, the node's programs in it read only, and no more.

Decides what is shown and where. The layout is Nomad's: `/local`, `/secrets`, `/tmp`, `/alloc` are the task's and its
allocation's, beside `/bin`, `/usr`, … of the node. Of `/etc` only what programs need to run is shown.
Nothing below the task's directory is trusted: it may hold links that an earlier run left. Each mount point is opened
without following anything and mounted on by its descriptor. Runs in a mount namespace of its own, as root; what it
mounts vanishes with the last process in there.
"""

import os
import stat
from collections.abc import Mapping
from types import MappingProxyType

from services.agent.drivers.isolation import kernel
from services.agent.drivers.isolation.kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID
from services.agent.safe_open import open_below, open_within

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
#: Of /proc: what tells of the node's memory, keys and timers, or commands it. Only root could, and tasks are not.
_MASKED = ("kcore", "keys", "timer_list", "sysrq-trigger", "kallsyms", "kmsg")
#: Settings of the node, for every user who may write to any file.
_PROC_READ_ONLY = ("acpi", "bus", "fs", "irq", "mtrr", "scsi", "sys")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_FLAGS = MS_NOSUID | MS_NODEV
_READ_ONLY_DEVICE = kernel.MS_REMOUNT | MS_BIND | kernel.MS_RDONLY | MS_NOSUID | MS_NOEXEC
_READ_ONLY = kernel.MS_REMOUNT | MS_BIND | kernel.MS_RDONLY | MS_NOSUID | MS_NODEV


def build_view(
    *,
    top: str,
    task: str,
    shared: str,
    shown: tuple[str, ...],
    devices: tuple[str, ...],
    volumes: tuple[tuple[str, str, bool], ...] = (),
    receiving: tuple[str, ...] = (),
    etc: Mapping[str, str] = _NOTHING,
) -> None:
    """Create the view and make it this process's root. Raises OSError.

    `receiving`: places of volumes in which later mounts of the node appear. `etc`: files in the place of the node's.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    # Nothing that is mounted here reaches the node; what the node mounts later reaches only what is left a slave.
    kind = kernel.MS_SLAVE if receiving else kernel.MS_PRIVATE
    kernel.mount("", "/", flags=kernel.MS_REC | kind)
    root = open_below(top, task)
    try:
        kernel.mount(_fd_path(root), _fd_path(root), flags=MS_BIND | kernel.MS_REC)
    finally:
        os.close(root)
    # The path leads to the new mount now; only root can change it down to the task's directory.
    root = open_below(top, task)
    kernel.mount("", _fd_path(root), flags=kernel.MS_REMOUNT | MS_BIND | _FLAGS)
    _bind_system(root)
    _bind_extra(root, shown)
    _etc(root, etc)
    _dev(root, devices)
    _proc(root)
    within = open_below(top, shared)
    _mount_at(root, "alloc", _fd_path(within), flags=MS_BIND | kernel.MS_REC)
    os.close(within)
    _mount_at(root, "alloc", "", flags=kernel.MS_REMOUNT | MS_BIND | _FLAGS)
    if receiving:
        kernel.mount("", _fd_path(root), flags=kernel.MS_REC | kernel.MS_PRIVATE)
    for source, place, is_read_only in volumes:
        _volume(root, source, place, is_read_only=is_read_only, receives=place in receiving)
    os.fchdir(root)
    os.close(root)
    kernel.pivot_root()


def _fd_path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _mount_at(
    root: int, path: str, source: str, kind: str = "", *, flags: int, data: str = ""
) -> None:
    """Mount on a directory below the root, made where it is missing and opened link by link."""
    fd = open_within(root, path, make_mode=0o755)
    try:
        kernel.mount(source, _fd_path(fd), kind, flags=flags, data=data)
    finally:
        os.close(fd)


def _show(root: int, source: str, path: str) -> None:
    """Show a directory of the node, read only."""
    _mount_at(root, path, source, flags=MS_BIND)
    _mount_at(root, path, "", flags=_READ_ONLY)


def _volume(root: int, source: str, place: str, *, is_read_only: bool, receives: bool) -> None:
    """Mount a host volume, without what is mounted in it: a remount would leave that writable.

    One that `receives` has what is mounted in it, now and later.
    """
    fd = open_below("/", source)
    try:
        flags = MS_BIND | kernel.MS_REC if receives else MS_BIND
        _mount_at(root, place.lstrip("/"), _fd_path(fd), flags=flags)
    finally:
        os.close(fd)
    if not receives:
        _mount_at(root, place.lstrip("/"), "", flags=kernel.MS_PRIVATE)
    flags = _READ_ONLY if is_read_only else kernel.MS_REMOUNT | MS_BIND | _FLAGS
    _mount_at(root, place.lstrip("/"), "", flags=flags)


def _bind_system(root: int) -> None:
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
            raise OSError(17, f"{name} already exists in the task directory") from None


def _bind_extra(root: int, shown: tuple[str, ...]) -> None:
    for path in shown:
        if os.path.isdir(path):
            _show(root, path, path.strip("/"))


def _etc(root: int, others: Mapping[str, str]) -> None:
    _mount_at(root, "etc", "etc", "tmpfs", flags=_FLAGS, data="size=1m,mode=755")
    etc = os.open("etc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        for name in etc_names():
            _bind_etc_entry(etc, name, others.get(name, f"/etc/{name}"))
        kernel.mount("", _fd_path(etc), flags=_READ_ONLY)
    finally:
        os.close(etc)


def etc_names() -> list[str]:
    """What of `/etc` is shown, as far as it may be there."""
    heads = tuple(name[:-1] for name in ETC if name.endswith("*"))
    found = [name for name in os.listdir("/etc") if name.startswith(heads)]
    return sorted([*found, *(name for name in ETC if not name.endswith("*"))])


def _bind_etc_entry(etc: int, name: str, source: str) -> None:
    """A link is shown as what it leads to; what cannot be found is left out."""
    place = f"{_fd_path(etc)}/{name}"
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
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=etc))
        kernel.mount(source, place, flags=MS_BIND)
        kernel.mount("", place, flags=_READ_ONLY)


def _dev(root: int, devices: tuple[str, ...]) -> None:
    # A tmpfs: of the node's /dev, only the named devices appear.
    flags = MS_NOSUID | MS_NOEXEC
    _mount_at(root, "dev", "dev", "tmpfs", flags=flags, data="size=64k,mode=755")
    dev = os.open("dev", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    place = _fd_path(dev)
    try:
        for name in (*_DEVICES, *(path.removeprefix("/dev/") for path in devices)):
            if os.path.exists(f"/dev/{name}"):
                if "/" in name:
                    os.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
                os.close(os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
                kernel.mount(f"/dev/{name}", f"{place}/{name}", flags=MS_BIND)
                # The device itself is written to all the same; its owner and mode are the node's.
                kernel.mount("", f"{place}/{name}", flags=_READ_ONLY_DEVICE)
        for name, to in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(f"/proc/self/{to}", f"{place}/{name}")
        os.mkdir(f"{place}/shm")
        data = "size=64m,mode=1777"
        kernel.mount("shm", f"{place}/shm", "tmpfs", flags=_FLAGS | MS_NOEXEC, data=data)
        os.mkdir(f"{place}/pts")
        data = "newinstance,ptmxmode=0666,mode=620"
        kernel.mount("devpts", f"{place}/pts", "devpts", flags=flags, data=data)
        os.symlink("pts/ptmx", f"{place}/ptmx")
        kernel.mount("", place, flags=kernel.MS_REMOUNT | MS_BIND | kernel.MS_RDONLY | flags)
    finally:
        os.close(dev)


def _proc(root: int) -> None:
    # Only its own user's processes show: not init, nor others' where it shares the node's pids.
    _mount_at(root, "proc", "proc", "proc", flags=_FLAGS | MS_NOEXEC, data="hidepid=invisible")
    proc = os.open("proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        for name in _MASKED:
            if os.path.exists(f"{_fd_path(proc)}/{name}"):
                kernel.mount("/dev/null", f"{_fd_path(proc)}/{name}", flags=MS_BIND)
                kernel.mount("", f"{_fd_path(proc)}/{name}", flags=_READ_ONLY)
        for name in _PROC_READ_ONLY:
            place = f"{_fd_path(proc)}/{name}"
            if os.path.exists(place):
                kernel.mount(place, place, flags=MS_BIND)
                kernel.mount("", place, flags=_READ_ONLY)
    finally:
        os.close(proc)
