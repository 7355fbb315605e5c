"""Strict JSON: bytes become an object in one canonical form, or one clear error with its place.

Refuses duplicate keys, NaN, numbers outside int64, text that is not UTF-8, NUL, and depth beyond DEPTH_MAX.

The common path never looks at a value in Python. Three scans of the raw bytes say whether something may be wrong, and
only then the slow reader goes through the text again to name the place:
- a duplicate key is lost in decoding, and with it a colon: fewer colons in the canonical form mean a duplicate
  (only a colon spelled as an escape could hide that, so escapes that may be one take the slow way);
- nineteen digits in a row may be a number beyond int64;
- fewer opening brackets than DEPTH_MAX cannot be deeper than it.
"""

import json
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import orjson
from msgspec import inspect

from shared.errors import CommandInvalid

#: What is longer is refused unread.
RAW_BYTES_MAX = 1024 * 1024
#: Canonical bytes: a job of 256 KiB and what stands around it. Refused before any slow look.
TEXT_BYTES_MAX = 272 * 1024
DEPTH_MAX = 100
INT64_MAX = 2**63 - 1

JsonObject = dict[str, Any]
_type_info = cache(inspect.type_info)

_DIGITS = bytes(48 if 48 <= byte <= 57 else (byte if byte != 48 else 32) for byte in range(256))
_NINETEEN = b"0" * 19
_SORTED = orjson.OPT_SORT_KEYS


def canonical_json(value: object) -> bytes:
    """Encode a decoded value: sorted keys, no spaces, equal values are equal bytes."""
    return orjson.dumps(value, option=_SORTED)


def read_object(body: bytes, aside: str = "") -> tuple[JsonObject, bytes]:
    """Decode one JSON object. Returns it, nulls removed from objects, and its canonical form.

    `aside`: a member that does not count towards the bound of the canonical form.
    Raises CommandInvalid: `too_large`, or `invalid` with the place.
    """
    if len(body) > RAW_BYTES_MAX:
        raise CommandInvalid("too_large", f"{len(body)} bytes, at most {RAW_BYTES_MAX} are allowed")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as err:
        raise CommandInvalid("invalid", f"malformed JSON: {err}") from err
    if type(value) is not dict:
        raise CommandInvalid("invalid", "expected an object")
    if body.count(b"{") + body.count(b"[") > DEPTH_MAX:
        _check_depth(value)
    text = canonical_json(value)
    size = len(text)
    if aside in value:
        size = len(canonical_json({key: item for key, item in value.items() if key != aside}))
    if size > TEXT_BYTES_MAX:
        raise CommandInvalid("too_large", f"{size} bytes, at most {TEXT_BYTES_MAX} are allowed")
    if (
        body.count(b":") != text.count(b":")
        or b"\\u003" in body
        or _NINETEEN in body.translate(_DIGITS)
        or b"\\u0000" in text
    ):
        _check_with_places(body)
    if b"null" in text:
        value = without_nulls(value)
        text = canonical_json(value)
    return value, text


def require_unique_keys(body: bytes) -> None:
    """Refuse a key that comes twice, at any depth; what is not JSON is left to the decoder. Raises CommandInvalid."""
    try:
        text = canonical_json(orjson.loads(body))
    except (orjson.JSONDecodeError, TypeError):
        return
    if body.count(b":") != text.count(b":") or b"\\u003" in body:
        _check_with_places(body)


def require_known_keys(body: bytes, request: type[msgspec.Struct]) -> None:
    """Refuse a key that no field of a request has, at any depth: a slip would be dropped without a word.

    What is not JSON, or has another shape, is left to the decoder. Raises CommandInvalid.
    """
    with suppress(orjson.JSONDecodeError):
        check_known_keys(orjson.loads(body or b"{}"), request)


def check_known_keys(value: object, request: type[msgspec.Struct], path: str = "") -> None:
    """The same of a decoded value at a path."""
    _check_keys(value, _type_info(request), path)


def _check_keys(value: object, info: inspect.Type, path: str) -> None:
    match info:
        case inspect.StructType() if isinstance(value, dict):
            fields = {field.encode_name: field.type for field in info.fields}
            for key, item in value.items():
                here = f"{path}.{key[:60]}" if path else key[:60]
                if key not in fields:
                    text = f"unknown parameter {key[:60]!r}; expected one of {', '.join(fields)}"
                    raise CommandInvalid("invalid", text, here)
                _check_keys(item, fields[key], here)
        case inspect.VarTupleType() if isinstance(value, list):
            for at, item in enumerate(value):
                _check_keys(item, info.item_type, f"{path}[{at}]")
        case inspect.UnionType():
            for one in info.types:
                if isinstance(one, inspect.StructType):
                    _check_keys(value, one, path)
        case _:
            pass


def without_nulls(value: Any) -> Any:
    """Drop object members that are null: Nomad's own JSON writes null for what is absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _check_depth(value: object) -> None:
    """Raise unless no path into the value is longer than DEPTH_MAX; level by level, no recursion."""
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return
        level = below
    if any(isinstance(item, dict | list) for item in level):
        raise CommandInvalid("invalid", f"nested deeper than {DEPTH_MAX} levels")


class _Pairs(dict[str, Any]):
    """An object that remembers which key came twice."""

    twice = ""


class _TooBig(str):
    """A whole number outside int64, as it was written."""

    __slots__ = ()


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    found = _Pairs(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.twice = key
                break
            seen.add(key)
    return found


def _parse_int(text: str) -> int | _TooBig:
    # Python itself refuses to convert thousands of digits.
    if len(text) > 20:
        return _TooBig(text)
    number = int(text)
    return number if -INT64_MAX - 1 <= number <= INT64_MAX else _TooBig(text)


def _check_with_places(body: bytes) -> None:
    """Read the text again, remembering what the fast decoder forgets, and raise at the first fault."""
    value = json.loads(body, object_pairs_hook=_pairs, parse_int=_parse_int)
    _find_first_error(value, "")


def _find_first_error(value: Any, path: str) -> None:
    if isinstance(value, _Pairs):
        if value.twice:
            raise CommandInvalid("invalid", f"duplicate key {value.twice!r}", path)
        for key, item in value.items():
            at = f"{path}.{key}" if path else key
            if "\0" in key:
                raise CommandInvalid("invalid", "a key contains a NUL character", path)
            _find_first_error(item, at)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _find_first_error(item, f"{path}[{number}]")
    elif isinstance(value, _TooBig):
        raise CommandInvalid("invalid", f"{value[:40]} does not fit a 64-bit integer", path)
    elif isinstance(value, str) and "\0" in value:
        raise CommandInvalid("invalid", "a string contains a NUL character", path)
