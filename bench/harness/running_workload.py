"""The workload of the benchmarks of running containers: a fleet that runs its placements, jobs, and checks.

The clock runs from the first submission until `done` reaches the number of allocations.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    job_body,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.submit import SUBMITTERS, submit_all
from bench.throughput.million_placements import Figures
from schemas.nodes import NodeSpec
from shared.fleet.profile import FleetProfile


class RunningWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to run, in Nomad's JSON, each with so many allocations."""

    fleet: int | list[NodeSpec]
    jobs: Sequence[dict[str, Any]]
    a_job: int
    #: number of allocations that run, or are complete.
    done: Callable[[LogObserver], int]
    figures: Figures
    #: further checks at the end, given the number of allocations.
    holds: Callable[[LogObserver, int], Mapping[str, bool]]
    within_s: float
    submitters: int = SUBMITTERS
    #: before the clock runs.
    first: Callable[[BenchCluster], Awaitable[None]] | None = None


async def _run_workload(cluster: BenchCluster, work: RunningWorkload) -> BenchRun:
    """Run it on a fresh cluster, and check the result."""
    want = len(work.jobs) * work.a_job
    bodies = [job_body(job) for job in work.jobs]
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, work.fleet, FleetProfile())
        if work.first is not None:
            await work.first(cluster)
        measured = Measurement(cluster, with_fleet=True)
        start = await measured.start()
        verdicts = await submit_all(public.bus, bodies, work.submitters)
        await wait_until(lambda: work.done(observer) >= want, f"{want} done", work.within_s)
        await measured.stop()
        wanted = {job["ID"]: work.a_job for job in work.jobs}
        checks = await verify_run(cluster, observer, verdicts, wanted)
        checks |= work.holds(observer, want)
        checks["nobody_restarted"] = measured.same_processes
        return await measured.make_run(observer, work.figures(observer, start, want), checks)


def repeat_workload(
    work: RunningWorkload, runs: int, size: Mapping[str, int], workers: int
) -> BenchOutcome:
    """Run it `runs` times, each on a fresh cluster."""

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _run_workload(cluster, work)

    return on_fresh_clusters(once, runs, size, workers)
