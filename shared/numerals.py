"""Numbers as people write them in files and arguments: ASCII digits, a sign, a fraction and an exponent.

Python's own readers also take underscores, white space, the digits of other scripts, `inf` and `nan`; other tools that
read the same text do not.
"""

import re

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: Digits of a whole number in any base up to 36.
_BASED = re.compile(r"[+-]?[0-9a-zA-Z]+")
#: Python refuses to convert more.
_DIGITS_MAX = 4000


def is_digits(text: str) -> bool:
    """Whether a text is ASCII digits alone, and not too many."""
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def parse_whole(text: str, base: int = 10) -> int:
    """Read a whole number. Raises ValueError."""
    pattern = _WHOLE if base == 10 else _BASED
    if len(text) > _DIGITS_MAX or pattern.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text, base)


def parse_decimal(text: str) -> float:
    """Read a number with or without a fraction. Raises ValueError."""
    if len(text) > _DIGITS_MAX or _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a number")
    return float(text)
