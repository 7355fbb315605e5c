"""P1, a million containers placed: 1,000 jobs of 5 groups of 200 on 5,000 nodes, by 64 submitters at once.

Through the whole product: the public API, validation, the log with fsync, the broker, workers, the verifying applier.
The clock runs from the first submission until a replaying process sees the last placement. The figure to reach: all
placed within 1 s, and none refused for capacity, with any number of workers.
"""

from collections.abc import Callable
from typing import Any

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    job_body,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.submit import submit_all

NODES = 5_000
RUNS = 5
JOBS = 1_000
GROUPS = 5
COUNT = 200
#: A run that takes longer has failed.
LIMIT_S = 120.0
NEEDS = HostRequirements(memory_mib=3_072)
#: Names of times, and the part of all placements that they wait for.
TIME_PARTS = (("t_first_s", 0), ("t50_s", 0.5), ("t99_s", 0.99), ("t_all_s", 1))

#: Makes the figures of a run of its observer, the time of the first submission, and the number of allocations.
Figures = Callable[[LogObserver, float, int], dict[str, float]]


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    return run_fill(size, runs, workers, placement_times)


def run_fill(size: float, runs: int, workers: int, figures: Figures) -> BenchOutcome:
    """Fill a fresh cluster `runs` times; `figures` makes the result."""
    nodes, jobs = scaled_counts(size)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await fill_once(cluster, nodes, jobs, figures)

    wanted = {"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}
    return on_fresh_clusters(once, runs, {**wanted, "placements": jobs * GROUPS * COUNT}, workers)


def scaled_counts(size: float) -> tuple[int, int]:
    """Return the nodes and jobs of a part of the full size."""
    return max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 1)


def placement_times(observer: LogObserver, start: float, want: int) -> dict[str, float]:
    """Times from the first submission until parts of the allocations were placed."""
    times = {name: observer.time_of(max(1, int(want * part))) - start for name, part in TIME_PARTS}
    return {"placements": want, **times, "rate_per_s": want / times["t_all_s"]}


def c1m_job(number: int) -> dict[str, Any]:
    """One job of the million container challenge, in Nomad's JSON."""
    groups = [
        {
            "Name": f"group_{group}",
            "Count": COUNT,
            "Constraints": [
                {"LTarget": "${node.class}", "Operand": "=", "RTarget": f"class_{group}"}
            ],
            "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [
                {
                    "Name": "task",
                    "Driver": "raw_exec",
                    "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
                    "Config": {"command": "/bin/sleep", "args": ["3600"]},
                    "Resources": {"CPU": 20, "MemoryMB": 15},
                }
            ],
        }
        for group in range(1, GROUPS + 1)
    ]
    return {"ID": f"c1m-{number}", "Name": f"c1m-{number}", "Type": "service", "TaskGroups": groups}


async def fill_once(cluster: BenchCluster, nodes: int, jobs: int, figures: Figures) -> BenchRun:
    """Fill one fresh cluster, and check the result."""
    want = jobs * GROUPS * COUNT
    bodies = [job_body(c1m_job(at)) for at in range(jobs)]
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, nodes)
        measured = Measurement(cluster)
        start = await measured.start()
        verdicts = await submit_all(public.bus, bodies)
        await wait_until(lambda: observer.placed >= want, f"{want} placements", LIMIT_S)
        await measured.stop()
        wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
        checks = await verify_run(cluster, observer, verdicts, wanted)
        checks["nobody_restarted"] = measured.same_processes
        return await measured.make_run(observer, figures(observer, start, want), checks)
