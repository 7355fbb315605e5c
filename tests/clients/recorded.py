"""Recorded messages by the name of their schema: golden files of every kind, and what roles of real clusters exchanged.

The golden files hold each kind filled and at its least; tapes hold what two real clusters sent, stored and answered.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.report.tape_reader import read_tape
from bench.report.tape_replay import replay_tape
from schemas.answers import ErrorAnswer
from schemas.base import Wire
from schemas.bounds import WORDS
from schemas.catalogue import published_name
from schemas.envelope import ENCODER
from shared.core.runtime.messages import Message
from shared.protocol import contract
from tests.golden import records_v1

GOLDEN = Path(__file__).parents[1] / "golden"
#: Of one kind, so many different ones of the tapes are taken.
KIND_MAX = 20


class Recorded(NamedTuple):
    """One message: the name of its schema, where it was found, and its body."""

    kind: str
    place: str
    body: bytes


def golden() -> list[Recorded]:
    """Every golden file; a field of words has one of them, where the file has the name of the field."""
    found = []
    for file in sorted((GOLDEN / "records" / "v1").glob("*.json")):
        kind = records_v1.type_of(file.stem)
        body = ENCODER.encode(_worded(msgspec.json.decode(file.read_bytes(), type=kind)))
        found.append(Recorded(published_name(kind), file.stem, body))
    return found


def _worded(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_worded, value))
    if isinstance(value, dict):
        return {key: _worded(one) for key, one in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: _worded(getattr(value, name)) for name in value.__struct_fields__}
    for name, one in fields.items():
        words = WORDS.get((type(value).__name__, name), (one,))
        fields[name] = one if one in words else words[-1]
    return msgspec.structs.replace(value, **fields)


def taped() -> list[Recorded]:
    """What roles received, sent, stored and answered while a tape was recorded; at most KIND_MAX of a kind."""
    found: dict[str, dict[bytes, str]] = {}
    for tape in sorted((GOLDEN / "tapes").glob("*/*.tape.gz")):
        for kind, body in _of_tape(tape):
            of_kind = found.setdefault(kind, {})
            if body and len(of_kind) < KIND_MAX:
                of_kind.setdefault(body, f"{tape.parent.name}/{tape.name}")
    return [
        Recorded(kind, place, body) for kind in sorted(found) for body, place in found[kind].items()
    ]


def _of_tape(tape: Path) -> Iterator[tuple[str, bytes]]:
    asked: dict[int, contract.Subject] = {}
    for (inputs, _), effects in zip(read_tape(tape)[1], replay_tape(tape).said, strict=True):
        for one in inputs:
            if not isinstance(one, Message):
                continue
            row = _row(one.subject)
            if one.reply and row.answers:
                asked[one.token] = row
            yield published_name(row.message_type), one.data
        for tag, *fields in effects:
            if tag in ("Send", "Put"):
                yield published_name(_row(fields[0]).message_type), fields[1]
            elif tag == "Append":
                yield "Record", fields[1]
            elif tag == "Reply" and fields[0] in asked:
                yield published_name(_answer(asked[fields[0]], fields[1])), fields[1]


def _row(subject: str) -> contract.Subject:
    """Find the row of the contract that a subject belongs to; the one with the fewest parameters."""
    fitting = [
        row
        for row in contract.SUBJECTS
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", r"[^.]+", re.escape(row.address)), subject)
    ]
    assert fitting, subject
    return min(fitting, key=lambda row: row.address.count("{"))


def _answer(row: contract.Subject, body: bytes) -> type[Wire]:
    is_error = ErrorAnswer in row.answers and "error" in json.loads(body)
    return ErrorAnswer if is_error else row.answers[0]
