"""Exporting: records of a log become segments; existing segments are replayed from their own records.

The caller reads the log; this module does not use the bus. An interrupted export continues behind its last finished
segment, and a deleted segment is made again.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from shared.archive.database import ParquetWriter
from shared.archive.fact_extractor import FactExtractor
from shared.archive.segments import (
    Archive,
    ArchiveInvalid,
    Damage,
    Segment,
    SegmentFile,
    continuity_problems,
    describe_file,
    files_by_table,
)
from shared.archive.table_buffers import ColumnArray, StringDictionary, drain_buffers
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica

#: A segment ends with the record that reaches this number of rows, or of bytes of records.
ROWS_MAX = 2_000_000
BYTES_MAX = 64 << 20
#: Maximum number of rows that a spool keeps in memory.
SPOOL_ROWS_MAX = 1_000_000


class ExportStats(msgspec.Struct, kw_only=True):
    """Totals of one run of an export."""

    segments: int = 0
    records: int = 0
    #: placements counted one by one.
    events: int = 0
    rows: int = 0
    bytes: int = 0


class Export:
    """One run of an export into a locked folder: apply the records of `wanted`, then `flush`."""

    def __init__(self, archive: Archive, *, rows_max: int = ROWS_MAX) -> None:
        """Raises ArchiveInvalid for a folder with a damaged segment."""
        self.archive = archive
        self.written = ExportStats()
        self._rows_max = rows_max
        self._writer = ParquetWriter()
        self._hand = ThreadPoolExecutor(1, "segments")
        self._under_way: Future[Segment] | None = None
        self._first_seq = 1
        self._prev = ""
        segments, damages = archive.segments()
        damages += [one for segment in segments for one in archive.check(segment)]
        if damages:
            raise damage_error(archive, damages[0])
        for problem in continuity_problems(segments):
            if "not in this export" not in problem:
                raise ArchiveInvalid("damaged", problem, str(archive.folder))
        self._old = segments
        #: seq of its last record; 0: empty.
        self.last_seq = segments[-1].last_seq if segments else 0
        known = self._writer.words(files_by_table(segments, archive, set()).get("words", ()))
        self.facts = FactExtractor(with_data=True, words=StringDictionary(known))

    @property
    def is_whole(self) -> bool:
        """Whether the segments have no gaps."""
        return not continuity_problems(self._old)

    def last_record(self) -> Record | None:
        """The last exported record; None: the export is empty."""
        if not self._old:
            return None
        path = self.archive.path(self._old[-1], "records")
        found = self._writer.records(path, self.last_seq)
        return next((Record(seq, subject, data) for seq, subject, data in found), None)

    def begin_at(self, replica: Replica) -> None:
        """Start from a replica that was restored within a complete export."""
        self.facts.replica.begin_at(replica)
        self.facts.is_recording = False

    def wanted(self) -> tuple[int, int]:
        """Replay the existing segments; return the next range of records to apply (0: to the end). Raises LogError."""
        facts = self.facts
        while (old := self._holding(facts.replica.next_seq)) is not None:
            if facts.is_recording:
                self.flush()
            facts.is_recording = False
            path = self.archive.path(old, "records")
            for seq, subject, data in self._writer.records(path, facts.replica.next_seq):
                facts.apply(Record(seq, subject, data))
            if facts.replica.seq != old.last_seq:
                raise ArchiveInvalid("damaged", "its records do not match its name", str(path))
        if not facts.is_recording:
            self._resume()
        first = facts.replica.next_seq
        later = [one.first_seq for one in self._old if one.first_seq > first]
        return first, min(later) - 1 if later else 0

    def _holding(self, seq: int) -> Segment | None:
        return next((one for one in self._old if one.first_seq <= seq <= one.last_seq), None)

    def _resume(self) -> None:
        """Continue behind the existing segments, with the spans that are open at their end."""
        chain = self.facts.replica.chain
        before = [one for one in self._old if one.last_seq < chain.next_seq]
        if before and before[-1].last_seq == chain.next_seq - 1 and before[-1].head != chain.head:
            path = self.archive.path(before[-1], "records")
            raise ArchiveInvalid("damaged", "its records do not match its name", str(path))
        bases = full_chunk_seqs(before)
        standing = None
        if bases:
            chunks = [one for one in before if one.first_seq >= bases[-1]]
            files = files_by_table(chunks, self.archive, set())
            if "spans" in files:
                standing = self._writer.standing(files["spans"], files.get("closes", ()))
        try:
            self.facts.resume(standing)
        except KeyError:
            # They do not match this state, so the next chunk is a full one.
            self.facts.resume()
        self._begin()

    def apply(self, record: Record) -> None:
        """Apply the next record. Raises LogError; records before it are kept."""
        self.facts.apply(record)
        if not self.written.records:
            self.archive.begin(self._cluster())
        self.written.records += 1
        self.written.events = self.facts.events
        if self.facts.rows >= self._rows_max or self.facts.bytes >= BYTES_MAX:
            self._hand_over()

    def flush(self) -> None:
        """Write a segment of the records since the last one. Raises OSError, ArchiveInvalid."""
        self._hand_over()
        self._wait()

    def close(self) -> None:
        """Close the database; records that were not flushed are lost."""
        self._hand.shutdown(cancel_futures=True)
        self._writer.close()

    def _hand_over(self) -> None:
        """Write the applied records in a thread while the next ones are read."""
        chain = self.facts.replica.chain
        if chain.next_seq == self._first_seq:
            return
        is_full = self.facts.settle()
        segment = Segment(
            first_seq=self._first_seq,
            last_seq=chain.next_seq - 1,
            prev=self._prev,
            head=chain.head,
            t_ns=chain.t_ns,
            files={},
            spans="full" if is_full else "lean",
        )
        buffers = list(drain_buffers(self.facts.buffers))
        self._wait()
        self._under_way = self._hand.submit(
            self._write, segment, buffers, self.facts.words.texts.copy()
        )
        self._begin()

    def _wait(self) -> None:
        """Wait for the segment that is being written. Raises what its writing raised."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        files = under_way.result().files.values()
        self.written.segments += 1
        self.written.rows += sum(one.rows for one in files)
        self.written.bytes += sum(one.bytes for one in files)

    def _write(
        self,
        segment: Segment,
        buffers: list[tuple[str, int, dict[str, ColumnArray]]],
        words: list[str],
    ) -> Segment:
        """Write the files of a segment, then finish it. Runs in a thread."""
        files: dict[str, SegmentFile] = {}
        with self.archive.draft(segment.first_seq) as draft:
            for name, rows, columns in buffers:
                if rows:
                    path = draft / f"{name}.parquet"
                    self._writer.write(name, columns, words, path)
                    files[name] = describe_file(path, rows)
            whole = msgspec.structs.replace(segment, files=files)
            self.archive.finish(draft, whole)
        return whole

    def _begin(self) -> None:
        chain = self.facts.replica.chain
        self._first_seq, self._prev = chain.next_seq, chain.head
        self.facts.bytes = 0

    def _cluster(self) -> str:
        return self.facts.replica.chain.cluster_id


def write_export(folder: Path, records: Iterable[Record]) -> None:
    """Write the records of a log, from the first one on, as a new export. Raises ArchiveInvalid, LogError, OSError."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive)
        try:
            for record in records:
                work.apply(record)
            work.flush()
        finally:
            work.close()


class FactSpool:
    """Writes the facts of a log to files of a folder as they are extracted, to save memory."""

    def __init__(
        self, facts: FactExtractor, folder: Path, *, rows_max: int = SPOOL_ROWS_MAX
    ) -> None:
        self.facts = facts
        self.files: dict[str, list[Path]] = {}
        #: seqs where full chunks of spans begin.
        self.bases: list[int] = []
        self._folder = folder
        self._rows_max = rows_max
        self._writer = ParquetWriter()

    def apply(self, record: Record) -> None:
        """Apply the next record. Raises LogError, OSError."""
        self.facts.apply(record)
        if self.facts.rows >= self._rows_max:
            first_seq = self.facts.first_seq
            if self.facts.settle():
                self.bases.append(first_seq)
            for name, rows, columns in drain_buffers(self.facts.buffers):
                if rows:
                    path = self._folder / f"{first_seq}-{name}.parquet"
                    self._writer.write(name, columns, self.facts.words.texts, path)
                    self.files.setdefault(name, []).append(path)

    def close(self) -> None:
        """Close the database; the files stay."""
        self._writer.close()


class ExportReader:
    """Reads an export: its sound parts, and descriptions of the damage."""

    def __init__(self, folder: Path) -> None:
        """Raises ArchiveInvalid: no export at all."""
        self.archive = Archive(folder)
        self.cluster_id = self.archive.cluster_id()
        if not self.cluster_id:
            raise ArchiveInvalid(
                "not_found",
                "no export in this folder; create one with caravan log export",
                str(folder),
            )
        self.segments, self.damages = self.archive.segments()
        self.damages += [one for each in self.segments for one in self.archive.check(each)]
        self.problems = [*map(damage_text, self.damages), *continuity_problems(self.segments)]
        lasts = [one.last_seq for one in self.segments] + [one.last_seq for one in self.damages]
        #: seq of the last record that was exported, whether it can be read or not; 0: empty.
        self.last_seq = max(lasts, default=0)

    def files(self) -> dict[str, list[Path]]:
        """Sound files by table."""
        lost = {(one.segment, one.table) for one in self.damages}
        return dict(files_by_table(self.segments, self.archive, lost))

    def bases(self) -> list[int] | None:
        """Seqs where full chunks of spans begin; None where some spans are missing."""
        lost = any(one.table in {"", "spans", "closes", "words"} for one in self.damages)
        return (
            None if lost or continuity_problems(self.segments) else full_chunk_seqs(self.segments)
        )

    def words(self) -> StringDictionary:
        """The words that its spans use. Raises OSError."""
        writer = ParquetWriter()
        try:
            return StringDictionary(writer.words(self.files().get("words", ())))
        finally:
            writer.close()

    def records(self, first: int = 1, last: int = 0) -> Iterator[Record]:
        """Yield the records; gaps stay gaps. Raises OSError."""
        writer = ParquetWriter()
        lost = {one.segment for one in self.damages if one.table in {"", "records"}}
        try:
            for one in self.segments:
                if one.name in lost or one.last_seq < first or (last and one.first_seq > last):
                    continue
                for seq, subject, data in writer.records(self.archive.path(one, "records"), first):
                    if last and seq > last:
                        break
                    yield Record(seq, subject, data)
        finally:
            writer.close()


def full_chunk_seqs(segments: Sequence[Segment]) -> list[int] | None:
    """Seqs where full chunks of spans begin; None where an older release wrote some without."""
    if any(not one.spans for one in segments):
        return None
    return [one.first_seq for one in segments if one.spans == "full"]


def damage_text(damage: Damage) -> str:
    """Describe a damage in one line."""
    return f"segment {damage.segment}: {damage.problem}"


def damage_error(archive: Archive, damage: Damage) -> ArchiveInvalid:
    """The error of an export into a damaged folder, with the remedy."""
    text = f"{damage_text(damage)}; move that folder away, then export again"
    return ArchiveInvalid("damaged", text, str(archive.folder))
