"""Reads `KEY=value` lines as Nomad does for templates with `env`.

Source: the documented dialect of go-envparse: blank lines and comments, a leading `export`, quotes, and the escapes of
JSON inside double quotes. Beyond it, a character that is not ASCII and stands before a comment is kept whole.
"""

import re
from typing import Final

#: Variables of one file.
VARIABLES_MAX: Final = 10_000
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./]*")
_BLANKS: Final = " \t\r\v\f"
_ESCAPES: Final = {
    **{one: one for one in '"\\/'},
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_PIECE: Final = re.compile(
    r"""(?P<plain>[^"'# \t]+)|(?P<blank>[ \t]+)|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<comment>\#)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([0-9a-fA-F]{4})|\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL
)


class DotenvInvalid(Exception):
    """A line that cannot be read; the text names the line, and no value."""


def read_dotenv(text: str) -> dict[str, str]:
    """Read the variables of a text; of the same name the last one counts. Raises DotenvInvalid."""
    found: dict[str, str] = {}
    for number, whole in enumerate(text.split("\n"), start=1):
        line = whole.strip(_BLANKS)
        if not line or line.startswith("#"):
            continue
        try:
            key, value = _pair(line)
        except ValueError as err:
            raise DotenvInvalid(f"line {number} of the rendered text: {err}") from None
        found[key] = value
        if len(found) > VARIABLES_MAX:
            raise DotenvInvalid(f"more than {VARIABLES_MAX} variables")
    return found


def _pair(line: str) -> tuple[str, str]:
    key, separator, value = line.partition("=")
    if not separator:
        raise ValueError("= is missing")
    key = key.strip(_BLANKS)
    if len(key) > len("export "):
        key = key.removeprefix("export ").strip(_BLANKS)
    if not _KEY.fullmatch(key):
        raise ValueError(
            "the name of a variable is a letter or _, then letters, digits, _, . and /"
        )
    return key, _value(value.strip(_BLANKS))


def _value(text: str) -> str:
    if any(one < " " for one in text):
        raise ValueError("a value has no control character; write it as an escape in double quotes")
    parts: list[str] = []
    #: parts up to the last that is more than unquoted blanks.
    significant = at = 0
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise ValueError(f"a quote {text[at]} is not closed")
        at = match.end()
        if match.lastgroup == "comment":
            return "".join(parts[:significant])
        piece = match.group(match.lastgroup or 0)
        parts.append(_unescaped(piece) if match.lastgroup == "double" else piece)
        significant = significant if match.lastgroup == "blank" else len(parts)
    return "".join(parts)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        high, low, code, plain = match.groups()
        if high is not None:
            second = int(low, 16)
            if not 0xDC00 <= second <= 0xDFFF:
                return "\ufffd"
            return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + second - 0xDC00)
        if code is not None:
            number = int(code, 16)
            if 0xD800 <= number <= 0xDFFF:
                raise ValueError("half of a \\u pair is missing")
            if not number:
                raise ValueError("a variable cannot hold \\u0000")
            return chr(number)
        if plain not in _ESCAPES:
            raise ValueError(
                'unknown escape in double quotes; \\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX are known'
            )
        return _ESCAPES[plain]

    return _ESCAPE.sub(one, text)
