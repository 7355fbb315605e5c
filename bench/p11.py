"""P11, a storm of batch tasks: 1,000 batch jobs of 1,000 tasks that take no time, on 500 nodes with 64 slots each.

All of it is submitted at once, waits for room, is placed, started, over, reported and replaced by the next, through
the real bus and a log with fsync. The clock runs from the first submission until a replaying process has seen the last
task complete. The figure to reach: 50,000 tasks a second.
"""

import sys
from typing import Any

from bench.harness import Harness, run_in
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.running import Work, ran
from schemas.base import NodeId
from schemas.nodes import NodeSpec
from services.cli.machines import Needs
from shared.core.tables.allocations import COMPLETE

NODES = 500
SLOTS = 64
RUNS = 5
JOBS = 1_000
COUNT = 1_000
#: A run that takes longer has failed.
LIMIT_S = 300.0
NEEDS = Needs(memory_mib=4_096)


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales jobs and nodes."""
    nodes, jobs = max(int(NODES * size), 10), max(int(JOBS * size), 2)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    wanted = {"nodes": nodes, "slots": SLOTS, "jobs": jobs, "workers": max(workers, 1)}
    return merge({**wanted, "tasks": jobs * COUNT}, found)


def fleet(count: int) -> list[NodeSpec]:
    """Nodes that hold 64 tasks each."""
    return [
        NodeSpec(
            node_id=NodeId(f"n{number:05d}"),
            name=f"n{number:05d}",
            cpu_mhz=SLOTS * 100,
            memory_mib=SLOTS * 100,
            disk_mib=102_400,
            attributes={"driver.raw_exec": "1", "kernel.name": "linux"},
        )
        for number in range(count)
    ]


def job(number: int) -> dict[str, Any]:
    """One batch job whose tasks are over at once."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": {"CPU": 100, "MemoryMB": 100},
    }
    group = {"Name": "g", "Count": COUNT, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    name = f"storm-{number}"
    return {"ID": name, "Name": name, "Type": "batch", "TaskGroups": [group]}


async def _once(cluster: Harness, nodes: int, jobs: int) -> Run:
    work = Work(
        fleet=fleet(nodes),
        jobs=[job(at) for at in range(jobs)],
        a_job=COUNT,
        done=lambda observer: observer.complete,
        figures=_times,
        holds=_all_over,
        within_s=LIMIT_S,
    )
    return await ran(cluster, work)


def _times(observer: Observer, start: float, want: int) -> dict[str, float]:
    half, all_s = observer.complete_at(want // 2) - start, observer.complete_at(want) - start
    return {"tasks": want, "t50_s": half, "t_all_s": all_s, "tasks_per_s": want / all_s}


def _all_over(observer: Observer, want: int) -> dict[str, bool]:
    """Every task is complete once, in the replayed state or collected from it since; each job had its own."""
    table = observer.state.allocations
    rows = table.live_rows()
    each = all(observer.placed_of[f"storm-{at}"] == COUNT for at in range(want // COUNT))
    return {
        # Who ended long ago is not in the state any more: counted as they were placed.
        "counts_exact": each and observer.placed == want,
        "all_complete": observer.complete == want and bool((table.client[rows] == COMPLETE).all()),
        "none_doubled": observer.placed == want,
    }
