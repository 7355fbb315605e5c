"""Files that were fetched with a strong checksum, by that checksum: another task with the same sum asks no server.

Only the agent writes here, and only what it has hashed itself; the helper hashes it again on use. Files are copied out,
never linked: a task could write through a link.
"""

import contextlib
import hashlib
import os
from pathlib import Path

#: Sums for which no second file can be made.
STRONG = ("sha256", "sha512")
_CHUNK_BYTES = 1 << 20


class ArtifactCache:
    """The cache of one data directory. `bytes_max` 0: there is none."""

    def __init__(self, top: Path, bytes_max: int) -> None:
        self._top = top
        self._bytes_max = bytes_max
        top.mkdir(mode=0o700, exist_ok=True)
        for draft in top.glob("*.draft"):
            draft.unlink()

    def open(self, checksum: str) -> int:
        """Open a file for reading; -1: it is not there."""
        path = self._path(checksum)
        if path is not None:
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                os.utime(fd)
                return fd
        return -1

    def drop(self, checksum: str) -> None:
        """Remove a file that turned out to be damaged."""
        path = self._path(checksum)
        if path is not None:
            path.unlink(missing_ok=True)

    def store(self, checksum: str, source_fd: int) -> None:
        """Keep a copy of a file if it has that sum; a failure costs the cache alone."""
        path = self._path(checksum)
        size = os.fstat(source_fd).st_size
        if path is None or size > self._bytes_max or path.exists():
            return
        with contextlib.suppress(OSError):
            self._evict(self._bytes_max - size)
            draft = path.with_name(f"{path.name}.{source_fd}.draft")
            digest = hashlib.new(checksum.partition(":")[0])
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(draft, flags, 0o400), "wb") as target:
                at = 0
                while part := os.pread(source_fd, _CHUNK_BYTES, at):
                    at += len(part)
                    digest.update(part)
                    target.write(part)
            if f"{checksum.partition(':')[0]}:{digest.hexdigest()}" == checksum.lower():
                draft.rename(path)
            else:
                draft.unlink()

    def _path(self, checksum: str) -> Path | None:
        kind, _, digits = checksum.lower().partition(":")
        is_known = kind in STRONG and digits.isalnum() and self._bytes_max > 0
        return self._top / f"{kind}-{digits}" if is_known else None

    def _evict(self, bytes_max: int) -> None:
        """Remove the files that were used least recently; an open one stays readable."""
        found = [(one.stat().st_mtime_ns, one.stat().st_size, one) for one in self._top.iterdir()]
        used = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if used <= bytes_max:
                return
            path.unlink(missing_ok=True)
            used -= size
