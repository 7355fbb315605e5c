"""P7, latency under a rate: jobs of one allocation on 100 nodes, sent on a fixed schedule, regardless of the answers.

The rate climbs step by step until a step's 99th percentile from due to placed passes a second, or a job is refused;
between steps the cluster becomes idle. The figure is the highest rate of a step whose 99th percentile is below 250 ms,
with no failed step before it; beside it the same for a second. Through the whole product, as p1. The figure to reach:
10,000 jobs a second.
"""

import sys

import msgspec

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.host_info import HostRequirements
from bench.harness.load_generator import LoadGenerator, body_template, quantile
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.throughput.single_pods import pod

NODES = 100
RUNS = 5
#: Jobs a second of each step.
RATES = (500, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 8_000, 10_000, 12_000, 14_000, 16_000)
STEP_S = 4.0
NEAR_S, FAR_S = 0.25, 1.0
LIMIT_S = 120.0
NEEDS = HostRequirements(memory_mib=2_048)


class RateStep(msgspec.Struct, frozen=True):
    """One step of the ramp. Units: jobs a second, seconds."""

    rate: int
    p50_s: float
    p99_s: float
    #: by how much the sender itself was late at the end.
    behind_s: float


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run the ramp `runs` times on a fresh cluster each; `size` scales the length of a step and the nodes."""
    nodes, step_s = max(int(NODES * size), 10), max(STEP_S * size, 0.2)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, step_s)

    wanted = {"nodes": nodes, "step_ms": round(step_s * 1000), "workers": max(workers, 1)}
    return on_fresh_clusters(once, runs, wanted, workers)


async def _once(cluster: BenchCluster, nodes: int, step_s: float) -> BenchRun:
    # So small that capacity never limits placement.
    job = pod("one-@@", cpu_mhz=5, memory_mib=10)
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, nodes)
        measured = Measurement(cluster)
        await measured.start()
        arrivals = LoadGenerator(public.bus, body_template(job))
        steps = await run_ramp(observer, arrivals, step_s)
        await measured.stop()
        wanted = dict.fromkeys((f"one-{at}" for at in arrivals.due), 1)
        checks = await verify_run(cluster, observer, arrivals.verdicts, wanted)
        checks["nobody_restarted"] = measured.same_processes
        near, far = highest_rate(steps, NEAR_S), highest_rate(steps, FAR_S)
        result = {
            "jobs_per_s": near.rate,
            "p50_ms": near.p50_s * 1000,
            "p99_ms": near.p99_s * 1000,
            "jobs_per_s_within_1s": far.rate,
        }
        return await measured.make_run(observer, result, checks)


async def run_ramp(observer: LogObserver, arrivals: LoadGenerator, step_s: float) -> list[RateStep]:
    """Raise the rate step by step, until the 99th percentile of a step passes a second."""
    steps: list[RateStep] = []
    for rate in RATES:
        steps.append(await _run_step(observer, arrivals, rate, step_s))
        print(f"  {_step_line(steps[-1])}", file=sys.stderr, flush=True)
        if steps[-1].p99_s >= FAR_S:
            break
    return steps


async def _run_step(
    observer: LogObserver, arrivals: LoadGenerator, rate: int, step_s: float
) -> RateStep:
    """Send jobs at a rate; wait until all are answered and placed."""
    first = len(arrivals.due)
    numbers = range(first, first + max(int(rate * step_s), 20))
    behind_s = await arrivals.open(numbers, rate)
    await wait_until(lambda: observer.placed >= numbers.stop, f"{numbers.stop} placements", LIMIT_S)
    await arrivals.answered()
    late = sorted(observer.first_of[arrivals.job_of[at]] - arrivals.due[at] for at in numbers)
    return RateStep(rate, quantile(late, 0.5), quantile(late, 0.99), behind_s)


def highest_rate(steps: list[RateStep], bound_s: float) -> RateStep:
    """Return the last step before the first whose 99th percentile reaches the bound; a rate of 0 if none holds."""
    held = RateStep(0, 0.0, 0.0, 0.0)
    for step in steps:
        if step.p99_s >= bound_s:
            break
        held = step
    return held


def _step_line(step: RateStep) -> str:
    """One line about a step."""
    return (
        f"{step.rate}/s: p50 {step.p50_s * 1000:.1f} ms, p99 {step.p99_s * 1000:.1f} ms, "
        f"sender behind {step.behind_s * 1000:.1f} ms"
    )
