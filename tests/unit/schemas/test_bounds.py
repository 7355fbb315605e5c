"""Integers of the wire: each has a format and bounds, and a door refuses what lies outside them."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from schemas import allocations, bounds, evaluations, nodes, plans
from schemas.bounds import INT64, bounded_decoder
from schemas.catalogue import COMMANDS, MESSAGES, info_of, parts, structs
from schemas.envelope import ENCODER, LogRecord
from schemas.generate import document
from tests.golden.filled import fill

#: Records are read as they are: what once entered the log must stay readable.
DECODED = [one for one in MESSAGES if one is not LogRecord]
BEYOND = (2**64, -(2**64), 10**26)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Find every integer of a JSON value."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*path, key))
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield from places(one, (*path, at))
    elif type(value) is int:
        yield path


def changed(value: Any, path: tuple[Any, ...], new: int) -> bytes:
    """The JSON of a value with another integer at a place."""
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return json.dumps(copy).encode()


@pytest.mark.parametrize("message", DECODED, ids=lambda one: one.__name__)
def test_no_integer_beyond_its_bounds_passes_a_door(message: type[msgspec.Struct]) -> None:
    """Every integer of every message, one after the other, far outside 64 bits: the decoder names its place."""
    decoder = bounded_decoder(message)
    whole = json.loads(ENCODER.encode(fill(message)))
    decoder.decode(json.dumps(whole).encode())
    opaque = {
        field.encode_name for one in structs().values() for field in one.fields if is_raw(field)
    }
    for path in places(whole):
        if opaque & set(path) or {"placements", "stops", "updates", "evictions"} & set(path[:-2]):
            continue
        for wrong in BEYOND:
            with pytest.raises(msgspec.ValidationError, match=r"from -?[0-9]+ to [0-9]+"):
                decoder.decode(changed(whole, path, wrong))


def is_raw(field: msgspec.inspect.Field) -> bool:
    return "RawType" in repr(field.type)


def test_every_command_is_among_them() -> None:
    """The message of commands holds one of each, so that no command is left out above."""
    whole = json.loads(
        ENCODER.encode(fill(next(m for m in MESSAGES if m.__name__ == "CommandBatch")))
    )
    assert len(whole["commands"]) == len(COMMANDS)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: one.__name__)
def test_every_integer_of_the_schema_is_bounded(message: type[msgspec.Struct]) -> None:
    """JSON Schema names format, minimum and maximum of each integer."""

    def integers(node: object) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            if node.get("type") == "integer":
                yield node
            for value in node.values():
                yield from integers(value)
        elif isinstance(node, list):
            for one in node:
                yield from integers(one)

    for one in integers(document(message)):
        assert one["format"] in {"int64", "uint64"} and one["minimum"] <= 0 <= one["maximum"], one


def test_the_edges_are_taken() -> None:
    """The bounds themselves are legal, the next integers are not, in a field, a column and a map."""
    low, high = INT64
    decoder = bounded_decoder(nodes.BriefStates)
    assert decoder.decode(b'{"keys": [%d, %d]}' % (low, high)).keys == INT64
    for wrong in (low - 1, high + 1):
        with pytest.raises(msgspec.ValidationError, match=r"\$\.keys"):
            decoder.decode(b'{"keys": [0, %d]}' % wrong)


@pytest.mark.parametrize("before", [b"", b" ", b"\t", b"\r\n"])
@pytest.mark.parametrize("wrong", [b"-1", b"18446744073709551616", b"9" * 38])
def test_the_pass_over_the_bytes_overlooks_nothing(before: bytes, wrong: bytes) -> None:
    """A number without a sign refuses a sign and more than 64 bits, whatever stands before it."""
    decoder = bounded_decoder(plans.Origin)
    text = b'{"worker":"w","number":1,"snapshot_seq":1,"policy":"p","core":"c","seed":%b%b}'
    assert decoder.decode(text % (before, b"18446744073709551615")).seed == 2**64 - 1
    with pytest.raises(msgspec.ValidationError, match=r"\$\.seed"):
        decoder.decode(text % (before, wrong))


def test_what_the_tables_name_is_there() -> None:
    """Every row of bounds and words names a field that exists; words are those of the code."""
    known = {(one.cls.__name__, field.name) for one in structs().values() for field in one.fields}
    assert set(bounds.WORDS) | set(bounds._BY_FIELD) <= known
    assert bounds.WORDS["AllocSummary", "client_status"] == allocations.CLIENT_STATUSES
    assert bounds.WORDS["AllocSummary", "desired_status"] == allocations.DESIRED_STATUSES
    assert bounds.WORDS["NodeSummary", "status"] == nodes.NODE_STATUSES
    assert bounds.WORDS["EvalSummary", "status"] == evaluations.EVAL_STATUSES


def test_rows_narrower_than_the_type_are_no_part_of_the_log() -> None:
    """A value that the log may hold is inside the bounds: only seeds, which have 64 bits without a sign, differ."""
    seen: set[str] = set()
    waiting = [info_of(LogRecord)]
    while waiting:
        one = waiting.pop()
        if one.cls.__name__ in seen:
            continue
        seen.add(one.cls.__name__)
        for field in one.fields:
            waiting += parts(field.type)
            assert bounds.bounds(one.cls.__name__, field.name) in {INT64, bounds.UINT64}
    assert len(seen) > 50
