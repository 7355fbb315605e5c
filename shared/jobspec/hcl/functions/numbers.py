"""Functions of numbers, and conversions to simple types."""

import math

from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.functions.registry import function
from shared.jobspec.hcl.values import Value, as_bool, as_number, as_text, normalize_number

_POWER_MAX = 4096


@function("abs")
def _abs(number: Value) -> Value:
    """Drop the sign."""
    return abs(as_number(number))


@function("ceil")
def _ceil(number: Value) -> Value:
    """Round up."""
    return math.ceil(as_number(number))


@function("floor")
def _floor(number: Value) -> Value:
    """Round down."""
    return math.floor(as_number(number))


@function("signum")
def _signum(number: Value) -> Value:
    """Return -1, 0 or 1."""
    value = as_number(number)
    return (value > 0) - (value < 0)


@function("min")
def _min(number: Value, *numbers: Value) -> Value:
    """Return the smallest."""
    return min(as_number(one) for one in (number, *numbers))


@function("max")
def _max(number: Value, *numbers: Value) -> Value:
    """Return the largest."""
    return max(as_number(one) for one in (number, *numbers))


@function("pow")
def _pow(number: Value, power: Value) -> Value:
    """Raise to a power."""
    base, exponent = as_number(number), as_number(power)
    if abs(exponent) > _POWER_MAX:
        raise HclError("number is out of range")
    try:
        if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
            if abs(base) > 1 and exponent * abs(base).bit_length() > _POWER_MAX:
                raise HclError("number is out of range")
            return normalize_number(base**exponent)
        return normalize_number(math.pow(base, exponent))
    except (OverflowError, ValueError, ZeroDivisionError):
        raise HclError("number is out of range") from None


@function("log")
def _log(number: Value, base: Value) -> Value:
    """Return the logarithm to a base."""
    try:
        return normalize_number(math.log(as_number(number), as_number(base)))
    except (ValueError, ZeroDivisionError):
        raise HclError("number and base must be positive, the base not 1") from None


@function("tonumber")
def _tonumber(value: Value) -> Value:
    """Convert to a number."""
    return None if value is None else as_number(value)


@function("tostring")
def _tostring(value: Value) -> Value:
    """Convert to text."""
    return None if value is None else as_text(value)


@function("tobool")
def _tobool(value: Value) -> Value:
    """Convert to true or false."""
    return None if value is None else as_bool(value)
