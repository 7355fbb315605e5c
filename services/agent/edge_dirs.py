"""Directories of allocations on disk: made before a start, measured while it runs, taken away in steps.

Decides what is memory (`secrets/`, a tmpfs of its own where the agent may mount), what moves from a replaced
allocation, and how much is counted. Tasks own what is in here: no link of theirs is followed. Next: `edge_logs.py`.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from services.agent.edge_home import Places
from shared.bus.names import id_token

#: Entries that one measuring looks at; a million small files are no reason to stop everything else.
ENTRIES_MAX = 20_000
SECRETS_MIB = 1
#: Nothing is started on a disk with less room than this.
ROOM_BYTES_MIN = 128 * 1024
_MIB = 1 << 20
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH, _NOFOLLOW = 2, 8
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)
_log = structlog.get_logger()


class Measured(msgspec.Struct, frozen=True):
    """What a directory takes on disk. `is_partial`: there was more than is counted."""

    used_mib: int
    is_partial: bool


class Directories:
    """The `alloc/` and `runs/` of one data directory."""

    name = "directories"

    def __init__(self, top: Path, *, memory: bool = True) -> None:
        self._top = top
        self.has_memory = memory and self._can_mount()
        if memory and not self.has_memory:
            _log.warning("secrets.on_disk", reason="a tmpfs cannot be mounted, secrets/ is 0700")

    def fingerprint(self) -> dict[str, str]:
        """Node attribute: where secrets are kept."""
        return {"secrets.backing": "memory" if self.has_memory else "disk"}

    def prepare(self, places: Places, *, inherit: str = "", secrets_mib: int = 0) -> None:
        """Make what a start needs. Raises OSError, also where there is no room for what a run writes about itself."""
        room = os.statvfs(self._top)
        blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail
        if blocks * room.f_frsize < ROOM_BYTES_MIN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._top))
        for path in (places.shared, places.task):
            path.mkdir(parents=True, exist_ok=True)
        if inherit:
            self._inherit(places, self._top / "alloc" / id_token(inherit))
        for path in places.directories():
            path.mkdir(parents=True, exist_ok=True)
        fd = open_inside(self._top, places.task / "secrets")
        try:
            os.fchmod(fd, 0o700)
            if self.has_memory and not _is_mounted(fd):
                _mount(f"/proc/self/fd/{fd}", secrets_mib or SECRETS_MIB)
        finally:
            os.close(fd)

    def close(self, alloc_id: str) -> None:
        """Let go of the memory of an allocation that is over, and so of its secrets."""
        alloc = self._top / "alloc" / id_token(alloc_id)
        for task in _entries(alloc):
            secrets = alloc / task / "secrets"
            if not _unmount(secrets) and task != "alloc":
                _empty(secrets)

    def remove(self, alloc_id: str) -> None:
        """Delete all that an allocation left. Links are removed, never followed."""
        self.close(alloc_id)
        for part in ("alloc", "runs"):
            shutil.rmtree(self._top / part / id_token(alloc_id), ignore_errors=True)

    def strangers(self, kept: tuple[str, ...]) -> list[str]:
        """Name what is left of allocations that are not among these."""
        known = {id_token(one) for one in kept}
        found = {name for part in ("alloc", "runs") for name in _entries(self._top / part)}
        return sorted(found - known)

    def sweep(self, names: list[str]) -> None:
        """Delete what `strangers` found."""
        for name in names:
            alloc = self._top / "alloc" / name
            for task in _entries(alloc):
                _unmount(alloc / task / "secrets")
            for part in ("alloc", "runs"):
                shutil.rmtree(self._top / part / name, ignore_errors=True)

    def measure(self, alloc_id: str) -> Measured:
        """Count what an allocation takes on disk, memory excepted; a bounded look."""
        used = seen = 0
        for entry in _walk(self._top / "alloc" / id_token(alloc_id)):
            seen += 1
            if seen > ENTRIES_MAX:
                break
            used += entry.st_blocks * 512
        return Measured(-(-used // _MIB), seen > ENTRIES_MAX)

    # ---- inside ----

    def _inherit(self, places: Places, before: Path) -> None:
        """Move the data of a replaced allocation here, whatever of it is still there; a second call finds nothing."""
        for source, target in (
            (before / "alloc" / "data", places.shared / "data"),
            (before / places.task.name / "local", places.task / "local"),
        ):
            with contextlib.suppress(OSError):
                # Onto an empty directory at most: what a task wrote here is never replaced.
                if stat.S_ISDIR(source.lstat().st_mode):
                    source.rename(target)

    def _can_mount(self) -> bool:
        if os.geteuid() != 0:
            return False
        probe = self._top / ".probe"
        probe.mkdir(exist_ok=True)
        try:
            _mount(str(probe), SECRETS_MIB)
        except OSError:
            return False
        else:
            return _unmount(probe)
        finally:
            with contextlib.suppress(OSError):
                probe.rmdir()


def open_inside(top: Path, path: Path) -> int:
    """Open a directory below `top`, no step of the way over a link. Raises OSError."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.relative_to(top).parts:
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _is_mounted(fd: int) -> bool:
    """Say whether an open directory is the top of a file system."""
    return os.fstat(fd).st_dev != os.stat("..", dir_fd=fd).st_dev


def _mount(path: str, size_mib: int) -> None:
    flags = _NOSUID | _NODEV | _NOEXEC
    data = f"size={size_mib}m,mode=0700".encode()
    if _libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, data):
        number = ctypes.get_errno()
        raise OSError(number, f"tmpfs: {os.strerror(number)}", path)


def _unmount(path: Path) -> bool:
    """Take a mount away, at once for everybody; False: there is none."""
    return not _libc.umount2(os.fsencode(path), _DETACH | _NOFOLLOW)


def _entries(path: Path) -> list[str]:
    """Names of the directories in a directory; links are none."""
    try:
        with os.scandir(path) as found:
            return sorted(one.name for one in found if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _empty(path: Path) -> None:
    """Delete what is in a directory that is no memory."""
    if path.is_symlink():
        return
    with contextlib.suppress(OSError), os.scandir(path) as found:
        for one in found:
            if one.is_dir(follow_symlinks=False):
                shutil.rmtree(one.path, ignore_errors=True)
            else:
                Path(one.path).unlink(missing_ok=True)


def _walk(top: Path) -> Iterator[os.stat_result]:
    """Every entry below a directory, on its own file system, without following links."""
    try:
        device = top.lstat().st_dev
    except OSError:
        return
    todo = [str(top)]
    while todo:
        try:
            found = os.scandir(todo.pop())
        except OSError:
            continue
        with found:
            for one in found:
                try:
                    status = one.stat(follow_symlinks=False)
                except OSError:
                    continue
                if status.st_dev != device:
                    continue
                yield status
                if stat.S_ISDIR(status.st_mode):
                    todo.append(one.path)
