"""Values of expressions, and how one type becomes another.

A value is None, a bool, an int or float (one kind: number), a str, a list, or a dict with text keys. Decides HCL's
conversions, as Nomad applies them: numbers and bools become text and back where the text says nothing else. Knows no
expression.
"""

import math
from collections.abc import Callable
from typing import Any

from shared.jobspec.hcl.errors import DEPTH_MAX, HclError
from shared.numerals import is_digits, parse_decimal, parse_whole

Value = Any
#: Beyond this a number is a mistake, and work on it without bound.
NUMBER_MAX = 2**256
#: Characters of one text.
TEXT_MAX = 1024 * 1024


def kind_of(value: Value) -> str:
    """Name the type of a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a bool"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def describe_value(value: Value) -> str:
    """Show a value in a message: short, on one line."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "…")
    if isinstance(value, list | dict) or value is None:
        return kind_of(value)
    return as_text(value)


def as_text(value: Value) -> str:
    """Convert to text. Raises HclError for lists, objects and null."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = f"{value:.15f}".rstrip("0").rstrip(".") if abs(value) < 1e15 else f"{value:.0f}"
        return text if float(text) == value else repr(value)
    raise HclError(f"must be a string, was {kind_of(value)}")


def as_number(value: Value) -> int | float:
    """Convert to a number. Raises HclError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= 80:
        try:
            return normalize_number(
                parse_whole(value) if is_digits(value.lstrip("-")) else parse_decimal(value)
            )
        except ValueError:
            pass
    raise HclError(f"must be a number, was {describe_value(value)}")


def as_int(value: Value) -> int:
    """Convert to a whole number. Raises HclError."""
    number = as_number(value)
    if isinstance(number, float):
        raise HclError(f"must be a whole number, was {as_text(number)}")
    return number


def as_bool(value: Value) -> bool:
    """Convert to a bool. Raises HclError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if value in {"true", "1"}:
            return True
        if value in {"false", "0"}:
            return False
    raise HclError(f"must be true or false, was {describe_value(value)}")


def as_list(value: Value) -> list[Value]:
    """Take a list. Raises HclError."""
    if isinstance(value, list):
        return value
    raise HclError(f"must be a list, was {kind_of(value)}")


def as_object(value: Value) -> dict[str, Value]:
    """Take an object. Raises HclError."""
    if isinstance(value, dict):
        return value
    raise HclError(f"must be an object, was {kind_of(value)}")


def convert_named(name: str, convert: Callable[[Value], Value], value: Value) -> Value:
    """Convert a value; an error begins with its name. Raises HclError."""
    try:
        return convert(value)
    except HclError as fault:
        raise HclError(f"{name}: {fault.message}") from None


def normalize_number(number: float) -> int | float:
    """Convert a float without fraction to a whole number. Raises HclError out of range."""
    if isinstance(number, float):
        if not math.isfinite(number):
            raise HclError("number is out of range")
        if number.is_integer() and abs(number) < NUMBER_MAX:
            return int(number)
    if abs(number) >= NUMBER_MAX:
        raise HclError("number is out of range")
    return number


def values_equal(left: Value, right: Value) -> bool:
    """Compare as `==` does: of different types nothing is equal."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(values_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(values_equal(left[k], right[k]) for k in left)
    return (
        type(left) is type(right) and bool(left == right)
        if isinstance(left, str)
        else (kind_of(left) == kind_of(right) and bool(left == right))
    )


def iteration_pairs(value: Value) -> list[tuple[Value, Value]]:
    """List the pairs a `for` runs over: index and element, or key and value by key. Raises HclError."""
    if isinstance(value, list):
        return list(enumerate(value))
    if isinstance(value, dict):
        return sorted(value.items())
    raise HclError(f"for needs a list or an object, was {kind_of(value)}")


def value_size(value: Value, room: int) -> int:
    """Count the values in a value, text by 64 characters; stops once past `room`."""
    total = 0
    waiting: list[tuple[Value, int]] = [(value, 0)]
    while waiting and total <= room:
        one, depth = waiting.pop()
        if depth > 2 * DEPTH_MAX:
            raise HclError("value is nested too deeply")
        total += 1
        if isinstance(one, str):
            total += len(one) >> 6
        elif isinstance(one, list):
            waiting += [(item, depth + 1) for item in one]
        elif isinstance(one, dict):
            waiting += [(item, depth + 1) for item in one.values()]
    return total
