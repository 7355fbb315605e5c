"""Runs of a benchmark on fresh clusters: a settled fleet, jobs, what the processes used meanwhile, and the proofs.

The clock of a benchmark starts once the fleet is registered and all processes are idle. Next: `cluster.py`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from bench.harness.cluster import (
    BenchCluster,
    ProcessUsage,
    cpu_between,
    process_usage,
    run_on_cluster,
    wait_until,
)
from bench.harness.fleet_process import n1_standard_8
from bench.harness.log_observer import LogObserver
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from schemas.base import JobId
from schemas.jobs import Verdict
from schemas.nodes import NodeSpec
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.invariants import check
from shared.fleet.profile import FleetProfile

#: A run on a cluster.
ClusterRun = Callable[[BenchCluster], Awaitable[BenchRun]]


def on_fresh_clusters(
    once: ClusterRun, runs: int, size: Mapping[str, int], workers: int = 1, digits: int = 4
) -> BenchOutcome:
    """Run `once` on a fresh cluster each time, and merge the runs."""
    settings = {"schedulers": max(workers, 1)}
    return repeat_runs(lambda: run_once(once, settings), runs, size, digits)


def run_once(
    once: ClusterRun, settings: Mapping[str, int], kind: type[BenchCluster] = BenchCluster
) -> BenchRun:
    """Run `once` on one fresh cluster."""
    found: list[BenchRun] = []

    async def story(cluster: BenchCluster) -> None:
        found.append(await once(cluster))

    run_on_cluster(story, settings, kind)
    return found[0]


class Measurement:
    """CPU time, memory and log bytes of a cluster's processes from `start` to `stop`."""

    def __init__(self, cluster: BenchCluster, *, with_fleet: bool = False) -> None:
        self._cluster = cluster
        self._read_pids = cluster.all_pids if with_fleet else cluster.pids
        self.pids = self._read_pids()
        self.before = self.after = ProcessUsage({}, {})
        self.log_bytes = 0
        self.start_s = 0.0

    async def start(self) -> float:
        """Start the clock; returns time.perf_counter."""
        self.pids = self._read_pids()
        self.log_bytes = (await self._cluster.log_state()).bytes
        self.before = process_usage(self.pids)
        self.start_s = time.perf_counter()
        return self.start_s

    async def stop(self) -> None:
        """Stop the clock."""
        self.after = process_usage(self._read_pids())
        self.log_bytes = (await self._cluster.log_state()).bytes - self.log_bytes

    @property
    def same_processes(self) -> bool:
        """Whether no process was restarted since `start`."""
        return self.pids == self._read_pids()

    async def make_run(
        self, observer: LogObserver, result: dict[str, float], checks: dict[str, bool]
    ) -> BenchRun:
        """Create the run's record."""
        return BenchRun(
            result=result,
            checks=checks,
            cpu_s=cpu_between(self.before, self.after),
            rss_mib=self.after.rss_mib,
            log_bytes=self.log_bytes,
            fsync=await log_is_fsynced(self._cluster, observer),
        )


def job_body(job: Mapping[str, Any]) -> bytes:
    """Encode the submission of a job; its id is `s-` and the job's."""
    return msgspec.json.encode({"Job": job, "SubmissionID": f"s-{job['ID']}"})


async def start_settled_fleet(
    cluster: BenchCluster,
    observer: LogObserver,
    fleet: int | list[NodeSpec],
    profile: FleetProfile | None = None,
) -> None:
    """Wait until the fleet is up, proved by a checkpoint, and the processes are idle. A number: of n1-standard-8.

    With `profile` its nodes run what is placed on them.
    """
    specs = n1_standard_8(fleet) if isinstance(fleet, int) else fleet
    nodes = len(specs)
    # Of a small fleet there is one checkpoint, which may come before the next look.
    checked = observer.replica.checked
    cluster.start_fleet(specs, profile)
    await wait_until(
        lambda: observer.state.fleet.ready().sum() == nodes, f"{nodes} nodes ready", 60
    )
    await wait_until(lambda: observer.replica.checked > checked, "a checkpoint of the fleet", 120)
    await wait_until_idle(cluster.pids())
    cluster.sample()


async def wait_until_idle(pids: Mapping[str, int]) -> None:
    """Wait until processes use little CPU, at most 30 seconds."""
    for _ in range(60):
        before = process_usage(pids)
        await asyncio.sleep(0.5)
        if sum(cpu_between(before, process_usage(pids)).values()) < 0.3:
            return


async def verify_run(
    cluster: BenchCluster,
    observer: LogObserver,
    verdicts: Sequence[Verdict],
    wanted: Mapping[str, int],
) -> dict[str, bool]:
    """Check the state by the next checkpoint and by a second replay from the start.

    `wanted`: allocations by job.
    """
    cluster.sample(until=True)
    await await_checkpoint(observer, 60)
    state = observer.state
    again = await replay_as_far(cluster, observer.replica)
    counts = state.allocations
    exact = all(len(counts.rows_of(JobId(name))) == count for name, count in wanted.items())
    accepted = sum(verdict.status == "accepted" for verdict in verdicts)
    return {
        "none_refused": not observer.refused and not observer.cut,
        "counts_exact": exact and observer.placed == sum(wanted.values()),
        "within_capacity": not check(state),
        "replay_equals_live": again.state.hashes() == state.hashes() and again.checked > 0,
        "nothing_lost": len(verdicts) == accepted == len(wanted),
    }


async def await_checkpoint(observer: LogObserver, within_s: float) -> None:
    """Wait until a checkpoint proves the state as it is now."""
    replica, state = observer.replica, observer.state
    await wait_until(
        lambda: replica.checked_seq > state.seq, "a checkpoint behind the last record", within_s
    )


async def replay_log(cluster: BenchCluster) -> Replica:
    """Replay the log from its beginning as the public may read it. Raises LogError, StateDiverged."""
    again = Replica()
    async with cluster.client() as client:
        record: Record
        async for record in client.read_log():
            again.apply(record)
    return again


async def replay_as_far(cluster: BenchCluster, live: Replica) -> Replica:
    """Replay the log as far as a live replica is: records may come meanwhile. Raises as `replay_log` does."""
    while True:
        again = await replay_log(cluster)
        await wait_until(partial(_has_reached, live, again.seq), "the end of the replay", 60)
        if live.seq == again.seq:
            return again


def _has_reached(replica: Replica, seq: int) -> bool:
    return replica.seq >= seq


async def log_is_fsynced(cluster: BenchCluster, observer: LogObserver) -> bool:
    """Whether the lease record says that the server syncs each write."""
    async with cluster.client() as client:
        epoch = observer.replica.chain.epoch
        async for record in client.read_log(epoch, epoch):
            lease = msgspec.json.decode(record.data).get("lease") or {}
            return bool(lease.get("fsync"))
    return False
