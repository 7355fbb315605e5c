"""Numbers and quoted text as Go's strconv and fmt write them."""

import math
from typing import Final

from shared.gotemplate.syntax.constants import bytes_of

_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
}


def float_text(number: float, verb: str = "g", precision: int | None = None) -> str:
    """Write a float; without a precision as short as it can be read back."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    if precision is None:
        return _shortest(number, verb)
    if verb in "fF":
        return f"{number:.{precision}f}"
    if verb in "eE":
        return f"{number:.{precision}{verb}}"
    return _general(number, verb, precision)


def _general(number: float, verb: str, precision: int) -> str:
    found = f"{number:.{precision or 1}{verb}}"
    mantissa, mark, exponent = found.partition("e" if verb == "g" else "E")
    return mantissa + mark + exponent


def _digits(number: float) -> tuple[str, str, int]:
    """Return sign, digits, and the exponent of the first digit."""
    sign = "-" if math.copysign(1, number) < 0 else ""
    mantissa, _, exponent = f"{abs(number)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1
    if whole == "0":
        power -= len(fraction) - len(fraction.lstrip("0")) + 1
    digits = digits.rstrip("0")
    return (sign, digits, power) if digits else (sign, "0", 0)


def _shortest(number: float, verb: str) -> str:
    sign, digits, power = _digits(number)
    if verb in "eE" or (verb in "gG" and not -4 <= power < 6):
        return sign + exponent_text(digits, power, "E" if verb in "EG" else "e")
    return sign + plain_text(digits, power)


def exponent_text(digits: str, power: int, mark: str) -> str:
    """Write digits with an exponent of two digits at least."""
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}{mark}{'-' if power < 0 else '+'}{abs(power):02d}"


def plain_text(digits: str, power: int) -> str:
    """Write digits without an exponent."""
    if power < 0:
        return "0." + "0" * (-power - 1) + digits
    digits = digits.ljust(power + 1, "0")
    fraction = digits[power + 1 :]
    return digits[: power + 1] + ("." + fraction if fraction else "")


def json_number(number: float) -> str:
    """Write a float as encoding/json does: an exponent below 1e-6 and from 1e21."""
    sign, digits, power = _digits(number)
    if number and not -6 <= power < 21:
        found = exponent_text(digits, power, "e")
        return sign + found.replace("e-0", "e-")
    return sign + plain_text(digits, power)


def quoted(text: str, quote: str = '"', *, ascii_only: bool = False) -> str:
    """Quote text as Go's strconv.Quote does."""
    parts = [quote]
    for char in text:
        if char == quote:
            parts.append("\\" + char)
        elif char in _ESCAPES:
            parts.append(_ESCAPES[char])
        elif "\udc80" <= char <= "\udcff":
            parts.append(f"\\x{ord(char) - 0xDC00:02x}")
        elif (char.isprintable() and not ascii_only) or " " <= char <= "~":
            parts.append(char)
        else:
            parts.append(_code(ord(char)))
    return "".join([*parts, quote])


def _code(number: int) -> str:
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def hex_text(text: str, *, upper: bool, separator: str = "", prefix: str = "") -> str:
    """Write the bytes of a text in hexadecimal digits."""
    found = [f"{one:02x}" for one in bytes_of(text)]
    if separator:
        joined = separator.join(prefix + one for one in found)
    else:
        joined = (prefix if found else "") + "".join(found)
    return joined.upper() if upper else joined
