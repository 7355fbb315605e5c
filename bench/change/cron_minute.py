"""P24, the minute of cron: 5,000 periodic jobs due in one minute, with a takeover of the timekeeper in its middle.

First all are due at the same instant, then spread over the seconds of a minute; 50 ms before its middle the timekeeper
that leads is killed, and the one that stands by continues. The lag of a launch is the time from its planned
instant until a replaying process sees the child registered: `p50_ms` and `p99_ms` of the minute, takeover included,
`burst_p50_ms` and `burst_p99_ms` of the one instant. Nothing may be launched twice or early, or be lost. The figure to
reach: 250 ms for 99 of 100.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fleet_process import n1_standard_8
from bench.harness.host_info import HostRequirements
from bench.harness.load_generator import quantile
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    job_body,
    run_once,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.harness.sample_jobs import sample_job
from bench.harness.submit import submit_all

NODES = 100
JOBS = 5_000
MINUTE_S = 60
#: Shorter than a lease: a small run too has seconds before and behind its takeover.
MINUTE_MIN_S = 8
RUNS = 3
LIMIT_S = 120.0
NEEDS = HostRequirements(memory_mib=2_048)
_SECOND_NS = 1_000_000_000
KILLED_BEFORE_NS = _SECOND_NS // 20
#: What a busy machine does in a second: parents registered before the one instant, launches before the minute.
_REGISTERED_PER_S, _LAUNCHED_PER_S = 400, 1_000


def run(size: float, runs: int) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales jobs and the minute."""
    jobs, minute_s = max(int(JOBS * size), 20), max(round(MINUTE_S * size), MINUTE_MIN_S)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _CronMinute(cluster, jobs, minute_s).play()

    settings = {"schedulers": 1, "timekeepers": 2}
    wanted = {"nodes": NODES, "jobs": jobs, "launches": 2 * jobs, "minute_s": minute_s}
    return repeat_runs(lambda: run_once(once, settings), runs, wanted)


class _CronMinute:
    """One cluster: parents, the one instant, the minute."""

    def __init__(self, cluster: BenchCluster, jobs: int, minute_s: int) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._minute_s = minute_s
        self._burst_ns = self._minute_ns = 0

    async def play(self) -> BenchRun:
        """Register the parents, wait for their launches, and check them."""
        cluster, jobs = self._cluster, self._jobs
        async with cluster.observer() as observer, cluster.client() as public:
            await start_settled_fleet(cluster, observer, n1_standard_8(NODES))
            self._plan_instants()
            bodies = [job_body(self._parent(at)) for at in range(jobs)]
            verdicts = await submit_all(public.bus, bodies)
            registered_ns = time.time_ns()
            measured = Measurement(cluster)
            await measured.start()
            killed = await self._kill_leader(self._minute_ns + self._minute_s // 2 * _SECOND_NS)
            await wait_until(
                lambda: len(observer.launched) >= 2 * jobs, "all launches", self._minute_s + LIMIT_S
            )
            await measured.stop()
            children = {child: 1 for child, *_ in observer.launched}
            await wait_until(lambda: observer.placed >= len(children), "all placed", LIMIT_S)
            wanted = {f"cron-{at}": self._instants(at) for at in range(jobs)}
            checks = {
                **await verify_run(cluster, observer, verdicts, children),
                **launch_checks(observer.launched, wanted),
                "none_skipped": not any(
                    parent.skips for parent in observer.state.launches.by_parent.values()
                ),
                "nothing_lost": [one.status for one in verdicts] == ["accepted"] * jobs,
                "registered_in_time": registered_ns < self._burst_ns,
                "taken_over": await cluster.leader_pid("timekeeper") != killed,
            }
            return await measured.make_run(observer, self._figures(observer), checks)

    async def _kill_leader(self, instant_ns: int) -> int:
        """Kill the timekeeper that leads just before an instant, which only its successor can meet."""
        await _sleep_until(instant_ns - _SECOND_NS)
        leader = await self._cluster.leader_pid("timekeeper")
        await _sleep_until(instant_ns - KILLED_BEFORE_NS)
        os.kill(leader, signal.SIGKILL)
        return leader

    def _plan_instants(self) -> None:
        """Have the first instant lie behind all registrations."""
        start_s = int(time.time()) + 5 + self._jobs // _REGISTERED_PER_S
        self._burst_ns = start_s * _SECOND_NS
        self._minute_ns = (start_s + 5 + self._jobs // _LAUNCHED_PER_S) * _SECOND_NS

    def _instants(self, at: int) -> tuple[int, int]:
        """The planned instants of a parent, ns."""
        return self._burst_ns, self._minute_ns + at % self._minute_s * _SECOND_NS

    def _parent(self, at: int) -> dict[str, Any]:
        job = sample_job(
            f"cron-{at}", count=1, cpu_mhz=5, memory_mib=10, command="/bin/true", Type="batch"
        )
        specs = [cron_spec(instant) for instant in self._instants(at)]
        return {**job, "Periodic": {"Specs": specs, "TimeZone": "UTC"}}

    def _figures(self, observer: LogObserver) -> dict[str, float]:
        lags: dict[bool, list[float]] = {True: [], False: []}
        for _, at_ns, seen_ns in observer.launched:
            lags[at_ns == self._burst_ns].append((seen_ns - at_ns) / 1e6)
        burst, minute = sorted(lags[True]), sorted(lags[False])
        return {
            "p50_ms": quantile(minute, 0.5),
            "p99_ms": quantile(minute, 0.99),
            "max_ms": minute[-1],
            "burst_p50_ms": quantile(burst, 0.5),
            "burst_p99_ms": quantile(burst, 0.99),
        }


def launch_checks(
    launched: Sequence[tuple[str, int, int]], wanted: Mapping[str, Sequence[int]]
) -> dict[str, bool]:
    """Each parent has one child for each of its instants, none before its time. `launched`: as the observer's."""
    names = Counter(
        f"{parent}/periodic-{instant // _SECOND_NS}"
        for parent, instants in wanted.items()
        for instant in instants
    )
    return {
        "each_launched_once": Counter(child for child, *_ in launched) == names,
        "none_early": all(seen_ns >= at_ns for _, at_ns, seen_ns in launched),
    }


def cron_spec(instant_ns: int) -> str:
    """The cron spec of this second alone."""
    when = datetime.fromtimestamp(instant_ns // _SECOND_NS, UTC)
    return f"{when.second} {when.minute} {when.hour} {when.day} {when.month} * {when.year}"


async def _sleep_until(at_ns: int) -> None:
    await asyncio.sleep(max(0.0, (at_ns - time.time_ns()) / 1e9))
