"""Rules for ids and names: job and submission ids, groups and tasks.

Job ids follow Nomad, dots and slashes included, without wildcards and path segments that climb. An error is a short
text, empty for none. Ids enter subjects and file names as tokens (shared/protocol/id_tokens.py), whose length is
bounded here too.
"""

import re
from functools import lru_cache

from shared.protocol.id_tokens import TOKEN_BYTES_MAX

ID_BYTES_MAX = 128

_NOT_PLAIN = re.compile(rb"[^A-Za-z0-9_-]")


def is_plain(text: str) -> bool:
    """Return whether a text is short and holds only letters, digits, - and _: almost all names do."""
    return (
        text.isascii()
        and text.replace("-", "").replace("_", "").isalnum()
        and len(text) <= ID_BYTES_MAX
    )


def id_error(text: str) -> str:
    """Describe what is wrong with a job or submission id."""
    if is_plain(text):
        return ""
    if not text:
        return "must not be empty"
    if any(mark in text for mark in "*>"):
        return "must not contain the wildcards * and >"
    segments = text.split("/")
    if ".." in segments or "." in segments:
        return "must not contain a . or .. segment"
    if "" in segments:
        return "must not start or end with a slash or contain two in a row"
    if any(mark.isspace() for mark in text):
        return "must not contain whitespace"
    return _text_error(text)


@lru_cache(maxsize=4096)  # The same few names come again and again: drivers, pools, datacenters.
def name_error(text: str, *, slashes: bool = False) -> str:
    """Describe what is wrong with the name of a group (slashes allowed), a task or a driver."""
    if is_plain(text):
        return ""
    if not text:
        return "must not be empty"
    if text in {".", ".."}:
        return f"must not be {text}"
    if not slashes and ("/" in text or "\\" in text):
        return "must not contain slashes"
    if text != text.strip():
        return "must not start or end with whitespace"
    return _text_error(text)


def _text_error(text: str) -> str:
    if not text.isprintable():
        return "must not contain unprintable characters"
    raw = text.encode()
    if len(raw) > ID_BYTES_MAX:
        return f"has {len(raw)} bytes, at most {ID_BYTES_MAX} are allowed"
    # In a token, a byte that is not plain takes three.
    if len(raw) + 2 * len(_NOT_PLAIN.findall(raw)) > TOKEN_BYTES_MAX:
        return "contains too many characters other than letters, digits, - and _ for its length"
    return ""
