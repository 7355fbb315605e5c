"""Arithmetic: the second operand comes first, so that `5 | subtract 2` is 3. Two ints make an int."""

import math
from collections.abc import Callable

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.registry import pure_function
from shared.gotemplate.values import Unsigned, Value, type_name, wrap_int

Number = int | float


def require_number(value: Value) -> Number:
    """Return a number. Raises TemplateError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TemplateError(f"unknown type of number: {type_name(value)}")
    return value


def _pair(second: Value, first: Value) -> tuple[Number, Number]:
    return require_number(first), require_number(second)


def _whole(first: Number, second: Number, result: int) -> int:
    """Wrap a result as the machine does: unsigned where both operands are."""
    if isinstance(first, Unsigned) and isinstance(second, Unsigned):
        return Unsigned(result % 2**64)
    return wrap_int(result)


def divide_whole(first: int, second: int) -> int:
    """Divide towards zero. Raises TemplateError."""
    if not second:
        raise TemplateError("division by zero")
    return abs(first) // abs(second) * (1 if (first < 0) is (second < 0) else -1)


def _float(work: Callable[[float, float], float], first: Number, second: Number) -> float:
    try:
        return work(float(first), float(second))
    except OverflowError:
        return math.inf


def _arithmetic(first: Number, second: Number, work: Callable[[Number, Number], Number]) -> Value:
    if isinstance(first, int) and isinstance(second, int):
        return _whole(first, second, int(work(first, second)))
    return _float(work, first, second)


@pure_function("add", "any any")
def _add(second: Value, first: Value) -> Value:
    """Add two numbers."""
    return _arithmetic(*_pair(second, first), lambda a, b: a + b)


@pure_function("subtract", "any any")
def _subtract(second: Value, first: Value) -> Value:
    """Subtract the first argument from the second."""
    return _arithmetic(*_pair(second, first), lambda a, b: a - b)


@pure_function("multiply", "any any")
def _multiply(second: Value, first: Value) -> Value:
    """Multiply two numbers."""
    return _arithmetic(*_pair(second, first), lambda a, b: a * b)


@pure_function("divide", "any any")
def _divide(second: Value, first: Value) -> Value:
    """Divide the second argument by the first; two ints make an int, cut towards zero."""
    a, b = _pair(second, first)
    if isinstance(a, int) and isinstance(b, int):
        return _whole(a, b, divide_whole(a, b))
    if not b:
        return math.nan if not a or math.isnan(a) else math.copysign(math.inf, a) * _sign(b)
    return _float(lambda one, other: one / other, a, b)


def _sign(number: float) -> float:
    return math.copysign(1, number)


@pure_function("modulo", "any any")
def _modulo(second: Value, first: Value) -> Value:
    """Return the rest of a division of ints, with the sign of what is divided."""
    a, b = _pair(second, first)
    if not isinstance(a, int) or not isinstance(b, int):
        raise TemplateError(f"unknown type of number: {type_name(a if isinstance(b, int) else b)}")
    return _whole(a, b, a - b * divide_whole(a, b))


@pure_function("minimum", "any any")
def _minimum(second: Value, first: Value) -> Value:
    """Return the lesser of two numbers."""
    a, b = _pair(second, first)
    return min(b, a)


@pure_function("maximum", "any any")
def _maximum(second: Value, first: Value) -> Value:
    """Return the greater of two numbers."""
    a, b = _pair(second, first)
    return max(b, a)
