"""P8, idle latency: one job of one allocation every 20 ms on an idle cluster of 5,000 nodes.

Through the whole product, as p1. The clock runs from the submission until a replaying process sees the placement. The
figures to reach: p50 2 ms, p99 5 ms.
"""

import asyncio
import sys
import time
from typing import Any

import msgspec

from bench.harness import Harness, between, run_in, until, usage
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import NODES, ask, fsyncs, proved, settled
from schemas.jobs import Verdict
from shared.bus.connect import BusClient

JOBS = 1_000
RUNS = 5
GAP_S = 0.02


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales the jobs and nodes."""
    nodes, jobs = max(int(NODES * size), 10), max(int(JOBS * size), 10)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    return merge({"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}, found)


def job(number: int) -> dict[str, Any]:
    """A job of one allocation, in Nomad's JSON."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "Resources": {"CPU": 20, "MemoryMB": 15},
    }
    group = {"Name": "g", "Count": 1, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    return {"ID": f"one-{number}", "Name": f"one-{number}", "TaskGroups": [group]}


async def _once(cluster: Harness, nodes: int, jobs: int) -> Run:
    async with cluster.observer() as observer, cluster.client() as public:
        await settled(cluster, observer, nodes)
        pids = cluster.pids()
        log_before = (await cluster.log_state()).bytes
        before = usage(pids)
        sent, verdicts = await _submit_apart(public.bus, jobs)
        await until(lambda: observer.placed >= jobs, f"{jobs} placements")
        took = usage(pids)
        log_after = (await cluster.log_state()).bytes
        delays = sorted(observer.first_of[name] - at for name, at in sent.items())
        checks = await proved(cluster, observer, verdicts, dict.fromkeys(sent, 1))
        checks["nobody_restarted"] = pids == cluster.pids()
        fsync = await fsyncs(cluster, observer)
    return Run(
        result={
            "p50_ms": delays[len(delays) // 2] * 1000,
            "p99_ms": delays[min(len(delays) - 1, len(delays) * 99 // 100)] * 1000,
        },
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


async def _submit_apart(bus: BusClient, jobs: int) -> tuple[dict[str, float], list[Verdict]]:
    """Submit one job every 20 ms, whatever the answers; returns when each was sent, and the verdicts."""
    sent: dict[str, float] = {}
    asked: list[asyncio.Task[Verdict]] = []
    due = time.perf_counter()
    for number in range(jobs):
        body = msgspec.json.encode({"Job": job(number), "SubmissionID": f"s-{number}"})
        due += GAP_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        due = max(due, time.perf_counter())
        sent[f"one-{number}"] = time.perf_counter()
        asked.append(asyncio.create_task(ask(bus, body)))
    return sent, list(await asyncio.gather(*asked))
