"""A cache of decoded records: the replicas of a run share one decoded object per record."""

from schemas.envelope import LogRecord
from shared.core.runtime.chain import decode_record

#: Records kept. A replica that is further behind decodes for itself.
KEPT = 4096


class RecordCache:
    """The newest records, decoded, by seq. A record that raises is not kept."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[bytes, LogRecord | None]] = {}

    def decode(self, seq: int, subject: str, data: bytes) -> LogRecord | None:
        """Decode as `decode_record` does; the same bytes object at the same seq is decoded once."""
        kept = self._kept.get(seq)
        if kept is not None and kept[0] is data:
            return kept[1]
        record = decode_record(seq, subject, data)
        self._kept[seq] = (data, record)
        self._kept.pop(seq - KEPT, None)
        return record
