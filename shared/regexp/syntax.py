r"""The syntax of regular expressions: Go's RE2, which Nomad's users write, into a tree.

Back references, look-around and possessive repetition are refused: they cannot be matched in linear time. Beyond RE2
the parser accepts what earlier releases took from Python, because logged jobs may hold it: `\Z`, `\uXXXX`, `\b` and
`\1` in a class, `{,n}` as a count, `(?x)` and `(?#…)`.
"""

import re
from collections.abc import Sequence as AbstractSequence
from functools import cache
from typing import Final

import msgspec

from shared.regexp.char_sets import (
    ANY_CHAR,
    CODE_POINT_MAX,
    PERL,
    POSIX,
    Ranges,
    complement,
    unicode_class,
    union,
)

#: RE2's bound on one count.
REPEAT_MAX: Final = 1_000
DEPTH_MAX: Final = 256

_COUNT: Final = re.compile(r"\{(?!\})(?P<least>[0-9]*)(?P<comma>,)?(?P<most>(?<=,)[0-9]*)?\}")
_GROUP: Final = re.compile(
    r"\(\?(?:P?<(?P<name>[^>=!][^>]*)>"
    r"|(?P<on>[imsUxau]*)(?P<minus>-(?=[imsUx]))?(?P<off>(?<=-)[imsUx]+)?(?P<end>[:)]))"
)
_POSIX: Final = re.compile(r"\[:(\^?)([a-z]+):\]")
_PROPERTY: Final = re.compile(r"(?P<one>[A-Z])|\{(?P<not>\^?)(?P<name>[A-Za-z_]+)\}")
_HEX: Final = {
    "x": re.compile(r"([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\}"),
    "u": re.compile(r"([0-9A-Fa-f]{4})"),
    "U": re.compile(r"([0-9A-Fa-f]{8})"),
}
_OCTAL: Final = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_CLASS_OCTAL: Final = re.compile(r"\\([0-7]{1,3})")
_CONTROL: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_EDGES: Final = {"A": "start", "z": "end", "Z": "end", "b": "word", "B": "not_word"}
_BLANKS: Final = " \t\n\r\v\f"


class PatternRefusedError(ValueError):
    """A pattern that is not valid or not supported, with the reason."""


class CharTest(msgspec.Struct, frozen=True):
    """One character of a set; `folds`: also if its lower or upper case is in the set."""

    ranges: Ranges
    negated: bool = False
    folds: bool = False


class Assertion(msgspec.Struct, frozen=True):
    """A place: start, end, line_start, line_end, word (boundary) or not_word."""

    kind: str


class Capture(msgspec.Struct, frozen=True):
    """A group whose text is kept; numbers count from 1."""

    number: int
    inner: "Node"


class Sequence(msgspec.Struct, frozen=True):
    """Parts one after the other."""

    items: tuple["Node", ...]


class Choice(msgspec.Struct, frozen=True):
    """One of several; earlier ones are preferred."""

    branches: tuple["Node", ...]


class Repeat(msgspec.Struct, frozen=True):
    """A part several times; `most` None: without end."""

    inner: "Node"
    least: int
    most: int | None
    is_greedy: bool


Node = CharTest | Assertion | Capture | Sequence | Choice | Repeat


class ParsedPattern(msgspec.Struct, frozen=True):
    """The tree of a pattern, its groups by name and their number, the whole match included."""

    node: Node
    names: dict[str, int]
    groups: int


def parse_pattern(text: str) -> ParsedPattern:
    """Parse a pattern. Raises: PatternRefusedError."""
    return _Parser(text).parse()


class _Level(msgspec.Struct):
    """A group while it is read; number 0: it captures nothing."""

    flags: frozenset[str]
    number: int = 0
    branches: list[list[Node]] = []
    items: list[Node] = []


class _Parser:
    """Reads a pattern from left to right. Open groups are on a stack, without recursion."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._levels = [_Level(self._flags)]
        self._names: dict[str, int] = {}
        self._groups = 1
        self._is_repeated = False

    def parse(self) -> ParsedPattern:
        """Read the whole pattern."""
        while self._at < len(self._text):
            char = self._text[self._at]
            if "x" in self._flags and char in _BLANKS + "#":
                self._skip_blank(char)
            elif char in "*+?" or (char == "{" and _COUNT.match(self._text, self._at)):
                self._repeat(char)
            else:
                self._is_repeated = False
                self._part(char)
        if len(self._levels) > 1:
            raise PatternRefusedError("missing closing )")
        return ParsedPattern(_choice(self._levels[0]), self._names, self._groups)

    def _skip_blank(self, char: str) -> None:
        end = self._text.find("\n", self._at) if char == "#" else self._at
        self._at = end + 1 if end >= 0 else len(self._text)

    def _part(self, char: str) -> None:
        if char == "(":
            self._open()
            return
        if char == ")":
            self._close()
            return
        if char == "[":
            self._add(self.char_class())
            return
        if char == "\\":
            self._escaped()
            return
        self._at += 1
        if char == "|":
            level = self._levels[-1]
            level.branches.append(level.items)
            level.items = []
        elif char == ".":
            self._add(CharTest(ANY_CHAR if "s" in self._flags else complement(((10, 10),))))
        elif char in "^$":
            line = "line_" if "m" in self._flags else ""
            self._add(Assertion(f"{line}{'start' if char == '^' else 'end'}"))
        else:
            self._add_literal(ord(char))

    def _add(self, node: Node) -> None:
        self._levels[-1].items.append(node)

    def _add_literal(self, code: int) -> None:
        self._add(CharTest(((code, code),), folds="i" in self._flags))

    # ---- groups ----

    def _open(self) -> None:
        text, at = self._text, self._at
        if text.startswith("(?#", at):
            self._at = text.find(")", at) + 1
            if not self._at:
                raise PatternRefusedError("missing closing )")
            # A comment may be before a repetition, as blanks may.
            return
        before, number = self._flags, 0
        if not text.startswith("(?", at):
            self._at += 1
            number = self._next_group()
        else:
            found = _GROUP.match(text, at)
            if found is None:
                raise PatternRefusedError(_group_fault(text[at : at + 4]))
            self._at = found.end()
            if found["name"]:
                number = self._next_group()
                self._name_group(found["name"], number)
            else:
                if not found["on"] and not found["minus"] and found["end"] == ")":
                    raise PatternRefusedError("missing flag in `(?)`")
                self._flags = (before | set(found["on"])) - set(found["off"] or "")
                if found["end"] == ")":
                    return
        if len(self._levels) > DEPTH_MAX:
            raise PatternRefusedError("is nested too deeply")
        self._levels.append(_Level(before, number))

    def _next_group(self) -> int:
        self._groups += 1
        return self._groups - 1

    def _name_group(self, name: str, number: int) -> None:
        if not name.isidentifier() and not (name.isascii() and name.replace("_", "a").isalnum()):
            raise PatternRefusedError(f"invalid group name `{name}`")
        if name in self._names:
            raise PatternRefusedError(f"duplicate group name `{name}`")
        self._names[name] = number

    def _close(self) -> None:
        if len(self._levels) == 1:
            raise PatternRefusedError("unexpected )")
        self._at += 1
        level = self._levels.pop()
        self._flags = level.flags
        node = _choice(level)
        self._add(Capture(level.number, node) if level.number else node)

    # ---- repetition ----

    def _repeat(self, char: str) -> None:
        start = self._at
        count = _COUNT.match(self._text, start)
        self._at = count.end() if count else start + 1
        mark = self._text[start : self._at]
        is_lazy = self._text.startswith("?", self._at)
        self._at += is_lazy
        if self._is_repeated or self._text.startswith("+", self._at):
            raise PatternRefusedError(f"invalid nested repetition operator `{mark}`")
        items = self._levels[-1].items
        if not items:
            raise PatternRefusedError(f"missing argument to repetition operator `{mark}`")
        least, most = (int(char == "+"), 1 if char == "?" else None)
        if count:
            least = _count(count["least"] or "0")
            most = least if not count["comma"] else None
            most = _count(count["most"]) if count["most"] else most
        if most is not None and most < least:
            raise PatternRefusedError(f"invalid repeat count `{mark}`")
        items[-1] = Repeat(items[-1], least, most, is_lazy is ("U" in self._flags))
        self._is_repeated = True

    # ---- characters ----

    def _escaped(self) -> None:
        char = self._text[self._at + 1 : self._at + 2]
        if char == "Q":
            end = self._text.find("\\E", self._at + 2)
            for one in self._text[self._at + 2 : end if end >= 0 else None]:
                self._add_literal(ord(one))
            self._at = end + 2 if end >= 0 else len(self._text)
        elif char and char in _EDGES:
            self._at += 2
            self._add(Assertion(_EDGES[char]))
        else:
            found = self._escape()
            if isinstance(found, int):
                self._add_literal(found)
            else:
                self._add(CharTest(found, folds="i" in self._flags))

    def _escape(self) -> int | Ranges:
        """Read an escape: of one character, or of a set."""
        char = self._text[self._at + 1 : self._at + 2]
        start = self._at
        self._at += 2
        if not char:
            raise PatternRefusedError("trailing backslash")
        if char in PERL:
            return PERL[char]
        if char in "pP":
            return self._property(is_negated=char == "P")
        if char in _CONTROL:
            return _CONTROL[char]
        if char in _HEX:
            found = self._take(_HEX[char], start)
            code = int(found[1] or found[2], 16)
            if code > CODE_POINT_MAX:
                raise self._bad_escape(start)
            return code
        if "0" <= char <= "9":
            self._at -= 1
            return int(self._take(_OCTAL, start)[0], 8)
        if char.isascii() and char.isalpha():
            raise self._bad_escape(start)
        return ord(char)

    def _take(self, pattern: re.Pattern[str], start: int) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._bad_escape(start)
        self._at = found.end()
        return found

    def _bad_escape(self, start: int) -> PatternRefusedError:
        shown = self._text[start : max(self._at, start + 2)]
        if shown[1:2] in {*"123456789"}:
            return PatternRefusedError(f"back reference `{shown}` is not supported")
        return PatternRefusedError(f"invalid escape sequence `{shown}`")

    def _property(self, *, is_negated: bool) -> Ranges:
        start = self._at - 2
        found = self._take(_PROPERTY, start)
        ranges = unicode_class(found["one"] or found["name"])
        if ranges is None:
            raise PatternRefusedError(f"unknown character class `{self._text[start : self._at]}`")
        return complement(ranges) if is_negated is not bool(found["not"]) else ranges

    def char_class(self) -> CharTest:
        """Read a class in brackets."""
        text = self._text
        self._at += 1
        negated = text.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        first = self._at
        while not text.startswith("]", self._at) or self._at == first:
            if found := _POSIX.match(text, self._at):
                if found[2] not in POSIX:
                    raise PatternRefusedError(f"unknown character class `{found[0]}`")
                self._at = found.end()
                known = _posix_class(found[2])
                ranges += complement(known) if found[1] else known
                continue
            start = self._at
            low = self._member()
            if not isinstance(low, int):
                ranges += low
                continue
            high: int | Ranges = low
            if text.startswith("-", self._at) and not text.startswith("-]", self._at):
                self._at += 1
                high = self._member()
            if not isinstance(high, int) or high < low:
                raise PatternRefusedError(
                    f"invalid character class range `{text[start : self._at]}`"
                )
            ranges.append((low, high))
        self._at += 1
        return CharTest(union(ranges), negated, "i" in self._flags)

    def _member(self) -> int | Ranges:
        if self._at >= len(self._text):
            raise PatternRefusedError("missing closing ]")
        if self._text.startswith("\\b", self._at):
            self._at += 2
            return 8
        if self._text[self._at] == "\\":
            if found := _CLASS_OCTAL.match(self._text, self._at):
                self._at = found.end()
                return int(found[1], 8)
            return self._escape()
        self._at += 1
        return ord(self._text[self._at - 1])


@cache
def _posix_class(name: str) -> Ranges:
    return _Parser(f"[{POSIX[name]}]").char_class().ranges


def _group_fault(start: str) -> str:
    if re.match(r"\(\?<?[=!]", start):
        return f"look-around `{start.rstrip()}` is not supported"
    if start == "(?P=":
        return "back reference `(?P=` is not supported"
    return f"invalid or unsupported syntax `{start}`"


def _count(digits: str) -> int:
    kept = digits.lstrip("0") or "0"
    if len(kept) > len(str(REPEAT_MAX)) or int(kept) > REPEAT_MAX:
        raise PatternRefusedError(f"repeats more than {REPEAT_MAX} times")
    return int(kept)


def _choice(level: _Level) -> Node:
    """Join the branches of a level: a common first character is tested once, single characters make one set."""
    branches = [_flat(items) for items in [*level.branches, level.items]]
    shared: list[Node] = []
    while len(branches) > 1 and all(
        items and items[0] == branches[0][0] and isinstance(items[0], CharTest | Assertion)
        for items in branches
    ):
        shared.append(branches[0][0])
        branches = [items[1:] for items in branches]
    if len(branches) == 1:
        return _sequence(branches[0])
    singles = [one[0] for one in branches if len(one) == 1 and isinstance(one[0], CharTest)]
    folds = {one.folds for one in singles}
    if len(singles) == len(branches) and len(folds) == 1 and not any(x.negated for x in singles):
        merged = union(pair for one in singles for pair in one.ranges)
        return _sequence([*shared, CharTest(merged, folds=folds.pop())])
    return _sequence([*shared, Choice(tuple(_sequence(items) for items in branches))])


def _flat(items: AbstractSequence[Node]) -> list[Node]:
    flat: list[Node] = []
    for one in items:
        flat += one.items if isinstance(one, Sequence) else (one,)
    return flat


def _sequence(items: AbstractSequence[Node]) -> Node:
    return items[0] if len(items) == 1 else Sequence(tuple(items))
