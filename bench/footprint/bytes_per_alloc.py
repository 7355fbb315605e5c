"""P18, footprint: resident bytes a service holds for each allocation after a million were placed, and bytes of log.

P1's work, through the whole product. A service's figure is what its memory grew by between the fleet's registration
and the end of the work, over the placements; `log_bytes_per_alloc` is what the log's stream grew by,
`rss_bytes_per_alloc` has each role, and the largest. The figures to reach: at most 200 bytes an allocation and
role, 100 bytes of log.
"""

from typing import Any

import msgspec

from bench.harness.cluster import BenchCluster, ProcessUsage, wait_until
from bench.harness.measured_run import (
    Measurement,
    job_body,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
    wait_until_idle,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.submit import submit_all
from bench.throughput.million_placements import (
    COUNT,
    GROUPS,
    LIMIT_S,
    NEEDS,
    c1m_job,
    scaled_counts,
)
from schemas.base import MIB

__all__ = ["NEEDS", "RUNS", "run"]
RUNS = 3
ROLES = ("plan_applier", "eval_broker", "scheduler", "view", "intake", "heartbeat", "bus")


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Fill a fresh cluster `runs` times; `size` scales nodes and jobs."""
    nodes, jobs = scaled_counts(size)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, jobs)

    wanted = {"nodes": nodes, "jobs": jobs, "placements": jobs * GROUPS * COUNT}
    outcome = on_fresh_clusters(once, runs, wanted, workers, digits=1)
    parts = {
        name: _by_role(getattr(outcome, name)) for name in ("result", "result_min", "result_max")
    }
    return msgspec.structs.replace(outcome, **parts)


def _by_role(result: dict[str, float]) -> dict[str, Any]:
    """Put the figures of roles together."""
    roles = {name[:-2]: value for name, value in result.items() if name.endswith("_b")}
    rest = {name: value for name, value in result.items() if not name.endswith("_b")}
    return {**rest, "rss_bytes_per_alloc": roles} if result else {}


async def _once(cluster: BenchCluster, nodes: int, jobs: int) -> BenchRun:
    want = jobs * GROUPS * COUNT
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, nodes)
        measured = Measurement(cluster)
        await measured.start()
        # Encoded one by one, so that this process stays small.
        verdicts = await submit_all(public.bus, (job_body(c1m_job(at)) for at in range(jobs)))
        await wait_until(lambda: observer.placed >= want, f"{want} placements", LIMIT_S)
        wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
        checks = await verify_run(cluster, observer, verdicts, wanted)
        # The projections of the last plans are published by then.
        await wait_until_idle(measured.pids)
        await measured.stop()
        checks["nobody_restarted"] = measured.same_processes
        result = _grown(measured.before, measured.after, want)
        result["log_bytes_per_alloc"] = measured.log_bytes / want
        return await measured.make_run(observer, result, checks)


def _grown(before: ProcessUsage, after: ProcessUsage, placements: int) -> dict[str, float]:
    """Bytes an allocation by role: the largest of several processes of one."""
    found: dict[str, float] = {}
    for name, now in after.rss_mib.items():
        role = next((one for one in ROLES if name.startswith(one)), "")
        if role:
            grown = (now - before.rss_mib.get(name, now)) * MIB / placements
            found[f"{role}_b"] = max(found.get(f"{role}_b", 0.0), grown)
    most = max(value for name, value in found.items() if name != "bus_b")
    return {**found, "largest_b": most}
