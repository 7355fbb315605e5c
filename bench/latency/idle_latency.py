"""P8, idle latency: one job of one allocation every 20 ms on an idle cluster of 5,000 nodes.

Through the whole product, as p1. The clock runs from the submission until a replaying process sees the placement. The
figures to reach: p50 2 ms, p99 5 ms.
"""

import asyncio
import time

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.load_generator import quantile
from bench.harness.measured_run import (
    Measurement,
    job_body,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.submit import submit_job
from bench.throughput.million_placements import NODES
from bench.throughput.single_pods import pod
from schemas.jobs import Verdict
from shared.bus.connection.nats_client import BusClient

JOBS = 1_000
RUNS = 5
GAP_S = 0.02


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales the jobs and nodes."""
    nodes, jobs = max(int(NODES * size), 10), max(int(JOBS * size), 10)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, jobs)

    wanted = {"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}
    return on_fresh_clusters(once, runs, wanted, workers)


async def _once(cluster: BenchCluster, nodes: int, jobs: int) -> BenchRun:
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, nodes)
        measured = Measurement(cluster)
        await measured.start()
        sent, verdicts = await _submit_apart(public.bus, jobs)
        await wait_until(lambda: observer.placed >= jobs, f"{jobs} placements")
        await measured.stop()
        delays = sorted(observer.first_of[name] - at for name, at in sent.items())
        checks = await verify_run(cluster, observer, verdicts, dict.fromkeys(sent, 1))
        checks["nobody_restarted"] = measured.same_processes
        result = {
            "p50_ms": quantile(delays, 0.5) * 1000,
            "p99_ms": quantile(delays, 0.99) * 1000,
        }
        return await measured.make_run(observer, result, checks)


async def _submit_apart(bus: BusClient, jobs: int) -> tuple[dict[str, float], list[Verdict]]:
    """Submit one job every 20 ms, regardless of the answers; returns when each was sent, and the verdicts."""
    sent: dict[str, float] = {}
    asked: list[asyncio.Task[Verdict]] = []
    due = time.perf_counter()
    for number in range(jobs):
        body = job_body(pod(f"one-{number}", cpu_mhz=20, memory_mib=15))
        due += GAP_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        due = max(due, time.perf_counter())
        sent[f"one-{number}"] = time.perf_counter()
        asked.append(asyncio.create_task(submit_job(bus, body)))
    return sent, list(await asyncio.gather(*asked))
