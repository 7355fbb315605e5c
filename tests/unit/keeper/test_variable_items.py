"""Items of a variable as bytes: one canonical form, and what is refused without naming an item."""

import json

import pytest

from shared.errors import CommandInvalid
from shared.protocol.variable_items import (
    JSON_BYTES_MAX,
    SIZE_BYTES_MAX,
    decode_items,
    encode_items,
    items_size,
)


def test_items_have_one_form() -> None:
    """Names are sorted, text is UTF-8 and nothing stands between; any spelling of JSON is read."""
    body = encode_items({"b": "2\n", "a": "ä"})
    assert body == '{"a":"ä","b":"2\\n"}'.encode()
    assert decode_items(b' { "b" : "2\\n", "\\u0061": "\\u00e4" } ') == {"b": "2\n", "a": "ä"}
    assert encode_items(decode_items(body)) == body
    assert items_size({"b": "2\n", "a": "ä"}) == 6


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"hunter2"',
        b"null",
        b"{}",
        b'{"hunter2":1}',
        b'{"hunter2":null}',
        b'{"hunter2":{"a":"b"}}',
        b'{"hunter2":NaN}',
        b'{"":"hunter2"}',
        b'{"hunter2":"a","hunter2":"a"}',
        b'{"hunter2":"a","hunter\\u0032":"b"}',
        b'{"a":{"hunter2":"a","hunter2":"a"}}',
        b'{"hunter2":"\\ud800"}',
        b'{"hunter2":"\xff"}',
        b'{"hunter2":"a"} x',
        b"[" * 100_000,
    ],
)
def test_what_are_no_items_is_refused(body: bytes) -> None:
    """Anything but an object of texts with different names is invalid; the error shows nothing of it."""
    with pytest.raises(CommandInvalid) as caught:
        decode_items(body)
    assert caught.value.code == "invalid"
    assert "hunter" not in str(caught.value)


def test_items_have_a_largest_size() -> None:
    """Names and texts together have at most 65,536 bytes as UTF-8, whatever their spelling; one more is too large."""
    most = {"a": "x" * (SIZE_BYTES_MAX - 1)}
    assert decode_items(encode_items(most)) == most
    assert decode_items(b'{"a":"' + b"\\u0078" * (SIZE_BYTES_MAX - 1) + b'"}') == most
    for more in ({"a": "x" * SIZE_BYTES_MAX}, {"a": "ä" * (SIZE_BYTES_MAX // 2)}):
        with pytest.raises(CommandInvalid) as caught:
            decode_items(json.dumps(more).encode())
        assert caught.value.code == "too_large"
    with pytest.raises(CommandInvalid) as caught:
        decode_items(b'{"a":"' + b"x" * 2_000_000 + b'"}')
    assert caught.value.code == "too_large"


def test_the_form_has_a_largest_size() -> None:
    """Items whose escapes make the canonical form too long for the log are too large."""
    longest = {"a": "x" * 10 + "\x01" * ((JSON_BYTES_MAX - 18) // 6)}
    assert len(encode_items(longest)) <= JSON_BYTES_MAX
    with pytest.raises(CommandInvalid) as caught:
        encode_items({"a": "\x01" * (JSON_BYTES_MAX // 6)})
    assert caught.value.code == "too_large"
