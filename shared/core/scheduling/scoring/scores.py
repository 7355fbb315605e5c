"""Scores: how good a node is for one more allocation of a group, as exact integers.

Every scorer yields an int64 in units of 2**-20, in [-1, 1]. No float takes part, so the same snapshot
ranks the same on every processor. A scorer that does not apply is absent from the mean, not a zero
(anti-affinity with no collisions; reference: Nomad's ScoreNormalizationIterator). Means and quotients
are floor divisions. The free fraction is floored to 1 / 65536; the fit score then differs from the
real-valued formula by less than 1e-4.

The scalar twins (`fit_score`, `anti_affinity_score`, `node_scores`, `mean_score`) are written apart from the
vectors on purpose: they explain a decision, and the tests hold the vectors against them.

Invariant of all arguments: 0 <= capacity < 2**47. A node whose use exceeds its capacity counts as full,
and so does a node with zero capacity in a dimension.
"""

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s
from shared.core.scheduling.scoring.pow10 import POW10, SCALE, STEPS, STEPS_LOG2

#: The order of the columns in every capacity, used and ask matrix.
RESOURCES: Final = ("cpu_mhz", "memory_mib", "disk_mib")
CPU: Final = 0
MEMORY: Final = 1
DISK: Final = 2

Algorithm = Literal["binpack", "spread"]

_WORST_FIT: Final = 20 * SCALE
_BEST_SPREAD: Final = 2 * SCALE
_FIT_RANGE: Final = 18


def fit_of_free(
    free_cpu_mhz: Int64s,
    free_memory_mib: Int64s,
    capacity_cpu_mhz: Int64s,
    capacity_memory_mib: Int64s,
    *,
    algorithm: Algorithm,
) -> Int64s:
    """Score nodes by how full (binpack) or how empty (spread) they would be, from what would be left free.

    Shapes: any that broadcast against each other. Range: [0, SCALE]. Disk takes no part. What does not fit scores as if
    exactly full: mask it. Invariant: the capacities are at least 1; a zero is given as 1, with nothing free.
    Source: Nomad structs/funcs.go ScoreFitBinPack and ScoreFitSpread, each over 18.
    """
    powers = _power_of_free(free_cpu_mhz, capacity_cpu_mhz)
    powers += _power_of_free(free_memory_mib, capacity_memory_mib)
    # Both powers lie in [1, 10], so Nomad's clamp to [0, 18] never applies.
    raw = _WORST_FIT - powers if algorithm == "binpack" else powers - _BEST_SPREAD
    return (raw // _FIT_RANGE).astype(np.int64)


def _power_of_free(free: Int64s, capacity: Int64s) -> NDArray[np.int32]:
    """10 to the power of the free fraction, clamped to [0, 1]."""
    steps = free << STEPS_LOG2
    steps //= capacity
    return POW10.take(steps, mode="clip")


def anti_affinity_scores(collisions: Int64s, desired_count: int) -> Int64s:
    """Score nodes by how many allocations of the same job and group they already have.

    -(collisions + 1) / desired_count, at least -1: old versions beside new ones can exceed the desired count.
    Any shape. Undefined where collisions is 0.
    """
    return np.maximum((-SCALE * (collisions + 1)) // max(desired_count, 1), -SCALE)


def affinity_scores(matches: Sequence[NDArray[np.bool_]], weights: Sequence[int]) -> Int64s:
    """Score nodes by the affinities they match: sum of matched weights over the sum of absolute weights.

    Shapes: matches (N,) each, one for each weight; result (N,). Range: [-SCALE, SCALE]. Where it is 0 the
    scorer does not apply. Source: Nomad rank.go NodeAffinityIterator.
    """
    total = np.zeros(len(matches[0]), np.int64)
    for match, weight in zip(matches, weights, strict=True):
        total += match * weight
    return total * SCALE // max(sum(map(abs, weights)), 1)


def sum_scores(
    fit: Int64s,
    *,
    collisions: Int64s | None = None,
    desired_count: int = 1,
    penalised: NDArray[np.bool_] | None = None,
    affinity: Int64s | None = None,
) -> tuple[Int64s, Int64s | None]:
    """Return the sum of the scorers that apply to each node, and how many apply besides the fit (None: none anywhere).

    Anti-affinity applies where `collisions` (None: the scorer is off) is positive; the reschedule
    penalty of -1 where `penalised`; node affinity where it is not 0. Arguments broadcast.
    """
    total = fit
    scorers: Int64s | None = None
    if collisions is not None:
        collides = collisions > 0
        total = total + anti_affinity_scores(collisions, desired_count) * collides
        scorers = collides.astype(np.int64)
    if penalised is not None:
        total = total - SCALE * penalised
        scorers = penalised.astype(np.int64) if scorers is None else scorers + penalised
    if affinity is not None:
        total = total + affinity
        applies = affinity != 0
        scorers = applies.astype(np.int64) if scorers is None else scorers + applies
    return total, scorers


def mean_scores(
    fit: Int64s,
    *,
    collisions: Int64s | None = None,
    desired_count: int = 1,
    penalised: NDArray[np.bool_] | None = None,
    affinity: Int64s | None = None,
) -> Int64s:
    """Return the floored mean of the scorers that apply to each node; arguments as of `sum_scores`."""
    total, scorers = sum_scores(
        fit,
        collisions=collisions,
        desired_count=desired_count,
        penalised=penalised,
        affinity=affinity,
    )
    if scorers is None:
        return total
    if (collisions is not None) + (penalised is not None) + (affinity is not None) == 1:
        # One or two scorers: a shift is the floor division, at a quarter of the cost.
        return total >> scorers
    return total // (scorers + 1)


def fit_score(capacity: Sequence[int], used_after: Sequence[int], algorithm: Algorithm) -> int:
    """`fit_of_free` of one node, from what would be used."""
    powers = 0
    for dimension in (CPU, MEMORY):
        most = capacity[dimension]
        free = min(most - used_after[dimension], most)
        powers += POW10.item(free * STEPS // most) if free > 0 else SCALE
    if algorithm == "binpack":
        return min(max(20 * SCALE - powers, 0), 18 * SCALE) // 18
    return min(max(powers - 2 * SCALE, 0), 18 * SCALE) // 18


def anti_affinity_score(collisions: int, desired_count: int) -> int:
    """`anti_affinity_scores` of one node."""
    return max(-(collisions + 1) * SCALE // max(desired_count, 1), -SCALE)


def node_scores(
    *,
    capacity: Sequence[int],
    used_after: Sequence[int],
    collisions: int,
    desired_count: int,
    algorithm: Algorithm,
    anti_affinity: bool,
    penalised: bool = False,
    affinity: int = 0,
    spread: int = 0,
    devices: int = 0,
) -> dict[str, int]:
    """Name every scorer that applies to one node, with its value; `mean_score` of the values ranks it.

    The names are Nomad's (AllocMetric.ScoreMetaData), so that `why` reads the same.
    """
    scores: dict[str, int] = {algorithm: fit_score(capacity, used_after, algorithm)}
    if anti_affinity and collisions > 0:
        scores["job-anti-affinity"] = anti_affinity_score(collisions, desired_count)
    if penalised:
        scores["node-reschedule-penalty"] = -SCALE
    if affinity:
        scores["node-affinity"] = affinity
    if spread:
        scores["allocation-spread"] = spread
    if devices:
        scores["devices"] = devices
    return scores


#: Bound of one boost: a key has 31 bits for a score, and Nomad's formulas are unbounded.
BOOST_MAX: Final = 128 * SCALE


def even_boost(current: int, used: Sequence[int]) -> int:
    """Boost of one value of a spread without targets. `used`: allocations on each value in use, all positive.

    Source: Nomad spread.go evenSpreadScoreBoost.
    """
    if not used:
        return 0
    least, most = min(used), max(used)
    if current != least:
        return max((least - current) * SCALE // least, -BOOST_MAX)
    return -SCALE if least == most else min((most - least) * SCALE // least, BOOST_MAX)


def target_boost(current: int, percent_count: int, weight: int, weights: int) -> int:
    """Boost of one value of a spread with targets; `percent_count` is its percent times the group's count.

    (desired - (current + 1)) / desired, times the block's share of the weights; -1 where none are desired.
    Source: Nomad spread.go SpreadIterator.Next.
    """
    if not percent_count:
        return -SCALE
    missing = percent_count - 100 * (current + 1)
    return max(missing * weight * SCALE // (percent_count * weights), -BOOST_MAX)


def mean_score(scores: Sequence[int]) -> int:
    """Return the floored mean of the scorers that apply; the fit always does."""
    return sum(scores) // len(scores)
