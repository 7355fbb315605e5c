"""The next instant of cron specs after a time, in a time zone.

Walks in real time and looks at the local clock, so that a local time which daylight saving skips does not come that
day, one which it doubles comes twice, and a spec of every minute comes every real minute. The search ends after five
years. Times are ns since 1970 in UTC.
"""

from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from schemas.base import SECOND_NS
from shared.cron.spec import CronInvalid, CronSpec, parse_cron

#: How far ahead an instant is looked for.
SEARCH_NS = 5 * 366 * 86_400 * SECOND_NS
#: Dates that a zone can be asked for: far from the ends of `datetime`.
_LAST_S = int(datetime(2105, 1, 1, tzinfo=UTC).timestamp())
#: No name of the database is longer; a longer one is cut, and unknown.
_ZONE_CHARS_MAX = 64
#: Years in which every combination of leap year and weekday comes.
_CYCLE_YEARS = 28


def time_zone(name: str) -> ZoneInfo:
    """Return a zone by its IANA name; "" is UTC. Raises CronInvalid."""
    try:
        return ZoneInfo(name[:_ZONE_CHARS_MAX] or "UTC")
    except (KeyError, ValueError, OSError):
        message = f"{name[:64]!r} is not a time zone; expected an IANA name such as 'Europe/Berlin'"
        raise CronInvalid(message) from None


def next_instant(specs: Iterable[CronSpec], zone: ZoneInfo, after_ns: int) -> int:
    """Return the earliest instant of any spec strictly after a time; 0: none within five years."""
    found = [_next_second(spec, zone, after_ns // SECOND_NS) for spec in specs]
    return min((one for one in found if one), default=0) * SECOND_NS


#: Each periodic job has two instants in use at a time: the one that is due, and the one after it.
@lru_cache(16_384)
def next_launch(crons: tuple[str, ...], zone: str, after_ns: int) -> int:
    """Return the same for texts. Raises CronInvalid."""
    return next_instant([_parsed(text) for text in crons], _zone(zone), after_ns)


_parsed = lru_cache(4096)(parse_cron)
_zone = lru_cache(256)(time_zone)


def missed_launches(
    crons: tuple[str, ...], zone: str, *, after_ns: int, until_ns: int, most: int
) -> tuple[int, int]:
    """Return the newest instant in (after, until], and how many come before it in there, counted up to `most`.

    (0, 0): none. Raises CronInvalid.
    """
    found = next_launch(crons, zone, after_ns)
    if not found or found > until_ns:
        return 0, 0
    count = 0
    while count < most:
        later = next_launch(crons, zone, found)
        if not later or later > until_ns:
            return found, count
        found, count = later, count + 1
    low, high = found // SECOND_NS, until_ns // SECOND_NS
    # The last second after which there is still one: what follows it is the newest.
    while high - low > 1:
        middle = (low + high) // 2
        later = next_launch(crons, zone, middle * SECOND_NS)
        low, high = (middle, high) if 0 < later <= until_ns else (low, middle)
    newest = next_launch(crons, zone, low * SECOND_NS)
    return (newest, count) if 0 < newest <= until_ns else (found, count)


def is_ever(spec: CronSpec) -> bool:
    """Tell whether any day of the calendar is allowed: the 30th of February is not."""
    years = spec.years if len(spec.years) < _CYCLE_YEARS else range(2000, 2000 + _CYCLE_YEARS)
    for year in years:
        for month in spec.months:
            day = date(year, month, 1)
            while day.month == month:
                if spec.is_day(day):
                    return True
                day += timedelta(days=1)
    return False


def _next_second(spec: CronSpec, zone: ZoneInfo, after_s: int) -> int:
    """Seconds since 1970; 0: none."""
    at = after_s + 1
    end = min(after_s + SEARCH_NS // SECOND_NS, _LAST_S)
    while at <= end:
        local = datetime.fromtimestamp(at, zone)
        target = _skip(spec, zone, local, at)
        if target == at:
            return at
        at = _until_change(zone, at, target)
    return 0


def _skip(spec: CronSpec, zone: ZoneInfo, local: datetime, at: int) -> int:
    """Return `at` if its local time matches, else the end of a span after it in which none does by this clock."""
    if local.year > spec.years[-1]:
        return _LAST_S + 1
    if local.year not in spec.years:
        return _midnight(zone, local.year + 1, 1, 1)
    if local.month not in spec.months:
        following = date(local.year + local.month // 12, local.month % 12 + 1, 1)
        return _midnight(zone, following.year, following.month, 1)
    today = local.date()
    if not spec.is_day(today):
        following = today + timedelta(days=1)
        return max(at + 1, _midnight(zone, following.year, following.month, following.day))
    into_hour = local.minute * 60 + local.second
    if local.hour not in spec.hours:
        hour = _from(spec.hours, local.hour + 1, 24)
        return at + (hour - local.hour) * 3600 - into_hour
    if local.minute not in spec.minutes:
        minute = _from(spec.minutes, local.minute + 1, 60)
        return at + minute * 60 - into_hour
    return at + _from(spec.seconds, local.second, 60) - local.second


def _from(values: tuple[int, ...], low: int, otherwise: int) -> int:
    """Return the least value from `low` on."""
    place = bisect_left(values, low)
    return values[place] if place < len(values) else otherwise


def _midnight(zone: ZoneInfo, year: int, month: int, day: int) -> int:
    """When a local day begins: where the clock skips midnight, at the change."""
    return int(datetime(year, month, day, tzinfo=zone).timestamp())


def _until_change(zone: ZoneInfo, at: int, target: int) -> int:
    """Return `target`, or the first second before it at which the local clock was set: there one has to look again."""
    target = min(target, _LAST_S + 1)
    offset = _offset(zone, at)
    if _offset(zone, target) == offset:
        return target
    low, high = at, target
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
    return high


def _offset(zone: ZoneInfo, at: int) -> timedelta | None:
    return datetime.fromtimestamp(at, zone).utcoffset()
