"""P17, workers: 1, 2, 4 and 8 of them on an empty cluster and on one that is 95 % full; conflicts and wasted work.

A conflict is a plan that the applier refused, or cut because a node had no capacity left. Wasted is the CPU time of
decisions whose plans were not committed (`bench/harness/timed_worker.py` records them). Bars: conflicts at most 1 %
with four workers on the empty cluster, at most 5 % on the full one. Two cores cannot show the speed of more than two
workers: there the rate shows only that more workers lose nothing. `caravan bench curve` simulates more cores.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fault_load import count, nest_results
from bench.harness.fleet_process import n1_standard_8
from bench.harness.host_info import HostRequirements
from bench.harness.measured_run import Measurement, await_checkpoint, job_body, run_once
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.harness.submit import submit_all
from bench.harness.timed_worker import TimedCluster, decision_times
from bench.throughput.million_placements import COUNT, GROUPS, JOBS, NODES, c1m_job
from schemas.plans import Origin, PlanCommitted, PlanRefused
from shared.core.runtime.replica import Replica
from shared.core.state.invariants import check

RUNS = 2
WORKERS = (1, 2, 4, 8)
#: Per cent of each node that are taken before the clock runs, and how much of the million then comes.
FULL_PCT, FULL_PART = 95, 10
#: n1-standard-8, less its share: what one filling allocation takes.
CPU_MHZ, MEMORY_MIB = 20_800 * FULL_PCT // 100, 30_720 * FULL_PCT // 100
LIMIT_S = 120.0
NEEDS = HostRequirements(memory_mib=4_096)


def run(size: float, runs: int) -> BenchOutcome:
    """Run each number of workers `runs` times on fresh clusters; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), FULL_PART)
    if (cores := os.cpu_count() or 1) < max(WORKERS):
        text = f"{cores} cores: more workers than that show conflicts, not speed"
        print(text, file=sys.stderr, flush=True)

    def once() -> BenchRun:
        parts: list[BenchRun] = []
        for workers in WORKERS:
            parts.append(_on_fresh(nodes, jobs, workers, full=False))
            parts.append(_on_fresh(nodes, jobs // FULL_PART, workers, full=True))
        return _merge_worker_counts(parts)

    wanted = {"nodes": nodes, "jobs": jobs, "jobs_full": jobs // FULL_PART}
    return nest_results(repeat_runs(once, runs, wanted))


def _on_fresh(nodes: int, jobs: int, workers: int, *, full: bool) -> BenchRun:
    """Run one number of workers on a cluster of its own."""
    prefix = f"{'workers_full' if full else 'workers'}.{workers}"

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, jobs, full=full, prefix=prefix)

    return run_once(once, {"schedulers": workers}, TimedCluster)


async def _once(
    cluster: BenchCluster, nodes: int, jobs: int, *, full: bool, prefix: str
) -> BenchRun:
    wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
    want = jobs * GROUPS * COUNT
    bodies = [job_body(c1m_job(at)) for at in range(jobs)]
    async with cluster.observer() as observer, cluster.client() as public:
        replica, state = observer.replica, observer.state
        cluster.start_fleet(n1_standard_8(nodes))
        await wait_until(lambda: state.fleet.ready().sum() == nodes, f"{nodes} nodes", 120)
        if full:
            await submit_all(public.bus, [job_body(filler_job(nodes))])
            await wait_until(lambda: observer.placed == nodes, "a full cluster", LIMIT_S)
            wanted["filler"] = nodes
        await await_checkpoint(observer, LIMIT_S)
        base, from_seq = observer.placed, replica.next_seq
        measured = Measurement(cluster)
        start = await measured.start()
        await submit_all(public.bus, bodies)
        await wait_until(lambda: observer.placed >= base + want, "all placed", LIMIT_S)
        took_s = observer.time_of(base + want) - start
        await measured.stop()
        await await_checkpoint(observer, LIMIT_S)
        outcomes, again = await _read(cluster, from_seq)
        if outcomes.conflicts:
            print(f"{prefix}: {dict(outcomes.causes)} of {outcomes.plans} plans", file=sys.stderr)
        checks = {
            "counts_exact": count(observer, wanted).exact,
            "within_capacity": not check(state),
            "replay_equals_live": again.state.hashes() == state.hashes(),
            "nobody_restarted": measured.same_processes,
            "each_plan_was_timed": outcomes.is_timed,
        }
        made = await measured.make_run(observer, {}, checks)
    workers_s = sum(value for name, value in made.cpu_s.items() if name.startswith("scheduler"))
    rss = [value for name, value in made.rss_mib.items() if name.startswith("scheduler")]
    figures = {
        "rate_per_s": want / took_s,
        "plans": outcomes.plans,
        "conflict_pct": 100 * outcomes.conflicts / outcomes.plans,
        "wasted_cpu_s": outcomes.wasted_s,
        "wasted_cpu_pct": 100 * outcomes.wasted_s / max(workers_s, 0.01),
        "workers_cpu_s": workers_s,
        "worker_rss_mib": max(rss),
    }
    return msgspec.structs.replace(
        made,
        result={f"{prefix}.{name}": value for name, value in figures.items()},
        cpu_s=_by_role(made.cpu_s),
    )


class _PlanOutcomes:
    """The outcome of plans, and their CPU time. `times`: CPU ns by worker and plan number, from 1."""

    def __init__(self, times: Mapping[str, NDArray[np.int64]]) -> None:
        self._times = times
        self.plans = self.conflicts = 0
        #: conflicts by what the applier said.
        self.causes: Counter[str] = Counter()
        self.wasted_s = 0.0
        self.is_timed = True

    def look(self, event: object) -> None:
        """Count a plan, and the part of its making that came to nothing: what was cut of it, or all that is left."""
        if isinstance(event, PlanCommitted):
            cut = sum(sum(one.counts) for one in event.cut)
            took = sum(sum(one.counts) for one in event.placements)
            self._count(event.origin, cut / max(cut + took, 1) / event.origin.parts, "cut")
        elif isinstance(event, PlanRefused):
            origin = event.origin
            self._count(origin, (origin.parts - origin.part) / origin.parts, event.code)

    def _count(self, origin: Origin, wasted: float, cause: str) -> None:
        times = self._times.get(origin.worker)
        self.plans += 1
        if wasted > 0:
            self.conflicts += 1
            self.causes[cause] += 1
        if times is None or origin.number > len(times):
            self.is_timed = False
        else:
            self.wasted_s += wasted * float(times[origin.number - 1]) / 1e9


async def _read(cluster: BenchCluster, from_seq: int) -> tuple[_PlanOutcomes, Replica]:
    """Replay the log as the public may read it, with the outcomes of plans from a record on."""
    again, outcomes = Replica(), _PlanOutcomes(decision_times(cluster))
    async with cluster.client() as client:
        async for record in client.read_log():
            decoded = again.apply(record)
            for event in decoded.events if decoded is not None and record.seq >= from_seq else ():
                outcomes.look(event)
    return outcomes, again


def filler_job(nodes: int) -> dict[str, Any]:
    """Create a job with one allocation for each node, which nearly fills it."""
    body: dict[str, Any] = {**c1m_job(0), "ID": "filler", "Name": "filler"}
    for number, group in enumerate(body["TaskGroups"]):
        # Node n is of class n modulo five.
        group["Count"] = len(range(number, nodes, GROUPS))
        group["Tasks"][0]["Resources"] = {"CPU": CPU_MHZ, "MemoryMB": MEMORY_MIB}
    return body


def _by_role(spent: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds by role, all workers together."""
    found: dict[str, float] = {}
    for name, value in spent.items():
        role = name.partition("-")[0]
        found[role] = found.get(role, 0.0) + value
    return found


def _merge_worker_counts(parts: list[BenchRun]) -> BenchRun:
    """One run of all numbers of workers: CPU time is the sum, memory the maximum."""
    return BenchRun(
        result={name: value for part in parts for name, value in part.result.items()},
        checks={name: all(part.checks[name] for part in parts) for name in parts[0].checks},
        cpu_s={role: round(sum(part.cpu_s[role] for part in parts), 2) for role in parts[0].cpu_s},
        rss_mib={
            name: max(part.rss_mib.get(name, 0.0) for part in parts)
            for name in set().union(*(part.rss_mib for part in parts))
        },
        log_bytes=sum(part.log_bytes for part in parts),
        fsync=all(part.fsync for part in parts),
    )
