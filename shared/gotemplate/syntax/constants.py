"""Constants: numbers, quoted strings and characters of Go, as values."""

import re
from typing import Final

from shared.gotemplate.errors import TemplateError

#: Go's int, and what an unsigned one may hold.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

_ESCAPE = re.compile(
    rb"\\(?:x(?P<hex>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})"
    rb"|(?P<octal>[0-7]{3})|(?P<plain>[abfnrtv\\'\"]))",
)
_PLAIN: Final = dict(zip(b"abfnrtv\\'\"", b"\a\b\f\n\r\t\v\\'\"", strict=True))
_UNDERSCORES = re.compile(r"(?i)[+-]?(?:0[xob]_?)?[0-9a-f]+(?:_[0-9a-f]+)*")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX_FLOAT = re.compile(r"(?i)[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+")


def text_of(data: bytes) -> str:
    """Decode text; bytes that are not UTF-8 stay what they are."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Encode text, the reverse of `text_of`; what cannot be encoded becomes the replacement character."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text).encode()


def read_string(source: str, at: int) -> str:
    """Read a string in double quotes. Raises TemplateError."""
    return text_of(_unescaped(source, '"', at))


def read_raw(source: str) -> str:
    """Read a string in backquotes; as in Go, carriage returns are left out."""
    return source[1:-1].replace("\r", "")


def read_character(source: str, at: int) -> int:
    """Read a character constant: its number. Raises TemplateError."""
    data = _unescaped(source, "'", at)
    if re.fullmatch(r"'\\(?:x..|[0-7]{3})'", source):
        return data[0]
    text = text_of(data)
    if len(text) != 1:
        raise TemplateError(f"malformed character constant {source[:40]}", at)
    return ord(text)


def _unescaped(source: str, quote: str, at: int) -> bytes:
    data = bytes_of(source[1:-1])
    parts: list[bytes] = []
    start = 0
    while (found := data.find(b"\\", start)) >= 0:
        parts.append(data[start:found])
        escape = _ESCAPE.match(data, found)
        if escape is None or (
            escape["plain"] in {b"'", b'"'} and escape["plain"] != quote.encode()
        ):
            raise TemplateError(f"unknown escape in {source[:40]}", at)
        parts.append(_escaped(escape, source, at))
        start = escape.end()
    return b"".join([*parts, data[start:]])


def _escaped(escape: re.Match[bytes], source: str, at: int) -> bytes:
    if escape["plain"]:
        return bytes((_PLAIN[escape["plain"][0]],))
    if escape["hex"] or escape["octal"]:
        number = int(escape["hex"], 16) if escape["hex"] else int(escape["octal"], 8)
    else:
        number = int(escape["u"] or escape["U"], 16)
        if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF:
            return chr(number).encode()
        number = 256
    if number > 255:
        raise TemplateError(f"escape out of range in {source[:40]}", at)
    return bytes((number,))


def read_number(source: str, at: int) -> int | float:
    """Read a number: an int, or a float where its text says so. Raises TemplateError."""
    if source.endswith("i"):
        raise TemplateError(f"complex numbers are not supported, found {source[:40]}", at)
    is_hex = source.lstrip("+-").lower().startswith("0x")
    is_float = any(one in source for one in (".pP" if is_hex else ".eEpP"))
    if len(source) > 400:
        raise TemplateError("number is too long", at)
    try:
        found = _float(source) if is_float else _int(source)
    except (ValueError, OverflowError):
        raise TemplateError(f"bad number {source[:40]!r}", at) from None
    if not is_float and not INT_MIN <= found <= INT_MAX:
        raise TemplateError(f"{source[:40]} overflows int", at)
    return found


def _float(source: str) -> float:
    digits = source.replace("_", "")
    if _HEX_FLOAT.fullmatch(digits):
        return float.fromhex(digits)
    if not _DECIMAL.fullmatch(digits) or re.search("_(?![0-9])|(?<![0-9])_", source):
        raise ValueError(source)
    found = float(digits)
    if found in {float("inf"), float("-inf")}:
        raise ValueError(source)
    return found


def _int(source: str) -> int:
    if not _UNDERSCORES.fullmatch(source):
        raise ValueError(source)
    digits = source.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 0)
    if base:
        found = int(digits[2:], base)
    else:
        found = int(digits, 8 if len(digits) > 1 and digits[0] == "0" else 10)
    return sign * found
