"""Segments: an export's folder on disk. Each segment is a folder of Parquet files that is written once, then only read.

Decides names, what a segment says of itself (`segment.json`: seqs, the chain's heads before and behind it, the hash of
every file), and when one is damaged. A segment is made beside its place and moved there whole: what has a name is
finished. Must not know what tables mean.
"""

import fcntl
import os
import platform
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
_BLOCK = 1 << 20


class ArchiveInvalid(CaravanError):
    """A folder is no export, of another cluster, in use, or damaged. `code` is stable."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.path = path


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """`export.json`: whose log this is. Written once."""

    format: int
    cluster_id: str


class File(msgspec.Struct, frozen=True, kw_only=True):
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
    files: dict[str, File]
    #: what its spans are (spans.py): full, lean, or empty where an older release wrote it.
    spans: str = ""

    @property
    def name(self) -> str:
        """Name of its folder: sorted as the log is."""
        return f"{_NAME}{self.first_seq:012d}-{self.last_seq:012d}"


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """What of a segment cannot be used: one of its tables, or with an empty `table` all of it."""

    segment: str
    table: str
    problem: str


class Archive:
    """An export's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cluster_id(self) -> str:
        """Say whose log it is; empty: nothing was exported here yet. Raises ArchiveInvalid."""
        path = self.folder / _EXPORT
        if not path.exists():
            if self.folder.is_dir() and any(self.folder.glob(f"{_NAME}*")):
                raise ArchiveInvalid("damaged", f"segments without {_EXPORT}", str(self.folder))
            return ""
        try:
            marker = msgspec.json.decode(path.read_bytes(), type=Marker)
        except msgspec.DecodeError as err:
            raise ArchiveInvalid("damaged", f"it does not decode: {err}", str(path)) from err
        if marker.format != FORMAT:
            text = f"export of format {marker.format}, this release knows {FORMAT}"
            raise ArchiveInvalid("newer", text, str(path))
        return marker.cluster_id

    def begin(self, cluster_id: str) -> None:
        """Say whose log it is. Raises ArchiveInvalid where it is another's, or not a folder for this."""
        known = self.cluster_id()
        if known and known != cluster_id:
            text = f"holds the log of cluster {known}, this is {cluster_id}"
            raise ArchiveInvalid("conflict", text, str(self.folder))
        if not known:
            self._be_alone()
            marker = Marker(format=FORMAT, cluster_id=cluster_id)
            draft = self.folder / f"{_DRAFT}{_EXPORT}"
            draft.unlink(missing_ok=True)
            _write(draft, msgspec.json.encode(marker))
            draft.rename(self.folder / _EXPORT)
            _sync(self.folder)

    def _be_alone(self) -> None:
        """Raise ArchiveInvalid where anything else is in the folder; what a killed export left is none."""
        names = [one.name for one in self.folder.iterdir()]
        others = [one for one in names if one != _LOCK and not one.startswith(_DRAFT)]
        if others:
            text = f"not empty and no export: {min(others)} is there"
            raise ArchiveInvalid("conflict", text, str(self.folder))

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep every other export out, until the end of this process at the latest. Raises ArchiveInvalid, OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.cluster_id():
            self._be_alone()
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                text = f"another export is writing into this folder: {_holder(descriptor)}"
                raise ArchiveInvalid("conflict", text, str(self.folder)) from err
            self._name_us(descriptor)
            self._tidy()
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _name_us(descriptor: int) -> None:
        """Say in the lock's file who holds it, for whoever is refused."""
        text = f"process {os.getpid()} on {platform.node()}\n"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)

    def _tidy(self) -> None:
        """Take away what a killed export left: drafts, and segments that a larger one has taken the place of."""
        for draft in self.folder.glob(f"{_DRAFT}*"):
            if draft.is_dir():
                shutil.rmtree(draft)
            else:
                draft.unlink()
        self.drop_replaced()

    def drop_replaced(self) -> None:
        """Take away segments that a larger one holds: it took their place."""
        for name in self._all()[2]:
            shutil.rmtree(self.folder / name)

    def _all(self) -> tuple[list[Segment], list[Damage], list[str]]:
        """Segments that count, what cannot be read, and names of segments that lie within another one."""
        found: list[Segment] = []
        damages: list[Damage] = []
        for path in sorted(self.folder.glob(f"{_NAME}*")):
            try:
                segment = msgspec.json.decode((path / _SEGMENT).read_bytes(), type=Segment)
            except (OSError, msgspec.DecodeError) as err:
                damages.append(Damage(segment=path.name, table="", problem=f"{_SEGMENT}: {err}"))
                continue
            if segment.name != path.name:
                text = f"{_SEGMENT} is that of {segment.name}"
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
        return kept, damages, within

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
        """Where a table of a segment lies."""
        return self.folder / segment.name / f"{table}.parquet"

    @contextmanager
    def draft(self, first_seq: int) -> Generator[Path]:
        """A folder to write a segment's files into; it is gone at the end unless `finish` moved it."""
        path = self.folder / f"{_DRAFT}{first_seq}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def finish(self, draft: Path, segment: Segment) -> None:
        """Make a draft the segment that it is. Raises ArchiveInvalid where there is one already."""
        target = self.folder / segment.name
        if target.exists():
            raise ArchiveInvalid("conflict", "a segment is never overwritten", str(target))
        _write(draft / _SEGMENT, msgspec.json.encode(segment))
        _sync(draft)
        draft.rename(target)
        _sync(self.folder)


def _holder(descriptor: int) -> str:
    """Say who holds the lock, as far as it is known: it may just have been taken."""
    said = os.pread(descriptor, 256, 0).decode("utf-8", "replace").strip()
    return said or "it began just now"


def described(path: Path, rows: int) -> File:
    """Describe a file that was written, and make it stay."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return File(rows=rows, bytes=path.stat().st_size, hash=_hash(path))


def joined(segments: list[Segment]) -> list[str]:
    """Name what does not fit between neighbours: gaps, overlaps and chains that do not link."""
    problems = []
    next_seq, head = 1, ""
    for one in segments:
        if one.first_seq > next_seq:
            problems.append(f"records {next_seq} to {one.first_seq - 1} are not in this export")
        elif one.first_seq < next_seq:
            problems.append(f"{one.name} begins within the segment before")
        elif one.prev != head:
            problems.append(f"{one.name} links to {one.prev}, the segment before ends with {head}")
        next_seq, head = one.last_seq + 1, one.head
    return problems


def tables_of(
    segments: list[Segment], archive: Archive, lost: set[tuple[str, str]]
) -> Mapping[str, list[Path]]:
    """Files by table, without those of (segment, table) that are lost."""
    found: dict[str, list[Path]] = {}
    for one in segments:
        for table in one.files:
            if not {(one.name, table), (one.name, "")} & lost:
                found.setdefault(table, []).append(archive.path(one, table))
    return found


def _problem(path: Path, file: File) -> str:
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"{path.name} has {size} bytes, {file.bytes} were written"
        if _hash(path) != file.hash:
            return f"{path.name} is not what was written: its hash differs"
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
