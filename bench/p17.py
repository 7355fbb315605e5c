"""P17, workers: 1, 2, 4 and 8 of them on an empty cluster and on one that is 95 % full; conflicts and thrown-away work.

A conflict is a plan that the applier refused, or had to cut because a node had no room any more. Wasted is the CPU time
in which workers made what the log never took: each notes what its decisions took (`timed.py`). Bars: conflicts at most
1 % with four workers on the empty cluster, at most 5 % on the full one. Two cores cannot show the speed of more than
two workers: there the rate shows only that nothing gets lost or slow by their number. What more would do stands in
`caravan bench curve`.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.faults import count, nested, submit_all
from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS, JOBS, NODES, fsyncs, job
from bench.timed import TimedHarness, decisions
from schemas.plans import Origin, PlanCommitted, PlanRefused
from services.cli.machines import Needs
from shared.core.invariants import check
from shared.core.replica import Replica

RUNS = 2
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

    run_in(story, {"schedulers": workers}, TimedHarness)
    return found[0]


async def _once(cluster: Harness, nodes: int, jobs: int, *, full: bool, prefix: str) -> Run:
    wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
    want = jobs * GROUPS * COUNT
    bodies = [
        msgspec.json.encode({"Job": job(at), "SubmissionID": f"s-{at}"}) for at in range(jobs)
    ]
    async with cluster.observer() as observer, cluster.client() as public:
        replica, state = observer.replica, observer.state
        cluster.start_fleet(n1_standard_8(nodes))
        await until(lambda: state.fleet.ready().sum() == nodes, f"{nodes} nodes", 120)
        if full:
            await submit_all(public.bus, [_filler(nodes)])
            await until(lambda: observer.placed == nodes, "a full cluster", LIMIT_S)
            wanted["filler"] = nodes
        await until(lambda: replica.checked_seq > state.seq, "a quiet moment", LIMIT_S)
        base, from_seq = observer.placed, replica.next_seq
        pids, before = cluster.pids(), usage(cluster.pids())
        log_before = (await cluster.log_state()).bytes
        start = time.perf_counter()
        await submit_all(public.bus, bodies)
        await until(lambda: observer.placed >= base + want, "all placed", LIMIT_S)
        took_s, took = observer.time_of(base + want) - start, usage(pids)
        await until(lambda: replica.checked_seq > state.seq, "a checkpoint at the end", LIMIT_S)
        fates, again = await _read(cluster, from_seq)
        if fates.conflicts:
            print(f"{prefix}: {dict(fates.causes)} of {fates.plans} plans", file=sys.stderr)
        checks = {
            "counts_exact": count(observer, wanted).exact,
            "within_capacity": not check(state),
            "replay_equals_live": again.state.hashes() == state.hashes(),
            "nobody_restarted": pids == cluster.pids(),
            "each_plan_was_timed": fates.is_timed,
        }
        log_after = (await cluster.log_state()).bytes
        fsync = await fsyncs(cluster, observer)
    spent = between(before, took)
    workers_s = sum(value for name, value in spent.items() if name.startswith("scheduler"))
    rss = [value for name, value in took.rss_mib.items() if name.startswith("scheduler")]
    figures = {
        "rate_per_s": want / took_s,
        "plans": fates.plans,
        "conflict_pct": 100 * fates.conflicts / fates.plans,
        "wasted_cpu_s": fates.wasted_s,
        "wasted_cpu_pct": 100 * fates.wasted_s / max(workers_s, 0.01),
        "workers_cpu_s": workers_s,
        "worker_rss_mib": max(rss),
    }
    return Run(
        result={f"{prefix}.{name}": value for name, value in figures.items()},
        checks=checks,
        cpu_s=_by_role(spent),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


class _Fates:
    """What became of plans, and what their making took. `times`: CPU ns by worker and plan number, from 1."""

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


async def _read(cluster: Harness, from_seq: int) -> tuple[_Fates, Replica]:
    """Replay the log as the public may read it, with the fates of plans from a record on."""
    again, fates = Replica(), _Fates(decisions(cluster))
    async with cluster.client() as client:
        async for record in client.read_log():
            decoded = again.apply(record)
            for event in decoded.events if decoded is not None and record.seq >= from_seq else ():
                fates.look(event)
    return fates, again


def _filler(nodes: int) -> bytes:
    """Ask for a job of which one allocation goes on each node, and nearly fills it."""
    body: dict[str, Any] = {**job(0), "ID": "filler", "Name": "filler"}
    for number, group in enumerate(body["TaskGroups"]):
        # Node n is of class n modulo five.
        group["Count"] = len(range(number, nodes, GROUPS))
        group["Tasks"][0]["Resources"] = {"CPU": CPU_MHZ, "MemoryMB": MEMORY_MIB}
    return msgspec.json.encode({"Job": body, "SubmissionID": "s-filler"})


def _by_role(spent: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds by role, all workers together."""
    found: dict[str, float] = {}
    for name, value in spent.items():
        role = name.partition("-")[0]
        found[role] = found.get(role, 0.0) + value
    return found


def _together(parts: list[Run]) -> Run:
    """One run of all numbers of workers; what processes took is that of all of them, memory the most of any."""
    return Run(
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
