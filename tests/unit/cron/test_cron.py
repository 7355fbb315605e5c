"""Cron specs: forms, daylight saving, what never comes, and a minute-by-minute walk as the judge."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.cron.instants import is_ever, missed_launches, next_instant, next_launch, time_zone
from shared.cron.spec import CronInvalid, parse_cron, reading
from tests.examples import examples

SECOND = 1_000_000_000
NEW_YORK = "America/New_York"


def at(text: str, zone: str = "UTC") -> int:
    """Nanoseconds of a local time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def launches(spec: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """The next instants of a spec, as local times with their distance from UTC."""
    found, now = [], at(after, zone)
    for _ in range(count):
        now = next_launch((spec,), zone, now)
        found.append(
            datetime.fromtimestamp(now / SECOND, ZoneInfo(zone)).strftime("%m-%d %H:%M:%S%z")
        )
    return [one.removesuffix("+0000") for one in found]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("*/15 * * * *", ["01-31 22:45:00", "01-31 23:00:00"]),
        # The sixth field is the year, not the second.
        ("*/15 * * * * *", ["01-31 22:45:00", "01-31 23:00:00"]),
        ("*/20 * * * * * *", ["01-31 22:30:20", "01-31 22:30:40"]),
        ("* * * * * * *", ["01-31 22:30:01", "01-31 22:30:02"]),
        ("0 5 * * * * * and more", ["01-31 23:05:00", "02-01 00:05:00"]),
        ("30 4 1,15 * *", ["02-01 04:30:00", "02-15 04:30:00"]),
        ("5/20 * * * *", ["01-31 22:45:00", "01-31 23:05:00"]),
        ("0 9-17/4 * * mon-fri", ["02-02 09:00:00", "02-02 13:00:00"]),
        ("0 0 1 JAN,july *", ["07-01 00:00:00", "01-01 00:00:00"]),
        # Both days restricted: either one matches. 2026-02-06 is a Friday.
        ("0 0 3 * fri", ["02-03 00:00:00", "02-06 00:00:00"]),
        ("0 0 ? * 7", ["02-01 00:00:00", "02-08 00:00:00"]),
        ("0 0 * * fri-sun", ["02-01 00:00:00", "02-06 00:00:00"]),
        ("0 0 L * *", ["02-28 00:00:00", "03-31 00:00:00"]),
        ("0 0 L-2 * *", ["02-26 00:00:00", "03-29 00:00:00"]),
        # The last of February 2026 is a Saturday, the 1st of March a Sunday.
        ("0 0 LW * *", ["02-27 00:00:00", "03-31 00:00:00"]),
        ("0 0 1W * *", ["02-02 00:00:00", "03-02 00:00:00"]),
        ("0 0 28W 2 *", ["02-27 00:00:00", "02-26 00:00:00"]),
        ("0 0 * * 5L", ["02-27 00:00:00", "03-27 00:00:00"]),
        ("0 0 * * friL", ["02-27 00:00:00", "03-27 00:00:00"]),
        ("0 0 * * mon#2", ["02-09 00:00:00", "03-09 00:00:00"]),
        ("@hourly", ["01-31 23:00:00", "02-01 00:00:00"]),
        ("@daily", ["02-01 00:00:00", "02-02 00:00:00"]),
        ("@weekly", ["02-01 00:00:00", "02-08 00:00:00"]),
        ("@monthly", ["02-01 00:00:00", "03-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00", "01-01 00:00:00"]),
        ("@annually", ["01-01 00:00:00", "01-01 00:00:00"]),
        ("0 0 29 2 *", ["02-29 00:00:00"]),
    ],
)
def test_the_forms_of_a_spec(spec: str, expected: list[str]) -> None:
    """Each form gives the instants that its reading promises, strictly after half past ten on 31 January 2026."""
    assert launches(spec, "2026-01-31T22:30:00", len(expected)) == expected


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("", "5 to 7 fields, this has 0"),
        ("* * * *", "5 to 7 fields, this has 4"),
        ("@reboot", "unknown shorthand '@reboot'"),
        ("60 * * * *", "minute: '60' must be 0 to 59"),
        ("* 24 * * *", "hour: '24' must be 0 to 23"),
        ("* * 0 * *", "day of month: '0' must be 1 to 31"),
        ("* * * 13 *", "month: '13' must be 1 to 12 or a name such as 'jan'"),
        ("* * * * 8", "day of week: '8' must be 0 to 7"),
        ("* * * * L", "day of week: 'l' must be"),
        ("* * * * * 1969", "year: '1969' must be 1970 to 2099"),
        ("*/0 * * * *", "minute: the step of '*/0' must be at least 1"),
        ("22-2 * * * *", "minute: the range '22-2' runs backwards"),
        ("*-3 * * * *", "minute: '*-3' is not a range"),
        ("1,,2 * * * *", "minute: '' is not a value"),
        ("1;2 * * * *", "minute: '1;2' is not a value"),
        ("* * 32W * *", "day of month: '32' must be 1 to 31"),
        ("* * L-31 * *", "day of month: '31' must be 0 to 30"),
        ("* * * * mon#6", "day of week: 'mon#6' is not a value"),
        ("9" * 5000 + " * * * *", "at most 256 characters"),
    ],
)
def test_a_bad_spec_is_refused_with_its_field(spec: str, fault: str) -> None:
    """The text names the field, what was written and what may stand there."""
    with pytest.raises(CronInvalid) as caught:
        parse_cron(spec)
    assert fault in str(caught.value)


def test_a_local_time_that_is_skipped_does_not_come_that_day() -> None:
    """02:30 in New York on 8 March 2026: the clock goes from 02:00 to 03:00."""
    assert launches("30 2 * * *", "2026-03-07T00:00:00", 3, NEW_YORK) == [
        "03-07 02:30:00-0500",
        "03-09 02:30:00-0400",
        "03-10 02:30:00-0400",
    ]


def test_a_local_time_that_is_doubled_comes_twice() -> None:
    """01:30 in New York on 1 November 2026: the clock goes from 02:00 back to 01:00."""
    assert launches("30 1 * * *", "2026-10-31T12:00:00", 3, NEW_YORK) == [
        "11-01 01:30:00-0400",
        "11-01 01:30:00-0500",
        "11-02 01:30:00-0500",
    ]


@pytest.mark.parametrize("day", ["2026-03-08", "2026-11-01"])
def test_every_minute_is_every_real_minute(day: str) -> None:
    """No pause and no storm while the clock is set."""
    now, found = at(f"{day}T00:30:00", NEW_YORK), []
    for _ in range(180):
        now = next_launch(("* * * * *",), NEW_YORK, now)
        found.append(now)
    assert {later - earlier for earlier, later in pairwise(found)} == {60 * SECOND}


def test_a_change_by_half_an_hour_and_a_day_without_midnight() -> None:
    """Lord Howe sets its clock by 30 minutes; in Cairo midnight of 24 April 2026 does not exist."""
    assert launches("15 2 * * *", "2026-10-03T12:00:00", 2, "Australia/Lord_Howe") == [
        "10-05 02:15:00+1100",
        "10-06 02:15:00+1100",
    ]
    assert launches("0 0 * * *", "2026-04-22T12:00:00", 3, "Africa/Cairo") == [
        "04-23 00:00:00+0200",
        "04-25 00:00:00+0300",
        "04-26 00:00:00+0300",
    ]


def test_specs_of_a_list_give_each_instant_once() -> None:
    """Two specs with one instant launch once; a spec that is over does not silence the others."""
    specs = ("0 * * * *", "0,30 * * * *", "0 0 1 1 * 2020")
    now, found = at("2026-01-01T00:00:00"), []
    for _ in range(3):
        now = next_launch(specs, "UTC", now)
        found.append((now - at("2026-01-01T00:00:00")) // SECOND // 60)
    assert found == [30, 60, 90]


def test_what_never_comes_ends_the_search() -> None:
    """No instant within five years is 0, at once; a day that no calendar has is distinguished from a past year."""
    assert next_launch(("0 0 30 2 *",), "UTC", at("2026-01-01T00:00:00")) == 0
    assert next_launch(("0 0 1 1 * 2020",), "UTC", at("2026-01-01T00:00:00")) == 0
    assert next_launch(("0 0 1 1 * 2099",), "UTC", at("2026-01-01T00:00:00")) == 0
    assert not is_ever(parse_cron("0 0 30 2 *"))
    assert not is_ever(parse_cron("0 0 31 2,4,6,9,11 *"))
    assert not is_ever(parse_cron("0 0 29 2 * 2027"))
    assert is_ever(parse_cron("0 0 29 2 *"))
    assert is_ever(parse_cron("0 0 1 1 * 2020"))
    assert is_ever(parse_cron("0 0 * 2 mon#5"))


def test_missed_instants_are_counted_and_the_newest_is_named() -> None:
    """Missed once, thrice, not at all, and more often than is counted (P4)."""
    start = at("2026-01-01T00:00:00")

    def missed(minutes: float, most: int = 1000) -> tuple[int, int]:
        until = start + int(minutes * 60 * SECOND)
        newest, count = missed_launches(
            ("* * * * *",), "UTC", after_ns=start, until_ns=until, most=most
        )
        return (newest - start) // (60 * SECOND) if newest else -1, count

    assert missed(1) == (1, 0)
    assert missed(3.5) == (3, 2)
    assert missed(0.5) == (-1, 0)
    assert missed(60 * 24 * 30, most=10) == (60 * 24 * 30, 10)


def test_a_zone_that_does_not_exist_is_refused() -> None:
    """No fallback to UTC, no file outside the database."""
    for name in ("Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "a\0b", "x" * 500):
        with pytest.raises(CronInvalid, match="is not a time zone"):
            time_zone(name)
    assert time_zone("") == ZoneInfo("UTC")


def test_a_spec_is_read_out() -> None:
    """What a spec allows, in words: for a spec that means something else than its author thinks."""
    assert reading(parse_cron("0 0 30 2 *")) == (
        "second 0, minute 0, hour 0, day of month 30, month february, year any"
    )
    assert reading(parse_cron("*/30 * LW * mon#2,friL")) == (
        "second 0, minute 0, 30, hour any, day of month the weekday nearest to the last"
        " or on the 2. monday of the month, the last friday of the month, month any, year any"
    )


values = st.integers


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> tuple[str, set[int]]:
    """A field's text, and what it allows."""
    kind = draw(st.sampled_from(("star", "star", "value", "list", "range", "step")))
    if kind == "star":
        return "*", set(range(low, high + 1))
    first, last = sorted((draw(values(low, high)), draw(values(low, high))))
    step = draw(values(1, 20))
    return {
        "value": (str(first), {first}),
        "list": (f"{last},{first}", {first, last}),
        "range": (f"{first}-{last}", set(range(first, last + 1))),
        "step": (f"{first}-{last}/{step}", set(range(first, last + 1, step))),
    }[kind]


@given(
    minute=fields(0, 59),
    hour=fields(0, 23),
    monthday=fields(1, 31),
    month=fields(1, 12),
    weekday=fields(0, 6),
    zone=st.sampled_from(("UTC", NEW_YORK, "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kolkata")),
    day=st.sampled_from(
        (
            "2026-03-07",
            "2026-10-31",
            "2026-04-04",
            "2026-10-03",
            "2026-04-23",
            "2026-10-29",
            "2028-02-28",
        )
    ),
)
@examples(150, gate=40)
def test_a_walk_from_minute_to_minute_finds_the_same(
    minute: tuple[str, set[int]],
    hour: tuple[str, set[int]],
    monthday: tuple[str, set[int]],
    month: tuple[str, set[int]],
    weekday: tuple[str, set[int]],
    zone: str,
    day: str,
) -> None:
    """Over three days in which clocks are set, no minute of the local clock is left out and none is invented."""
    spec = parse_cron(" ".join(one[0] for one in (minute, hour, monthday, month, weekday)))
    local, start = ZoneInfo(zone), datetime.fromisoformat(day).replace(tzinfo=UTC)
    expected = []
    for nth in range(1, 3 * 24 * 60):
        now = (start + timedelta(minutes=nth)).astimezone(local)
        on_monthday, on_weekday = now.day in monthday[1], now.isoweekday() % 7 in weekday[1]
        if monthday[0] == "*" or weekday[0] == "*":
            is_day = on_monthday and on_weekday
        else:
            is_day = on_monthday or on_weekday
        if now.minute in minute[1] and now.hour in hour[1] and now.month in month[1] and is_day:
            expected.append(int(now.timestamp()) * SECOND)
    found, at_ns = [], int(start.timestamp()) * SECOND
    end = at_ns + (3 * 24 * 60 - 1) * 60 * SECOND
    while (at_ns := next_instant([spec], local, at_ns)) and at_ns <= end and len(found) <= 5000:
        found.append(at_ns)
    assert found == expected
