"""Durations are written as job files read them."""

import pytest

from schemas.gates import UpdateGate
from shared.core.state.gates import terms_text
from shared.durations import parse_duration, write_duration, write_in_one_unit
from shared.jobspec.checks.error_list import DURATION_NS_MAX, ErrorList


@pytest.mark.parametrize("text", ["0s", "5s", "1h30m", "87840h", "1s500ms", "2us3ns", "-1m"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    """Exactly, in the units of a job file."""
    assert write_duration(parse_duration(text)) == text


def test_a_bound_on_a_duration_is_told_in_its_units() -> None:
    """A user who wrote `1s` reads seconds, not nanoseconds."""
    faults = ErrorList()
    bounds_ns = (5_000_000_000, DURATION_NS_MAX)
    faults.within_span("Job", ".Interval", 5_000_000_000, bounds_ns)
    faults.within_span("Job", ".Interval", 1_000_000_000, bounds_ns)
    (fault,) = faults.found
    assert (fault.path, fault.message) == ("Job.Interval", "must be 5s to 87840h, was 1s")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("0s", "0s"),
        ("1h30m", "90m"),
        ("72h", "72h"),
        ("1s500ms", "1500ms"),
        ("1us", "1us"),
        ("-90s", "-90s"),
    ],
)
def test_a_duration_in_one_unit_is_exact(text: str, short: str) -> None:
    """In the largest unit that divides it, which parse_duration reads again: never days."""
    duration_ns = parse_duration(text)
    assert write_in_one_unit(duration_ns) == short
    assert parse_duration(short) == duration_ns


def test_a_gate_tells_the_part_below_a_second() -> None:
    """A gate that lets through after 1.5 s does not say 1 s."""
    gate = UpdateGate(
        name="errors", gauge="errors", is_above=False, bound=1000, for_ns=1_500_000_000
    )
    assert terms_text(gate) == "gate 'errors': errors below 1 for 1s500ms"
