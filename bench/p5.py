"""P5, single pods: 50,000 separate jobs of one allocation on 5,000 nodes, by submitters that wait for their verdicts.

Nodes and pods are those of Kubernetes' scheduler benchmark: 4 cores and 32 GB, a tenth of a core and 500 MB. Through
the whole product, as p1. The clock runs from the first submission until a replaying process sees the last placement.
The figure to reach: 15,000 jobs a second.
"""

import sys
import time
from typing import Any

from bench.arrivals import Arrivals, quantile, template
from bench.harness import Harness, between, run_in, until, usage
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import NODES, fsyncs, proved, settled
from schemas.nodes import NodeSpec
from services.cli.machines import Needs

JOBS = 50_000
RUNS = 5
#: Each waits for its verdict before it sends the next.
SUBMITTERS = 1_024
LIMIT_S = 180.0
NEEDS = Needs(memory_mib=2_048)


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), 10), max(int(JOBS * size), 10)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    return merge({"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}, found)


def fleet(count: int) -> list[NodeSpec]:
    """Nodes of 4 cores of 2.6 GHz and 32 GB."""
    return [
        NodeSpec(
            node_id=f"n{number:05d}",
            name=f"n{number:05d}",
            node_class="k8s",
            cpu_mhz=10_400,
            memory_mib=32_768,
            disk_mib=102_400,
            attributes={"driver.raw_exec": "1", "kernel.name": "linux"},
        )
        for number in range(count)
    ]


def pod(name: str = "pod-@@", cpu_mhz: int = 260, memory_mib: int = 500) -> dict[str, Any]:
    """One pod as a job of one allocation, in Nomad's JSON; `@@` is its number."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "Resources": {"CPU": cpu_mhz, "MemoryMB": memory_mib},
    }
    group = {"Name": "g", "Count": 1, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    return {"ID": name, "Name": name, "Type": "service", "TaskGroups": [group]}


async def _once(cluster: Harness, nodes: int, jobs: int) -> Run:
    async with cluster.observer() as observer, cluster.client() as public:
        await settled(cluster, observer, fleet(nodes))
        pids = cluster.pids()
        log_before = (await cluster.log_state()).bytes
        before = usage(pids)
        arrivals = Arrivals(public.bus, template(pod()))
        start = time.perf_counter()
        await arrivals.closed(range(jobs), SUBMITTERS)
        await until(lambda: observer.placed >= jobs, f"{jobs} placements", LIMIT_S)
        took = usage(pids)
        log_after = (await cluster.log_state()).bytes
        wanted = dict.fromkeys((f"pod-{at}" for at in range(jobs)), 1)
        checks = await proved(cluster, observer, arrivals.verdicts, wanted)
        checks["nobody_restarted"] = pids == cluster.pids()
        fsync = await fsyncs(cluster, observer)
    late = sorted(observer.first_of[f"pod-{at}"] - due for at, due in arrivals.due.items())
    return Run(
        result={
            "jobs_per_s": jobs / (observer.time_of(jobs) - start),
            "p50_ms": quantile(late, 0.5) * 1000,
            "p99_ms": quantile(late, 0.99) * 1000,
        },
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )
