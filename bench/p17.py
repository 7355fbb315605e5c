"""P17, workers: 1, 2, 4 and 8 of them on an empty cluster and on one that is 95 % full; conflicts and thrown-away work.

A conflict is a plan that the applier refused, or had to cut because a node had no room any more; wasted is what workers
proposed and the log never took, placement for placement. Bars: conflicts at most 1 % with four workers on the empty
cluster, at most 5 % on the full one. Two cores cannot show the speed of more than two workers: there the rate shows
only that nothing gets lost or slow by their number. What more workers would do stands in `caravan bench curve`.
"""

import os
import sys
import time
import urllib.request
from typing import Any

import msgspec

from bench.faults import count, nested, submit_all
from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS, JOBS, NODES, fsyncs, job, replayed
from services.cli.machines import Needs
from shared.core.invariants import check

RUNS = 3
WORKERS = (1, 2, 4, 8)
#: Per cent of each node that are taken before the clock runs, and how much of the million then comes.
FULL_PCT, FULL_PART = 95, 10
#: n1-standard-8, less its share: what one filling allocation takes.
CPU_MHZ, MEMORY_MIB = 20_800 * FULL_PCT // 100, 30_720 * FULL_PCT // 100
LIMIT_S = 120.0
NEEDS = Needs(memory_mib=4_096)


def run(size: float, runs: int) -> Outcome:
    """Run each number of workers `runs` times on fresh clusters; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), FULL_PART)
    if (cores := os.cpu_count() or 1) < max(WORKERS):
        told = f"{cores} cores: more workers than that show conflicts, not speed"
        print(told, file=sys.stderr, flush=True)
    found: list[Run] = []
    for number in range(runs):
        parts: list[Run] = []
        for workers in WORKERS:
            parts.append(_on_fresh(nodes, jobs, workers, full=False))
            parts.append(_on_fresh(nodes, jobs // FULL_PART, workers, full=True))
        found.append(_together(parts))
        print(f"run {number + 1} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)
    return nested(merge({"nodes": nodes, "jobs": jobs, "jobs_full": jobs // FULL_PART}, found))


def _on_fresh(nodes: int, jobs: int, workers: int, *, full: bool) -> Run:
    """Run one number of workers on a cluster of its own."""
    found: list[Run] = []
    prefix = f"{'workers_full' if full else 'workers'}.{workers}"

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs, full=full, prefix=prefix))

    run_in(story, {"schedulers": workers})
    return found[0]


async def _once(cluster: Harness, nodes: int, jobs: int, *, full: bool, prefix: str) -> Run:
    wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
    want = jobs * GROUPS * COUNT
    bodies = [
        msgspec.json.encode({"Job": job(at), "SubmissionID": f"s-{at}"}) for at in range(jobs)
    ]
    async with cluster.observer() as observer, cluster.client() as public:
        cluster.start_fleet(n1_standard_8(nodes))
        await until(lambda: observer.state.fleet.ready().sum() == nodes, f"{nodes} nodes", 120)
        if full:
            await submit_all(public.bus, [_filler(nodes)])
            await until(lambda: observer.placed == nodes, "a full cluster", LIMIT_S)
            wanted["filler"] = nodes
        replica, state = observer.replica, observer.state
        await until(lambda: replica.checked_seq > state.seq, "a quiet moment", LIMIT_S)
        schedulers = [one.name for one in cluster.children if one.role == "scheduler"]
        proposed = sum(_proposed(cluster, name) for name in schedulers)
        base, plans = observer.placed, observer.plans
        pids, before = cluster.pids(), usage(cluster.pids())
        log_before = (await cluster.log_state()).bytes
        start = time.perf_counter()
        await submit_all(public.bus, bodies)
        await until(lambda: count(observer, wanted).exact, "all placed", LIMIT_S)
        took_s = observer.time_of(base + want) - start
        took = usage(pids)
        await until(lambda: replica.checked_seq > state.seq, "a checkpoint at the end", LIMIT_S)
        proposed = sum(_proposed(cluster, name) for name in schedulers) - proposed
        plans = observer.plans - plans + len(observer.refused)
        conflicts = len(observer.refused) + observer.cut_plans
        checks = {
            "counts_exact": count(observer, wanted).exact,
            "within_capacity": not check(state),
            "replay_equals_live": (await replayed(cluster)).state.hashes() == state.hashes(),
            "nobody_restarted": pids == cluster.pids(),
        }
        log_after = (await cluster.log_state()).bytes
        fsync = await fsyncs(cluster, observer)
    return Run(
        result={
            f"{prefix}.rate_per_s": want / took_s,
            f"{prefix}.conflict_pct": 100 * conflicts / plans,
            f"{prefix}.wasted_cpu_pct": 100 * max(0.0, proposed - want) / max(proposed, 1),
        },
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


def _filler(nodes: int) -> bytes:
    """Ask for a job of which one allocation goes on each node, and nearly fills it."""
    body: dict[str, Any] = {**job(0), "ID": "filler", "Name": "filler"}
    for number, group in enumerate(body["TaskGroups"]):
        # Node n is of class n modulo five.
        group["Count"] = len(range(number, nodes, GROUPS))
        group["Tasks"][0]["Resources"] = {"CPU": CPU_MHZ, "MemoryMB": MEMORY_MIB}
    return msgspec.json.encode({"Job": body, "SubmissionID": "s-filler"})


def _proposed(cluster: Harness, name: str) -> float:
    """Placements that a worker proposed since its start."""
    port = int((cluster.data_dir / "logs" / f"{name}.port").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    wanted = "caravan_scheduler_placements_proposed_total "
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted))


def _together(parts: list[Run]) -> Run:
    """One run of all numbers of workers; what processes took is that of the last."""
    return Run(
        result={name: value for part in parts for name, value in part.result.items()},
        checks={name: all(part.checks[name] for part in parts) for name in parts[0].checks},
        cpu_s=parts[-1].cpu_s,
        rss_mib=parts[-1].rss_mib,
        log_bytes=sum(part.log_bytes for part in parts),
        fsync=all(part.fsync for part in parts),
    )
