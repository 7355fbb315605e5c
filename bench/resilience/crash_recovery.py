"""P13, recovery: kill -9 of every process and of the bus while a million allocations come in; nothing lost or doubled.

For each victim a part of the million is submitted, and the victim is killed once a quarter of it is placed (intake:
once a job is registered). The figure is the longest time after the kill without a fact that needs the victim: any
commit (applier, bus), a registration (intake), a placement (workers, broker), an answer (view), leadership (heartbeat,
broker). The supervisor restarts the killed process, as under `caravan up`. On three servers the leader of the log's
stream is killed, then all three. Bars: 1 s a process, 3 s the applier's takeover and a single server, 10 s a stream's
leader.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bench.harness.cluster import BenchCluster, run_on_cluster, wait_until
from bench.harness.fault_load import AllocationCounts, count, nest_results
from bench.harness.fleet_process import n1_standard_8
from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import Measurement, await_checkpoint, job_body, replay_log
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.harness.submit import SUBMITTERS, submit_all, submit_with_retries
from bench.harness.three_servers import ThreeServerCluster, run_on_three_servers
from bench.throughput.million_placements import COUNT, GROUPS, JOBS, NODES, c1m_job
from shared.bus.connection.public_client import Client
from shared.core.state.invariants import check
from shared.errors import BusUnavailable
from shared.protocol import subjects

RUNS = 3
#: processes to kill, by the name of their figure; `applier` is the holder of the write lease.
ALONE = (
    "applier",
    "scheduler-1",
    "scheduler-2",
    "intake",
    "eval_broker",
    "heartbeat",
    "view",
    "bus",
)
TRIO = ("r3_leader", "r3_all")
LIMIT_S = 120.0
_TRIES = 5
_ASK_EVERY_S = 0.02
NEEDS = HostRequirements(memory_mib=4_096)

_WORKERS = ("scheduler-1", "scheduler-2", "eval_broker")
#: Victims that are polled until they serve again: facts alone do not show it, since workers continue with their leases.
_ASKED = ("view", "heartbeat", "eval_broker")


def run(size: float, runs: int) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 8 * len(ALONE))

    def once() -> BenchRun:
        parts: list[BenchRun] = []

        async def alone(cluster: BenchCluster) -> None:
            parts.append(await _KillScenario(cluster, nodes, jobs // len(ALONE)).play(ALONE))

        async def trio(cluster: ThreeServerCluster) -> None:
            parts.append(await _KillScenario(cluster, nodes, jobs // len(ALONE)).play(TRIO))

        run_on_cluster(alone, {"appliers": 2, "schedulers": 2})
        run_on_three_servers(trio)
        return _both(*parts)

    placements = jobs // len(ALONE) * (len(ALONE) + len(TRIO)) * GROUPS * COUNT
    wanted = {"nodes": nodes, "kills": len(ALONE) + len(TRIO), "placements": placements}
    return nest_results(repeat_runs(once, runs, wanted))


class _KillScenario:
    """One cluster, several victims."""

    def __init__(self, cluster: BenchCluster, nodes: int, jobs: int) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._jobs = jobs
        self._wanted: dict[str, int] = {}
        self._recovered: dict[str, float] = {}
        self._killed: set[int] = set()
        self._late = False

    async def play(self, victims: Sequence[str]) -> BenchRun:
        """Kill one after the other under load; then check the counts."""
        cluster = self._cluster
        async with cluster.observer() as observer, cluster.client() as public:
            cluster.start_fleet(n1_standard_8(self._nodes))
            await wait_until(
                lambda: observer.state.fleet.ready().sum() == self._nodes, "a fleet", 120
            )
            measured = Measurement(cluster)
            await measured.start()
            for victim in victims:
                # A process that was idle when it died proves nothing: try again with more jobs.
                for more in range(_TRIES):
                    if await self._part(observer, public, victim, more):
                        break
                else:
                    self._late = True
            await measured.stop()
            state = observer.state
            await await_checkpoint(observer, LIMIT_S)
            counts = count(observer, self._wanted)
            checks = {
                "counts_exact": counts.exact,
                "within_capacity": not check(state),
                "killed_at_work": not self._late,
                "replay_equals_live": (await replay_log(cluster)).state.hashes() == state.hashes(),
            }
            result = {**self._recovered, "lost": counts.lost, "doubled": counts.doubled}
            return await measured.make_run(observer, result, checks)

    async def _part(self, observer: LogObserver, public: Client, victim: str, more: int) -> bool:
        """One victim: submit, kill, wait until all of it is placed. Returns whether it was killed at its work."""
        jobs = self._jobs << more
        names = [f"{victim}-{more}-{at}" for at in range(jobs)]
        self._wanted |= dict.fromkeys(names, GROUPS * COUNT)
        want = jobs * GROUPS * COUNT
        bodies = [job_body({**c1m_job(0), "ID": name, "Name": name}) for name in names]
        await self._quiet()
        base, registered = observer.placed, len(observer.registered_at)
        # Few submitters for intake: else all jobs are registered before the kill.
        submitters = 4 if victim == "intake" else SUBMITTERS
        submitting = asyncio.create_task(
            submit_all(public.bus, bodies, submitters, submit_with_retries)
        )
        if victim == "intake":
            await wait_until(
                lambda: len(observer.registered_at) > registered, "a registration", LIMIT_S
            )
        else:
            await wait_until(
                lambda: observer.placed >= base + want // 4, "a quarter placed", LIMIT_S
            )
        killed_at = await self._kill(observer, victim)
        if victim == "intake":
            # Jobs that it had already forwarded are registered without it: at most one a submitter.
            left = jobs - (len(observer.registered_at) - registered)
            is_late = left <= submitters
        else:
            is_late = observer.placed >= base + want
        again = asyncio.create_task(self._again(victim))
        verdicts = await submitting
        assert all(one.status == "accepted" for one in verdicts), "a submission was refused"
        await wait_until(
            lambda: count(observer, dict.fromkeys(names, GROUPS * COUNT)).lost == 0,
            f"all of {victim}",
            LIMIT_S,
        )
        back_at = await again
        facts = self._facts(observer, victim)
        gap = back_at - killed_at if victim in _ASKED else 0.0
        if facts is not None:
            gap = max(gap, _longest(killed_at, facts))
        self._recovered[f"recover_s.{victim}"] = gap
        return not is_late and gap < LIMIT_S

    def _facts(self, observer: LogObserver, victim: str) -> list[float] | None:
        """Moments of what only exists when the victim's work is done; None where it leaves no facts now."""
        if victim == "intake":
            return observer.registrations
        if victim in _WORKERS:
            return [at for at, _ in observer.seen]
        return None if victim in ("heartbeat", "view") else observer.commits

    async def _quiet(self) -> None:
        """Wait until all killed processes run again."""
        cluster = self._cluster
        wanted = len(cluster.children)
        await wait_until(lambda: len([c for c in cluster.children if c.pid]) == wanted, "all run")

    async def _kill(self, observer: LogObserver, victim: str) -> float:
        cluster = self._cluster
        pids = cluster.pids()
        if victim == "applier":
            found = [int(observer.replica.chain.holder.split("-")[1])]
        elif victim == "r3_leader":
            assert isinstance(cluster, ThreeServerCluster)
            found = [pids[await cluster.leader_of_log()]]
        elif victim == "r3_all":
            found = [pid for name, pid in pids.items() if name.startswith("bus")]
        else:
            found = [pids[victim]]
        self._killed.update(found)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return time.perf_counter()

    async def _again(self, victim: str) -> float:
        """Poll a victim of `_ASKED` until it serves again; returns the time."""
        asks: dict[str, Callable[[], Awaitable[bool]]] = {
            "view": self._answers,
            "heartbeat": partial(self._leads, "heartbeat"),
            "eval_broker": partial(self._leads, "eval_broker"),
        }
        if victim in _ASKED:
            deadline = time.perf_counter() + LIMIT_S
            while time.perf_counter() < deadline:
                with contextlib.suppress(BusUnavailable):
                    if await asks[victim]():
                        break
                await asyncio.sleep(0.01)
        return time.perf_counter()

    async def _answers(self) -> bool:
        """Whether a question is answered; asked again and again, so that no ask's own time limit is measured."""
        async with self._cluster.client() as public:
            asked = [
                asyncio.create_task(self._ask(public, nth * _ASK_EVERY_S)) for nth in range(10)
            ]
            try:
                first, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                return first.pop().result()
            finally:
                for one in asked:
                    one.cancel()

    async def _ask(self, public: Client, after_s: float) -> bool:
        await asyncio.sleep(after_s)
        return bool(await public.request(subjects.query("policy"), {}, 1.0))

    async def _leads(self, role: str) -> bool:
        """Whether the leader is the process that runs now."""
        pid = await self._cluster.leader_pid(role)
        return pid == self._cluster.pids().get(role) and pid not in self._killed


def _longest(start: float, moments: Sequence[float]) -> float:
    """The longest time between two neighbours, from `start` on. At least one moment lies behind it."""
    after = [start, *(at for at in moments if at > start)]
    return max((b - a for a, b in itertools.pairwise(after)), default=float("inf"))


def _both(one: BenchRun, other: BenchRun) -> BenchRun:
    """One run of both clusters."""
    counts = AllocationCounts(
        lost=int(one.result["lost"] + other.result["lost"]),
        doubled=int(one.result["doubled"] + other.result["doubled"]),
    )
    return BenchRun(
        result={**one.result, **other.result, "lost": counts.lost, "doubled": counts.doubled},
        checks={name: holds and other.checks[name] for name, holds in one.checks.items()},
        cpu_s=one.cpu_s,
        rss_mib=one.rss_mib,
        log_bytes=one.log_bytes + other.log_bytes,
        fsync=one.fsync and other.fsync,
    )
