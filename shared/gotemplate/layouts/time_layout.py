"""Times in Go's layouts, which show how the time Mon Jan 2 15:04:05 MST 2006 is to be written. In UTC alone."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_PIECE = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|2006|__2|002|_2006|_2|15|PM|pm"
    r"|Z070000|Z07:00:00|Z0700|Z07:00|Z07|-070000|-07:00:00|-0700|-07:00|-07"
    r"|0[1-6]|[1-5]|[.,](?:0+|9+)(?![0-9])"
)
RFC3339: Final = "2006-01-02T15:04:05Z07:00"


class _Moment(NamedTuple):
    """A time in UTC, in the parts of a calendar. `weekday` 0 is Monday; `day_of_year` counts from 1."""

    year: int
    month: int
    day: int
    day_of_year: int
    weekday: int
    hour: int
    minute: int
    second: int


def _moment(seconds: int) -> _Moment:
    days, rest = divmod(seconds, 86_400)
    # In eras of 400 years that begin in March, so that a leap day is the last of its year.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    since_march = day - (365 * year + year // 4 - year // 100)
    month = (5 * since_march + 2) // 153
    is_early = month >= 10
    number = year + era * 400 + is_early
    is_leap = not number % 4 and (number % 100 != 0 or not number % 400)
    return _Moment(
        year=number,
        month=month - 9 if is_early else month + 3,
        day=since_march - (153 * month + 2) // 5 + 1,
        day_of_year=since_march - 305 if is_early else since_march + 60 + is_leap,
        weekday=(days + 3) % 7,
        hour=rest // 3_600,
        minute=rest // 60 % 60,
        second=rest % 60,
    )


def time_text(now_ns: int, layout: str) -> str:
    """Write a time by a layout."""
    seconds, nanoseconds = divmod(now_ns, 1_000_000_000)
    moment = _moment(seconds)
    return _PIECE.sub(lambda found: _piece(found[0], moment, nanoseconds), layout)


def _piece(piece: str, at: _Moment, nanoseconds: int) -> str:
    if piece[0] in ".,":
        return _fraction(piece, nanoseconds)
    if piece[0] == "Z":
        return "Z"
    if piece[0] == "-":
        return "+" + re.sub("[0-9]", "0", piece[1:])
    if piece == "_2006":
        return f"_{at.year:04d}"
    return _PIECES[piece](at)


def _fraction(piece: str, nanoseconds: int) -> str:
    digits = f"{nanoseconds:09d}"[: len(piece) - 1].ljust(len(piece) - 1, "0")
    if piece[1] == "9":
        digits = digits.rstrip("0")
    return piece[0] + digits if digits else ""


def _hour(at: _Moment) -> int:
    return at.hour % 12 or 12


_PIECES: Final[dict[str, Callable[[_Moment], str]]] = {
    "2006": lambda at: f"{at.year:04d}",
    "January": lambda at: _MONTHS[at.month - 1],
    "Jan": lambda at: _MONTHS[at.month - 1][:3],
    "01": lambda at: f"{at.month:02d}",
    "1": lambda at: str(at.month),
    "Monday": lambda at: _DAYS[at.weekday],
    "Mon": lambda at: _DAYS[at.weekday][:3],
    "02": lambda at: f"{at.day:02d}",
    "2": lambda at: str(at.day),
    "_2": lambda at: f"{at.day:2d}",
    "002": lambda at: f"{at.day_of_year:03d}",
    "__2": lambda at: f"{at.day_of_year:3d}",
    "15": lambda at: f"{at.hour:02d}",
    "03": lambda at: f"{_hour(at):02d}",
    "3": lambda at: str(_hour(at)),
    "04": lambda at: f"{at.minute:02d}",
    "4": lambda at: str(at.minute),
    "05": lambda at: f"{at.second:02d}",
    "5": lambda at: str(at.second),
    "06": lambda at: f"{at.year % 100:02d}",
    "PM": lambda at: "PM" if at.hour >= 12 else "AM",
    "pm": lambda at: "pm" if at.hour >= 12 else "am",
    "MST": lambda _at: "UTC",
}
