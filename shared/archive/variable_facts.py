"""Rows of the tables `variables` and `variable_locks`.

Of variables one for each put, and one for each life that ends or is shredded; of locks one for each that is taken,
given back or expires. Ciphertext, digests and hashes of locks are in no column: the records of an export have them.
"""

from collections.abc import Iterator

import msgspec

from schemas.base import Event
from schemas.envelope import ENCODER
from schemas.variables import (
    VariableDeleted,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
    VariablePut,
    VariablesShredded,
)

Row = dict[str, object]
_LEFT_OUT = ("cipher", "digest")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def variable_facts(event: Event) -> Iterator[Row]:
    """Make the rows of one event; of one that is about no variable none."""
    match event:
        case VariablePut():
            yield _row("put", event.path, event.incarnation, items=event.items, size=event.size)
        case VariableDeleted():
            yield _row("deleted", event.path, event.incarnation)
        case VariablesShredded():
            for one in event.lives:
                yield _row("shredded", one.path, one.incarnation)
        case _:
            return


def lock_facts(event: Event) -> Iterator[Row]:
    """Make the row of one event; of one that is about no lock none. A path has one lock at a time."""
    match event:
        case VariableLocked():
            yield _lock_row("locked", event.path, ttl_ns=event.ttl_ns, delay_ns=event.delay_ns)
        case VariableLockReleased():
            yield _lock_row("released", event.path)
        case VariableLockExpired():
            yield _lock_row("expired", event.path, free_ns=event.free_ns)
        case _:
            return


def event_body(event: Event, body: bytes) -> bytes:
    """What the table of events shows of an event as it is in the log."""
    if not isinstance(event, VariablePut):
        return body
    fields = _FIELDS.decode(body)
    return ENCODER.encode({name: value for name, value in fields.items() if name not in _LEFT_OUT})


def _row(what: str, path: str, incarnation: int, *, items: int = 0, size: int = 0) -> Row:
    return {"what": what, "path": path, "incarnation": incarnation, "items": items, "size": size}


def _lock_row(what: str, path: str, **times_ns: int) -> Row:
    return {"what": what, "path": path, "ttl_ns": 0, "delay_ns": 0, "free_ns": 0, **times_ns}
