"""Times as Nomad writes them: integers of nanoseconds, and RFC 3339 with nanoseconds where Go has a time.Time."""

from schemas.base import SECOND_NS

#: Go's zero time: "not set". An empty string would fail the decoding of a whole answer.
UNSET = "0001-01-01T00:00:00Z"
_DAY_S = 86_400
#: Days from 0000-03-01 to 1970-01-01.
_EPOCH_DAYS = 719_468
_ERA_DAYS = 146_097


def rfc3339(t_ns: int) -> str:
    """A time as text in UTC; 0 and less: not set."""
    if t_ns <= 0:
        return UNSET
    seconds, ns = divmod(t_ns, SECOND_NS)
    days, rest = divmod(seconds, _DAY_S)
    year, month, day = _date(days)
    hour, minute, second = rest // 3600, rest // 60 % 60, rest % 60
    fraction = f".{ns:09d}".rstrip("0").rstrip(".")
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}{fraction}Z"


def _date(days: int) -> tuple[int, int, int]:
    """The date of a day after 1970-01-01, in the Gregorian calendar. A role may import no calendar of the machine."""
    era, of_era = divmod(days + _EPOCH_DAYS, _ERA_DAYS)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, day
