"""The agent's journal on disk: one JSON line an entry, each with its checksum, in one append-only file.

Decides the format, what a torn end is, and when the file is compacted. It decides only which later entry replaces an
earlier one. A write that fails leaves the file as it was, so that the next one does not land behind
half a line. Next: `data_dir.py`.
"""

import contextlib
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from schemas.envelope import ENCODER
from shared.core.runtime.agent_messages import (
    AllocForgotten,
    AllocKept,
    ClusterKept,
    HealthKept,
    JournalEntry,
    TaskKept,
)
from shared.core.runtime.volume_messages import VolumeForgotten, VolumeKept
from shared.errors import ConfigInvalid

#: The file is written again when it is larger than this and than four times what it would be then.
COMPACT_BYTES_MIN = 1 << 20
_NO_PLAN = b"{}"

_DECODER: msgspec.json.Decoder[JournalEntry] = msgspec.json.Decoder(JournalEntry)


class JournalState:
    """What the entries so far amount to."""

    def __init__(self) -> None:
        self._cluster: ClusterKept | None = None
        self._allocs: dict[int, AllocKept] = {}
        self._tasks: dict[int, dict[str, TaskKept]] = {}
        self._healths: dict[int, HealthKept] = {}
        self._volumes: dict[str, VolumeKept] = {}

    def take(self, entry: JournalEntry) -> None:
        """Follow one entry."""
        match entry:
            case ClusterKept():
                self._cluster = entry
            case AllocKept():
                before = self._allocs.get(entry.alloc.key)
                if before is not None and bytes(entry.plan) == _NO_PLAN:
                    entry = msgspec.structs.replace(entry, plan=before.plan)
                self._allocs[entry.alloc.key] = entry
            case TaskKept():
                self._tasks.setdefault(entry.key, {})[entry.task] = entry
            case HealthKept():
                self._healths[entry.key] = entry
            case VolumeKept():
                self._volumes[entry.spec.id] = entry
            case VolumeForgotten():
                self._volumes.pop(entry.id, None)
            case AllocForgotten():
                self._allocs.pop(entry.key, None)
                self._tasks.pop(entry.key, None)
                self._healths.pop(entry.key, None)

    def entries(self) -> list[JournalEntry]:
        """The shortest equivalent journal."""
        out: list[JournalEntry] = [self._cluster] if self._cluster else []
        for key, alloc in self._allocs.items():
            out.append(alloc)
            out += self._tasks.get(key, {}).values()
            if key in self._healths:
                out.append(self._healths[key])
        return [*out, *self._volumes.values()]


def encode_line(entry: JournalEntry) -> bytes:
    """One entry as it is in the file: checksum, space, JSON, newline."""
    body = ENCODER.encode(entry)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_lines(data: bytes, where: str) -> tuple[list[JournalEntry], int]:
    """Read a journal. Returns its entries and how many bytes of `data` are whole; the rest is a torn end.

    Raises ConfigInvalid: a damaged line before the last, or an entry that a newer release wrote.
    """
    entries: list[JournalEntry] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        line = data[at:end]
        if not _checksum_matches(line):
            if data.find(b"\n", end + 1) >= 0:
                raise ConfigInvalid(f"{where} is damaged at byte {at}: checksum mismatch")
            break
        try:
            entries.append(_DECODER.decode(line[9:]))
        except msgspec.MsgspecError as err:
            raise ConfigInvalid(f"{where} was written by a newer release: {err}") from err
        at = end + 1
    return entries, at


def _checksum_matches(line: bytes) -> bool:
    try:
        return line[8:9] == b" " and int(line[:8], 16) == zlib.crc32(line[9:])
    except ValueError:
        return False


class Journal:
    """The open file. One writer: `data_dir.py` holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes() if path.exists() else b""
        self.entries, self._size = decode_lines(data, str(path))
        self.torn_bytes = len(data) - self._size
        self._kept = JournalState()
        for entry in self.entries:
            self._kept.take(entry)
        #: entries that could not be written are in `_kept` alone.
        self._behind = False
        #: how long the file was when it was last written again.
        self._rewritten_size = 0
        self._fd = self._open()
        os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def current(self) -> list[JournalEntry]:
        """The shortest equivalent journal, including the entries of this life."""
        return self._kept.entries()

    def append(self, entries: Iterable[JournalEntry], *, sync: bool) -> None:
        """Write entries, and wait for the disk if `sync`.

        Raises OSError; the file is then as it was, and the next write that succeeds holds these entries, too: a task's
        entry must never be in a file that lacks its allocation's.
        """
        entries = tuple(entries)
        for entry in entries:
            self._kept.take(entry)
        if self._behind:
            self._rewrite()
            return
        data = b"".join(encode_line(entry) for entry in entries)
        try:
            self._write(data)
            if sync:
                os.fdatasync(self._fd)
        except OSError:
            self._behind = True
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        if self._size > max(COMPACT_BYTES_MIN, 4 * self._rewritten_size):
            # Without room for a second copy the long one serves.
            with contextlib.suppress(OSError):
                self._rewrite()

    def _write(self, data: bytes) -> None:
        _write_all(self._fd, data)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _rewrite(self) -> None:
        data = b"".join(encode_line(entry) for entry in self._kept.entries())
        replace_durably(self.path, data)
        os.close(self._fd)
        self._fd = self._open()
        self._size = self._rewritten_size = len(data)
        self._behind = False


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file as a whole, on disk when this returns; after an error it is as it was."""
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, data)
        os.fsync(fd)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until names in a directory are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
