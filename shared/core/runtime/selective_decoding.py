"""Decoding for a role that needs few events: a record without any of them is checked, and its events are not made.

Which events a record holds is found by their tags in its bytes. A tag inside a job's text makes a record be decoded
that need not be; none is passed over that is needed.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from schemas.base import Event, Wire
from schemas.envelope import LeaseHeld, LogRecord
from schemas.jobs import JobRegistered
from shared.core.runtime.chain import RecordDecoder, checked_body, decode_record, undecodable
from shared.errors import LogDamaged

#: Of an event that most records of a busy log hold, the fields that are written only where a reader of few tables needs
#: the event.
NEEDED_WITH: Mapping[type[Event], tuple[str, ...]] = {
    JobRegistered: ("periodic", "parent", "deploys")
}


class _Head(Wire, frozen=True, kw_only=True):
    """A record without its events; the fields are those of LogRecord."""

    kind: str
    schema: int
    core: str
    epoch: int
    prev: str
    t_ns: int
    causes: tuple[str, ...] = ()
    lease: LeaseHeld | None = None
    tables: dict[str, str] | None = None
    sum: str = ""


_HEAD = msgspec.json.Decoder(_Head)
_FIELDS = _Head.__struct_fields__


def decoder_for(
    needed: Iterable[type[Event]], needed_with: Mapping[type[Event], tuple[str, ...]] = NEEDED_WITH
) -> RecordDecoder:
    """Return a decoder that makes the events of a record only if one of them is needed."""
    parts: set[str] = set()
    for kind in needed:
        fields = needed_with.get(kind)
        if fields is None:
            parts.add(f'"type":"{kind.__struct_config__.tag}"')
        else:
            parts.update(f'"{field}":' for field in fields)
    pattern = re.compile("|".join(re.escape(one) for one in sorted(parts)).encode())

    def decode(seq: int, subject: str, data: bytes) -> LogRecord | None:
        if pattern.search(data):
            return decode_record(seq, subject, data)
        if not checked_body(seq, data):
            return None
        try:
            head = _HEAD.decode(data)
        except (ValueError, RecursionError) as err:
            raise undecodable(seq, err) from err
        if not subject.endswith(f".{head.kind}"):
            raise LogDamaged(seq, f"a {head.kind} on subject {subject}")
        return LogRecord(**{name: getattr(head, name) for name in _FIELDS})

    return decode
