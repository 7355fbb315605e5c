"""Durations in Go's syntax: `30s`, `1h30m`, `1.5h`, `100ms`. In numbers they are whole nanoseconds.

Read and written here alone, but for reasons that agents report, whose texts the log has; a measured time in a table
(`0.250s`) is a number, not such a text.
"""

import re
from decimal import Decimal

_UNITS = {
    "ns": 1,
    "us": 1000,
    "µs": 1000,
    "μs": 1000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_WRITTEN = ("h", "m", "s", "ms", "us", "ns")
_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|μs|ms|s|m|h)")
_INT64_MAX = 2**63 - 1


class InvalidDuration(ValueError):
    """A text that is not a duration."""


def write_duration(duration_ns: int) -> str:
    """Write a duration exactly, as parse_duration reads it: `1h30m`, `1s500ms`, `0s`."""
    left, found = abs(duration_ns), ""
    for unit in _WRITTEN:
        count, left = divmod(left, _UNITS[unit])
        found += f"{count}{unit}" if count else ""
    return ("-" if duration_ns < 0 else "") + (found or "0s")


def write_in_one_unit(duration_ns: int) -> str:
    """Write a duration exactly, in the largest unit that divides it: `90m`, `1500ms`, `0s`."""
    unit = next(one for one in _WRITTEN if duration_ns % _UNITS[one] == 0) if duration_ns else "s"
    return f"{duration_ns // _UNITS[unit]}{unit}"


def parse_duration(text: str) -> int:
    """Read a duration. Raises InvalidDuration."""
    rest = text.strip()
    sign = -1 if rest.startswith("-") else 1
    rest = rest.removeprefix("-" if sign < 0 else "+")
    if rest == "0":
        return 0
    total = Decimal(0)
    at = 0
    while at < len(rest):
        found = _PART.match(rest, at)
        if found is None:
            break
        total += Decimal(found[1]) * _UNITS[found[2]]
        at = found.end()
    if not rest or at < len(rest):
        raise InvalidDuration(
            f"{text[:40]!r} is not a duration; expected for example 30s, 5m or 1h30m"
        )
    if total > _INT64_MAX:
        raise InvalidDuration(f"{text[:40]!r} is too long")
    return sign * int(total)
