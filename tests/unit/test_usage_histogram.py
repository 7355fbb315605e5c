"""Histograms of use: buckets, percentiles within an eighth, and sums."""

import pytest

from shared.usage_histogram import (
    bucket_of,
    bucket_top,
    from_wire,
    histogram,
    merged,
    percentile,
    to_wire,
)


def test_buckets_follow_each_other() -> None:
    """Every value is in one bucket, buckets rise with values, and the top of a bucket is its last value."""
    before = -1
    for value in range(5_000):
        bucket = bucket_of(value)
        assert bucket in (before, before + 1)
        assert (bucket_top(bucket) == value) == (bucket_of(value + 1) > bucket)
        before = bucket


@pytest.mark.parametrize("value", [16, 1_000, 123_456_789, (1 << 40) - 1, 1 << 62])
def test_a_bucket_is_within_an_eighth(value: int) -> None:
    """The top exceeds no value of its bucket by more than an eighth."""
    assert value <= bucket_top(bucket_of(value)) <= value + value // 8


def test_percentiles_are_observed_values() -> None:
    """Of small values they are exact; of none they are 0; parts add up to the whole."""
    assert percentile(histogram(range(1, 8)), 50) == 4
    assert percentile(histogram([3, 3, 3, 7]), 95) == 7
    assert percentile({}, 95) == 0
    whole = histogram([*range(100), *range(50)])
    assert merged([histogram(range(100)), histogram(range(50))]) == whole
    assert sum(whole.values()) == 150
    assert from_wire(to_wire(whole)) == whole and from_wire({"x": 1}) == {}


def test_a_bucket_that_no_value_has_is_left_out() -> None:
    """Counts come from nodes: a bucket whose top had millions of digits would stop their reader."""
    largest = bucket_of(2**64 - 1)
    assert from_wire({str(largest): 1, "9" * 9: 1, "9" * 5_000: 1}) == {largest: 1}
