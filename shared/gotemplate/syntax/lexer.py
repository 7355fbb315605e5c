"""Splits a template into tokens, one at a time, so that the first fault of a text is the one that is reported."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from shared.gotemplate.errors import TemplateError

_BLANKS: Final = " \t\r\n"
_KEYWORDS: Final = frozenset(
    (
        "block",
        "break",
        "continue",
        "define",
        "else",
        "end",
        "if",
        "nil",
        "range",
        "template",
        "with",
    )
)
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?|0[oO][0-7_]*|0[bB][01_]*"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_CHARACTER = re.compile(r"'(?:[^'\\\n]|\\[^\n])*'")
_RAW = re.compile(r"`[^`]*`")
_SPACE = re.compile(r"[ \t\r\n]+")
#: Characters that end a word.
_TERMINATORS: Final = frozenset(" \t\r\n.,|:)(")


class Token(NamedTuple):
    """One token.

    Kinds: text, left, right, space, number, character, string, raw, bool, dot, field, variable, name, keyword (its text
    says which), assign, declare, pipe, open, close, other, end.
    """

    kind: str
    text: str
    at: int


class TemplateLexer:
    """The state of a scan."""

    def __init__(self, text: str, left: str, right: str) -> None:
        self._text = text
        self._left = left
        self._right = right
        self._at = 0
        self._depth = 0

    def tokens(self) -> Iterator[Token]:
        """Scan the text. Raises TemplateError."""
        text = self._text
        while True:
            start = self._at
            found = text.find(self._left, start)
            if found < 0:
                if start < len(text):
                    yield Token("text", text[start:], start)
                yield Token("end", "", len(text))
                return
            inner = found + len(self._left)
            trims = text[inner : inner + 1] == "-" and text[inner + 1 : inner + 2] in _BLANKS
            trims = trims and inner + 1 < len(text)
            before = text[start:found]
            if trims:
                before = before.rstrip(_BLANKS)
                inner += 2
            if before:
                yield Token("text", before, start)
            self._at = inner
            if text.startswith("/*", inner):
                self._comment(found)
                continue
            yield Token("left", self._left, found)
            yield from self._action(found)

    def _right_delimiter(self, at: int) -> tuple[int, bool]:
        """Return the length of a right delimiter here, 0 for none, and whether it trims."""
        text = self._text
        if text[at : at + 1] in _BLANKS and text.startswith("-" + self._right, at + 1):
            return 2 + len(self._right), True
        return (len(self._right), False) if text.startswith(self._right, at) else (0, False)

    def _close(self, at: int, length: int, *, trims: bool) -> None:
        self._at = at + length
        if trims and (found := _SPACE.match(self._text, self._at)):
            self._at = found.end()

    def _comment(self, start: int) -> None:
        end = self._text.find("*/", self._at + 2)
        if end < 0:
            raise TemplateError("unclosed comment", start)
        length, trims = self._right_delimiter(end + 2)
        if not length:
            raise TemplateError("comment ends before the closing delimiter", start)
        self._close(end + 2, length, trims=trims)

    def _action(self, start: int) -> Iterator[Token]:
        self._depth = 0
        text = self._text
        while True:
            at = self._at
            length, trims = self._right_delimiter(at)
            if length:
                if self._depth:
                    raise TemplateError("unclosed parenthesis", at)
                self._close(at, length, trims=trims)
                yield Token("right", self._right, at)
                return
            if at >= len(text):
                raise TemplateError("unclosed action", start)
            if text[at] in _BLANKS:
                # A blank before "-}}" belongs to the delimiter.
                end = at + 1
                while text[end : end + 1] in _BLANKS and end < len(text):
                    end += 1
                if self._right_delimiter(end - 1)[1]:
                    end -= 1
                self._at = end
                if end > at:
                    yield Token("space", text[at:end], at)
                continue
            yield self._word(text[at], at)

    def _word(self, first: str, at: int) -> Token:
        if first in "=|":
            return self._take("assign" if first == "=" else "pipe", 1)
        if first == ":":
            if not self._text.startswith(":=", at):
                raise TemplateError("expected :=", at)
            return self._take("declare", 2)
        if first in "\"`'":
            return self._quoted(first, at)
        follower = self._text[at + 1 : at + 2]
        if first in "+-0123456789" or (first == "." and follower and follower in "0123456789"):
            return self._number(at)
        if first in ".$":
            return self._path("field" if first == "." else "variable", at)
        if found := _WORD.match(self._text, at):
            return self._name(found[0], at)
        if first in "()":
            self._depth += 1 if first == "(" else -1
            if self._depth < 0:
                raise TemplateError("unexpected closing parenthesis", at)
            return self._take("open" if first == "(" else "close", 1)
        if first.isascii() and first.isprintable():
            return self._take("other", 1)
        raise TemplateError(f"unexpected character {first!r} in an action", at)

    def _take(self, kind: str, length: int) -> Token:
        token = Token(kind, self._text[self._at : self._at + length], self._at)
        self._at += length
        return token

    def _quoted(self, first: str, at: int) -> Token:
        pattern, kind, what = {
            '"': (_QUOTED, "string", "quoted string"),
            "`": (_RAW, "raw", "raw string"),
            "'": (_CHARACTER, "character", "character constant"),
        }[first]
        found = pattern.match(self._text, at)
        if found is None:
            raise TemplateError(f"unterminated {what}", at)
        return self._take(kind, len(found[0]))

    def _number(self, at: int) -> Token:
        found = _NUMBER.match(self._text, at)
        length = len(found[0]) if found else 1
        follower = self._text[at + length : at + length + 1]
        if not found or follower == "_" or follower.isalnum() or follower in {"+", "-"}:
            raise TemplateError(f"bad number {self._text[at : at + length + 1][:40]!r}", at)
        return self._take("number", length)

    def _is_terminated(self, at: int) -> bool:
        follower = self._text[at : at + 1]
        return not follower or follower in _TERMINATORS or self._text.startswith(self._right, at)

    def _path(self, kind: str, at: int) -> Token:
        if self._is_terminated(at + 1):
            return self._take("dot" if kind == "field" else kind, 1)
        found = _WORD.match(self._text, at + 1)
        end = found.end() if found else at + 1
        if not self._is_terminated(end):
            raise TemplateError(f"unexpected character {self._text[end]!r}", end)
        return self._take(kind, end - at)

    def _name(self, word: str, at: int) -> Token:
        end = at + len(word)
        if not self._is_terminated(end):
            raise TemplateError(f"unexpected character {self._text[end]!r}", end)
        if word in _KEYWORDS:
            return self._take("keyword", len(word))
        return self._take("bool" if word in {"true", "false"} else "name", len(word))
