"""Strict JSON: what is refused before the job is checked."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import CommandInvalid
from shared.jobspec.strict_json import DEPTH_MAX, RAW_BYTES_MAX, read_object


def refused(body: bytes) -> CommandInvalid:
    with pytest.raises(CommandInvalid) as caught:
        read_object(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "malformed"),
        (b"{", "malformed"),
        (b'{"a":1} {}', "malformed"),
        (b'{"a":NaN}', "malformed"),
        (b'{"a":-Infinity}', "malformed"),
        (b'{"a":1e400}', "malformed"),
        (b'{"a":"\xff"}', "malformed"),
        (b'{"a":"\\ud800"}', "malformed"),
        (b"[" * 1000 + b"]" * 1000, "expected an object"),
        (b"[" * 2000, "malformed"),
        (b'"text"', "expected an object"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, words: str) -> None:
    """Malformed JSON, NaN, infinities, overflowing floats and broken UTF-8 are refused with a reason."""
    error = refused(body)
    assert error.code == "invalid"
    assert words in error.message


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"a":1,"a":2}', ""),
        (b'{"x":[{"a":{"b":1,"c":2,"b":1}}]}', "x[0].a"),
        (b'{"a":1,"\\u0061":2}', ""),
        # The lost colon of the duplicate is made up by one spelled as an escape.
        (b'{"a":1,"a":2,"b":"\\u003a"}', ""),
        (b'{"a":1,"a":2,"b":"\\u003A"}', ""),
    ],
)
def test_a_duplicate_key_is_refused_at_any_depth(body: bytes, path: str) -> None:
    """A key that comes twice in one object is refused, however it is spelled, and its object is named."""
    error = refused(body)
    assert "duplicate key" in error.message
    assert error.path == path


@pytest.mark.parametrize(
    "number", ["9223372036854775808", "-9223372036854775809", "1" * 30, "1" * 300]
)
def test_whole_numbers_outside_int64_are_refused(number: str) -> None:
    """2^63 and beyond is refused with its path, even where no field of ours reads it."""
    error = refused(b'{"a":[1,{"b":%s}]}' % number.encode())
    assert "64-bit" in error.message
    assert error.path == "a[1].b"


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":9223372036854775807,"b":-9223372036854775808}',
        b'{"a":0.12345678901234567890123}',
        b'{"a":"12345678901234567890123"}',
        b'{"a":"x:y","b":"\\u003a","c":{"a":":"}}',
        b'{"a":"\\\\u0000"}',
    ],
)
def test_what_only_looks_suspicious_is_read(body: bytes) -> None:
    """The extremes of int64, long fractions, digits and colons in text are read as they are."""
    value, _ = read_object(body)
    assert value == json.loads(body)


def test_a_nul_character_is_refused() -> None:
    """A NUL in any text is refused with its path: no process could be given it."""
    assert refused(b'{"a":{"b":["x","y\\u0000z"]}}').path == "a.b[1]"
    assert "NUL" in refused(b'{"a\\u0000":1}').message


def test_depth_is_bounded() -> None:
    """A hundred levels are read, one more is refused, whether of objects or of lists."""
    lists = DEPTH_MAX - 1
    read_object(b'{"a":' + b"[" * lists + b"]" * lists + b"}")
    assert "nested" in refused(b'{"a":' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}").message
    assert "nested" in refused(b'{"a":' * 101 + b"1" + b"}" * 101).message
    wide = b'{"a":[' + b",".join([b"[]"] * 1000) + b"]}"
    assert len(read_object(wide)[0]["a"]) == 1000


def test_size_is_bounded_unread() -> None:
    """More than a MiB is refused as too large, even when it is no JSON."""
    assert refused(b"x" * (RAW_BYTES_MAX + 1)).code == "too_large"


def test_null_members_are_absent() -> None:
    """A null member is the same as no member, so the canonical text is the same."""
    _, with_nulls = read_object(b'{"b":{"c":null,"d":["null",1]},"a":null}')
    _, without = read_object(b'{"b":{"d":["null",1]}}')
    assert with_nulls == without


_JSON = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(alphabet=':{}[]\\"u03aé1'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet="a:\\u0"), inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.property
@given(st.dictionaries(st.text(alphabet="ab:\\"), _JSON, max_size=4), st.booleans())
def test_every_clean_object_is_read(value: dict[str, object], ascii_only: bool) -> None:  # noqa: FBT001
    """Whatever has no duplicate and fits is read back equal, escapes or not, and its canonical text is stable."""
    read, text = read_object(json.dumps(value, ensure_ascii=ascii_only).encode())
    assert read == value
    assert read_object(text) == (read, text)
