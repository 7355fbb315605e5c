"""P11, a storm of batch tasks: 1,000 batch jobs of 1,000 tasks that take no time, on 500 nodes with 64 slots each.

All jobs are submitted at once. Each task waits for a slot, is placed, started and reported complete, and the next takes
its slot, through the real bus and a log with fsync. The clock runs from the first submission until a replaying process
has seen the last task complete. The figure to reach: 50,000 tasks a second.
"""

from bench.harness.fleet_process import bench_node
from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.outcome import BenchOutcome
from bench.harness.running_workload import RunningWorkload, repeat_workload
from bench.harness.sample_jobs import sample_job
from shared.core.state.tables.allocations import COMPLETE

NODES = 500
SLOTS = 64
RUNS = 5
JOBS = 1_000
COUNT = 1_000
#: A run that takes longer has failed.
LIMIT_S = 300.0
NEEDS = HostRequirements(memory_mib=4_096)


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales jobs and nodes."""
    nodes, jobs = max(int(NODES * size), 10), max(int(JOBS * size), 2)
    work = RunningWorkload(
        fleet=[bench_node(number, SLOTS * 100, SLOTS * 100) for number in range(nodes)],
        jobs=[
            sample_job(
                f"storm-{at}",
                count=COUNT,
                cpu_mhz=100,
                memory_mib=100,
                command="/bin/true",
                Type="batch",
            )
            for at in range(jobs)
        ],
        a_job=COUNT,
        done=lambda observer: observer.complete,
        figures=_times,
        holds=_all_over,
        within_s=LIMIT_S,
    )

    wanted = {
        "nodes": nodes,
        "slots": SLOTS,
        "jobs": jobs,
        "workers": max(workers, 1),
        "tasks": jobs * COUNT,
    }
    return repeat_workload(work, runs, wanted, workers)


def _times(observer: LogObserver, start: float, want: int) -> dict[str, float]:
    half, all_s = observer.complete_at(want // 2) - start, observer.complete_at(want) - start
    return {"tasks": want, "t50_s": half, "t_all_s": all_s, "tasks_per_s": want / all_s}


def _all_over(observer: LogObserver, want: int) -> dict[str, bool]:
    """Every task is complete once, in the replayed state or collected from it since; each job had its own."""
    table = observer.state.allocations
    rows = table.live_rows()
    each = all(observer.placed_of[f"storm-{at}"] == COUNT for at in range(want // COUNT))
    return {
        # Old tasks are no longer in the state: they were counted when they were placed.
        "counts_exact": each and observer.placed == want,
        "all_complete": observer.complete == want and bool((table.client[rows] == COMPLETE).all()),
        "none_doubled": observer.placed == want,
    }
