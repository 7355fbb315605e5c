"""Compaction: neighbouring small segments become one, as if one export had written it.

The records are exported again from the segments, with all checks of an export. The new segment is moved into place
before the old ones are deleted; after a crash in between the next export deletes them, since a segment inside the range
of another does not count.
"""

from collections.abc import Sequence

from shared.archive.export import BYTES_MAX, ROWS_MAX, Export
from shared.archive.segments import Archive, ArchiveInvalid, Segment
from shared.core.runtime.messages import Record

#: Rows of a chunk that repeat earlier chunks: not counted, since a larger chunk has them once.
_REPEATED_TABLES = frozenset({"spans", "closes", "words"})


def compact_segments(
    archive: Archive, *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX
) -> int:
    """Put segments of a locked archive together; returns how many were. Raises ArchiveInvalid, LogError, OSError."""
    segments, _ = archive.segments()
    groups = group_neighbours(segments, rows_max, bytes_max)
    if not groups:
        return 0
    work = _Compaction(archive)
    try:
        for group in groups:
            work.join(group)
    finally:
        work.close()
    return sum(map(len, groups))


def group_neighbours(
    segments: Sequence[Segment], rows_max: int, bytes_max: int
) -> list[list[Segment]]:
    """Group neighbours that fit one segment, in order; what stays alone is in none."""
    groups: list[list[Segment]] = []
    rows = size = 0
    for one in segments:
        own = sum(file.rows for table, file in one.files.items() if table not in _REPEATED_TABLES)
        own_bytes = one.files["records"].bytes if "records" in one.files else 0
        last = groups[-1][-1] if groups else None
        is_next = last is not None and last.last_seq + 1 == one.first_seq
        if is_next and rows + own <= rows_max and size + own_bytes <= bytes_max:
            groups[-1].append(one)
            rows, size = rows + own, size + own_bytes
        else:
            groups.append([one])
            rows, size = own, own_bytes
    return [group for group in groups if len(group) > 1]


class _Compaction(Export):
    """An export whose records are its own."""

    def join(self, group: Sequence[Segment]) -> None:
        """Write one segment of what these hold, and take them away."""
        facts = self.facts
        facts.is_recording = False
        self._take(facts.replica.next_seq, group[0].first_seq - 1)
        self._resume()
        self._take(group[0].first_seq, group[-1].last_seq)
        if facts.replica.chain.head != group[-1].head:
            path = self.archive.path(group[-1], "records")
            raise ArchiveInvalid("damaged", "its records do not match its name", str(path))
        self.flush()
        self.archive.drop_replaced()
        self._old, _ = self.archive.segments()

    def _take(self, first: int, last: int) -> None:
        for one in self._old:
            if one.last_seq < first or one.first_seq > last:
                continue
            for seq, subject, data in self._writer.records(
                self.archive.path(one, "records"), first
            ):
                self.facts.apply(Record(seq, subject, data))
