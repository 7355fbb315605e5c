"""Unpacks archives with the readers of the standard library and a writer of its own.

Bytes, files and their ratio are counted while they are written, never taken from headers. Each part of a name is opened
from the directory before it without following links; what is not a file, a directory or a link that stays inside is
refused. Modes lose set-uid, set-gid and sticky; owners are ignored. Rejected: `extractall`, whose filters were bypassed
more than once (CVE-2025-4517, CVE-2025-4330).
"""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import BinaryIO, cast

from services.agent.inputs.artifacts.fetch_order import FetchRefused
from services.agent.inputs.artifacts.inner_links import is_inner_link
from services.agent.safe_open import DIRECTORY, open_within

PART_BYTES_MAX = 255
DEPTH_MAX = 64
#: More bytes out of an archive than this many times its own size are a bomb, once there are more than the free ones.
RATIO_MAX = 200
RATIO_FREE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_COMPRESSED: dict[str, Callable[[BinaryIO], AbstractContextManager[object]]] = {
    "gz": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


#: (parts of the name, header) of an entry.
EntryNote = Callable[[tuple[str, ...], tarfile.TarInfo], None]


class Unpacker:
    """Writes below one directory, within its limits. Raises FetchRefused."""

    def __init__(
        self,
        top_fd: int,
        *,
        bytes_max: int,
        files_max: int,
        packed_bytes: int,
        note: EntryNote | None = None,
    ) -> None:
        self._top = top_fd
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._ratio_bytes = max(RATIO_FREE_BYTES, packed_bytes * RATIO_MAX)
        #: gets each entry of a tar, before it is written.
        self._note = note
        self.written = 0
        self.entries = 0
        #: files of this archive: what a hard link may name.
        self._files: set[tuple[str, ...]] = set()
        self._links: list[tuple[tuple[str, ...], str]] = []

    def unpack(self, kind: str, source: BinaryIO) -> None:
        """Unpack an archive of many files."""
        if kind == "zip":
            self._zip(source)
        else:
            self._tar(kind, source)
        for parts, target in self._links:
            # Last, so that no name of the archive is opened through one of them.
            self._link(parts, target)
        if not self.entries:
            raise FetchRefused("the archive is empty")

    def single(self, kind: str, source: BinaryIO, name: str) -> None:
        """Unpack one compressed file."""
        with _COMPRESSED[kind](source) as content:
            self._file((name,), cast("BinaryIO", content), 0o644)

    def plain(self, source: BinaryIO, name: str) -> None:
        """Copy a file that is taken as it is."""
        self._file((name,), source, 0o644)

    def tree(self, files: Iterable[tuple[str, int, bytes]]) -> None:
        """Write the files and links of a commit."""
        for name, mode, data in files:
            parts = _parts(name)
            self._count()
            if ".git" in (part.lower() for part in parts):
                raise FetchRefused(f"{name[:80]!r} is a name that git keeps for itself")
            if stat.S_ISLNK(mode):
                self._links.append((parts, data.decode(errors="surrogateescape")))
            else:
                self._file(parts, io.BytesIO(data), mode)
        for parts, target in self._links:
            self._link(parts, target)

    # ---- readers ----

    def _tar(self, kind: str, source: BinaryIO) -> None:
        compression = kind.partition(".")[2]
        with tarfile.open(fileobj=source, mode=f"r|{compression}") as archive:  # type: ignore[call-overload]
            for one in archive:
                parts = _parts(one.name)
                self._count()
                if self._note is not None:
                    self._note(parts, one)
                if one.isdir():
                    self._directory(parts)
                elif one.isreg():
                    content = archive.extractfile(one)
                    assert content is not None
                    self._file(parts, cast("BinaryIO", content), one.mode)
                elif one.issym():
                    self._links.append((parts, one.linkname))
                elif one.islnk():
                    self._hard_link(parts, _parts(one.linkname))
                else:
                    raise FetchRefused(f"{one.name[:80]!r} is a device, a pipe or a socket")

    def _zip(self, source: BinaryIO) -> None:
        with zipfile.ZipFile(source) as archive:
            ends = 0
            for one in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
                if one.header_offset < ends:
                    raise FetchRefused("entries of the archive overlap")
                ends = one.header_offset + one.compress_size
                if one.flag_bits & 1:
                    raise FetchRefused(f"{one.filename[:80]!r} is encrypted")
                self._count()
                self._zip_entry(archive, one)

    def _zip_entry(self, archive: zipfile.ZipFile, one: zipfile.ZipInfo) -> None:
        parts = _parts(one.filename)
        mode = one.external_attr >> 16
        if one.is_dir():
            self._directory(parts)
        elif stat.S_ISLNK(mode):
            with archive.open(one) as content:
                self._links.append((parts, content.read(4_096).decode(errors="surrogateescape")))
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise FetchRefused(f"{one.filename[:80]!r} is a device, a pipe or a socket")
        else:
            with archive.open(one) as content:
                self._file(parts, cast("BinaryIO", content), mode & 0o777 or 0o644)

    # ---- the writer ----

    def _count(self) -> None:
        self.entries += 1
        if self.entries > self._files_max:
            raise FetchRefused(f"the archive has more than {self._files_max} files")

    def _directory(self, parts: tuple[str, ...]) -> None:
        if parts:
            os.close(_opened(self._top, parts))

    def _file(self, parts: tuple[str, ...], content: BinaryIO, mode: int) -> None:
        if not parts:
            raise FetchRefused("a file of the archive has no name")
        above = _opened(self._top, parts[:-1])
        try:
            fd = _created(parts[-1], above)
        finally:
            os.close(above)
        with os.fdopen(fd, "wb") as target:
            while part := content.read(_CHUNK_BYTES):
                self._take(len(part))
                target.write(part)
            os.fchmod(target.fileno(), (mode & 0o777) | stat.S_IRUSR | stat.S_IWUSR)
        self._files.add(parts)

    def _take(self, size: int) -> None:
        self.written += size
        if self.written > self._bytes_max:
            raise FetchRefused(f"the archive has more than {self._bytes_max} bytes")
        if self.written > self._ratio_bytes:
            raise FetchRefused(f"the archive unpacks to more than {RATIO_MAX} times its size")

    def _hard_link(self, parts: tuple[str, ...], target: tuple[str, ...]) -> None:
        """Copy the file: one name a file, so that no link leads out when the tree is moved."""
        if target not in self._files:
            raise FetchRefused(
                f"{'/'.join(parts)[:80]!r} is a hard link to a file outside the archive"
            )
        fd = open_within(self._top, "/".join(target), flags=os.O_RDONLY)
        with os.fdopen(fd, "rb") as content:
            self._file(parts, content, os.fstat(fd).st_mode)

    def _link(self, parts: tuple[str, ...], target: str) -> None:
        if not parts or not is_inner_link(parts, target):
            name = "/".join(parts)
            raise FetchRefused(f"link {name[:80]!r} leads out of the archive, to {target[:80]!r}")
        above = _opened(self._top, parts[:-1])
        try:
            os.symlink(target, parts[-1], dir_fd=above)
        except FileExistsError as err:
            raise FetchRefused(f"{'/'.join(parts)[:80]!r} occurs twice in the archive") from err
        finally:
            os.close(above)


def _parts(name: str) -> tuple[str, ...]:
    """Split a name of an archive. Raises FetchRefused for one that is not below its top."""
    if name.startswith("/") or "\\" in name or "\0" in name:
        raise FetchRefused(f"{name[:80]!r} is not a relative name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise FetchRefused(f"{name[:80]!r} leads out of the archive")
    if len(parts) > DEPTH_MAX or any(
        len(part.encode(errors="surrogateescape")) > PART_BYTES_MAX for part in parts
    ):
        raise FetchRefused(f"{name[:80]!r} is too long or too deep")
    return parts


def _opened(top: int, parts: tuple[str, ...]) -> int:
    try:
        return open_within(top, "/".join(parts), flags=DIRECTORY, make_mode=0o755)
    except OSError as err:
        raise FetchRefused(f"{'/'.join(parts)[:80]!r} cannot be created: {err.strerror}") from err


def _created(name: str, above: int) -> int:
    try:
        return os.open(name, _NEW_FILE, 0o600, dir_fd=above)
    except FileExistsError as err:
        raise FetchRefused(f"{name[:80]!r} occurs twice in the archive") from err
