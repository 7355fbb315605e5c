"""Values of templates, and what Go says of them: kinds, truth, comparison.

A value is None (a nil interface), a bool, an int (signed, 64 bits), an `Unsigned`, a float, a str, a list, a dict with
text, int or other plain keys, a `GoObject`, a `Channel`, or `UNDEFINED`, which stands for no value at all: Go prints
`<no value>` for it and takes fields of it, where a field of None is an error.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.syntax.constants import bytes_of

Value = Any


class _Undefined:
    """The one value of its kind."""

    def __repr__(self) -> str:
        return "<no value>"


UNDEFINED: Final = _Undefined()


class Unsigned(int):
    """Go's uint64."""


class TextMap(dict[str, Value]):
    """A map of text to text: a key that is missing has the empty text."""


class Channel:
    """What `loop` returns: numbers from `start` up to, but not including, `stop`."""

    def __init__(self, start: int, stop: int) -> None:
        self.range = range(start, max(start, stop))


class GoObject:
    """A struct of Go with fields and methods. `text` is what it prints, if it has a text of its own."""

    def __init__(
        self,
        kind: str,
        fields: Mapping[str, Value],
        methods: Mapping[str, Any] | None = None,
        text: str | None = None,
    ) -> None:
        self.kind = kind
        self.fields = dict(fields)
        #: declared as functions are (`functions/registry.py`).
        self.methods = dict(methods or {})
        self.text = text


class ObjectMap(dict[str, Value]):
    """A map with methods, as `nomadVar` returns it; a key that is missing has an object that prints nothing."""

    methods: Mapping[str, Any] = {}


def zero_of(value: dict[Any, Value]) -> Value:
    """Return what a map has for a key that is missing."""
    if isinstance(value, ObjectMap):
        return GoObject("NomadVarItem", {"Key": "", "Value": ""}, text="")
    return "" if isinstance(value, TextMap) else None


def type_name(value: Value) -> str:
    """Name a type as Go does."""
    if value is UNDEFINED or value is None:
        return "<nil>"
    for kind, name in _TYPE_NAMES:
        if isinstance(value, kind):
            return name
    return f"*{value.kind}" if isinstance(value, GoObject) else "func"


_TYPE_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (Unsigned, "uint64"),
    (int, "int"),
    (float, "float64"),
    (str, "string"),
    (list, "[]interface {}"),
    (TextMap, "map[string]string"),
    (dict, "map[string]interface {}"),
    (Channel, "<-chan int64"),
)


def is_true(value: Value) -> bool:
    """Return whether a value is not the zero of its type."""
    if value is UNDEFINED or value is None:
        return False
    return bool(value) if isinstance(value, bool | int | float | str | list | dict) else True


def basic_kind(value: Value) -> str:
    """Name the kind by which values are compared; empty: it has none."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    return "string" if isinstance(value, str) else ""


def equal(left: Value, right: Value) -> bool:
    """Compare two values. Raises TemplateError where Go does."""
    if left is UNDEFINED or right is UNDEFINED:
        left, right = (None if one is UNDEFINED else one for one in (left, right))
    kind = basic_kind(left)
    if kind != basic_kind(right):
        if left is None or right is None:
            return False
        raise TemplateError(
            f"incompatible types for comparison: {type_name(left)} and {type_name(right)}"
        )
    if kind == "string":
        return bool(left == right)
    if kind:
        return bool(left == right)
    if left is None or right is None:
        return left is right
    if isinstance(right, list | dict):
        raise TemplateError(f"non-comparable type {type_name(right)}")
    return left is right


def less(left: Value, right: Value) -> bool:
    """Order two values. Raises TemplateError where Go does."""
    kinds = basic_kind(left), basic_kind(right)
    if "" in kinds:
        raise TemplateError("invalid type for comparison")
    if kinds[0] != kinds[1]:
        raise TemplateError(
            f"incompatible types for comparison: {type_name(left)} and {type_name(right)}"
        )
    if kinds[0] == "bool":
        raise TemplateError("invalid type for comparison")
    if kinds[0] == "string":
        return bytes_of(left) < bytes_of(right)
    return bool(left < right)


def wrap_int(number: int) -> int:
    """Wrap a number as Go's int64 does."""
    return (number + 2**63) % 2**64 - 2**63


def sorted_items(value: Mapping[Any, Value]) -> list[tuple[Any, Value]]:
    """Take the entries of a map in the order in which Go prints and ranges over them."""
    return sorted(value.items(), key=_key_order)


def _key_order(item: tuple[Any, Value]) -> tuple[int, Any]:
    key = item[0]
    if key is None:
        return (0, 0)
    if isinstance(key, bool):
        return (1, key)
    if isinstance(key, int | float):
        return (2, -math.inf if math.isnan(key) else key)
    return (3, bytes_of(key)) if isinstance(key, str) else (4, bytes_of(str(key)))


def work_size(value: Value, limit: int) -> int:
    """Count the steps that a walk over the value costs, up to `limit`."""
    total = 0
    waiting: list[Iterator[Value]] = [iter((value,))]
    while waiting:
        for one in waiting[-1]:
            total += 1
            if isinstance(one, str):
                total += len(one) >> 6
            elif isinstance(one, list | dict):
                waiting.append(iter(one.values() if isinstance(one, dict) else one))
                break
            elif isinstance(one, GoObject):
                total += len(one.fields)
        else:
            waiting.pop()
        if total > limit or len(waiting) > VALUE_DEPTH_MAX:
            return limit + 1
    return total


#: Lists and maps inside one another; also what stops a map that was put into itself.
VALUE_DEPTH_MAX: Final = 128
