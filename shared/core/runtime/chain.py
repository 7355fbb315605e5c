"""Records of the log on their bytes: sealing, checking, and the chain that says which of them count.

Decides which messages of LOG are transactions of ours, which are foreign (skipped and counted, the same on every
replica) and which mean damage. Knows nothing of what an event does. Next: `replica.py`.

A record's bytes are `{"kind":…,…,"sum":"<32 hex>"}`. The sum is blake2b-128 over everything before the last field,
and `prev` in the body is the sum before: one flipped bit breaks either this record or the next one's link.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import cast

import msgspec

from schemas.base import Event
from schemas.envelope import (
    CORE_VERSION,
    ENCODER,
    RECORD_DECODER,
    SCHEMA_VERSION,
    AnyEvent,
    LeaseHeld,
    LogRecord,
)
from shared.core.runtime.messages import Record as Stored
from shared.errors import LogDamaged, UnknownEvent

#: Bytes of one record -> the record, None for a foreign one.
RecordDecoder = Callable[[int, str, bytes], LogRecord | None]
#: Precedes the bytes of a message that its headers call a record, and that is none.
DAMAGED_PREFIX = b"no record, though its headers name one: "
_FRAME = b'{"kind":"'
_SUM = b',"sum":"'
_TAIL = len(_SUM) + 32 + 2


def checksum(body: bytes) -> str:
    """Hash the bytes of a record up to its last field: 32 hex digits."""
    return blake2b(body, digest_size=16).hexdigest()


def seal(record: LogRecord) -> tuple[bytes, str]:
    """Encode a record without sum and add it. Returns the bytes and the sum."""
    body = ENCODER.encode(record)[:-1]
    digest = checksum(body)
    return body + _SUM + digest.encode() + b'"}', digest


def is_framed(data: bytes) -> bool:
    """Tell whether the bytes look like a record of ours, right or damaged."""
    has_sum = data[-_TAIL : -_TAIL + len(_SUM)] == _SUM and data.endswith(b'"}')
    return has_sum and data.startswith(_FRAME)


def ends_generation(record: Stored) -> bool:
    """Tell whether a record, as it was delivered, is the last one of its generation of the log."""
    return record.subject.endswith(".roll") and is_framed(record.data)


def checked_body(seq: int, data: bytes) -> bool:
    """Tell whether the bytes are a record of ours, with the right sum; False: foreign. Raises LogDamaged."""
    if not is_framed(data):
        if data.startswith(DAMAGED_PREFIX):
            raise LogDamaged(seq, "its headers are those of a record, but its body is not a record")
        return False
    digest = data[-34:-2].decode("ascii", "replace")
    if digest != checksum(data[:-_TAIL]):
        raise LogDamaged(seq, f"checksum {digest} does not match")
    return True


def undecodable(seq: int, cause: Exception) -> LogDamaged:
    """Make the error of a record whose checksum is right, so that it was written as it is, and which is no JSON."""
    return LogDamaged(seq, f"valid checksum but undecodable record: {cause}")


def decode_record(seq: int, subject: str, data: bytes) -> LogRecord | None:
    """Check and decode one record; None for a foreign one. Raises LogDamaged, UnknownEvent."""
    if not checked_body(seq, data):
        return None
    try:
        record = RECORD_DECODER.decode(data)
    except msgspec.ValidationError as err:
        raise UnknownEvent(seq, f"{err}; written by a newer release, upgrade") from err
    except (ValueError, RecursionError) as err:
        raise undecodable(seq, err) from err
    if not subject.endswith(f".{record.kind}"):
        raise LogDamaged(seq, f"a {record.kind} on subject {subject}")
    return record


def core_order(core: str) -> tuple[int, ...]:
    """Order of a CORE_VERSION among others; what is no version comes first."""
    parts = core.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


class Chain:
    """The accepted head of the log: what comes next must link to it.

    `accept` returns the decoded record, or None for a foreign one. It raises LogDamaged where following on would mean
    to guess. `next_seq` counts foreign records too; `head` and `epoch` only accepted ones.
    """

    def __init__(self, decode: RecordDecoder = decode_record) -> None:
        self.decode = decode
        self.next_seq = 1
        self.head = ""
        self.epoch = 0
        self.t_ns = 0
        self.foreign = 0
        self.accepted = 0
        self.cluster_id = ""
        self.holder = ""

    def accept(self, seq: int, subject: str, data: bytes) -> LogRecord | None:
        """Judge the record at `seq`. Raises LogDamaged, UnknownEvent."""
        if seq != self.next_seq:
            raise self._gap(seq)
        record = self.decode(seq, subject, data)
        self.next_seq = seq + 1
        if record is None or record.epoch < self.epoch:
            if record is not None and record.kind == "roll":
                # Every reader has left the stream behind it, so it cannot be nothing.
                raise LogDamaged(seq, f"the log was rolled by epoch {record.epoch}, which was over")
            self.foreign += 1
            return None
        if record.kind == "lease":
            self._take_lease(seq, record)
        elif record.epoch > self.epoch:
            raise LogDamaged(seq, f"epoch {record.epoch} without its lease, ours is {self.epoch}")
        if record.prev != self.head:
            raise LogDamaged(seq, f"links to {record.prev or 'nothing'}, our head is {self.head}")
        self.epoch = record.epoch
        self.head = record.sum
        self.t_ns = max(self.t_ns, record.t_ns)
        self.accepted += 1
        return record

    def begin_with(self, record: LogRecord) -> None:
        """Take the link of the first record that is left on trust; only when nothing was accepted yet."""
        assert not self.accepted, self.accepted
        self.head = record.prev
        self.epoch = 0 if record.kind == "lease" else record.epoch

    def _gap(self, seq: int) -> LogDamaged:
        """Say what is missing before a record that came too early, or too late."""
        last = self.next_seq - 1
        text = f"expected seq {self.next_seq}"
        if seq > self.next_seq:
            text += f", records {self.next_seq} to {seq - 1} are missing"
        return LogDamaged(seq, text, sound_seq=last)

    def log_time(self, now_ns: int) -> int:
        """Log time of a record written now: it never runs backwards."""
        return max(self.t_ns, now_ns)

    def draft(
        self,
        kind: str,
        now_ns: int,
        *,
        events: Iterable[Event] = (),
        lease: LeaseHeld | None = None,
        tables: dict[str, str] | None = None,
    ) -> LogRecord:
        """Make the record that would follow the head, for `seal`; a lease begins the epoch of its own seq."""
        return LogRecord(
            kind=kind,
            schema=SCHEMA_VERSION,
            core=CORE_VERSION,
            epoch=self.next_seq if kind == "lease" else self.epoch,
            prev=self.head,
            t_ns=self.log_time(now_ns),
            events=cast("tuple[AnyEvent, ...]", tuple(events)),
            lease=lease,
            tables=tables,
        )

    def wrote(self, seq: int, record: LogRecord, digest: str) -> None:
        """Take our own record as accepted, without judging it again: it is in the log at `seq`."""
        assert seq == self.next_seq, (seq, self.next_seq)
        if record.kind == "lease":
            self._take_lease(seq, record)
        self.next_seq = seq + 1
        self.epoch = record.epoch
        self.head = digest
        self.t_ns = max(self.t_ns, record.t_ns)
        self.accepted += 1

    def _take_lease(self, seq: int, record: LogRecord) -> None:
        held = record.lease
        if held is None or record.epoch != seq:
            raise LogDamaged(seq, f"lease of epoch {record.epoch} names another seq")
        if self.cluster_id and held.cluster_id != self.cluster_id:
            raise LogDamaged(seq, f"lease of cluster {held.cluster_id}, this is {self.cluster_id}")
        self.cluster_id = held.cluster_id
        self.holder = held.holder
