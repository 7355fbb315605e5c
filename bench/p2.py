"""P2, a million containers running: P1 with a fleet in a process of its own that starts what is placed and says so.

The clock runs from the first submission until a replaying process sees the last allocation running. Starts take no
time, so that what is measured is the way: projections down, reports up, both through the real bus. The figure to
reach: all running within 5 s.
"""

import sys

import numpy as np

from bench.harness import Harness, run_in
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS, JOBS, NODES, job
from bench.running import Work, ran
from services.cli.machines import Needs
from shared.core.tables.allocations import RUNNING

RUNS = 5
#: A run that takes longer has failed.
LIMIT_S = 180.0
NEEDS = Needs(memory_mib=4_096)


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 1)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    wanted = {"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}
    return merge({**wanted, "placements": jobs * GROUPS * COUNT}, found)


async def _once(cluster: Harness, nodes: int, jobs: int) -> Run:
    work = Work(
        fleet=nodes,
        jobs=[job(at) for at in range(jobs)],
        a_job=GROUPS * COUNT,
        done=lambda observer: observer.running,
        figures=times,
        holds=all_run,
        within_s=LIMIT_S,
    )
    return await ran(cluster, work)


def times(observer: Observer, start: float, want: int) -> dict[str, float]:
    """When so many were placed and running, from the first submission on."""
    parts = (("t_first_s", 0), ("t50_s", 0.5), ("t99_s", 0.99), ("t_all_s", 1))
    placed = {name: observer.time_of(max(1, int(want * part))) - start for name, part in parts}
    running = {
        f"running_{name}": observer.running_at(max(1, int(want * part))) - start
        for name, part in parts[1:]
    }
    return {"placements": want, **placed, "rate_per_s": want / placed["t_all_s"], **running}


def all_run(observer: Observer, want: int) -> dict[str, bool]:
    """Every allocation runs in the replayed state, each once by its name."""
    table = observer.state.allocations
    rows = table.live_rows()
    names = np.unique(np.stack((table.group[rows], table.index[rows])), axis=1).shape[1]
    return {
        "all_running": len(rows) == want and bool((table.client[rows] == RUNNING).all()),
        "none_doubled": names == len(rows),
    }
