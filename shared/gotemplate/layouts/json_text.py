"""JSON as Go's encoding/json reads and writes it: keys in order, every number that is read a float."""

import json
import math
import re
from typing import Any, Final

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.layouts.numbers import json_number
from shared.gotemplate.values import (
    UNDEFINED,
    VALUE_DEPTH_MAX,
    GoObject,
    Value,
    sorted_items,
    type_name,
)

_SURROGATES = re.compile("[\ud800-\udfff]")
_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
_SPECIAL = re.compile('["\\\\\\x00-\\x1f\u2028\u2029\ud800-\udfff<>&]')


def _refuse_constant(name: str) -> None:
    raise ValueError(f"invalid value {name}")


def read_json(text: str) -> Value:
    """Read JSON. Raises TemplateError."""
    clean = _SURROGATES.sub("\ufffd", text)
    try:
        value = json.loads(clean, parse_int=float, parse_constant=_refuse_constant)
        return _checked(value, 0)
    except json.JSONDecodeError as err:
        raise TemplateError(f"JSON: {err.msg} at line {err.lineno}") from None
    except ValueError:
        raise TemplateError("JSON: a value is invalid") from None
    except RecursionError:
        raise TemplateError("JSON: nested too deeply") from None


def _checked(value: Any, depth: int) -> Value:
    """Replace lone surrogates, and refuse numbers that are too large."""
    if depth > VALUE_DEPTH_MAX:
        raise TemplateError("JSON: nested too deeply")
    if isinstance(value, float) and math.isinf(value):
        raise TemplateError("JSON: number is out of range")
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_checked(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {_checked(key, depth): _checked(one, depth + 1) for key, one in value.items()}
    return value


def json_text(value: Value, *, indent: str = "", escapes_html: bool = True) -> str:
    """Write JSON. Raises TemplateError."""
    return _Writer(indent, escapes_html=escapes_html).write(value, "\n")


class _Writer:
    def __init__(self, indent: str, *, escapes_html: bool) -> None:
        self._indent = indent
        self._escapes_html = escapes_html

    def write(self, value: Value, newline: str) -> str:
        """Write one value; `newline` has the indent of the line."""
        if value is None or value is UNDEFINED:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(int(value))
        if isinstance(value, float):
            return self._number(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return self._container("[]", newline, [(None, one) for one in value])
        if isinstance(value, dict):
            keyed = sorted((_key(key), one) for key, one in sorted_items(value))
            return self._container("{}", newline, sorted(keyed, key=lambda one: one[0].encode()))
        if isinstance(value, GoObject):
            return self._container("{}", newline, list(value.fields.items()))
        raise TemplateError(f"json: unsupported type: {type_name(value)}")

    def _container(self, marks: str, newline: str, items: list[Any]) -> str:
        if not items:
            return marks
        inner = newline + self._indent if self._indent else ""
        colon = ": " if self._indent else ":"
        shown = [
            ("" if key is None else self._text(key) + colon) + self.write(one, inner)
            for key, one in items
        ]
        outer = newline if self._indent else ""
        return marks[0] + inner + ("," + inner).join(shown) + outer + marks[1]

    def _number(self, value: float) -> str:
        if math.isinf(value) or math.isnan(value):
            raise TemplateError("json: unsupported value: a number that is not finite")
        return json_number(value)

    def _text(self, text: str) -> str:
        return '"' + _SPECIAL.sub(self._escape, text) + '"'

    def _escape(self, found: re.Match[str]) -> str:
        char = found[0]
        if char in "<>&":
            return f"\\u{ord(char):04x}" if self._escapes_html else char
        if "\ud800" <= char <= "\udfff":
            return "\\ufffd"
        return _SHORT.get(char) or f"\\u{ord(char):04x}"


def _key(key: Value) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TemplateError("json: unsupported type: a map whose keys are not texts")
    return _SURROGATES.sub("\ufffd", str(key))
