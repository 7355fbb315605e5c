"""Rows of the table `variables`: one for each put, and one for each life that ends or is shredded.

Ciphertext and digests are in no column: the records of an export have them.
"""

from collections.abc import Iterator

import msgspec

from schemas.base import Event
from schemas.envelope import ENCODER
from schemas.variables import VariableDeleted, VariablePut, VariablesShredded

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


def event_body(event: Event, body: bytes) -> bytes:
    """What the table of events shows of an event as it is in the log."""
    if not isinstance(event, VariablePut):
        return body
    fields = _FIELDS.decode(body)
    return ENCODER.encode({name: value for name, value in fields.items() if name not in _LEFT_OUT})


def _row(what: str, path: str, incarnation: int, *, items: int = 0, size: int = 0) -> Row:
    return {"what": what, "path": path, "incarnation": incarnation, "items": items, "size": size}
