"""Segments: an export's folder on disk. Each segment is a folder of Parquet files, written once.

`segment.json` holds the seqs, the heads of the chain before and behind the segment, and the hash of every file. A
segment is written beside its place and moved there as a whole: a folder with its final name is complete.
"""

import fcntl
import os
import platform
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import msgspec

from shared.errors import CaravanError

#: Of the folder's layout and of the tables' columns; columns may be added within it.
FORMAT = 1
_EXPORT = "export.json"
_SEGMENT = "segment.json"
_LOCK = ".lock"
_DRAFT = ".draft-"
_NAME = "seq-"
_RANGE = re.compile(r"seq-(\d{12,18})-(\d{12,18})", re.ASCII)
_BLOCK = 1 << 20


class ArchiveInvalid(CaravanError):
    """A folder is not an export, belongs to another cluster, is in use, or is damaged. `code` is stable."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.path = path


class ExportMarker(msgspec.Struct, frozen=True, kw_only=True):
    """`export.json`: the cluster of the log. Written once."""

    format: int
    cluster_id: str


class SegmentFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file of a segment. `hash`: blake2b of its bytes, 32 hex digits."""

    rows: int
    bytes: int
    hash: str


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """`segment.json`: what a segment holds. Files by table; a table without rows has none."""

    first_seq: int
    last_seq: int
    #: checksum of the last accepted record before, and of the last one in it.
    prev: str
    head: str
    #: log time at its end.
    t_ns: int
    files: dict[str, SegmentFile]
    #: what its spans are (intervals.py): full, lean, or empty where an older release wrote it.
    spans: str = ""

    @property
    def name(self) -> str:
        """Name of its folder: sorted as the log is."""
        return f"{_NAME}{self.first_seq:012d}-{self.last_seq:012d}"


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """An unusable table of a segment; with an empty `table` the whole segment."""

    segment: str
    table: str
    problem: str

    @property
    def last_seq(self) -> int:
        """Last seq of the segment by the name of its folder; 0: the name has none."""
        return _named_range(self.segment)[1]


class Archive:
    """An export's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cluster_id(self) -> str:
        """The cluster of the log; empty: nothing was exported yet. Raises ArchiveInvalid."""
        path = self.folder / _EXPORT
        if not path.exists():
            if self.folder.is_dir() and self._segment_folders():
                raise ArchiveInvalid("damaged", f"segments without {_EXPORT}", str(self.folder))
            return ""
        try:
            marker = msgspec.json.decode(path.read_bytes(), type=ExportMarker)
        except msgspec.DecodeError as err:
            raise ArchiveInvalid("damaged", f"cannot be decoded: {err}", str(path)) from err
        if marker.format != FORMAT:
            text = f"the export has format {marker.format}, this release reads format {FORMAT}"
            raise ArchiveInvalid("newer", text, str(path))
        return marker.cluster_id

    def begin(self, cluster_id: str) -> None:
        """Record the cluster of the log. Raises ArchiveInvalid for another cluster, or a folder with other files."""
        known = self.cluster_id()
        if known and known != cluster_id:
            text = f"holds the log of cluster {known}, this is {cluster_id}"
            raise ArchiveInvalid("conflict", text, str(self.folder))
        if not known:
            self._require_empty()
            marker = ExportMarker(format=FORMAT, cluster_id=cluster_id)
            draft = self.folder / f"{_DRAFT}{_EXPORT}"
            draft.unlink(missing_ok=True)
            _write(draft, msgspec.json.encode(marker))
            draft.rename(self.folder / _EXPORT)
            _sync(self.folder)

    def _require_empty(self) -> None:
        """Raise ArchiveInvalid if the folder holds other files than those of a killed export."""
        names = [one.name for one in self.folder.iterdir()]
        others = [one for one in names if one != _LOCK and not one.startswith(_DRAFT)]
        if others:
            text = f"not empty and not an export: contains {min(others)}"
            raise ArchiveInvalid("conflict", text, str(self.folder))

    @contextmanager
    def locked(self) -> Generator[None]:
        """Lock the folder against other exports. Raises ArchiveInvalid, OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.cluster_id():
            self._require_empty()
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                text = f"another export is writing into this folder: {_holder(descriptor)}"
                raise ArchiveInvalid("conflict", text, str(self.folder)) from err
            self._write_lock_owner(descriptor)
            self._tidy()
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _write_lock_owner(descriptor: int) -> None:
        """Write the process that holds the lock into its file, for the error of other exports."""
        text = f"process {os.getpid()} on {platform.node()}\n"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)

    def _tidy(self) -> None:
        """Delete what a killed export left: drafts, and segments that are within a larger one."""
        for draft in self.folder.glob(f"{_DRAFT}*"):
            if draft.is_dir():
                shutil.rmtree(draft)
            else:
                draft.unlink()
        self.drop_replaced()

    def drop_replaced(self) -> None:
        """Delete segments that are within a larger one."""
        for name in self._all()[2]:
            shutil.rmtree(self.folder / name)

    def _all(self) -> tuple[list[Segment], list[Damage], list[str]]:
        """Valid segments, unreadable ones, and names of segments within another one."""
        found: list[Segment] = []
        damages: list[Damage] = []
        for path in self._segment_folders():
            try:
                segment = msgspec.json.decode((path / _SEGMENT).read_bytes(), type=Segment)
            except (OSError, msgspec.DecodeError) as err:
                damages.append(Damage(segment=path.name, table="", problem=f"{_SEGMENT}: {err}"))
                continue
            if segment.name != path.name:
                text = f"{_SEGMENT} belongs to {segment.name}"
                damages.append(Damage(segment=path.name, table="", problem=text))
                continue
            found.append(segment)
        kept: list[Segment] = []
        within: list[str] = []
        for one in sorted(found, key=lambda segment: (segment.first_seq, -segment.last_seq)):
            if kept and one.last_seq <= kept[-1].last_seq:
                within.append(one.name)
            else:
                kept.append(one)
        # A killed compaction may have deleted a part of a segment whose records are in a larger one.
        replaced = {one.segment for one in damages if _is_within(one.segment, kept)}
        damages = [one for one in damages if one.segment not in replaced]
        return kept, damages, [*within, *sorted(replaced)]

    def _segment_folders(self) -> list[Path]:
        """Everything named like a segment. Raises OSError: the folder cannot be listed."""
        return sorted(path for path in self.folder.iterdir() if path.name.startswith(_NAME))

    def segments(self) -> tuple[list[Segment], list[Damage]]:
        """List the segments in the order of the log, and those whose description cannot be read.

        A segment that lies within another one was compacted into it and does not count.
        """
        found, damages, _ = self._all()
        return found, damages

    def check(self, segment: Segment) -> list[Damage]:
        """Read every file of a segment and compare it with its hash."""
        found = []
        for table, file in sorted(segment.files.items()):
            problem = _problem(self.path(segment, table), file)
            if problem:
                found.append(Damage(segment=segment.name, table=table, problem=problem))
        return found

    def path(self, segment: Segment, table: str) -> Path:
        """Path of a table of a segment."""
        return self.folder / segment.name / f"{table}.parquet"

    @contextmanager
    def draft(self, first_seq: int) -> Generator[Path]:
        """A folder for the files of a new segment, deleted at the end unless `finish` moved it."""
        path = self.folder / f"{_DRAFT}{first_seq}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def finish(self, draft: Path, segment: Segment) -> None:
        """Move a draft to its final place. Raises ArchiveInvalid if the segment exists."""
        target = self.folder / segment.name
        if target.exists():
            raise ArchiveInvalid("conflict", "a segment is never overwritten", str(target))
        _write(draft / _SEGMENT, msgspec.json.encode(segment))
        _sync(draft)
        draft.rename(target)
        _sync(self.folder)


def _named_range(name: str) -> tuple[int, int]:
    """First and last seq in the name of a segment's folder; 0: it has none."""
    found = _RANGE.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _is_within(name: str, kept: list[Segment]) -> bool:
    first, last = _named_range(name)
    return any(one.first_seq <= first <= last <= one.last_seq for one in kept if one.name != name)


def _holder(descriptor: int) -> str:
    """The process that holds the lock; it may not have written its id yet."""
    said = os.pread(descriptor, 256, 0).decode("utf-8", "replace").strip()
    return said or "unknown process"


def describe_file(path: Path, rows: int) -> SegmentFile:
    """Sync a written file and describe it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return SegmentFile(rows=rows, bytes=path.stat().st_size, hash=_hash(path))


def continuity_problems(segments: list[Segment]) -> list[str]:
    """Problems between neighbours: gaps, overlaps and chains that do not link."""
    problems = []
    next_seq, head = 1, ""
    for one in segments:
        if one.first_seq > next_seq:
            problems.append(f"records {next_seq} to {one.first_seq - 1} are not in this export")
        elif one.first_seq < next_seq:
            problems.append(f"{one.name} overlaps the previous segment")
        elif one.prev != head:
            problems.append(
                f"{one.name} links to {one.prev}, the previous segment ends with {head}"
            )
        next_seq, head = one.last_seq + 1, one.head
    return problems


def files_by_table(
    segments: list[Segment], archive: Archive, lost: set[tuple[str, str]]
) -> Mapping[str, list[Path]]:
    """Files by table, without those of (segment, table) that are lost."""
    found: dict[str, list[Path]] = {}
    for one in segments:
        for table in one.files:
            if not {(one.name, table), (one.name, "")} & lost:
                found.setdefault(table, []).append(archive.path(one, table))
    return found


def _problem(path: Path, file: SegmentFile) -> str:
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"{path.name} has {size} bytes, {file.bytes} were written"
        if _hash(path) != file.hash:
            return f"{path.name} was modified: its hash differs"
    except OSError as err:
        return f"{path.name}: {err.strerror}"
    return ""


def _hash(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
