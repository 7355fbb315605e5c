"""Durations are written as job files read them."""

import pytest

from shared.jobspec.checks.error_list import DURATION_NS_MAX, ErrorList
from shared.jobspec.durations import parse_duration, write_duration


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
