"""Overload: three times what is sustained, for a minute; nothing lost, every queue bounded, and back within seconds.

First as many lone jobs as 64 submitters that wait for their verdicts get through in ten seconds: the sustained rate.
Then three times as many a second on a schedule that waits for nobody, for a minute. Each is asked about until it has
a verdict: accepted, then it is placed exactly once; or turned away for now, then nothing of it was kept. Meanwhile
every queue is looked at twice a second. Nobody may be declared down, and what was accepted must be placed in bounded
time. The clock of recovery runs from the end of the flood until a lone job is placed within a quarter of a second.
"""

import asyncio
import contextlib
import sys
import time
import urllib.request
from collections import Counter
from functools import partial

import msgspec

from bench.arrivals import Arrivals, Body, quantile, template
from bench.faults import nested, submit
from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import fsyncs, replayed
from bench.p5 import pod
from schemas.base import JobId
from schemas.evaluations import Presence
from schemas.jobs import Verdict
from services.cli.machines import Needs
from services.intake.role import PENDING_MAX
from shared.bus import streams, subjects
from shared.bus.connect import BusClient, status
from shared.core.invariants import check
from shared.core.tables.fleet import DOWN

RUNS = 1
NODES = 5_000
TIMES = 3
FLOOD_S = 60.0
SUSTAIN_S = 10.0
SUBMITTERS = 64
#: A lone job placed within this is what an idle cluster does.
CALM_S = 0.25
LIMIT_S = 300.0
NEEDS = Needs(memory_mib=6_144)

_SUBJECT = subjects.api_jobs("submit")
_ANSWER_S = 10.0
_VERDICT = msgspec.json.Decoder(Verdict)
#: Queues by what shows them; a gauge of several processes counts with its highest.
GAUGES = {
    "intake_pending": "caravan_intake_pending_submissions",
    "applier_commands": "caravan_plan_applier_queue_depth",
    "broker_ready": "caravan_eval_broker_ready_evaluations",
    "broker_leased": "caravan_eval_broker_unacked_evaluations",
    "worker_leases": "caravan_scheduler_leases_waiting",
    "worker_plans": "caravan_scheduler_plans_outstanding",
    "view_marks": "caravan_view_marks_waiting",
    "shell_inputs": "caravan_shell_waiting_inputs",
    "log_lag": "caravan_shell_lag_records",
}
STREAMS = ("CMD", "EVAL", "JOBS")


def run(size: float, runs: int) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and times."""
    nodes = max(int(NODES * size), 100)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, min(1.0, size)))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story)
    return nested(merge({"nodes": nodes, "flood_s": int(FLOOD_S * min(1.0, size))}, found))


async def _once(cluster: Harness, nodes: int, part: float) -> Run:
    body = template(pod(cpu_mhz=20, memory_mib=15))
    async with cluster.observer() as observer, cluster.client() as public:
        cluster.start_fleet(n1_standard_8(nodes))
        await until(lambda: observer.state.fleet.ready().sum() == nodes, f"{nodes} nodes", 120)
        sustained = await _sustained(public.bus, body, SUSTAIN_S * part)
        await until(lambda: observer.placed >= sustained.jobs, "all placed", LIMIT_S)
        pids = cluster.pids()
        before, log_before = usage(pids), (await cluster.log_state()).bytes
        marks = _Marks(cluster)
        watching = asyncio.create_task(marks.watch())
        flood = _Flood(public.bus, body, sustained.jobs)
        await flood.run(TIMES * sustained.rate_per_s, FLOOD_S * part)
        ended = time.perf_counter()
        calm_at = await _calm(public.bus, observer)
        await flood.settled()
        wanted = sustained.jobs + len(flood.accepted)
        await until(lambda: _placed(observer) >= wanted, "all that was accepted", LIMIT_S)
        drained_at = time.perf_counter()
        watching.cancel()
        took = usage(pids)
        replica, state = observer.replica, observer.state
        await until(lambda: replica.checked_seq > state.seq, "a checkpoint at the end", LIMIT_S)
        fleet, counts = state.fleet, Counter(flood.turned_away.values())
        numbers = range(flood.first, flood.first + flood.sent)
        checks = {
            "each_once": all(_held(observer, at) == (at in flood.accepted) for at in numbers),
            "each_has_a_verdict": len(flood.accepted) + len(flood.turned_away) == flood.sent,
            "turned_away_for_now": set(counts) <= {"unavailable"},
            "nobody_down": not (fleet.status[: fleet.size] == DOWN).any(),
            "queues_bounded": marks.are_bounded(),
            "within_capacity": not check(state),
            "nobody_restarted": pids == cluster.pids(),
            "replay_equals_live": (await replayed(cluster)).state.hashes() == state.hashes(),
        }
        log_after, fsync = (await cluster.log_state()).bytes, await fsyncs(cluster, observer)
    waits = sorted(observer.first_of[name] - at for name, at in flood.accepted_at(observer))
    return Run(
        result={
            "sustained_per_s": sustained.rate_per_s,
            "offered": flood.sent,
            "accepted": len(flood.accepted),
            "turned_away": len(flood.turned_away),
            "registered_to_placed_p50_s": quantile(waits, 0.5),
            "registered_to_placed_p99_s": quantile(waits, 0.99),
            "calm_again_s": calm_at - ended,
            "drained_s": drained_at - ended,
            "backlog_words": marks.words,
            **{f"high_water.{name}": value for name, value in sorted(marks.highest.items())},
        },
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


class _Sustained(msgspec.Struct, frozen=True):
    rate_per_s: float
    jobs: int


async def _sustained(bus: BusClient, body: Body, seconds: float) -> _Sustained:
    """What submitters that wait get through."""
    arrivals, start, jobs = Arrivals(bus, body), time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        await arrivals.closed(range(jobs, jobs + 1_000), SUBMITTERS)
        jobs += 1_000
    return _Sustained(jobs / (time.perf_counter() - start), jobs)


class _Flood:
    """Submissions on a schedule, and what became of each."""

    def __init__(self, bus: BusClient, body: Body, first: int) -> None:
        self._bus = bus
        self._body = body
        self.first = first
        self.sent = 0
        self.accepted: set[int] = set()
        #: number -> code of the refusal.
        self.turned_away: dict[int, str] = {}

    async def run(self, rate_per_s: float, seconds: float) -> None:
        """Send when due, whatever is answered."""
        start = time.perf_counter()
        while (now := time.perf_counter() - start) < seconds:
            for _ in range(int(now * rate_per_s) - self.sent):
                self._ask(self.first + self.sent)
                self.sent += 1
            await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Wait until each has its verdict."""
        known = len(self.accepted) + len(self.turned_away)
        while known < self.sent:
            await asyncio.sleep(0.05)
            known = len(self.accepted) + len(self.turned_away)

    def accepted_at(self, observer: Observer) -> list[tuple[str, float]]:
        """Names of accepted jobs, with when their registration was seen."""
        names = (f"pod-{at}" for at in self.accepted)
        return [(name, observer.registered_at[name]) for name in names]

    def _ask(self, number: int) -> None:
        def done(headers: bytes, answer: bytes | None) -> None:
            self._answered(number, None if status(headers) else answer)

        self._bus.call(_SUBJECT, self._body(number), done, timeout_s=_ANSWER_S)

    def _answered(self, number: int, answer: bytes | None) -> None:
        verdict = _VERDICT.decode(answer) if answer is not None else None
        if verdict is None or verdict.status == "pending":
            # Nobody knows yet: asked again under the same id.
            asyncio.get_running_loop().call_later(0.5, self._ask, number)
        elif verdict.status == "accepted":
            self.accepted.add(number)
        else:
            self.turned_away[number] = verdict.error.code if verdict.error else "refused"


class _Marks:
    """The highest that each queue was seen at."""

    def __init__(self, cluster: Harness) -> None:
        self._cluster = cluster
        self.highest: dict[str, float] = {}
        #: how often the broker said that much waits.
        self.words = 0

    async def watch(self) -> None:
        """Look twice a second."""
        async with self._cluster.connection() as bus:
            await bus.listen(subjects.presence("eval_broker", "backlog"), self._hear)
            while True:
                for name in STREAMS:
                    found = await streams.info(bus, name)
                    self._note(f"{name.lower()}_bytes", found.state.bytes if found else 0)
                # All at once: each answers when its role has a moment, and nobody waits for another one's.
                names = [child.name for child in self._cluster.children]
                await asyncio.gather(*(asyncio.to_thread(self._read, one) for one in names))
                await asyncio.sleep(0.5)

    def _hear(self, _subject: bytes, _reply: bytes, _headers: bytes, data: bytes) -> None:
        self._note("backlog_told", msgspec.json.decode(data, type=Presence).waiting)
        self.words += 1

    def are_bounded(self) -> bool:
        """Whether each kept its bound, where it has one."""
        bounds = {
            "intake_pending": PENDING_MAX,
            "cmd_bytes": streams.CMD.max_bytes,
            "eval_bytes": streams.EVAL.max_bytes,
            "jobs_bytes": streams.JOBS.max_bytes,
        }
        return all(self.highest.get(name, 0) <= bound for name, bound in bounds.items())

    def _read(self, child: str) -> None:
        with contextlib.suppress(OSError):
            self._look(child)

    def _look(self, child: str) -> None:
        port = int((self._cluster.data_dir / "logs" / f"{child}.port").read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        sums: Counter[str] = Counter()
        for line in lines:
            if not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                sums[key.partition("{")[0]] += float(value)  # type: ignore[assignment]
        for name, gauge in GAUGES.items():
            if gauge in sums:
                self._note(name, sums[gauge])

    def _note(self, name: str, value: float) -> None:
        self.highest[name] = max(self.highest.get(name, 0), value)


async def _calm(bus: BusClient, observer: Observer) -> float:
    """When a lone job was first placed as fast as on an idle cluster."""
    number = 0
    while True:
        name = f"calm-{number}"
        body = msgspec.json.encode({"Job": pod(name), "SubmissionID": f"s-{name}"})
        start = time.perf_counter()
        await submit(bus, body)
        await until(partial(observer.first_of.__contains__, name), f"{name} placed", LIMIT_S)
        if observer.first_of[name] - start <= CALM_S:
            return start
        number += 1
        await asyncio.sleep(0.1)


def _placed(observer: Observer) -> int:
    """Placements but those of the lone jobs."""
    return sum(not name.startswith("calm") for name in observer.first_of)


def _held(observer: Observer, number: int) -> int:
    return len(observer.state.allocations.rows_of(JobId(f"pod-{number}")))
