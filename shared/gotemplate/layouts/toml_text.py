"""TOML as consul-template's `toTOML` writes it: values first, then tables, each level two spaces further in."""

import math
import re
from typing import Final

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.layouts.numbers import float_text
from shared.gotemplate.values import UNDEFINED, Value, sorted_items, type_name

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}


def toml_text(value: Value) -> str:
    """Write TOML. Raises TemplateError."""
    if not isinstance(value, dict):
        return _value(value)
    lines: list[str] = []
    _table(lines, (), value)
    return "\n".join(lines)


def _table(lines: list[str], path: tuple[str, ...], table: dict[str, Value]) -> None:
    indent = "  " * (len(path) - 1)
    inner = indent + ("  " if path else "")
    items = [(str(key), one) for key, one in sorted_items(table) if one is not None]
    for key, one in items:
        if not _is_table(one):
            lines.append(f"{inner}{_key(key)} = {_value(one)}")
    for key, one in items:
        if not _is_table(one):
            continue
        place = (*path, key)
        for entry in one if isinstance(one, list) else [one]:
            if lines and (len(place) == 1 or isinstance(one, list)):
                lines.append("")
            head = ".".join(map(_key, place))
            shown = f"[[{head}]]" if isinstance(one, list) else f"[{head}]"
            lines.append("  " * (len(place) - 1) + shown)
            _table(lines, place, entry)


def _is_table(value: Value) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, dict) for one in value)
    return isinstance(value, dict)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join([_value(one) for one in value]) + "]"
    if isinstance(value, dict):
        pairs = [f"{_key(str(key))} = {_value(one)}" for key, one in sorted_items(value)]
        return "{" + ", ".join(pairs) + "}"
    if value is None or value is UNDEFINED:
        raise TemplateError("TOML has no null in lists")
    raise TemplateError(f"cannot be written as TOML: {type_name(value)}")


def _float(value: float) -> str:
    if value != value:  # noqa: PLR0124 - not a number
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    found = float_text(value, "f")
    return found if "." in found else found + ".0"


def _text(text: str) -> str:
    return '"' + "".join([_ESCAPES.get(one) or _char(one) for one in text]) + '"'


def _char(char: str) -> str:
    return f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else char
