"""P2, a million containers running: P1 with a fleet in a process of its own that starts placed tasks and reports them.

The clock runs from the first submission until a replaying process sees the last allocation running. Starts take no
time: the benchmark measures projections to nodes and reports from them, both through the real bus. The figure to reach:
all running within 5 s.
"""

import numpy as np

from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.outcome import BenchOutcome
from bench.harness.running_workload import RunningWorkload, repeat_workload
from bench.throughput.million_placements import (
    COUNT,
    GROUPS,
    TIME_PARTS,
    c1m_job,
    placement_times,
    scaled_counts,
)
from shared.core.state.tables.allocations import RUNNING

RUNS = 5
#: A run that takes longer has failed.
LIMIT_S = 180.0
NEEDS = HostRequirements(memory_mib=4_096)


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = scaled_counts(size)
    work = RunningWorkload(
        fleet=nodes,
        jobs=[c1m_job(at) for at in range(jobs)],
        a_job=GROUPS * COUNT,
        done=lambda observer: observer.running,
        figures=times,
        holds=all_run,
        within_s=LIMIT_S,
    )

    wanted = {
        "nodes": nodes,
        "jobs": jobs,
        "workers": max(workers, 1),
        "placements": jobs * GROUPS * COUNT,
    }
    return repeat_workload(work, runs, wanted, workers)


def times(observer: LogObserver, start: float, want: int) -> dict[str, float]:
    """Times from the first submission until parts of the allocations were placed and running."""
    running = {
        f"running_{name}": observer.running_at(max(1, int(want * part))) - start
        for name, part in TIME_PARTS[1:]
    }
    return {**placement_times(observer, start, want), **running}


def all_run(observer: LogObserver, want: int) -> dict[str, bool]:
    """Every allocation runs in the replayed state, each once by its name."""
    table = observer.state.allocations
    rows = table.live_rows()
    names = np.unique(np.stack((table.group[rows], table.index[rows])), axis=1).shape[1]
    return {
        "all_running": len(rows) == want and bool((table.client[rows] == RUNNING).all()),
        "none_doubled": names == len(rows),
    }
