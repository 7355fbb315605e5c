"""P6, spread over zones: 5,000 pods on 5,000 nodes in three zones, one by one and as one group.

Measures the ranking alone, in this process, on a fleet that holds 5,000 other pods: `place_count` with a spread over
zones and job anti-affinity, as Kubernetes' topology spread test has it. Both ways must place the same rows in the same
order, and a small problem must be equal to scalar greedy. The figures to reach: 4,000 a second one by one, 300,000 as
one group.
"""

from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np

from bench.harness.outcome import InProcessOutcome
from shared.bus.process.runner import tune_garbage_collector
from shared.core.scheduling.selection.coupling import Coupling, EvenSpread
from shared.core.scheduling.selection.greedy import place_count
from shared.core.splitmix import splitmix64_array
from tests.property.reference import greedy

RUNS: Final = 5
NODES: Final = 5_000
PODS: Final = 5_000
ZONES: Final = 3
#: A node of 4 cores of 2.6 GHz and 32 GiB; a pod of a tenth of a core and 500 MB.
CAPACITY: Final = (10_400, 32_768, 102_400)
ASK: Final = (260, 477, 0)
#: Placed in the problem that scalar greedy solves, too.
SMALL: Final = 120


def run(size: float, runs: int) -> InProcessOutcome:
    """Measure both ways `runs` times; `size` scales nodes and pods."""
    nodes, pods = max(int(NODES * size), 30), max(int(PODS * size), 30)
    # As a worker does.
    tune_garbage_collector()
    problem = _problem(nodes, pods)
    singles: list[float] = []
    groups: list[float] = []
    one_by_one: list[int] = []
    at_once: list[int] = []
    for _ in range(runs):
        start = perf_counter()
        one_by_one = _singles(problem, pods)
        singles.append(pods / (perf_counter() - start))
        start = perf_counter()
        placement = place_count(**problem)
        groups.append(pods / (perf_counter() - start))
        at_once = np.repeat(placement.rows, placement.counts).tolist()
    zones = np.bincount(np.array(at_once) % ZONES, minlength=ZONES)
    after = problem["used"].copy()
    np.add.at(after, at_once, problem["ask"])
    small = _problem(SMALL, SMALL)
    found = place_count(**small)
    return InProcessOutcome(
        size={"nodes": nodes, "pods": pods, "zones": ZONES},
        result={
            "singles_per_s": round(median(singles)),
            "group_per_s": round(median(groups)),
        },
        result_min={"singles_per_s": round(min(singles)), "group_per_s": round(min(groups))},
        result_max={"singles_per_s": round(max(singles)), "group_per_s": round(max(groups))},
        checks={
            "count_exact": len(at_once) == len(one_by_one) == pods,
            "same_either_way": at_once == one_by_one,
            # Nomad's boost is relative to the least used value: it fades as counts grow (docs/fidelity.md).
            "zones_even_to_5_pct": int(zones.max() - zones.min()) <= max(pods // ZONES // 20, 1),
            "within_capacity": bool((after <= problem["capacity"]).all()),
            "equal_to_reference": np.repeat(found.rows, found.counts).tolist() == greedy(**small),
        },
        runs=runs,
    )


def _problem(nodes: int, pods: int) -> dict[str, Any]:
    """Build the fleet with one pod a node on it on average, drawn by counter hash."""
    capacity = np.asfortranarray(np.tile(np.array(CAPACITY, np.int64), (nodes, 1)))
    drawn = splitmix64_array(np.arange(nodes, dtype=np.uint64)) % np.uint64(nodes)
    held = np.bincount(drawn.astype(np.int64), minlength=nodes)
    return {
        "capacity": capacity,
        "used": np.asfortranarray(held[:, None] * np.array(ASK, np.int64)),
        "mask": np.ones(nodes, np.bool_),
        "ask": np.array(ASK, np.int64),
        "count": pods,
        "collisions": np.zeros(nodes, np.int64),
        "desired_count": pods,
        "algorithm": "binpack",
        "anti_affinity": True,
        "coupling": _zones(nodes, np.zeros(ZONES + 1, np.int64)),
    }


def _zones(nodes: int, counts: np.ndarray[Any, Any]) -> Coupling:
    return Coupling((EvenSpread((np.arange(nodes) % ZONES + 1).astype(np.int32), counts),))


def _singles(problem: dict[str, Any], pods: int) -> list[int]:
    """Place pod after pod, each on a fleet that shows those before it."""
    nodes = len(problem["mask"])
    used, collisions = problem["used"].copy(order="F"), problem["collisions"].copy()
    counts = np.zeros(ZONES + 1, np.int64)
    coupling = _zones(nodes, counts)
    given = problem | {"used": used, "collisions": collisions, "coupling": coupling, "count": 1}
    rows = []
    for _ in range(pods):
        row = int(place_count(**given).rows[0])
        used[row] += problem["ask"]
        collisions[row] += 1
        counts[row % ZONES + 1] += 1
        rows.append(row)
    return rows
