"""Directories of allocations on disk: made before a start, measured while it runs, taken away in steps.

Decides what is memory (`secrets/`, a tmpfs of its own where the agent may mount), what moves from a replaced
allocation, and how much is counted. Tasks own the content: links are not followed. Next: `log_rotation.py`.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from schemas.base import MIB
from services.agent.drivers.isolation import kernel
from services.agent.executor.data_dir import TaskDirs
from services.agent.safe_open import make_below, open_below
from shared.protocol.id_tokens import id_token

#: Entries read by one measurement; a bound, so that a million small files do not delay other work.
ENTRIES_MAX = 20_000
SECRETS_MIB = 1
#: Directories of the data directory that have one for each allocation; `moves/`: disks that are being fetched.
_PARTS = ("alloc", "runs", "moves")
#: Nothing is started on a disk with less room than this.
FREE_BYTES_MIN = 128 * 1024
_log = structlog.get_logger()


class AllocDiskUsage(msgspec.Struct, frozen=True):
    """What a directory takes on disk. `is_partial`: there was more than is counted."""

    used_mib: int
    is_partial: bool


class AllocDirs:
    """The `alloc/`, `runs/` and `moves/` of one data directory."""

    name = "directories"

    def __init__(self, top: Path, *, memory: bool = True) -> None:
        self._top = top
        self.has_memory = memory and self._can_mount()
        if memory and not self.has_memory:
            _log.warning(
                "secrets.on_disk",
                reason="a tmpfs cannot be mounted; secrets/ is on disk with mode 0700",
            )

    def fingerprint(self) -> dict[str, str]:
        """Node attribute: where secrets are kept."""
        return {"secrets.backing": "memory" if self.has_memory else "disk"}

    def prepare(self, places: TaskDirs, *, inherit: str = "", secrets_mib: int = 0) -> None:
        """Make what a start needs. Raises OSError, also for a link in the place of a directory, or without room."""
        room = os.statvfs(self._top)
        blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail
        if blocks * room.f_frsize < FREE_BYTES_MIN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._top))
        for path in (places.shared, places.task):
            make_below(self._top, path)
        if inherit:
            self._inherit(places, self._top / "alloc" / id_token(inherit))
        for path in places.directories():
            make_below(self._top, path)
        fd = open_below(self._top, places.task / "secrets")
        try:
            os.fchmod(fd, 0o700)
            if self.has_memory and not _is_mounted(fd):
                _mount(f"/proc/self/fd/{fd}", secrets_mib or SECRETS_MIB)
        finally:
            os.close(fd)

    def close(self, alloc_id: str) -> None:
        """Unmount the secrets of an allocation that is dead."""
        alloc = self._top / "alloc" / id_token(alloc_id)
        for task in _entries(alloc):
            secrets = alloc / task / "secrets"
            if not _unmount(secrets) and task != "alloc":
                self._empty(secrets)

    def remove(self, alloc_id: str) -> None:
        """Delete all that an allocation left. Links are removed, never followed."""
        self.close(alloc_id)
        for part in _PARTS:
            shutil.rmtree(self._top / part / id_token(alloc_id), ignore_errors=True)

    def strangers(self, kept: tuple[str, ...]) -> list[str]:
        """Name what is left of allocations that are not among these."""
        known = {id_token(one) for one in kept}
        found = {name for part in _PARTS for name in _entries(self._top / part)}
        return sorted(found - known)

    def sweep(self, names: list[str]) -> None:
        """Delete what `strangers` found."""
        for name in names:
            alloc = self._top / "alloc" / name
            for task in _entries(alloc):
                _unmount(alloc / task / "secrets")
            for part in _PARTS:
                shutil.rmtree(self._top / part / name, ignore_errors=True)

    def measure(self, alloc_id: str) -> AllocDiskUsage:
        """Measure the disk use of an allocation without tmpfs; bounded."""
        used = seen = 0
        for entry in _walk(self._top / "alloc" / id_token(alloc_id)):
            seen += 1
            if seen > ENTRIES_MAX:
                break
            used += entry.st_blocks * 512
        return AllocDiskUsage(-(-used // MIB), seen > ENTRIES_MAX)

    # ---- inside ----

    def _inherit(self, places: TaskDirs, before: Path) -> None:
        """Move the remaining data of a replaced allocation here; a second call finds nothing."""
        for source, target in (
            (before / "alloc" / "data", places.shared / "data"),
            (before / places.task.name / "local", places.task / "local"),
        ):
            with contextlib.suppress(OSError):
                # Onto an empty directory at most: what a task wrote here is never replaced.
                if stat.S_ISDIR(source.lstat().st_mode):
                    source.rename(target)

    def _empty(self, path: Path) -> None:
        """Delete the content of a directory."""
        with contextlib.suppress(OSError):
            fd = open_below(self._top, path)
            try:
                for name in os.listdir(fd):  # noqa: PTH208 - of a descriptor.
                    if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                        shutil.rmtree(name, ignore_errors=True, dir_fd=fd)
                    else:
                        os.unlink(name, dir_fd=fd)
            finally:
                os.close(fd)

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


def _is_mounted(fd: int) -> bool:
    """Return whether an open directory is the top of a file system."""
    return os.fstat(fd).st_dev != os.stat("..", dir_fd=fd).st_dev


def _mount(path: str, size_mib: int) -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", path, "tmpfs", flags=flags, data=f"size={size_mib}m,mode=0700")


def _unmount(path: Path) -> bool:
    """Unmount lazily; False: nothing is mounted."""
    with contextlib.suppress(OSError):
        kernel.unmount(str(path))
        return True
    return False


def _entries(path: Path) -> list[str]:
    """Names of the directories in a directory; links are none."""
    try:
        with os.scandir(path) as found:
            return sorted(one.name for one in found if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


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
