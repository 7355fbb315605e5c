"""P7, latency under a rate: jobs of one allocation on 100 nodes, sent on a schedule that waits for nobody.

The rate climbs step by step until a step's 99th percentile from due to placed passes a second, or a job is refused;
between steps everything is let settle. The figure is the highest rate of a step whose 99th percentile is below 250 ms
and behind which no slower step failed; beside it the same for a second. Through the whole product, as p1. The figure
to reach: 10,000 jobs a second.
"""

import sys
from typing import Any

import msgspec

from bench.arrivals import Arrivals, quantile, template
from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import fsyncs, proved, settled
from bench.p5 import pod
from services.cli.machines import Needs

NODES = 100
RUNS = 5
#: Jobs a second of each step.
RATES = (500, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 8_000, 10_000, 12_000, 14_000, 16_000)
STEP_S = 4.0
NEAR_S, FAR_S = 0.25, 1.0
LIMIT_S = 120.0
NEEDS = Needs(memory_mib=2_048)


class Step(msgspec.Struct, frozen=True):
    """One step of the ramp. Units: jobs a second, seconds."""

    rate: int
    p50_s: float
    p99_s: float
    #: by how much the sender itself was late at the end.
    behind_s: float


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run the ramp `runs` times on a fresh cluster each; `size` scales how long a step lasts and the nodes."""
    nodes, step_s = max(int(NODES * size), 10), max(STEP_S * size, 0.2)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, step_s))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    return merge(
        {"nodes": nodes, "step_ms": round(step_s * 1000), "workers": max(workers, 1)}, found
    )


def job() -> dict[str, Any]:
    """So small that capacity never binds."""
    return pod("one-@@", cpu_mhz=5, memory_mib=10)


async def _once(cluster: Harness, nodes: int, step_s: float) -> Run:
    async with cluster.observer() as observer, cluster.client() as public:
        await settled(cluster, observer, n1_standard_8(nodes))
        pids = cluster.pids()
        log_before = (await cluster.log_state()).bytes
        before = usage(pids)
        arrivals = Arrivals(public.bus, template(job()))
        steps: list[Step] = []
        for rate in RATES:
            steps.append(await _step(observer, arrivals, rate, step_s))
            print(f"  {_told(steps[-1])}", file=sys.stderr, flush=True)
            if steps[-1].p99_s >= FAR_S:
                break
        took = usage(pids)
        log_after = (await cluster.log_state()).bytes
        wanted = dict.fromkeys((f"one-{at}" for at in arrivals.due), 1)
        checks = await proved(cluster, observer, arrivals.verdicts, wanted)
        checks["nobody_restarted"] = pids == cluster.pids()
        fsync = await fsyncs(cluster, observer)
    near, far = highest(steps, NEAR_S), highest(steps, FAR_S)
    return Run(
        result={
            "jobs_per_s": near.rate,
            "p50_ms": near.p50_s * 1000,
            "p99_ms": near.p99_s * 1000,
            "jobs_per_s_within_1s": far.rate,
        },
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


async def _step(observer: Observer, arrivals: Arrivals, rate: int, step_s: float) -> Step:
    first = len(arrivals.due)
    numbers = range(first, first + max(int(rate * step_s), 20))
    behind_s = await arrivals.open(numbers, rate)
    await until(lambda: observer.placed >= numbers.stop, f"{numbers.stop} placements", LIMIT_S)
    await arrivals.answered()
    late = sorted(observer.first_of[f"one-{at}"] - arrivals.due[at] for at in numbers)
    return Step(rate, quantile(late, 0.5), quantile(late, 0.99), behind_s)


def highest(steps: list[Step], bound_s: float) -> Step:
    """Return the last step before the first whose 99th percentile reaches the bound; a rate of 0 if none holds."""
    held = Step(0, 0.0, 0.0, 0.0)
    for step in steps:
        if step.p99_s >= bound_s:
            break
        held = step
    return held


def _told(step: Step) -> str:
    return (
        f"{step.rate}/s: p50 {step.p50_s * 1000:.1f} ms, p99 {step.p99_s * 1000:.1f} ms, "
        f"sender behind {step.behind_s * 1000:.1f} ms"
    )
