"""Distributions of durations: quantile tables in whole nanoseconds, drawn by hashes.

A distribution is a table of knots (probability, quantile) with straight lines between, in integers alone, so that a
draw is the same on every machine. Tails are cut at one in a trillion.
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s
from shared.core.splitmix import splitmix64, splitmix64_array

Hashes = NDArray[np.uint64]

#: Probabilities are counted in 2**-53.
PROBABILITY_ONE = 1 << 53
#: Later than any time: never.
NEVER_NS = 1 << 62
#: Durations end here, about 73 years.
DURATION_MAX_NS = 1 << 61
_SHIFT = np.uint64(11)
#: Knots: octaves towards either end, and steps in each.
_OCTAVES = 40
_STEPS = 16
#: Standard quantiles are kept in 2**-30; the last bits of a machine's logarithm do not reach that far.
_UNIT = 1 << 30
_FINE = 20


class Distribution(msgspec.Struct, frozen=True):
    """A distribution. Shapes: p, ns (M,), both ascending, p from 0 to ONE. No knots: never."""

    p: Int64s
    ns: Int64s

    @property
    def is_never(self) -> bool:
        """Return whether the duration is infinite."""
        return not len(self.p)

    def draw(self, hashes: Hashes) -> Int64s:
        """Return one duration per hash. Shapes: (K,)."""
        if self.is_never:
            return np.full(len(hashes), NEVER_NS, dtype=np.int64)
        if len(self.p) == 1:
            return np.full(len(hashes), self.ns[0], dtype=np.int64)
        at = (hashes >> _SHIFT).astype(np.int64)
        right = np.searchsorted(self.p, at, "right")
        left = right - 1
        low = self.p[left]
        # Position of a draw in its segment, in 2**-20: one exact division, equal on every machine.
        width = self.p[right] - low
        part = ((at - low) / width * (1 << _FINE)).astype(np.int64)
        step = self.ns[right] - self.ns[left]
        # Split, to keep the product below 2**63.
        mask = (1 << _FINE) - 1
        drawn: Int64s = self.ns[left] + (step >> _FINE) * part + (((step & mask) * part) >> _FINE)
        return drawn


NEVER = Distribution(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def purpose_hashes(seed: int, purpose: int, keys: Int64s) -> Hashes:
    """Hash keys for one purpose under a seed. Shapes: (K,)."""
    salt = np.uint64(splitmix64(splitmix64(seed) ^ purpose))
    return splitmix64_array(keys.astype(np.uint64) ^ salt)


def happens(drawn: Hashes, threshold: int) -> NDArray[np.bool_]:
    """Return for each hash whether an event of probability `threshold` / ONE happens. Shapes: (K,)."""
    return (drawn >> _SHIFT).astype(np.int64) < threshold


def fixed(ns: int) -> Distribution:
    """Return the distribution with a single value."""
    return Distribution(np.zeros(1, dtype=np.int64), np.asarray([ns], dtype=np.int64))


def quantiles(
    points: list[tuple[Fraction, int]], *, at_most: int = DURATION_MAX_NS
) -> Distribution:
    """Return the distribution through (probability, ns), flat beyond both ends; probabilities ascend in [0, 1]."""
    ends = [(Fraction(0), points[0][1]), *points, (Fraction(1), points[-1][1])]
    knots = {int(p * PROBABILITY_ONE): min(ns, at_most) for p, ns in ends}
    p = sorted(knots)
    return Distribution(
        np.asarray(p, dtype=np.int64), np.asarray([knots[one] for one in p], dtype=np.int64)
    )


def exponential(mean_ns: int, *, at_most: int = DURATION_MAX_NS) -> Distribution:
    """Return the exponential distribution."""
    p, units = _exponential_units()
    ns = [min(mean_ns * unit // _UNIT, at_most) for unit in units]
    return Distribution(np.asarray(p, dtype=np.int64), np.asarray(ns, dtype=np.int64))


def lognormal(median_ns: int, p99_ns: int, *, at_most: int = DURATION_MAX_NS) -> Distribution:
    """Return the lognormal distribution with this median and 99th percentile."""
    p, units = _normal_units()
    with localcontext() as context:
        context.prec = 24
        z99 = Decimal(int(NormalDist().inv_cdf(0.99) * _UNIT)) / _UNIT
        sigma = (Decimal(p99_ns) / Decimal(median_ns)).ln() / z99
        ns = []
        for unit in units:
            exponent = min(sigma * unit / _UNIT, Decimal(44))
            ns.append(min(int(median_ns * exponent.exp()), at_most))
    return Distribution(np.asarray(p, dtype=np.int64), np.asarray(ns, dtype=np.int64))


@cache
def _tail() -> tuple[int, ...]:
    """Probabilities below one half, in 1/ONE, ascending: octaves towards 0."""
    top = PROBABILITY_ONE >> 1
    found = {
        (top >> (octave + 1)) + (top >> (octave + 1)) * step // _STEPS
        for octave in range(_OCTAVES)
        for step in range(_STEPS + 1)
    }
    return tuple(sorted(found))


@cache
def _grid() -> tuple[int, ...]:
    """Probabilities of the knots between 0 and ONE, ascending."""
    return tuple(sorted({*_tail(), *(PROBABILITY_ONE - one for one in _tail())}))


def _with_ends(units: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (0, *_grid(), PROBABILITY_ONE), (units[0], *units, units[-1])


@cache
def _exponential_units() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Quantiles -ln(1 - p) of the standard exponential distribution, in 2**-30."""
    with localcontext() as context:
        context.prec = 24
        units = [
            int(-(Decimal(PROBABILITY_ONE - one) / PROBABILITY_ONE).ln() * _UNIT) for one in _grid()
        ]
    return _with_ends([0, *units[1:]])


@cache
def _normal_units() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Quantiles of the standard normal distribution, in 2**-30."""
    normal = NormalDist()
    lower = {one: round(normal.inv_cdf(one / PROBABILITY_ONE) * _UNIT) for one in _tail()}
    return _with_ends(
        [lower[one] if one in lower else -lower[PROBABILITY_ONE - one] for one in _grid()]
    )
