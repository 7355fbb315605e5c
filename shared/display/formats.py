"""How times, sizes and counts are written for people; durations: `shared/durations.py`."""

from collections.abc import Iterable
from datetime import UTC, datetime

from schemas.base import SECOND_NS

_SPANS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _local(t_ns: int) -> datetime:
    return datetime.fromtimestamp(t_ns / SECOND_NS, UTC).astimezone()


def format_local_time(t_ns: int) -> str:
    """Date and time on this machine's clock; empty for 0."""
    return f"{_local(t_ns):%Y-%m-%d %H:%M:%S}" if t_ns else ""


def format_clock(t_ns: int) -> str:
    """Time of day on this machine's clock, in milliseconds; as many spaces for 0."""
    return f"{_local(t_ns):%H:%M:%S.%f}"[:-3] if t_ns else " " * 12


def format_utc(t_ns: int) -> str:
    """A moment in UTC, in microseconds; empty for 0."""
    if not t_ns:
        return ""
    moment = datetime.fromtimestamp(t_ns // SECOND_NS, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{t_ns % SECOND_NS // 1000:06d}Z"


def format_age(t_ns: int, now_ns: int) -> str:
    """How far a moment is from now, in its largest unit: `3m ago`, `in 9m`; empty for 0."""
    if not t_ns:
        return ""
    seconds = abs(now_ns - t_ns) // SECOND_NS
    size, unit = next((one for one in _SPANS if seconds >= one[0]), (1, "s"))
    span = f"{seconds // size}{unit}"
    return f"in {span}" if t_ns > now_ns else f"{span} ago"


def format_time_and_age(t_ns: int, now_ns: int) -> str:
    """Date, time and age; empty for 0."""
    return f"{format_local_time(t_ns)} ({format_age(t_ns, now_ns)})" if t_ns else ""


def format_size(size: int) -> str:
    """A number of bytes in the largest unit up to 1,023: `1.5 MiB`."""
    value, unit = float(size), 0
    while round(abs(value), 1) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def format_mib(amount: int) -> str:
    """An amount of MiB: `512 MiB`, `1.5 GiB`."""
    return f"{amount} MiB" if abs(amount) < 1024 else format_size(amount << 20)


def count_noun(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_of(names: Iterable[str], limit: int) -> str:
    """The first names of a list, and how many more there are."""
    found = tuple(names)
    rest = len(found) - limit
    return ", ".join(found[:limit]) + (f" and {rest} more" if rest > 0 else "")
