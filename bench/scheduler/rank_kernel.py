"""P10, the rank kernel: one count of 1,000 on 5,000 unequal, loaded nodes, three ways.

Measures `place_count` alone, in this process: no bus, no masks, no plan. Every case is also placed by scalar
greedy, and must be equal to it placement for placement. The figures to reach: 200 µs binpack without anti-affinity,
1 ms with, 700 µs spread.
"""

from statistics import median
from time import perf_counter_ns
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from bench.harness.outcome import InProcessOutcome
from shared.core.columns import Int64s, Mask
from shared.core.scheduling.scoring.scores import Algorithm
from shared.core.scheduling.selection.candidates import Placement
from shared.core.scheduling.selection.greedy import place_count
from shared.core.splitmix import splitmix64_array
from tests.property.reference import greedy

RUNS: Final = 5
NODES: Final = 5_000
COUNT: Final = 1_000
#: Calls in one run; a run's figure is their median.
CALLS: Final = 40
#: cpu_mhz, memory_mib, disk_mib: common machine shapes, from a small virtual one to a big metal one.
SHAPES: Final = (
    (4_000, 8_192, 51_200),
    (10_400, 16_384, 102_400),
    (20_800, 30_720, 102_400),
    (41_600, 131_072, 512_000),
    (166_400, 524_288, 2_048_000),
)
ASK: Final = (500, 256, 150)

CASES: Final[dict[str, tuple[Algorithm, bool]]] = {
    "binpack_us": ("binpack", False),
    "binpack_affinity_us": ("binpack", True),
    "spread_us": ("spread", False),
}


class Problem(TypedDict):
    """The arguments that `place_count` and the reference share."""

    capacity: Int64s
    used: Int64s
    mask: Mask
    ask: Int64s
    count: int
    collisions: Int64s
    desired_count: int
    algorithm: Algorithm
    anti_affinity: bool


def run(size: float, runs: int) -> InProcessOutcome:
    """Measure each case `runs` times; `size` scales nodes and count."""
    nodes, count = max(int(NODES * size), 10), max(int(COUNT * size), 10)
    samples: dict[str, list[float]] = {name: [] for name in CASES}
    equal = complete = fits = True
    for name, (algorithm, anti_affinity) in CASES.items():
        problem = _problem(nodes, count, algorithm, anti_affinity=anti_affinity)
        placement = place_count(**problem)
        equal &= np.repeat(placement.rows, placement.counts).tolist() == greedy(**problem)
        complete &= placement.placed == count == int(placement.counts.sum())
        fits &= _fits(problem, placement)
        samples[name] = [_run_us(problem) for _ in range(runs)]
    return InProcessOutcome(
        size={"nodes": nodes, "count": count},
        result={name: round(median(us), 1) for name, us in samples.items()}
        | {"equal_to_reference": equal},
        result_min={name: round(min(us), 1) for name, us in samples.items()},
        result_max={name: round(max(us), 1) for name, us in samples.items()},
        checks={"equal_to_reference": equal, "count_exact": complete, "within_capacity": fits},
        runs=runs,
    )


def _problem(nodes: int, count: int, algorithm: Algorithm, *, anti_affinity: bool) -> Problem:
    """Build the fleet: shapes and load (0 to 80 % of each dimension, drawn apart) by counter hash."""
    draw = _draws(nodes, 4)
    capacity = np.asfortranarray(np.array(SHAPES, np.int64)[draw[:, 0] % len(SHAPES)])
    used = np.asfortranarray(capacity * (draw[:, 1:] % 81) // 100)
    return {
        "capacity": capacity,
        "used": used,
        "mask": np.ones(nodes, np.bool_),
        "ask": np.array(ASK, np.int64),
        "count": count,
        "collisions": np.zeros(nodes, np.int64),
        "desired_count": count,
        "algorithm": algorithm,
        "anti_affinity": anti_affinity,
    }


def _draws(rows: int, columns: int) -> NDArray[np.int64]:
    index = np.arange(rows * columns, dtype=np.uint64).reshape(rows, columns)
    return (splitmix64_array(index) >> np.uint64(33)).astype(np.int64)


def _fits(problem: Problem, placement: Placement) -> bool:
    """Is no node over its capacity with the placement on it?"""
    after = problem["used"].copy()
    np.add.at(after, placement.rows, placement.counts[:, None] * problem["ask"])
    return bool((after <= problem["capacity"]).all())


def _run_us(problem: Problem) -> float:
    """Return the median microseconds of one call over `CALLS`."""
    calls = []
    for _ in range(CALLS):
        start_ns = perf_counter_ns()
        place_count(**problem)
        calls.append((perf_counter_ns() - start_ns) / 1000)
    return median(calls)
