"""P23, a rolling update: 1,000 nodes, one service of 10,000, max_parallel 500, healthy after 2 s: time over the ideal.

The nodes are simulated, in a process of their own: each starts what is placed on it at once, follows its health by its
own clock, and reports it through the real bus. The clock runs from the submission of the new version until a replaying
process sees its deployment successful. The ideal is 20 steps of 2 s. Every record of the log is checked afterwards:
never less than 9,500 healthy, none healthy before its time. The figure to reach: 1.2 times the ideal.
"""

import asyncio
import time
from typing import Any

import numpy as np

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fault_load import count
from bench.harness.fleet_process import n1_standard_8
from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    await_checkpoint,
    job_body,
    on_fresh_clusters,
    start_settled_fleet,
    wait_until_idle,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.sample_jobs import sample_job
from bench.harness.submit import submit_accepted
from schemas.allocations import AllocationsHealthChanged
from schemas.base import JobId
from schemas.envelope import LogRecord
from schemas.plans import PlanCommitted
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.invariants import check
from shared.core.state.tables.allocations import HEALTHY, RUNNING
from shared.fleet.profile import FleetProfile

NODES = 1_000
COUNT = 10_000
#: From a tenth of the size on; a smaller one has fewer.
STEPS = 20
STEPS_MIN = 2
MIN_HEALTHY_S = 2
RUNS = 3
LIMIT_S = 180.0
#: Between the first version and the update of it.
SETTLE_S = 5.0
NEEDS = HostRequirements(memory_mib=2_048)
_JOB = JobId("shop")
_SECOND_NS = 1_000_000_000


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes, count and max_parallel."""
    nodes = max(int(NODES * size), 10)
    steps = min(max(int(STEPS * size * 10), STEPS_MIN), STEPS)
    max_parallel = max(int(COUNT * size) // steps, 1)
    total = max_parallel * steps

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, total, max_parallel)

    wanted = {"nodes": nodes, "allocations": total, "max_parallel": max_parallel, "steps": steps}
    return on_fresh_clusters(once, runs, {**wanted, "workers": max(workers, 1)}, workers)


def _service(total: int, max_parallel: int, seconds: int) -> dict[str, Any]:
    """The service; another command is another version, which replaces every allocation."""
    update = {
        "MaxParallel": max_parallel,
        "HealthCheck": "task_states",
        "MinHealthyTime": MIN_HEALTHY_S * _SECOND_NS,
        "HealthyDeadline": 60 * _SECOND_NS,
        "ProgressDeadline": 120 * _SECOND_NS,
    }
    command = f"/bin/sleep {seconds}"
    return sample_job(_JOB, count=total, cpu_mhz=20, memory_mib=15, command=command, Update=update)


async def _once(cluster: BenchCluster, nodes: int, total: int, max_parallel: int) -> BenchRun:
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, n1_standard_8(nodes), FleetProfile())
        await submit_accepted(public.bus, _body(_service(total, max_parallel, 3600), 0))
        await wait_until(lambda: _is_deployed(observer, 0), "the first version", LIMIT_S)
        # Every node has just reported the health of all that it runs, and waits for the acknowledgement.
        await asyncio.sleep(SETTLE_S)
        await wait_until_idle(cluster.all_pids())
        measured = Measurement(cluster, with_fleet=True)
        start = await measured.start()
        await submit_accepted(public.bus, _body(_service(total, max_parallel, 3601), 1))
        await wait_until(lambda: _is_deployed(observer, 1), "the second version", LIMIT_S)
        took_s = time.perf_counter() - start
        await measured.stop()
        cluster.sample(until=True)
        await await_checkpoint(observer, LIMIT_S)
        audit = await _audited(cluster)
        table = observer.state.allocations
        rows = table.rows_of(_JOB)
        rows = rows[table.is_wanted(rows)]
        versions = {table.groups.versions[ref] for ref in table.group[rows].tolist()}
        checks = {
            "counts_exact": count(observer, {_JOB: total}).exact,
            "all_of_the_new_version": versions == {1},
            "never_below": audit.healthy_min >= total - max_parallel,
            "none_healthy_early": audit.health_min_ns >= MIN_HEALTHY_S * _SECOND_NS,
            "each_replaced_once": audit.placed == total,
            "within_capacity": not check(observer.state),
            "replay_equals_live": audit.replica.state.hashes() == observer.state.hashes(),
            "nobody_restarted": measured.same_processes,
        }
        ideal_s = total // max_parallel * MIN_HEALTHY_S
        result = {
            "over_ideal": took_s / ideal_s,
            "update_s": took_s,
            "ideal_s": ideal_s,
            "healthy_min": audit.healthy_min,
            "plans": audit.plans,
            "placed_to_healthy_p50_s": audit.health_ns(0.5) / 1e9,
            "placed_to_healthy_p99_s": audit.health_ns(0.99) / 1e9,
        }
        return await measured.make_run(observer, result, checks)


def _body(job: dict[str, Any], version: int) -> bytes:
    return job_body(job).replace(
        b'"SubmissionID":"s-shop"', b'"SubmissionID":"s-shop-%d"' % version
    )


def _is_deployed(observer: LogObserver, version: int) -> bool:
    """Whether the deployment of a version is over. Raises RuntimeError when it did not succeed."""
    found = observer.state.deployments.latest_of(_JOB)
    if found is None or found.version < version or found.is_active:
        return False
    if found.version > version or found.status != "successful":
        raise RuntimeError(f"deployment of version {found.version}: {found.status}, {found.reason}")
    return True


class UpdateAudit:
    """What the log says of the second version, looked at after each of its records."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.healthy_min = 1 << 62
        self.placed = self.plans = 0
        #: from the plan that placed an allocation to its health, ns.
        self._health_ns: list[int] = []
        self._placed_ns: dict[int, int] = {}
        self._is_updating = False

    @property
    def health_min_ns(self) -> int:
        """The shortest time from a placement to its health."""
        return min(self._health_ns, default=0)

    def health_ns(self, part: float) -> float:
        """The time from a placement to its health at a part of all."""
        return float(np.quantile(self._health_ns, part)) if self._health_ns else 0.0

    def take(self, record: Record) -> None:
        """Apply the next record of the log, and look at the state behind it."""
        decoded = self.replica.apply(record)
        if decoded is not None and decoded.events:
            self._look(decoded)

    def _look(self, record: LogRecord) -> None:
        state = self.replica.state
        table, job = state.allocations, state.jobs.by_id.get(_JOB)
        if job is None or job.version != 1:
            return
        for event in record.events:
            if isinstance(event, PlanCommitted):
                self.plans += 1
                self.placed += sum(sum(part.counts) for part in event.placements)
                self._placed_ns[state.seq] = record.t_ns
            elif isinstance(event, AllocationsHealthChanged):
                keys = table.key[np.asarray(event.rows, dtype=np.int32)]
                self._heal(state.policy.incarnations.seqs(keys).tolist(), record.t_ns)
        rows = table.rows_of(_JOB)
        rows = rows[table.is_wanted(rows)]
        healthy = (table.client[rows] == RUNNING) & (table.health[rows] == HEALTHY)
        self.healthy_min = min(self.healthy_min, int(np.count_nonzero(healthy)))

    def _heal(self, placed_seqs: list[int], now_ns: int) -> None:
        placed_ns = self._placed_ns
        self._health_ns += [now_ns - placed_ns[seq] for seq in placed_seqs if seq in placed_ns]


async def _audited(cluster: BenchCluster) -> UpdateAudit:
    """Replay the log from its beginning as the public may read it, with a look at every record."""
    audit = UpdateAudit()
    async with cluster.client() as client:
        record: Record
        async for record in client.read_log():
            audit.take(record)
    return audit
