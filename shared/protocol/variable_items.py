"""The items of a variable as bytes: what clients seal, the keeper encrypts and readers get back.

A JSON object of texts in one canonical form: names sorted, UTF-8, no spaces. Errors name no item: names are as secret
as texts.
"""

import json
from collections.abc import Mapping
from typing import NoReturn

from shared.errors import CommandInvalid
from shared.protocol.variable_paths import SIZE_BYTES_MAX

#: The canonical form: an escape (`\u001f`) takes up to six bytes, and each item has quotes, a colon and a comma.
JSON_BYTES_MAX = 69_900
#: In another form every character may be an escape.
_SPELLED_BYTES_MAX = 12 * SIZE_BYTES_MAX


def encode_items(items: Mapping[str, str]) -> bytes:
    """Encode items in the canonical form. Raises CommandInvalid: `invalid` or `too_large`."""
    items_size(items)
    ordered = dict(sorted(items.items()))
    body = json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > JSON_BYTES_MAX:
        text = (
            f"the items are longer than {JSON_BYTES_MAX} bytes as JSON, with its quotes and escapes"
        )
        raise CommandInvalid("too_large", text)
    return body


def decode_items(body: bytes) -> dict[str, str]:
    """Decode items in any form of JSON, checked. Raises CommandInvalid: `invalid` or `too_large`."""
    if len(body) > _SPELLED_BYTES_MAX:
        raise _too_large()
    try:
        found = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_text)
    except CommandInvalid:
        raise
    except (ValueError, RecursionError):
        # The text of such an error would show a piece of the value.
        raise CommandInvalid("invalid", "the items are not JSON in UTF-8") from None
    if type(found) is not dict:
        raise CommandInvalid("invalid", "the items are not a JSON object")
    items_size(found)
    return found


def items_size(items: Mapping[str, str]) -> int:
    """Bytes of the names and texts of items, checked. Raises CommandInvalid: `invalid` or `too_large`."""
    if not items:
        raise CommandInvalid("invalid", "a variable needs at least one item")
    size = 0
    for name, text in items.items():
        if not name:
            raise CommandInvalid("invalid", "an item has an empty name")
        if type(text) is not str:
            _no_text()
        try:
            size += len(name.encode()) + len(text.encode())
        except UnicodeEncodeError:
            why = "an item has half of a surrogate pair, which UTF-8 cannot write"
            raise CommandInvalid("invalid", why) from None
    if size > SIZE_BYTES_MAX:
        raise _too_large()
    return size


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CommandInvalid("invalid", "two items have the same name")
    return found


def _no_text(_: str = "") -> NoReturn:
    raise CommandInvalid("invalid", "an item is not a text: every value must be a JSON string")


def _too_large() -> CommandInvalid:
    text = f"names and texts of the items are longer than {SIZE_BYTES_MAX} bytes"
    return CommandInvalid("too_large", text)
