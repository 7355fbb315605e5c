"""Lists, describes and reads files in the directory of an allocation.

Only paths below the allocation's own directory are served, opened step by step without following links; never
`secrets/`, and only regular files are read. Whatever a task puts there (links, pipes, a swap between two steps, a file
without end) costs at most an answer of bounded size. Runs in a thread.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from schemas.node_rpc import FileLine, FilePart, FilesAnswer, FilesAsk
from services.agent.safe_open import HANDLE, open_below, open_within
from shared.errors import CommandInvalid
from shared.protocol.id_tokens import id_token

#: Bytes of a file in one answer; base64 makes a third more of it.
PART_BYTES_MAX = 256 * 1024
#: Entries of one answer, and those of a directory that are counted at all.
ENTRIES_MAX = 1_000
COUNTED_MAX = 100_000
#: Names are at most 255 bytes; as JSON one byte may become six.
PATH_CHARS_MAX = 4_096
_SECRETS = "secrets"
_SHARED = "alloc"


def list_files(top: Path, ask: FilesAsk) -> FilesAnswer:
    """List a directory by name, from entry `offset` on. Raises CommandInvalid."""
    with _OpenedPath(top, ask) as found:
        if not stat.S_ISDIR(found.status.st_mode):
            return FilesAnswer(files=(_file_line(found.name, found.status),), total=1)
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
            return FilesAnswer(files=tuple(_file_lines(fd, chosen)), total=len(names))
        finally:
            os.close(fd)


def stat_file(top: Path, ask: FilesAsk) -> FilesAnswer:
    """Describe one file of any kind. Raises CommandInvalid."""
    with _OpenedPath(top, ask) as found:
        return FilesAnswer(files=(_file_line(found.name, found.status),), total=1)


def read_file(top: Path, ask: FilesAsk) -> FilePart:
    """Read a part of a plain file. Raises CommandInvalid."""
    with _OpenedPath(top, ask) as found:
        kind = _kind(found.status.st_mode)
        if kind != "file":
            raise CommandInvalid("invalid", f"{ask.path!r} is a {kind}, not a regular file", "path")
        if ask.offset < 0 or ask.limit < 0:
            raise CommandInvalid("invalid", "offset and limit must not be negative", "offset")
        fd = found.reopened(os.O_RDONLY)
        try:
            limit = min(ask.limit or PART_BYTES_MAX, PART_BYTES_MAX)
            return FilePart(data=os.pread(fd, limit, ask.offset), size=os.fstat(fd).st_size)
        finally:
            os.close(fd)


class _OpenedPath:
    """A path inside an allocation, held by a descriptor that neither reads nor blocks. Raises CommandInvalid."""

    def __init__(self, top: Path, ask: FilesAsk) -> None:
        parts = _parts(ask.path)
        self._shown = ask.path
        self.name = parts[-1] if parts else "."
        directory = self._enter(top, ask.alloc_id)
        try:
            self.fd = open_within(directory, "/".join(parts), flags=HANDLE)
        except OSError as err:
            raise self._refusal(err) from err
        finally:
            os.close(directory)
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
            return open_below(top, f"alloc/{id_token(alloc_id)}")
        except (OSError, ValueError) as err:
            text = f"directory of allocation {alloc_id[:40]!r} not found on this node"
            raise CommandInvalid("not_found", text, "alloc_id") from err

    def _refusal(self, err: OSError) -> CommandInvalid:
        if err.errno == errno.ELOOP:
            text = f"{err.filename!r} is a symbolic link; symbolic links are not followed"
            return CommandInvalid("refused", text, "path")
        if err.errno == errno.ENOTDIR:
            return CommandInvalid("not_found", f"{err.filename!r} is not a directory", "path")
        if err.errno == errno.ENOENT:
            return CommandInvalid("not_found", f"{self._shown!r} not found", "path")
        return CommandInvalid("refused", f"{self._shown!r}: {err.strerror}", "path")


def _parts(path: str) -> tuple[str, ...]:
    """Split a path into its steps. Raises CommandInvalid for what leads out or is secret."""
    if len(path) > PATH_CHARS_MAX or "\0" in path:
        raise CommandInvalid("invalid", "invalid path", "path")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise CommandInvalid("refused", "path must not contain ..", "path")
    if len(parts) > 1 and parts[1] == _SECRETS and parts[0] != _SHARED:
        raise CommandInvalid("refused", "secrets/ is not readable through the API", "path")
    return parts


def _file_lines(fd: int, names: list[str]) -> Iterator[FileLine]:
    for name in names:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            # It went away between two looks.
            continue
        yield _file_line(name, status)


def _file_line(name: str, status: os.stat_result) -> FileLine:
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
