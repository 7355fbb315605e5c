"""Scores: how good a node is for one more allocation of a group, as exact integers.

Decides: the value of each scorer and their mean, for vectors of nodes and for one node.
Must not know: which nodes are feasible, how many to place, where a policy comes from. cut.py is next.

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

from shared.core.pow10 import POW10, SCALE, STEPS, STEPS_LOG2

#: The order of the columns in every capacity, used and ask matrix.
RESOURCES: Final = ("cpu_mhz", "memory_mib", "disk_mib")
CPU: Final = 0
MEMORY: Final = 1
DISK: Final = 2

Algorithm = Literal["binpack", "spread"]
Int64s = NDArray[np.int64]

_WORST_FIT: Final = 20 * SCALE
_BEST_SPREAD: Final = 2 * SCALE
_FIT_RANGE: Final = 18


def fit_scores(capacity: Int64s, used_after: Int64s, algorithm: Algorithm) -> Int64s:
    """Score nodes by how full (binpack) or how empty (spread) they would be.

    Shapes: capacity, used_after (N, 3) in `RESOURCES` order, the new allocation included; result (N,).
    Range: [0, SCALE]. Disk takes no part. Rows that do not fit score as if exactly full: mask them.
    Source: Nomad structs/funcs.go ScoreFitBinPack and ScoreFitSpread, each over 18.
    """
    free = capacity[:, :DISK] - used_after[:, :DISK]
    divisor = np.maximum(capacity[:, :DISK], 1)
    return fit_of_free(
        free[:, CPU], free[:, MEMORY], divisor[:, CPU], divisor[:, MEMORY], algorithm=algorithm
    )


def fit_of_free(
    free_cpu_mhz: Int64s,
    free_memory_mib: Int64s,
    capacity_cpu_mhz: Int64s,
    capacity_memory_mib: Int64s,
    *,
    algorithm: Algorithm,
) -> Int64s:
    """Score what would be left free; `fit_scores` for columns that broadcast against each other.

    Invariant: the capacities are at least 1; a zero is given as 1, with nothing free.
    """
    powers = _power_of_free(free_cpu_mhz, capacity_cpu_mhz)
    powers += _power_of_free(free_memory_mib, capacity_memory_mib)
    # Both powers lie in [1, 10], so Nomad's clamp to [0, 18] never has anything to do.
    raw = _WORST_FIT - powers if algorithm == "binpack" else powers - _BEST_SPREAD
    return (raw // _FIT_RANGE).astype(np.int64)


def _power_of_free(free: Int64s, capacity: Int64s) -> NDArray[np.int32]:
    """10 to the free fraction; below nothing free is nothing, above all free is all."""
    steps = free << STEPS_LOG2
    steps //= capacity
    return POW10.take(steps, mode="clip")


def anti_affinity_scores(collisions: Int64s, desired_count: int) -> Int64s:
    """Score nodes by how many allocations of the same job and group they already have.

    -(collisions + 1) / desired_count, not below -1: more of a group on one node than it wants at all
    (old versions beside new ones) is as bad as can be. Any shape. Meaningless where collisions is 0.
    """
    return np.maximum((-SCALE * (collisions + 1)) // max(desired_count, 1), -SCALE)


def mean_scores(
    fit: Int64s,
    *,
    collisions: Int64s | None = None,
    desired_count: int = 1,
    penalised: NDArray[np.bool_] | None = None,
) -> Int64s:
    """Return the mean of the scorers that apply to each node; arguments broadcast.

    Anti-affinity applies where `collisions` (None: the scorer is off) is positive; the reschedule
    penalty of -1 where `penalised`.
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
    if scorers is None:
        return total
    if penalised is None or collisions is None:
        # One or two scorers: the shift is the floor division, at a quarter of its price.
        return total >> scorers
    return total // (scorers + 1)


def fit_score(capacity: Sequence[int], used_after: Sequence[int], algorithm: Algorithm) -> int:
    """`fit_scores` of one node."""
    powers = 0
    for dimension in (CPU, MEMORY):
        free = min(max(capacity[dimension] - used_after[dimension], 0), capacity[dimension])
        powers += int(POW10[free * STEPS // capacity[dimension]]) if free else SCALE
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
) -> dict[str, int]:
    """Name every scorer that applies to one node, with its value; `mean_score` of the values ranks it.

    The names are Nomad's (AllocMetric.ScoreMetaData), so that `why` reads the same.
    """
    scores: dict[str, int] = {algorithm: fit_score(capacity, used_after, algorithm)}
    if anti_affinity and collisions > 0:
        scores["job-anti-affinity"] = anti_affinity_score(collisions, desired_count)
    if penalised:
        scores["node-reschedule-penalty"] = -SCALE
    return scores


def mean_score(scores: Sequence[int]) -> int:
    """Return the floored mean of the scorers that apply; there is always at least the fit."""
    return sum(scores) // len(scores)
