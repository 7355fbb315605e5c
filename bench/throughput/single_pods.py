"""P5, single pods: 50,000 separate jobs of one allocation on 5,000 nodes, by submitters that wait for their verdicts.

Nodes and pods are those of Kubernetes' scheduler benchmark: 4 cores and 32 GB, a tenth of a core and 500 MB. Through
the whole product, as p1. The clock runs from the first submission until a replaying process sees the last placement.
The figure to reach: 15,000 jobs a second.
"""

from typing import Any

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fleet_process import bench_node
from bench.harness.host_info import HostRequirements
from bench.harness.load_generator import LoadGenerator, body_template, quantile
from bench.harness.measured_run import (
    Measurement,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.sample_jobs import sample_job
from bench.throughput.million_placements import NODES

JOBS = 50_000
RUNS = 5
#: Each waits for its verdict before it sends the next.
SUBMITTERS = 1_024
LIMIT_S = 180.0
NEEDS = HostRequirements(memory_mib=2_048)


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), 10), max(int(JOBS * size), 10)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, jobs)

    wanted = {"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}
    return on_fresh_clusters(once, runs, wanted, workers)


def pod(name: str = "pod-@@", cpu_mhz: int = 260, memory_mib: int = 500) -> dict[str, Any]:
    """One pod as a job of one allocation; `@@` is its number."""
    return sample_job(name, count=1, cpu_mhz=cpu_mhz, memory_mib=memory_mib)


async def _once(cluster: BenchCluster, nodes: int, jobs: int) -> BenchRun:
    # Nodes of 4 cores of 2.6 GHz and 32 GB.
    fleet = [bench_node(number, 10_400, 32_768, node_class="k8s") for number in range(nodes)]
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, fleet)
        measured = Measurement(cluster)
        arrivals = LoadGenerator(public.bus, body_template(pod()))
        start = await measured.start()
        await arrivals.closed(range(jobs), SUBMITTERS)
        await wait_until(lambda: observer.placed >= jobs, f"{jobs} placements", LIMIT_S)
        await measured.stop()
        wanted = dict.fromkeys((f"pod-{at}" for at in range(jobs)), 1)
        checks = await verify_run(cluster, observer, arrivals.verdicts, wanted)
        checks["nobody_restarted"] = measured.same_processes
        late = sorted(observer.first_of[f"pod-{at}"] - due for at, due in arrivals.due.items())
        result = {
            "jobs_per_s": jobs / (observer.time_of(jobs) - start),
            "p50_ms": quantile(late, 0.5) * 1000,
            "p99_ms": quantile(late, 0.99) * 1000,
        }
        return await measured.make_run(observer, result, checks)
