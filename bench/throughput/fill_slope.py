"""P4, fill slope: how much slower the last tenth of a million containers is placed than the first.

P1's work, through the whole product. The figure is the rate of placements between 90 and 100 % of all, over the rate
of the first 10 %, counted from the first placement seen, so that the way in does not flatter it. The figure to reach:
0.95; above 1 the end was faster. 0 is not a slope: the run was so small that its first tenth was seen at one look.
"""

import sys
from collections.abc import Sequence

from bench.harness.log_observer import LogObserver
from bench.harness.outcome import BenchOutcome
from bench.throughput import million_placements

RUNS = 5
NEEDS = million_placements.NEEDS


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Fill a fresh cluster `runs` times; `size` scales nodes and jobs."""
    return million_placements.run_fill(size, runs, workers, _slope)


def _slope(observer: LogObserver, _start: float, want: int) -> dict[str, float]:
    seen = observer.seen
    first_at, first = seen[0]
    early = (want * 0.1 - first) / max(time_of_placement(seen, want * 0.1) - first_at, 1e-9)
    late = (
        want * 0.1 / max(time_of_placement(seen, want) - time_of_placement(seen, want * 0.9), 1e-9)
    )
    if first >= want * 0.1:
        print("one look saw the first tenth: too small for a slope", file=sys.stderr, flush=True)
        return {"slope": 0.0}
    return {"slope": late / early}


def time_of_placement(seen: Sequence[tuple[float, int]], placed: float) -> float:
    """When so many had been placed, s: between two looks placements are taken to come evenly."""
    before_at, before = seen[0]
    for at, count in seen:
        if count >= placed:
            part = (placed - before) / (count - before) if count > before else 1.0
            return before_at + (at - before_at) * max(0.0, part)
        before_at, before = at, count
    return float("inf")
