"""Counts of observed use, by size: small, mergeable, and good for percentiles within an eighth.

A bucket holds the values between two neighbours of a scale with eight steps for each doubling. Whole numbers only, so
that the same observations give the same percentiles everywhere.
"""

from collections.abc import Iterable, Mapping

_STEPS_BITS = 3
#: Digits of a bucket's number: those of values of 64 bits have no more.
_DIGITS_MAX = 3


def bucket_of(value: int) -> int:
    """Return the bucket of a value; negative ones count as 0."""
    if value < 1 << _STEPS_BITS:
        return max(value, 0)
    shift = value.bit_length() - 1 - _STEPS_BITS
    return (shift << _STEPS_BITS) + (value >> shift)


def bucket_top(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < 2 << _STEPS_BITS:
        return bucket
    shift = (bucket >> _STEPS_BITS) - 1
    return (((bucket - (shift << _STEPS_BITS)) + 1) << shift) - 1


def histogram(values: Iterable[int]) -> dict[int, int]:
    """Count values by bucket."""
    found: dict[int, int] = {}
    for value in values:
        bucket = bucket_of(value)
        found[bucket] = found.get(bucket, 0) + 1
    return dict(sorted(found.items()))


def merged(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add counts."""
    found: dict[int, int] = {}
    for part in parts:
        for bucket, count in part.items():
            found[bucket] = found.get(bucket, 0) + count
    return dict(sorted(found.items()))


def to_wire(counts: Mapping[int, int]) -> dict[str, int]:
    """Write counts as JSON has them: its keys are texts."""
    return {str(bucket): count for bucket, count in counts.items()}


def from_wire(counts: Mapping[str, int]) -> dict[int, int]:
    """Read counts; a key that is no bucket is left out: a node may say anything."""
    return {
        int(bucket): count
        for bucket, count in counts.items()
        if bucket.isdecimal() and len(bucket) <= _DIGITS_MAX
    }


def percentile(counts: Mapping[int, int], percent: int) -> int:
    """Return a value that at least `percent` of the counted ones do not exceed; 0: nothing was counted."""
    total = sum(counts.values())
    wanted, seen = -(-total * percent // 100), 0
    for bucket, count in sorted(counts.items()):
        seen += count
        if seen >= max(wanted, 1):
            return bucket_top(bucket)
    return 0
