"""Overload: three times what is sustained, for a minute; nothing lost, every queue bounded, and back within seconds.

First, 64 submitters that wait for their verdicts, for ten seconds: the rate at which their single jobs are placed
is the sustained rate. Then three times this rate on a fixed schedule, for a minute. Each submission is repeated
until it has a verdict: accepted, then it is placed and runs once; or `unavailable`, then nothing of it was kept.
Meanwhile every queue is read four times a second (`bench/harness/queue_bounds.py` lists the queues and their
bounds). Stops are sent, which must not be refused, and in the middle some nodes die: exactly these must be
detected, and their allocations placed again. Recovery runs from the end of the flood until a single job is placed
within a quarter of a second (`calm_again_s`), everything is placed (`drained_s`), and every queue is empty
(`empty_s`).
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fault_load import await_down, down_rows, nest_results
from bench.harness.fleet_process import n1_standard_8
from bench.harness.heartbeat_process import HeartbeatProcess
from bench.harness.host_info import HostRequirements
from bench.harness.load_generator import Body, LoadGenerator, body_template, quantile
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    await_checkpoint,
    job_body,
    on_fresh_clusters,
    replay_log,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.queue_bounds import ClusterSize, QueueWatermarks, high_water, quantile_of
from bench.harness.submit import SUBMITTERS, submit_with_retries
from bench.throughput.single_pods import pod
from schemas.base import JobId, NodeId
from schemas.jobs import Verdict
from shared.bus.connection.nats_client import BusClient, status
from shared.core.state.invariants import check
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.protocol import subjects

RUNS = 1
NODES = 5_000
TIMES = 3
FLOOD_S = 60.0
SUSTAIN_S = 10.0
#: One of so many nodes dies in the middle of the flood.
LOST_PART = 250
#: Submissions between two looks at what was answered.
A_TURN = 500
#: A stop is sent so often.
STOP_S = 0.1
#: A lone job placed within this is what an idle cluster does.
CALM_S = 0.25
LIMIT_S = 180.0
NEEDS = HostRequirements(memory_mib=6_144)

_ANSWER_S = 10.0
_VERDICT = msgspec.json.Decoder(Verdict)


def run(size: float, runs: int) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and times."""
    nodes = max(int(NODES * size), 100)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, min(1.0, size))

    wanted = {"nodes": nodes, "flood_s": int(FLOOD_S * min(1.0, size))}
    return nest_results(on_fresh_clusters(once, runs, wanted))


async def _once(cluster: BenchCluster, nodes: int, part: float) -> BenchRun:
    specs = n1_standard_8(nodes)
    async with cluster.observer() as observer, cluster.client() as public:
        with HeartbeatProcess(cluster.data_dir, cluster.url, specs) as beats:
            ready = observer.state.fleet.ready
            await wait_until(lambda: ready().sum() == nodes, f"{nodes} nodes", 120)
            flood = _Flood(public.bus, body_template(pod(cpu_mhz=20, memory_mib=15)), observer)
            await flood.sustain(SUSTAIN_S * part)
            measured = Measurement(cluster)
            await measured.start()
            marks = QueueWatermarks(cluster)
            await marks.look()
            planned = marks.planned
            watching = asyncio.create_task(marks.watch())
            lost = [spec.node_id for spec in specs[::LOST_PART]]
            dying = asyncio.create_task(_die(observer, beats, lost, FLOOD_S * part / 2))
            await flood.run(FLOOD_S * part)
            back = await _recovered(flood, marks)
            detected = await dying
            watching.cancel()
            await measured.stop()
        state = observer.state
        await await_checkpoint(observer, LIMIT_S)
        over = marks.over(
            ClusterSize(nodes=nodes, jobs=flood.jobs, stops=len(flood.stopped), workers=1)
        )
        if failed := over + marks.unseen():
            print(", ".join(failed), file=sys.stderr)
        checks = {
            **flood.checks(),
            "the_dead_noticed": len(detected) == len(lost),
            "nobody_else_down": down_rows(observer) == set(_rows(observer, lost)),
            "queues_bounded": not over,
            "queues_all_seen": not marks.unseen(),
            "queues_empty_again": not marks.standing(),
            "nobody_cut_off": set(marks.connects.values()) == {1.0},
            "within_capacity": not check(state),
            "nobody_restarted": measured.same_processes,
            "replay_equals_live": (await replay_log(cluster)).state.hashes() == state.hashes(),
        }
        result = {
            **flood.figures(),
            "leased_to_planned_p99_s": quantile_of(planned, marks.planned, 0.99),
            "detect_p99_s": quantile(sorted(detected), 0.99),
            **back,
            **high_water(marks),
        }
        return await measured.make_run(observer, result, checks)


class _Flood:
    """Submissions on a schedule, stops beside them, and what became of each."""

    def __init__(self, bus: BusClient, body: Body, observer: LogObserver) -> None:
        self._bus = bus
        self._body = body
        self._observer = observer
        self.sustained_per_s = self.offered_times = 0.0
        #: number of the first job of the flood; those before it were submitted by `sustain`.
        self.first = self.sent = 0
        self.accepted: set[int] = set()
        #: number -> code of the refusal.
        self.turned_away: dict[int, str] = {}
        #: lone jobs that tested whether the cluster is idle.
        self.lone = 0
        #: number of a job -> how long its stop took, s.
        self.stopped: dict[int, float] = {}
        self._stops = 0
        self.stops_refused = 0

    @property
    def jobs(self) -> int:
        """Jobs that were accepted."""
        return self.first + len(self.accepted) + self.lone

    @property
    def is_settled(self) -> bool:
        """Whether each has its verdict."""
        known = len(self.accepted) + len(self.turned_away)
        return known == self.sent and len(self.stopped) == self._stops

    async def sustain(self, seconds: float) -> None:
        """Measure the rate of submitters that wait for their verdicts."""
        arrivals, start, jobs = LoadGenerator(self._bus, self._body), time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            await arrivals.closed(range(jobs, jobs + 1_000), SUBMITTERS)
            jobs += 1_000
        await wait_until(lambda: self._observer.placed >= jobs, "all placed", LIMIT_S)
        self.first = jobs
        self.sustained_per_s = jobs / (self._observer.time_of(jobs) - start)

    async def run(self, seconds: float) -> None:
        """Send each job when it is due, regardless of the answers."""
        start = time.perf_counter()
        while (now := time.perf_counter() - start) < seconds:
            # Answers must be read between sends, else the server closes the connection; this lowers `offered_times`.
            for _ in range(min(A_TURN, int(now * TIMES * self.sustained_per_s) - self.sent)):
                self._ask(self.first + self.sent)
                self.sent += 1
            if self._stops < min(now / STOP_S, self.first):
                self._stop(self._stops, time.perf_counter())
                self._stops += 1
            await asyncio.sleep(0.002)
        self.offered_times = self.sent / seconds / self.sustained_per_s

    def checks(self) -> dict[str, bool]:
        """Whether each job was treated as its verdict says."""
        flood = range(self.first, self.first + self.sent)
        before = range(self.first)
        codes = set(self.turned_away.values())
        return {
            "each_runs_once": all(self._held(at) == (at in self.accepted) for at in flood),
            "each_stopped_one_is_gone": all(
                self._held(at) == (at not in self.stopped) for at in before
            ),
            "each_has_a_verdict": self.is_settled,
            "turned_away_for_now": codes <= {"unavailable"},
            "no_stop_turned_away": not self.stops_refused,
        }

    def figures(self) -> dict[str, float]:
        """The figures of the flood."""
        seen = self._observer
        names = [f"pod-{at}" for at in sorted(self.accepted)]
        waits = sorted(seen.first_of[name] - seen.registered_at[name] for name in names)
        stops = sorted(self.stopped.values())
        return {
            "sustained_per_s": self.sustained_per_s,
            "offered": self.sent,
            "offered_times": self.offered_times,
            "accepted": len(self.accepted),
            "turned_away": len(self.turned_away),
            "registered_to_placed_p50_s": quantile(waits, 0.5),
            "registered_to_placed_p99_s": quantile(waits, 0.99),
            "stop_p50_s": quantile(stops, 0.5),
            "stop_p99_s": quantile(stops, 0.99),
        }

    @property
    def is_placed(self) -> bool:
        """Whether every allocation that should run is placed, those of lost nodes included."""
        table = self._observer.state.allocations
        rows = table.live_rows()
        held = (table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]
        return int(np.count_nonzero(held)) == self.jobs - len(self.stopped)

    async def calm(self) -> float:
        """When a lone job was first placed as fast as on an idle cluster."""
        observer = self._observer
        while True:
            name = f"calm-{self.lone}"
            start = time.perf_counter()
            await submit_with_retries(self._bus, job_body(pod(name)))
            self.lone += 1
            await wait_until(
                partial(observer.first_of.__contains__, name), f"{name} placed", LIMIT_S
            )
            if observer.first_of[name] - start <= CALM_S:
                return start
            await asyncio.sleep(0.1)

    def _held(self, number: int) -> int:
        """Allocations of a job that should run and have not ended."""
        table = self._observer.state.allocations
        rows = table.rows_of(JobId(f"pod-{number}"))
        return int(np.count_nonzero((table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]))

    def _ask(self, number: int) -> None:
        def done(headers: bytes, answer: bytes | None) -> None:
            verdict = _read(headers, answer)
            if verdict is None:
                asyncio.get_running_loop().call_later(0.5, self._ask, number)
            elif verdict.status == "accepted":
                self.accepted.add(number)
            else:
                self.turned_away[number] = verdict.error.code if verdict.error else "refused"

        self._bus.call(subjects.api_jobs("submit"), self._body(number), done, timeout_s=_ANSWER_S)

    def _stop(self, number: int, since: float) -> None:
        def done(headers: bytes, answer: bytes | None) -> None:
            verdict = _read(headers, answer)
            if verdict is not None and verdict.status == "accepted":
                self.stopped[number] = time.perf_counter() - since
                return
            self.stops_refused += verdict is not None
            asyncio.get_running_loop().call_later(0.5, self._stop, number, since)

        body = {"JobID": f"pod-{number}", "SubmissionID": f"stop-{number}"}
        data = msgspec.json.encode(body)
        self._bus.call(subjects.api_jobs("stop"), data, done, timeout_s=_ANSWER_S)


def _read(headers: bytes, answer: bytes | None) -> Verdict | None:
    """A final verdict; None: not known yet, the request is sent again under the same id."""
    if status(headers) or answer is None:
        return None
    verdict = _VERDICT.decode(answer)
    return None if verdict.status == "pending" else verdict


async def _die(
    observer: LogObserver, beats: HeartbeatProcess, node_ids: list[NodeId], after_s: float
) -> list[float]:
    """Silence nodes after a while. Returns the detection time of each."""
    await asyncio.sleep(after_s)
    rows = np.asarray(_rows(observer, node_ids))
    silenced = await beats.silence(node_ids)
    return [at - silenced.at_s for at in (await await_down(observer, rows)).values()]


def _rows(observer: LogObserver, node_ids: list[NodeId]) -> list[int]:
    return [observer.state.fleet.row_of[node_id] for node_id in node_ids]


async def _recovered(flood: _Flood, marks: QueueWatermarks) -> dict[str, float]:
    """Wait until the cluster is idle again. Returns how long each part took."""
    ended = time.perf_counter()
    calm_s = await flood.calm() - ended
    await wait_until(lambda: flood.is_settled, "a verdict for each", LIMIT_S)
    await _seen(lambda: flood.is_placed)
    drained_s = time.perf_counter() - ended
    await marks.look()
    await _seen(lambda: not marks.standing())
    empty_s = time.perf_counter() - ended
    return {"calm_again_s": calm_s, "drained_s": drained_s, "empty_s": empty_s}


async def _seen(holds: Callable[[], bool]) -> None:
    """Poll ten times a second until the limit; the checks report a failure."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            while not holds():  # noqa: ASYNC110 - a look costs something.
                await asyncio.sleep(0.1)
