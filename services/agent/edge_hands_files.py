"""Looking into the directory of an allocation for an operator: list, describe, read.

Decides what may be looked at: what is inside, step by step from the allocation's own directory on, over no link, never
`secrets/`; and only plain files are opened. Whatever a task puts there (links, pipes, a swap between two steps, a file
without end) costs at most an answer of bounded size. In a thread. Must not know the bus.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from schemas.hands import FileLine, FilePart, FilesAnswer, FilesAsk
from services.agent.edge_dirs import open_inside
from shared.bus.names import id_token
from shared.errors import CommandInvalid

#: Bytes of a file in one answer; base64 makes a third more of it.
PART_BYTES_MAX = 256 * 1024
#: Entries of one answer, and those of a directory that are counted at all.
ENTRIES_MAX = 1_000
COUNTED_MAX = 100_000
#: Names are at most 255 bytes; as JSON one byte may become six.
PATH_CHARS_MAX = 4_096
_SECRETS = "secrets"
_SHARED = "alloc"
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def listed(top: Path, ask: FilesAsk) -> FilesAnswer:
    """List a directory by name, from entry `offset` on. Raises CommandInvalid."""
    with _Opened(top, ask) as found:
        if not stat.S_ISDIR(found.status.st_mode):
            return FilesAnswer(files=(_line(found.name, found.status),), total=1)
        names: list[str] = []
        fd = found.reopened(os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) >= COUNTED_MAX:
                        break
            names.sort()
            limit = min(ask.limit or ENTRIES_MAX, ENTRIES_MAX)
            start = max(ask.offset, 0)
            chosen = names[start : start + max(limit, 0)]
            return FilesAnswer(files=tuple(_lines(fd, chosen)), total=len(names))
        finally:
            os.close(fd)


def described(top: Path, ask: FilesAsk) -> FilesAnswer:
    """Describe one file, whatever it is. Raises CommandInvalid."""
    with _Opened(top, ask) as found:
        return FilesAnswer(files=(_line(found.name, found.status),), total=1)


def read(top: Path, ask: FilesAsk) -> FilePart:
    """Read a part of a plain file. Raises CommandInvalid."""
    with _Opened(top, ask) as found:
        kind = _kind(found.status.st_mode)
        if kind != "file":
            raise CommandInvalid("invalid", f"{ask.path!r} is no plain file but a {kind}", "path")
        if ask.offset < 0 or ask.limit < 0:
            raise CommandInvalid("invalid", "offset and limit count from 0", "offset")
        fd = found.reopened(os.O_RDONLY)
        try:
            limit = min(ask.limit or PART_BYTES_MAX, PART_BYTES_MAX)
            return FilePart(data=os.pread(fd, limit, ask.offset), size=os.fstat(fd).st_size)
        finally:
            os.close(fd)


class _Opened:
    """A path inside an allocation, held by a descriptor that neither reads nor blocks. Raises CommandInvalid."""

    def __init__(self, top: Path, ask: FilesAsk) -> None:
        parts = _parts(ask.path)
        self._shown = ask.path
        self.name = parts[-1] if parts else "."
        self.fd = self._enter(top, ask.alloc_id)
        for at, part in enumerate(parts):
            try:
                if at:
                    self._is_directory(part, "/".join(parts[:at]))
                inner = os.open(part, _STEP, dir_fd=self.fd)
            except OSError as err:
                os.close(self.fd)
                raise self._refusal(err) from err
            except CommandInvalid:
                os.close(self.fd)
                raise
            os.close(self.fd)
            self.fd = inner
        self.status = os.fstat(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def reopened(self, flags: int) -> int:
        """Open the very same file for reading. Raises CommandInvalid."""
        try:
            return os.open(f"/proc/self/fd/{self.fd}", flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as err:
            raise self._refusal(err) from err

    @staticmethod
    def _enter(top: Path, alloc_id: str) -> int:
        try:
            return open_inside(top, top / "alloc" / id_token(alloc_id))
        except (OSError, ValueError) as err:
            text = f"there is no directory of allocation {alloc_id[:40]!r} here (any more)"
            raise CommandInvalid("not_found", text, "alloc_id") from err

    def _is_directory(self, part: str, before: str) -> None:
        mode = os.fstat(self.fd).st_mode
        if stat.S_ISLNK(mode):
            raise CommandInvalid("refused", f"{before!r} is a link, links are not followed", "path")
        if not stat.S_ISDIR(mode):
            text = f"{before!r} is no directory, there is no {part!r} in it"
            raise CommandInvalid("not_found", text, "path")

    def _refusal(self, err: OSError) -> CommandInvalid:
        if err.errno in (errno.ENOENT, errno.ENOTDIR):
            return CommandInvalid("not_found", f"there is no {self._shown!r}", "path")
        return CommandInvalid("refused", f"{self._shown!r}: {err.strerror}", "path")


def _parts(path: str) -> tuple[str, ...]:
    """Split a path into its steps. Raises CommandInvalid for what leads out or is secret."""
    if len(path) > PATH_CHARS_MAX or "\0" in path:
        raise CommandInvalid("invalid", "that is no path", "path")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise CommandInvalid("refused", "a path with .. leads out of the allocation", "path")
    if len(parts) > 1 and parts[1] == _SECRETS and parts[0] != _SHARED:
        raise CommandInvalid("refused", "secrets/ of a task is the task's alone", "path")
    return parts


def _lines(fd: int, names: list[str]) -> Iterator[FileLine]:
    for name in names:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            # It went away between two looks.
            continue
        yield _line(name, status)


def _line(name: str, status: os.stat_result) -> FileLine:
    return FileLine(
        name=os.fsencode(name).decode("utf-8", "backslashreplace"),
        kind=_kind(status.st_mode),
        size=status.st_size,
        mode=stat.filemode(status.st_mode),
        modified_ns=status.st_mtime_ns,
    )


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"
