r"""Sets of characters as ranges of code points: `\d`, `[:alpha:]`, `\pL`, `\p{Greek}`, as RE2 has them."""

from collections.abc import Iterable
from functools import cache
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from shared.regexp.unicode_tables import CATEGORIES, CATEGORY_RUNS, SCRIPTS

Ranges = tuple[tuple[int, int], ...]

CODE_POINT_MAX: Final = 0x10FFFF
ANY_CHAR: Final[Ranges] = ((0, CODE_POINT_MAX),)


#: Inside of a class each, in the syntax of patterns.
POSIX: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


def union(parts: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges and join those that touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Return all other code points."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in union(ranges):
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= CODE_POINT_MAX:
        gaps.append((start, CODE_POINT_MAX))
    return tuple(gaps)


_DIGIT: Final[Ranges] = ((48, 57),)
_SPACE: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
PERL: Final[dict[str, Ranges]] = {
    "d": _DIGIT,
    "D": complement(_DIGIT),
    "s": _SPACE,
    "S": complement(_SPACE),
    "w": WORD,
    "W": complement(WORD),
}


@cache
def _categories() -> dict[str, Ranges]:
    """Decode the table: ranges of each category, and of each first letter (`L`: all letters)."""
    found: dict[str, list[tuple[int, int]]] = {}
    names = dict(zip(ascii_uppercase + ascii_lowercase, CATEGORIES.split(), strict=False))
    start = length = 0
    for char in CATEGORY_RUNS:
        if char.isdigit():
            length = 10 * length + int(char)
            continue
        category = names[char]
        run = (start, start + max(length, 1) - 1)
        for name in (category, category[0]):
            found.setdefault(name, []).append(run)
        start, length = run[1] + 1, 0
    return {name: union(runs) for name, runs in found.items()}


@cache
def unicode_class(name: str) -> Ranges | None:
    """Return the characters of a category or script, `Any` for all; None: unknown name."""
    if name == "Any":
        return ANY_CHAR
    if name in SCRIPTS:
        pairs = [one.partition("-") for one in SCRIPTS[name].split()]
        return tuple((int(low, 16), int(high or low, 16)) for low, _, high in pairs)
    return _categories().get(name)
