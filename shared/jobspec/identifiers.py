"""Ids and names: what may be called how.

Decides the rules for job and submission ids (Nomad's, dots and slashes included, minus what could be mistaken for a
wildcard or climb a path) and for names of groups and tasks. Knows no fault's path. A fault is a short text, empty for
none. Ids enter subjects and file names as tokens (shared/bus/names.py), whose length is bounded here too.
"""

import re
from functools import lru_cache

ID_BYTES_MAX = 128
#: A token is a file name: see TOKEN_BYTES_MAX in shared/bus/names.py; a byte that is not plain takes three.
TOKEN_BYTES_MAX = 240

_ODD = re.compile(rb"[^A-Za-z0-9_-]")


def is_plain(text: str) -> bool:
    """Tell whether a text is short and holds only letters, digits, - and _: almost all names do."""
    return (
        text.isascii()
        and text.replace("-", "").replace("_", "").isalnum()
        and len(text) <= ID_BYTES_MAX
    )


def id_fault(text: str) -> str:
    """Say what is wrong with a job or submission id."""
    if is_plain(text):
        return ""
    if not text:
        return "must not be empty"
    if any(mark in text for mark in "*>"):
        return "must not hold the wildcards * and >"
    segments = text.split("/")
    if ".." in segments or "." in segments:
        return "must not hold a . or .. segment"
    if "" in segments:
        return "must not start or end with a slash nor hold two in a row"
    if any(mark.isspace() for mark in text):
        return "must not hold whitespace"
    return _text_fault(text)


@lru_cache(maxsize=4096)  # The same few names come again and again: drivers, pools, datacenters.
def name_fault(text: str, *, slashes: bool = False) -> str:
    """Say what is wrong with the name of a group (slashes allowed), a task or a driver."""
    if is_plain(text):
        return ""
    if not text:
        return "must not be empty"
    if text in {".", ".."}:
        return f"must not be {text}"
    if not slashes and ("/" in text or "\\" in text):
        return "must not hold slashes"
    if text != text.strip():
        return "must not start or end with whitespace"
    return _text_fault(text)


def _text_fault(text: str) -> str:
    if not text.isprintable():
        return "must not hold control or other unprintable characters"
    raw = text.encode()
    if len(raw) > ID_BYTES_MAX:
        return f"has {len(raw)} bytes, at most {ID_BYTES_MAX} are allowed"
    if len(raw) + 2 * len(_ODD.findall(raw)) > TOKEN_BYTES_MAX:
        return "holds too many characters other than letters, digits, - and _ for its length"
    return ""
