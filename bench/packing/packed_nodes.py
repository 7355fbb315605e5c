"""P19, quality: how many nodes the million container challenge takes when it is packed.

Places 1,000 jobs of five groups of 200 on 5,000 equal nodes in five classes, each group bound to one class, by the
kernel alone in this process: once without job anti-affinity, and once with it. By capacity 962 nodes suffice, 965
with five classes. The figure to reach: 967 without anti-affinity; with it there is none. A tenth of the jobs is also
packed with sampled candidates: as Nomad scans, and by two choices.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.harness.outcome import InProcessOutcome
from shared.core.scheduling.selection.greedy import place_count
from shared.core.scheduling.selection.sampled import CandidateSampling, Sampling, scan_width

RUNS: Final = 1
NODES: Final = 5_000
JOBS: Final = 1_000
CLASSES: Final = 5
COUNT: Final = 200
CAPACITY: Final = (20_800, 30_720, 102_400)
ASK: Final = (20, 15, 10)


def run(size: float, runs: int) -> InProcessOutcome:
    """Pack once either way; nothing varies between runs. `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), 50), max(int(JOBS * size), 10)
    plain, plain_used = _pack(nodes, jobs, anti_affinity=False)
    spread, spread_used = _pack(nodes, jobs, anti_affinity=True)
    wanted = jobs * CLASSES * COUNT
    result = {
        "nodes": _nodes(plain_used),
        "nodes_affinity": _nodes(spread_used),
        "nodes_by_capacity": CLASSES * -(-jobs * COUNT // (CAPACITY[0] // ASK[0])),
        "nodes_tenth": _nodes(_pack(nodes, jobs // 10, anti_affinity=False)[1]),
        "nodes_tenth_log2": _nodes(_pack(nodes, jobs // 10, candidates="log2")[1]),
        "nodes_tenth_two_choices": _nodes(_pack(nodes, jobs // 10, candidates="two_choices")[1]),
        "utilisation_pct": round(_utilisation(plain_used), 2),
        "utilisation_affinity_pct": round(_utilisation(spread_used), 2),
    }
    fits = all(bool((used <= np.array(CAPACITY)).all()) for used in (plain_used, spread_used))
    return InProcessOutcome(
        size={"nodes": nodes, "allocations": wanted},
        result=result,
        result_min=result,
        result_max=result,
        checks={
            "count_exact": plain == spread == wanted,
            "within_capacity": fits,
            "packed": result["nodes"] <= result["nodes_by_capacity"] + 2,
        },
        runs=runs,
    )


def _pack(
    nodes: int, jobs: int, *, anti_affinity: bool = False, candidates: CandidateSampling = "all"
) -> tuple[int, NDArray[np.int64]]:
    used = np.zeros((nodes, 3), np.int64, order="F")
    class_of = np.arange(nodes) % CLASSES
    steps = pack_groups(used, class_of, jobs, anti_affinity=anti_affinity, candidates=candidates)
    return sum(steps), used


def pack_groups(
    used: NDArray[np.int64],
    class_of: NDArray[np.int64],
    jobs: int,
    *,
    anti_affinity: bool = False,
    candidates: CandidateSampling = "all",
) -> Iterator[int]:
    """Place one group of one job at a time, each in its class, and add it to `used`; yields how many found room.

    Shapes: used (nodes, 3), class_of (nodes,).
    """
    nodes = len(class_of)
    capacity = np.asfortranarray(np.tile(np.array(CAPACITY, np.int64), (nodes, 1)))
    ask = np.array(ASK, np.int64)
    nowhere = np.zeros(nodes, np.int64)
    masks = [class_of == one for one in range(CLASSES)]
    width = scan_width(nodes // CLASSES, is_batch=False, is_wide=False, count=COUNT)
    for job in range(jobs):
        for mask in masks:
            found = place_count(
                capacity=capacity,
                used=used,
                mask=mask,
                ask=ask,
                count=COUNT,
                collisions=nowhere,
                desired_count=COUNT,
                algorithm="binpack",
                anti_affinity=anti_affinity,
                sampling=Sampling(candidates, job * CLASSES, width),
            )
            np.add.at(used, found.rows, found.counts.astype(np.int64)[:, None] * ask)
            yield found.placed


def _nodes(used: NDArray[np.int64]) -> int:
    return int(used.any(axis=1).sum())


def _utilisation(used: NDArray[np.int64]) -> float:
    """Share of the cpu of the nodes in use that is held, the dimension that runs out first."""
    return 100 * float(used[:, 0].sum()) / max(_nodes(used) * CAPACITY[0], 1)
