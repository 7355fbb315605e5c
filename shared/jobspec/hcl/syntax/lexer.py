"""Tokens of an HCL text, one at a time, and its heredocs.

Each token is one match of one pattern at the current position, so reading is linear in the text. A new line is not a
token but a mark on the token behind it (`starts_line`), which only bodies and objects use. Strings are read by
`templates.py`. Bounded by TOKENS_MAX.
"""

import re

from shared.jobspec.hcl.errors import DEPTH_MAX, HclError, HclLimitExceeded
from shared.numerals import is_digits

#: Tokens of one text: bounds the time to read one that is nothing but marks.
TOKENS_MAX = 60_000
_INDEX_DIGITS_MAX = 9

_TOKEN = re.compile(
    r"""
    (?P<name>[^\W\d][\w-]*)
    |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<heredoc><<(?P<trim>-?)[ \t]*(?P<marker>[^\W\d][\w.-]*)[ \t]*\r?\n)
    |(?P<mark>&&|\|\||==|!=|<=|>=|=>|\.\.\.|::|[-+*/%<>=!?:.,(){}\[\]"~])
    |(?P<end>\Z)
    """,
    re.VERBOSE,
)
_SPACE = re.compile(r"[ \t\r\n\ufeff]*")
_COMMENT = re.compile(r"(?:#|//)[^\n]*|/\*")
_DIGITS_MAX = 60
_DIGITS = re.compile(r"[0-9]+")


class Lexer:
    """The place in a text, and the token there: its `kind`, its `text`, where it starts and whether a line does."""

    def __init__(self, source: str) -> None:
        self.source = source
        #: offset behind the token.
        self.place = 0
        #: name, number, heredoc, mark or end.
        self.kind = "end"
        self.text = ""
        self.at = 0
        self.starts_line = True
        self._found: re.Match[str] | None = None
        self._tokens = 0
        self._depth = 0

    def next(self) -> None:
        """Go to the next token, past blanks, new lines and comments."""
        start = self.place
        self._skip()
        found = _TOKEN.match(self.source, self.place)
        if found is None:
            raise HclError(f"unexpected character {self.source[self.place]!r}", self.place)
        self.count()
        kind = found.lastgroup or "end"
        self.kind = "heredoc" if kind in {"trim", "marker"} else kind
        self.text = found[0]
        self.at = found.start()
        self.starts_line = self.source.find("\n", start, self.at) >= 0
        self.place = found.end()
        self._found = found

    def count(self) -> None:
        """Count one token, or one part of a text."""
        self._tokens += 1
        if self._tokens > TOKENS_MAX:
            raise HclLimitExceeded(f"more than {TOKENS_MAX} tokens", self.place)

    def is_mark(self, text: str) -> bool:
        """Return whether the token is this mark."""
        return self.text == text and self.kind == "mark"

    def digits(self) -> int | None:
        """Take digits that follow the token at once, as in `list.0`; None if there are none."""
        found = _DIGITS.match(self.source, self.place)
        if found is None:
            return None
        if found.end() - found.start() > _INDEX_DIGITS_MAX:
            raise HclError("index is too large", found.start())
        self.place = found.end()
        return int(found[0])

    def heredoc(self) -> tuple[int, int, bool]:
        """Bound the body of the heredoc that the token opens: (start, end, whether its indent is trimmed).

        The closing marker may stand indented and with trailing blanks. Continues behind it.
        """
        assert self._found is not None
        start = self.place
        marker = self._found["marker"]
        closing = re.compile(rf"^[ \t]*{re.escape(marker)}[ \t]*\r?$", re.MULTILINE)
        found = closing.search(self.source, start)
        if found is None:
            raise HclError(f"heredoc is not closed; expected {marker} on its own line", self.at)
        self.place = found.end()
        return start, found.start(), bool(self._found["trim"])

    def _skip(self) -> None:
        """Go past blanks, new lines and comments."""
        source = self.source
        while True:
            blank = _SPACE.match(source, self.place)
            if blank is not None:
                self.place = blank.end()
            comment = _COMMENT.match(source, self.place)
            if comment is None:
                return
            self.place = comment.end()
            if comment[0] == "/*":
                ended = source.find("*/", self.place)
                if ended < 0:
                    raise HclError("comment is not closed by */", comment.start())
                self.place = ended + 2

    def down(self) -> None:
        """Go one level deeper."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise HclError(f"nested deeper than {DEPTH_MAX} levels", self.at)

    def up(self) -> None:
        """Come back from one level."""
        self._depth -= 1

    def name(self, wanted: str) -> str:
        """Take a plain name."""
        if self.kind != "name":
            raise self.unexpected(wanted)
        name = self.text
        self.next()
        return name

    def expect(self, text: str) -> None:
        """Take this mark."""
        if not self.is_mark(text):
            raise self.unexpected(text)
        self.next()

    def unexpected(self, wanted: str) -> HclError:
        """Create the error of an unexpected token."""
        shown = "the end of the text" if self.kind == "end" else repr(self.text.strip()[:40])
        return HclError(f"expected {wanted}, found {shown}", self.at)


def parse_number(text: str, at: int) -> int | float:
    """Read a number as written; whole ones stay whole. Raises HclError beyond 60 digits."""
    if len(text) > _DIGITS_MAX:
        raise HclError(f"number with more than {_DIGITS_MAX} digits", at)
    if is_digits(text):
        return int(text)
    found = float(text)
    if found in {float("inf"), float("-inf")}:
        raise HclError("number is too large", at)
    return int(found) if found.is_integer() and abs(found) < 2**53 else found
