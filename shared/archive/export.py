"""Exporting: records of a log become segments; what an export has already is replayed from its own records.

Decides where a segment ends. Records come from whoever reads the log; this knows no bus. An export that was interrupted
goes on behind its last finished segment, and a segment that was taken away is made again.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from shared.archive.database import Writer
from shared.archive.facts import Facts
from shared.archive.segments import (
    Archive,
    ArchiveInvalid,
    Damage,
    File,
    Segment,
    described,
    joined,
    tables_of,
)
from shared.archive.sheets import Column, Words, taken
from shared.core.replica import Replica
from shared.core.role import Record

#: A segment ends behind the record with which it has so many rows, or so many bytes of records.
ROWS_MAX = 2_000_000
BYTES_MAX = 64 << 20
#: A spool keeps no more rows in memory.
SPOOL_ROWS_MAX = 1_000_000


class Written(msgspec.Struct, kw_only=True):
    """What an export did."""

    segments: int = 0
    records: int = 0
    #: placements counted one by one.
    events: int = 0
    rows: int = 0
    bytes: int = 0


class Export:
    """One run of an export into a locked folder. Feed it what `wanted` asks for, then `flush`."""

    def __init__(self, archive: Archive, *, rows_max: int = ROWS_MAX) -> None:
        """Raises ArchiveInvalid for a folder with a damaged segment: nothing is written behind it."""
        self.archive = archive
        self.written = Written()
        self._rows_max = rows_max
        self._writer = Writer()
        self._hand = ThreadPoolExecutor(1, "segments")
        self._under_way: Future[Segment] | None = None
        self._first_seq = 1
        self._prev = ""
        segments, damages = archive.segments()
        damages += [one for segment in segments for one in archive.check(segment)]
        if damages:
            raise refusal(archive, damages[0])
        for problem in joined(segments):
            if "not in this export" not in problem:
                raise ArchiveInvalid("damaged", problem, str(archive.folder))
        self._old = segments
        #: where it ends; 0: nothing is in it.
        self.last_seq = segments[-1].last_seq if segments else 0
        known = self._writer.words(tables_of(segments, archive, set()).get("words", ()))
        self.facts = Facts(with_data=True, words=Words(known))

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing between its beginning and its end."""
        return not joined(self._old)

    def last_record(self) -> Record | None:
        """Return the record where it ends, as it stood in the log; None: nothing is in it."""
        if not self._old:
            return None
        path = self.archive.path(self._old[-1], "records")
        found = self._writer.records(path, self.last_seq)
        return next((Record(seq, subject, data) for seq, subject, data in found), None)

    def begin_at(self, replica: Replica) -> None:
        """Take over a replica that was restored within what is there, of which nothing is missing."""
        self.facts.replica.begin_at(replica)
        self.facts.keeps = False

    def wanted(self) -> tuple[int, int]:
        """Replay what is there already; then say which records come next: from, to (0: to the end). Raises LogError."""
        facts = self.facts
        while (old := self._holding(facts.replica.next_seq)) is not None:
            if facts.keeps:
                self.flush()
            facts.keeps = False
            path = self.archive.path(old, "records")
            for seq, subject, data in self._writer.records(path, facts.replica.next_seq):
                facts.apply(Record(seq, subject, data))
            if facts.replica.seq != old.last_seq:
                raise ArchiveInvalid("damaged", "its records are not those it names", str(path))
        if not facts.keeps:
            self._resume()
        first = facts.replica.next_seq
        later = [one.first_seq for one in self._old if one.first_seq > first]
        return first, min(later) - 1 if later else 0

    def _holding(self, seq: int) -> Segment | None:
        return next((one for one in self._old if one.first_seq <= seq <= one.last_seq), None)

    def _resume(self) -> None:
        """Go on behind what is there, with the spans that are open at its end."""
        chain = self.facts.replica.chain
        before = [one for one in self._old if one.last_seq < chain.next_seq]
        if before and before[-1].last_seq == chain.next_seq - 1 and before[-1].head != chain.head:
            path = self.archive.path(before[-1], "records")
            raise ArchiveInvalid("damaged", "its records are not those it names", str(path))
        bases = bases_of(before)
        standing = None
        if bases:
            chunks = [one for one in before if one.first_seq >= bases[-1]]
            files = tables_of(chunks, self.archive, set())
            if "spans" in files:
                standing = self._writer.standing(files["spans"], files.get("closes", ()))
        try:
            self.facts.resume(standing)
        except KeyError:
            # They are not of this state: what comes stands for itself.
            self.facts.resume()
        self._begin()

    def apply(self, record: Record) -> None:
        """Take the next record. Raises LogError, and then what came before is kept."""
        self.facts.apply(record)
        if not self.written.records:
            self.archive.begin(self._cluster())
        self.written.records += 1
        self.written.events = self.facts.events
        if self.facts.rows >= self._rows_max or self.facts.bytes >= BYTES_MAX:
            self._hand_over()

    def flush(self) -> None:
        """Write a segment of what was taken since the last one. Raises OSError, ArchiveInvalid."""
        self._hand_over()
        self._wait()

    def close(self) -> None:
        """Let go of the database; what was not flushed is left out."""
        self._hand.shutdown(cancel_futures=True)
        self._writer.close()

    def _hand_over(self) -> None:
        """Let what was taken be written while the next records come."""
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
        sheets = list(taken(self.facts.sheets))
        self._wait()
        self._under_way = self._hand.submit(
            self._write, segment, sheets, self.facts.words.texts.copy()
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
        self, segment: Segment, sheets: list[tuple[str, int, dict[str, Column]]], words: list[str]
    ) -> Segment:
        """Write a segment's files, then make it one. Runs beside the reading of records."""
        files: dict[str, File] = {}
        with self.archive.draft(segment.first_seq) as draft:
            for name, rows, columns in sheets:
                if rows:
                    path = draft / f"{name}.parquet"
                    self._writer.write(name, columns, words, path)
                    files[name] = described(path, rows)
            whole = msgspec.structs.replace(segment, files=files)
            self.archive.finish(draft, whole)
        return whole

    def _begin(self) -> None:
        chain = self.facts.replica.chain
        self._first_seq, self._prev = chain.next_seq, chain.head
        self.facts.bytes = 0

    def _cluster(self) -> str:
        return self.facts.replica.chain.cluster_id


class Spool:
    """Facts of a log that nobody exported, in a folder of its own as they come, so that memory need not hold them."""

    def __init__(self, facts: Facts, folder: Path, *, rows_max: int = SPOOL_ROWS_MAX) -> None:
        self.facts = facts
        self.files: dict[str, list[Path]] = {}
        #: seqs where full chunks of spans begin.
        self.bases: list[int] = []
        self._folder = folder
        self._rows_max = rows_max
        self._writer = Writer()

    def apply(self, record: Record) -> None:
        """Take the next record. Raises LogError, OSError."""
        self.facts.apply(record)
        if self.facts.rows >= self._rows_max:
            first_seq = self.facts.first_seq
            if self.facts.settle():
                self.bases.append(first_seq)
            for name, rows, columns in taken(self.facts.sheets):
                if rows:
                    path = self._folder / f"{first_seq}-{name}.parquet"
                    self._writer.write(name, columns, self.facts.words.texts, path)
                    self.files.setdefault(name, []).append(path)

    def close(self) -> None:
        """Let go of the database; the files stay."""
        self._writer.close()


class Reading:
    """An export that is read: its sound parts, and what is wrong with the rest."""

    def __init__(self, folder: Path) -> None:
        """Raises ArchiveInvalid: no export at all."""
        self.archive = Archive(folder)
        self.cluster_id = self.archive.cluster_id()
        if not self.cluster_id:
            raise ArchiveInvalid("not_found", "no export here (caravan log export)", str(folder))
        self.segments, self.damages = self.archive.segments()
        self.damages += [one for each in self.segments for one in self.archive.check(each)]
        self.problems = [*map(told, self.damages), *joined(self.segments)]
        #: where it ends; 0: nothing is in it.
        self.last_seq = self.segments[-1].last_seq if self.segments else 0

    def files(self) -> dict[str, list[Path]]:
        """Sound files by table."""
        lost = {(one.segment, one.table) for one in self.damages}
        return dict(tables_of(self.segments, self.archive, lost))

    def bases(self) -> list[int] | None:
        """Seqs where full chunks of spans begin; None where some spans are missing."""
        lost = any(one.table in {"", "spans", "closes", "words"} for one in self.damages)
        return None if lost or joined(self.segments) else bases_of(self.segments)

    def words(self) -> Words:
        """The words that its spans use. Raises OSError."""
        writer = Writer()
        try:
            return Words(writer.words(self.files().get("words", ())))
        finally:
            writer.close()

    def records(self, first: int = 1, last: int = 0) -> Iterator[Record]:
        """Yield the records as they stood in the log; a gap is not hidden. Raises OSError."""
        writer = Writer()
        lost = {one.segment for one in self.damages if one.table in {"", "records"}}
        try:
            for one in self.segments:
                if one.name in lost or one.last_seq < first or (last and one.first_seq > last):
                    continue
                for seq, subject, data in writer.records(self.archive.path(one, "records")):
                    if seq >= first and (not last or seq <= last):
                        yield Record(seq, subject, data)
        finally:
            writer.close()


def bases_of(segments: Sequence[Segment]) -> list[int] | None:
    """Seqs where full chunks of spans begin; None where an older release wrote some without."""
    if any(not one.spans for one in segments):
        return None
    return [one.first_seq for one in segments if one.spans == "full"]


def told(damage: Damage) -> str:
    """Say what is damaged in one line."""
    return f"segment {damage.segment}: {damage.problem}"


def refusal(archive: Archive, damage: Damage) -> ArchiveInvalid:
    """Say why nothing more is exported, and what helps."""
    text = f"{told(damage)}; move that folder away, and the next export makes it again from the log"
    return ArchiveInvalid("damaged", text, str(archive.folder))
