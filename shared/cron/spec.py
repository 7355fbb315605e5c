"""Cron specs, read into the sets of what each field allows.

Fields: 5 are minute, hour, day of month, month, day of week; a sixth is the year; with 7 seconds come first. Further
ones are ignored. Each is a list of `*`, a value, `a-b`, with `/step`; months and weekdays have names. Day of month also
knows L, LW, nW and L-n; day of week nL and n#k. Where both days are restricted, either one matches. Source: the forms
of Nomad's periodic block (hashicorp/cronexpr); a range that runs backwards is refused here, there it is empty.
Next: `instants.py`.
"""

import re
from calendar import monthrange
from datetime import date

import msgspec

from shared.numerals import is_digits

#: A spec is a line, not a page.
SPEC_CHARS_MAX = 256
YEAR_MIN, YEAR_MAX = 1970, 2099
_MONTHS = "january february march april may june july august september october november december"
_DAYS = "sunday monday tuesday wednesday thursday friday saturday"
_SHORTHANDS = {
    "@yearly": "0 0 0 1 1 * *",
    "@annually": "0 0 0 1 1 * *",
    "@monthly": "0 0 0 1 * * *",
    "@weekly": "0 0 0 * * 0 *",
    "@daily": "0 0 0 * * * *",
    "@hourly": "0 0 * * * * *",
}
_ENTRY = re.compile(r"(\*|\?|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]+))?")
_NEAREST = re.compile(r"([0-9]{1,2})w")
_BEFORE_LAST = re.compile(r"l-([0-9]{1,2})")
_LAST_WEEKDAY = re.compile(r"([0-9a-z]+?)l")
_NTH_WEEKDAY = re.compile(r"([0-9a-z]+)#([1-5])")


class CronInvalid(ValueError):
    """A spec that cannot be read; the text says which field and why."""


def _names(words: str, first: int) -> dict[str, int]:
    """Each name and its first three letters."""
    listed = list(enumerate(words.split(), first))
    return {name[:length]: value for value, name in listed for length in (3, len(name))}


class _Field(msgspec.Struct, frozen=True):
    """What a field may hold."""

    name: str
    low: int
    high: int
    names: dict[str, int] = {}


_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _names(_MONTHS, 1)),
    # 7 is Sunday, too.
    _Field("day of week", 0, 7, _names(_DAYS, 0)),
    _Field("year", YEAR_MIN, YEAR_MAX),
)
_SECOND, _MINUTE, _HOUR, _MONTHDAY, _MONTH, _WEEKDAY, _YEAR = _FIELDS


class CronSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What each field allows: ascending tuples. An empty `monthdays` or `weekdays` beside no rule allows no day."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    years: tuple[int, ...]
    #: 1 to 31; `is_any_monthday`: the field is a star.
    monthdays: tuple[int, ...]
    is_any_monthday: bool
    #: days before the last of the month.
    before_last: tuple[int, ...] = ()
    #: the weekday (Monday to Friday) nearest to a day; 0: the last one of the month.
    nearest: tuple[int, ...] = ()
    #: 0 (Sunday) to 6.
    weekdays: tuple[int, ...]
    is_any_weekday: bool
    #: (day of week, which of the month); 0: the last.
    nth: tuple[tuple[int, int], ...] = ()

    def is_day(self, day: date) -> bool:
        """Tell whether its fields for days allow a day; month and year are not looked at."""
        if self.is_any_monthday and self.is_any_weekday:
            return True
        return (not self.is_any_monthday and self._is_monthday(day)) or (
            not self.is_any_weekday and self._is_weekday(day)
        )

    def _is_monthday(self, day: date) -> bool:
        if day.day in self.monthdays:
            return True
        if not (self.before_last or self.nearest):
            return False
        last = monthrange(day.year, day.month)[1]
        if last - day.day in self.before_last:
            return True
        return any(day.day == _nearest_weekday(day, wanted, last) for wanted in self.nearest)

    def _is_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        if weekday in self.weekdays:
            return True
        if not self.nth:
            return False
        is_last = day.day + 7 > monthrange(day.year, day.month)[1]
        which = (day.day + 6) // 7
        return (weekday, which) in self.nth or (is_last and (weekday, 0) in self.nth)


def _nearest_weekday(day: date, wanted: int, last: int) -> int:
    """Day of month of the weekday nearest to `wanted` (0: the last day) within the month; 0: there is none."""
    if wanted > last:
        return 0
    target = wanted or last
    weekday = day.replace(day=target).isoweekday()
    if weekday == 6:
        return target - 1 if target > 1 else target + 2
    if weekday == 7:
        return target + 1 if target < last else target - 2
    return target


def parse_cron(text: str) -> CronSpec:
    """Read a spec. Raises CronInvalid."""
    words = text.lower().split()
    if len(text) > SPEC_CHARS_MAX:
        raise CronInvalid(f"a spec has at most {SPEC_CHARS_MAX} characters, this has {len(text)}")
    if len(words) == 1 and words[0] in _SHORTHANDS:
        words = _SHORTHANDS[words[0]].split()
    elif words and words[0].startswith("@"):
        known = ", ".join(_SHORTHANDS)
        raise CronInvalid(f"unknown shorthand {words[0]!r}; expected one of {known}")
    if len(words) < 5:
        raise CronInvalid(
            f"a spec has 5 to 7 fields, this has {len(words)}: minute, hour, day of month, month, day of week"
        )
    if len(words) == 5:
        words.append("*")
    if len(words) == 6:
        # Five or six fields begin with the minute: the sixth is the year, as in Nomad.
        words.insert(0, "0")
    second, minute, hour, monthday, month, weekday, year = words[:7]
    plain, before_last, nearest = _monthday_rules(monthday)
    plain_weekdays, nth = _weekday_rules(weekday)
    weekdays = _values(_WEEKDAY, plain_weekdays)
    return CronSpec(
        text=" ".join(text.split()),
        seconds=_values(_SECOND, second.split(",")),
        minutes=_values(_MINUTE, minute.split(",")),
        hours=_values(_HOUR, hour.split(",")),
        months=_values(_MONTH, month.split(",")),
        years=_values(_YEAR, year.split(",")),
        monthdays=_values(_MONTHDAY, plain),
        is_any_monthday=any(one in {"*", "?"} for one in plain),
        before_last=before_last,
        nearest=nearest,
        weekdays=tuple(sorted({day % 7 for day in weekdays})),
        is_any_weekday=any(one in {"*", "?"} for one in plain_weekdays),
        nth=nth,
    )


def _monthday_rules(text: str) -> tuple[list[str], tuple[int, ...], tuple[int, ...]]:
    """Split a day of month into plain entries, days before the last, and days whose nearest weekday is meant."""
    plain: list[str] = []
    before_last: set[int] = set()
    nearest: set[int] = set()
    for entry in text.split(","):
        if entry == "l":
            before_last.add(0)
        elif entry in {"lw", "wl"}:
            nearest.add(0)
        elif match := _BEFORE_LAST.fullmatch(entry):
            before_last.add(_bounded(_MONTHDAY, match[1], low=0, high=30))
        elif match := _NEAREST.fullmatch(entry):
            nearest.add(_bounded(_MONTHDAY, match[1]))
        else:
            plain.append(entry)
    return plain, tuple(sorted(before_last)), tuple(sorted(nearest))


def _weekday_rules(text: str) -> tuple[list[str], tuple[tuple[int, int], ...]]:
    """Split a day of week into plain entries, and (day, which of the month)."""
    plain: list[str] = []
    nth: set[tuple[int, int]] = set()
    for entry in text.split(","):
        if match := _NTH_WEEKDAY.fullmatch(entry):
            nth.add((_bounded(_WEEKDAY, match[1]) % 7, int(match[2])))
        elif (match := _LAST_WEEKDAY.fullmatch(entry)) and entry not in _WEEKDAY.names:
            nth.add((_bounded(_WEEKDAY, match[1]) % 7, 0))
        else:
            plain.append(entry)
    return plain, tuple(sorted(nth))


def _values(field: _Field, entries: list[str]) -> tuple[int, ...]:
    """Every value that the entries of a field allow."""
    found: set[int] = set()
    for entry in entries:
        found.update(_span(field, entry))
    return tuple(sorted(found))


def _span(field: _Field, entry: str) -> range:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise CronInvalid(f"{field.name}: {entry!r} is not a value, range or step")
    first, last, step = match.groups()
    if first in {"*", "?"}:
        if last is not None:
            raise CronInvalid(f"{field.name}: {entry!r} is not a range")
        # A Sunday counts once, whatever the step.
        low, high = field.low, 6 if field is _WEEKDAY else field.high
    else:
        low = _bounded(field, first)
        high = low if last is None else _bounded(field, last)
        if last is None and step is not None:
            high = 6 if field is _WEEKDAY else field.high
        if field is _WEEKDAY and last in {"sun", "sunday"} and low:
            high = 7
    if high < low:
        raise CronInvalid(f"{field.name}: the range {entry!r} runs backwards; write two ranges")
    every = 1 if step is None else int(step)
    if not every:
        raise CronInvalid(f"{field.name}: the step of {entry!r} must be at least 1")
    return range(low, high + 1, every)


def _bounded(field: _Field, text: str, *, low: int = -1, high: int = -1) -> int:
    low, high = (field.low if low < 0 else low), (field.high if high < 0 else high)
    value = field.names.get(text, int(text) if is_digits(text) and len(text) <= 4 else -1)
    if not low <= value <= high:
        names = f" or a name such as {next(iter(field.names))!r}" if field.names else ""
        raise CronInvalid(f"{field.name}: {text!r} must be {low} to {high}{names}")
    return value


def reading(spec: CronSpec) -> str:
    """Say in words what a spec allows, one field after the other."""
    weekdays = [*(_DAYS.split()[day] for day in spec.weekdays)]
    weekdays += [
        f"the {'last' if not which else f'{which}.'} {_DAYS.split()[day]} of the month"
        for day, which in spec.nth
    ]
    monthdays = [str(day) for day in spec.monthdays]
    monthdays += [f"{n} before the last" if n else "the last" for n in spec.before_last]
    monthdays += [f"the weekday nearest to {n or 'the last'}" for n in spec.nearest]
    days = [] if spec.is_any_monthday else [f"day of month {_listed(monthdays)}"]
    days += [] if spec.is_any_weekday else [f"on {_listed(weekdays)}"]
    months = _all_or(spec.months, _MONTH, [_MONTHS.split()[one - 1] for one in spec.months])
    parts = (
        f"second {_all_or(spec.seconds, _SECOND)}",
        f"minute {_all_or(spec.minutes, _MINUTE)}",
        f"hour {_all_or(spec.hours, _HOUR)}",
        " or ".join(days) or "every day",
        f"month {months}",
        f"year {_all_or(spec.years, _YEAR)}",
    )
    return ", ".join(parts)


def _all_or(values: tuple[int, ...], field: _Field, names: list[str] | None = None) -> str:
    if len(values) == field.high - field.low + 1:
        return "any"
    return _listed(names if names is not None else [str(one) for one in values])


def _listed(words: list[str]) -> str:
    shown = ", ".join(words[:12])
    return shown + (f" and {len(words) - 12} more" if len(words) > 12 else "")
