"""P3, two million containers running: 2,000 jobs of 1,000, spread over 6,100 nodes in 10 datacenters.

75 submit at once. The clock runs from the first submission until a replaying process sees the last one placed, and
the last one running on a fleet in a process of its own. `slope` is the rate at which the second million is placed
over that of the first. The figure to reach: placed within 2 s, running within 10 s, slope within a tenth of 1.
"""

from bench.harness.cluster import BenchCluster
from bench.harness.fleet_process import bench_node
from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.outcome import BenchOutcome
from bench.harness.running_workload import RunningWorkload, repeat_workload
from bench.harness.sample_jobs import sample_job
from bench.throughput.million_running import all_run, times
from schemas.nodes import NodeSpec
from schemas.operator import PolicyRequest
from shared.protocol import subjects

NODES = 6_100
DATACENTERS = 10
RUNS = 5
JOBS = 2_000
COUNT = 1_000
SUBMITTERS = 75
#: A run that takes longer has failed.
LIMIT_S = 300.0
NEEDS = HostRequirements(memory_mib=6_144)


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), DATACENTERS), max(int(JOBS * size), 2)
    datacenters = [f"dc{at + 1}" for at in range(DATACENTERS)]
    work = RunningWorkload(
        fleet=[_node(number) for number in range(nodes)],
        # Deployments are off, as in the challenge.
        jobs=[
            sample_job(
                f"c2m-{at}",
                count=COUNT,
                cpu_mhz=50,
                memory_mib=30,
                Datacenters=datacenters,
                Update={"MaxParallel": 0},
            )
            for at in range(jobs)
        ],
        a_job=COUNT,
        done=lambda observer: observer.running,
        figures=_times,
        holds=all_run,
        within_s=LIMIT_S,
        submitters=SUBMITTERS,
        first=spread,
    )

    wanted = {"nodes": nodes, "jobs": jobs, "workers": max(workers, 1), "placements": jobs * COUNT}
    return repeat_workload(work, runs, wanted, workers)


def _node(number: int) -> NodeSpec:
    """A host of one of four sizes, as of m4, m5 and t3, in ten datacenters; the smallest fits 330 containers."""
    scale = 1 + number // DATACENTERS % 4
    return bench_node(
        number, 20_000 * scale, 16_384 * scale, datacenter=f"dc{number % DATACENTERS + 1}"
    )


def _times(observer: LogObserver, start: float, want: int) -> dict[str, float]:
    half = observer.time_of(want // 2) - start
    found = times(observer, start, want)
    return {**found, "slope": half / max(found["t_all_s"] - half, 1e-3)}


async def spread(cluster: BenchCluster) -> None:
    """Set the algorithm `spread`, as in Nomad's challenge."""
    change = PolicyRequest(request_id="spread", change={"algorithm": "spread"})
    async with cluster.client() as public:
        answer = await public.request(subjects.api("operator", "set_policy"), change)
    if answer.get("status") != "accepted":
        raise RuntimeError(f"the policy was not set: {answer}")
