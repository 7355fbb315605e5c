"""Exporting: records of a log become segments; what an export has already is replayed from its own records.

Decides where a segment ends. Records come from whoever reads the log; this knows no bus. An export that was interrupted
goes on behind its last finished segment, and a segment that was taken away is made again.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from shared.archive.database import Writer
from shared.archive.facts import Facts
from shared.archive.segments import (
    Archive,
    ArchiveInvalid,
    Damage,
    Segment,
    described,
    joined,
    tables_of,
)
from shared.archive.sheets import taken
from shared.core.role import Record

#: A segment ends behind the record with which it has so many rows, or so many bytes of records.
ROWS_MAX = 2_000_000
BYTES_MAX = 64 << 20


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
        self.facts = Facts(with_data=True)
        self.written = Written()
        self._rows_max = rows_max
        self._writer = Writer()
        self._first_seq = 1
        self._prev = ""
        segments, damages = archive.segments()
        damages += [one for segment in segments for one in archive.check(segment)]
        if damages:
            raise refusal(archive, damages[0])
        for problem in joined(segments):
            if "not in this export" not in problem:
                raise ArchiveInvalid("damaged", problem, str(archive.folder))
        self._old = {one.first_seq: one for one in segments}

    def wanted(self) -> tuple[int, int]:
        """Replay what is there already; then say which records come next: from, to (0: to the end). Raises LogError."""
        facts = self.facts
        while (old := self._old.get(facts.replica.next_seq)) is not None:
            self.flush()
            facts.keeps = False
            path = self.archive.path(old, "records")
            for seq, subject, data in self._writer.records(path):
                facts.apply(Record(seq, subject, data))
            facts.resume()
            if facts.replica.chain.head != old.head or facts.replica.seq != old.last_seq:
                raise ArchiveInvalid("damaged", "its records are not those it names", str(path))
            self._begin()
        first = facts.replica.next_seq
        later = [seq for seq in self._old if seq > first]
        return first, min(later) - 1 if later else 0

    def apply(self, record: Record) -> None:
        """Take the next record. Raises LogError, and then what came before is kept."""
        self.facts.apply(record)
        if not self.written.records:
            self.archive.begin(self._cluster())
        self.written.records += 1
        if self.facts.rows >= self._rows_max or self.facts.bytes >= BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write a segment of what was taken since the last one. Raises OSError, ArchiveInvalid."""
        chain = self.facts.replica.chain
        if chain.next_seq == self._first_seq:
            return
        files = {}
        with self.archive.draft(self._first_seq) as draft:
            for name, rows, columns in taken(self.facts.sheets):
                if not rows:
                    continue
                path = draft / f"{name}.parquet"
                self._writer.write(name, columns, self.facts.words.texts, path)
                files[name] = described(path, rows)
            segment = Segment(
                first_seq=self._first_seq,
                last_seq=chain.next_seq - 1,
                prev=self._prev,
                head=chain.head,
                t_ns=chain.t_ns,
                files=files,
            )
            self.archive.finish(draft, segment)
        self.written.segments += 1
        self.written.rows += sum(one.rows for one in files.values())
        self.written.bytes += sum(one.bytes for one in files.values())
        self.written.events = self.facts.events
        self._begin()

    def close(self) -> None:
        """Let go of the database."""
        self._writer.close()

    def _begin(self) -> None:
        chain = self.facts.replica.chain
        self._first_seq, self._prev = chain.next_seq, chain.head
        self.facts.bytes = 0

    def _cluster(self) -> str:
        return self.facts.replica.chain.cluster_id


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

    def files(self) -> dict[str, list[Path]]:
        """Sound files by table."""
        lost = {(one.segment, one.table) for one in self.damages}
        return dict(tables_of(self.segments, self.archive, lost))

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


def told(damage: Damage) -> str:
    """Say what is damaged in one line."""
    return f"segment {damage.segment}: {damage.problem}"


def refusal(archive: Archive, damage: Damage) -> ArchiveInvalid:
    """Say why nothing more is exported, and what helps."""
    text = f"{told(damage)}; move that folder away, and the next export makes it again from the log"
    return ArchiveInvalid("damaged", text, str(archive.folder))
