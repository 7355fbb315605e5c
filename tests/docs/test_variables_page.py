"""docs/variables.md: its test vector opens, and its limits are those of the code."""

import base64
import re
from pathlib import Path

from shared.protocol.variable_items import decode_items
from shared.protocol.variable_paths import (
    PATH_CHARS_MAX,
    PUTS_MAX,
    SIZE_BYTES_MAX,
    TOTAL_SIZE_BYTES_MAX,
)
from shared.sealed_box import key_id, open_box, sealed_with

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "variables.md").read_text(encoding="utf-8")


def test_the_vector_opens() -> None:
    """A client in another language that makes this box of these keys is right."""
    rows = dict(re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", PAGE, re.MULTILINE))
    private = bytes.fromhex(rows["recipient's private key"])
    public = bytes.fromhex(rows["recipient's public key"])
    told = re.search(r"the context is `(.*?)`, `(.*?)`, `(.*?)`, `(.*?)`", PAGE)
    assert told is not None
    context = told.groups()
    box = base64.b64decode(rows["box, base64"])
    made = sealed_with(
        rows["items"].encode(),
        public,
        context,
        ephemeral=bytes.fromhex(rows["private key of the box"]),
        nonce=bytes.fromhex(rows["nonce"]),
    )
    assert made == box and key_id(public) == rows["its `key_id`"]
    assert decode_items(open_box(box, private, context)) == {
        "password": "s3cret",
        "user": "caravan",
    }


def test_the_limits_are_those_of_the_code() -> None:
    """Bytes of a variable and of all, puts of a path, characters of a path."""
    assert f"| {SIZE_BYTES_MAX:,} bytes together |" in PAGE
    assert f"| all variables together | {TOTAL_SIZE_BYTES_MAX >> 20} MiB |" in PAGE
    assert f"| {PUTS_MAX} a minute:" in PAGE
    assert f"A path has up to {PATH_CHARS_MAX} letters" in PAGE
