"""P18, footprint: resident bytes a service holds for each allocation after a million were placed, and bytes of log.

P1's work, through the whole product. A service's figure is what its memory grew by between the fleet's registration
and the end of the work, over the placements; `log_bytes_per_alloc` is what the log's stream grew by,
`rss_bytes_per_alloc` has each role, and the largest. The figures to reach: at most 200 bytes an allocation and
role, 100 bytes of log.
"""

import asyncio
import sys
from typing import Any

import msgspec

from bench import p1
from bench.harness import Harness, Usage, between, run_in, until, usage
from bench.outcome import Outcome, Run, merge, shown
from schemas.jobs import Verdict

RUNS = 3
NEEDS = p1.NEEDS
ROLES = ("plan_applier", "eval_broker", "scheduler", "view", "intake", "heartbeat", "bus")
_MIB = 1 << 20


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Fill a fresh cluster `runs` times; `size` scales nodes and jobs."""
    nodes, jobs = max(int(p1.NODES * size), p1.GROUPS * 4), max(int(p1.JOBS * size), 1)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    placements = jobs * p1.GROUPS * p1.COUNT
    told = merge({"nodes": nodes, "jobs": jobs, "placements": placements}, found, digits=1)
    parts = {name: _by_role(getattr(told, name)) for name in ("result", "result_min", "result_max")}
    return msgspec.structs.replace(told, **parts)


def _by_role(result: dict[str, float]) -> dict[str, Any]:
    """Put the figures of roles together."""
    roles = {name[:-2]: value for name, value in result.items() if name.endswith("_b")}
    rest = {name: value for name, value in result.items() if not name.endswith("_b")}
    return {**rest, "rss_bytes_per_alloc": roles} if result else {}


async def _once(cluster: Harness, nodes: int, jobs: int) -> Run:
    want = jobs * p1.GROUPS * p1.COUNT
    async with cluster.observer() as observer, cluster.client() as public:
        await p1.settled(cluster, observer, nodes)
        pids = cluster.pids()
        log_before = (await cluster.log_state()).bytes
        before = usage(pids)
        verdicts: list[Verdict] = []
        queue = iter(range(jobs))

        async def submitter() -> None:
            for number in queue:
                body = {"Job": p1.job(number), "SubmissionID": f"s-{number}"}
                answer = await p1.ask(public.bus, msgspec.json.encode(body))
                while answer.status == "pending":
                    answer = await p1.ask(public.bus, msgspec.json.encode(body))
                verdicts.append(answer)

        await asyncio.gather(*(submitter() for _ in range(p1.SUBMITTERS)))
        await until(lambda: observer.placed >= want, f"{want} placements", p1.LIMIT_S)
        log_after = (await cluster.log_state()).bytes
        wanted = {f"c1m-{at}": p1.GROUPS * p1.COUNT for at in range(jobs)}
        checks = await p1.proved(cluster, observer, verdicts, wanted)
        await _rests(pids)
        after = usage(pids)
        checks["nobody_restarted"] = pids == cluster.pids()
        fsync = await p1.fsyncs(cluster, observer)
    return Run(
        result={
            **_grown(before, after, want),
            "log_bytes_per_alloc": (log_after - log_before) / want,
        },
        checks=checks,
        cpu_s=between(before, after),
        rss_mib=after.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


def _grown(before: Usage, after: Usage, placements: int) -> dict[str, float]:
    """Bytes an allocation by role: the largest of several processes of one."""
    found: dict[str, float] = {}
    for name, now in after.rss_mib.items():
        role = next((one for one in ROLES if name.startswith(one)), "")
        if role:
            grown = (now - before.rss_mib.get(name, now)) * _MIB / placements
            found[f"{role}_b"] = max(found.get(f"{role}_b", 0.0), grown)
    most = max(value for name, value in found.items() if name != "bus_b")
    return {**found, "largest_b": most}


async def _rests(pids: dict[str, int]) -> None:
    """Wait until the projections of the last plans are out."""
    for _ in range(60):
        before = usage(pids)
        await asyncio.sleep(0.5)
        if sum(between(before, usage(pids)).values()) < 0.3:
            return
