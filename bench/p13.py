"""P13, recovery: kill -9 of every process and of the bus while a million allocations come in; nothing lost or doubled.

For each victim a part of the million is submitted, and the victim is killed once a quarter of it is placed (intake:
once anything of it is registered). What counts is the longest time from the kill on without a fact that only exists
when the victim's work is done: any commit (applier, bus), a registration (intake), a placement (workers, broker), an
answer (view), the lead (heartbeat, broker). Whoever dies is started again by the supervisor, as under `caravan up`.
On three servers it is the leader of the log's stream that dies, then all three. Bars: 1 s a process, 3 s the applier's
takeover and a lone server, 10 s a stream's leader.
"""

import asyncio
import base64
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from bench.faults import SUBMITTERS, Counts, count, nested, submit_all
from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS, JOBS, NODES, fsyncs, job, replayed
from bench.trio import TrioHarness, run_in_trio
from services.cli.machines import Needs
from shared.bus import streams, subjects
from shared.bus.client import Client
from shared.core.invariants import check
from shared.errors import BusUnavailable

RUNS = 3
#: name of the figure -> who is killed; `applier` is whoever holds the pen.
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
NEEDS = Needs(memory_mib=4_096)

_WORKERS = ("scheduler-1", "scheduler-2", "eval_broker")
#: Who is asked whether it serves again. Workers go on with what the broker gave them: facts alone would not show it.
_ASKED = ("view", "heartbeat", "eval_broker")


def run(size: float, runs: int) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 8 * len(ALONE))
    found: list[Run] = []
    for number in range(runs):
        parts: list[Run] = []

        async def alone(cluster: Harness, parts: list[Run] = parts) -> None:
            parts.append(await _Story(cluster, nodes, jobs // len(ALONE)).play(ALONE))

        async def trio(cluster: TrioHarness, parts: list[Run] = parts) -> None:
            parts.append(await _Story(cluster, nodes, jobs // len(ALONE)).play(TRIO))

        run_in(alone, {"appliers": 2, "schedulers": 2})
        run_in_trio(trio)
        found.append(_both(*parts))
        print(f"run {number + 1} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)
    placements = jobs // len(ALONE) * (len(ALONE) + len(TRIO)) * GROUPS * COUNT
    wanted = {"nodes": nodes, "kills": len(ALONE) + len(TRIO), "placements": placements}
    return nested(merge(wanted, found))


class _Stored(msgspec.Struct):
    data: str = ""


class _Got(msgspec.Struct):
    message: _Stored = msgspec.field(default_factory=_Stored)


class _Story:
    """One cluster, several victims."""

    def __init__(self, cluster: Harness, nodes: int, jobs: int) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._jobs = jobs
        self._wanted: dict[str, int] = {}
        self._recovered: dict[str, float] = {}
        self._killed: set[int] = set()
        self._late = False

    async def play(self, victims: Sequence[str]) -> Run:
        """Kill one after the other under load; then count."""
        cluster = self._cluster
        async with cluster.observer() as observer, cluster.client() as public:
            cluster.start_fleet(n1_standard_8(self._nodes))
            await until(lambda: observer.state.fleet.ready().sum() == self._nodes, "a fleet", 120)
            log_before = (await cluster.log_state()).bytes
            before = usage(cluster.pids())
            for victim in victims:
                # Who had nothing left to do when it died shows nothing: again, with more of it.
                for more in range(_TRIES):
                    if await self._part(observer, public, victim, more):
                        break
                else:
                    self._late = True
            took = usage(cluster.pids())
            replica, state = observer.replica, observer.state
            await until(lambda: replica.checked_seq > state.seq, "a checkpoint at the end", LIMIT_S)
            counts = count(observer, self._wanted)
            checks = {
                "counts_exact": counts.exact,
                "within_capacity": not check(state),
                "killed_at_work": not self._late,
                "replay_equals_live": (await replayed(cluster)).state.hashes() == state.hashes(),
            }
            log_after = (await cluster.log_state()).bytes
            fsync = await fsyncs(cluster, observer)
        return Run(
            result={**self._recovered, "lost": counts.lost, "doubled": counts.doubled},
            checks=checks,
            cpu_s=between(before, took),
            rss_mib=took.rss_mib,
            log_bytes=log_after - log_before,
            fsync=fsync,
        )

    async def _part(self, observer: Observer, public: Client, victim: str, more: int) -> bool:
        """One victim: submit, kill, wait until all of it is placed. Returns whether it was killed at its work."""
        jobs = self._jobs << more
        names = [f"{victim}-{more}-{at}" for at in range(jobs)]
        self._wanted |= dict.fromkeys(names, GROUPS * COUNT)
        want = jobs * GROUPS * COUNT
        bodies = [
            msgspec.json.encode(
                {"Job": {**job(0), "ID": name, "Name": name}, "SubmissionID": f"s-{name}"}
            )
            for name in names
        ]
        await self._quiet()
        base, registered = observer.placed, len(observer.registered_at)
        # Few at once where registering is what is looked at: else it is done in one go.
        submitters = 4 if victim == "intake" else SUBMITTERS
        submitting = asyncio.create_task(submit_all(public.bus, bodies, submitters))
        if victim == "intake":
            await until(lambda: len(observer.registered_at) > registered, "a registration", LIMIT_S)
        else:
            await until(lambda: observer.placed >= base + want // 4, "a quarter placed", LIMIT_S)
        killed_at = await self._kill(observer, victim)
        if victim == "intake":
            # What it had sent on is registered without it: as many as ask at once.
            left = jobs - (len(observer.registered_at) - registered)
            is_late = left <= submitters
        else:
            is_late = observer.placed >= base + want
        again = asyncio.create_task(self._again(victim))
        verdicts = await submitting
        assert all(one.status == "accepted" for one in verdicts), "a submission was refused"
        await until(
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

    def _facts(self, observer: Observer, victim: str) -> list[float] | None:
        """Moments of what only exists when the victim's work is done; None where it leaves no facts now."""
        if victim == "intake":
            return observer.registrations
        if victim in _WORKERS:
            return [at for at, _ in observer.seen]
        return None if victim in ("heartbeat", "view") else observer.commits

    async def _quiet(self) -> None:
        """Wait until everybody who died before is back."""
        cluster = self._cluster
        wanted = len(cluster.children)
        await until(lambda: len([c for c in cluster.children if c.pid]) == wanted, "all run")

    async def _kill(self, observer: Observer, victim: str) -> float:
        cluster = self._cluster
        pids = cluster.pids()
        if victim == "applier":
            found = [int(observer.replica.chain.holder.split("-")[1])]
        elif victim == "r3_leader":
            assert isinstance(cluster, TrioHarness)
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
        """When a victim whose facts do not show it serves again."""
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
        pid = self._cluster.pids().get(role, 0)
        async with self._cluster.connection() as bus:
            body = msgspec.json.encode({"last_by_subj": subjects.leader(role)})
            answer = await bus.ask(subjects.js_message_get(streams.LEADER.name), body)
        held = msgspec.json.decode(answer, type=_Got).message.data
        leads = base64.b64decode(held).startswith(f"{role}-{pid}-".encode())
        return leads and pid not in self._killed


def _longest(start: float, moments: Sequence[float]) -> float:
    """The longest time between two neighbours, from `start` on. At least one moment lies behind it."""
    after = [start, *(at for at in moments if at > start)]
    return max((b - a for a, b in itertools.pairwise(after)), default=float("inf"))


def _both(one: Run, other: Run) -> Run:
    """One run of both clusters."""
    counts = Counts(
        lost=int(one.result["lost"] + other.result["lost"]),
        doubled=int(one.result["doubled"] + other.result["doubled"]),
    )
    return Run(
        result={**one.result, **other.result, "lost": counts.lost, "doubled": counts.doubled},
        checks={name: holds and other.checks[name] for name, holds in one.checks.items()},
        cpu_s=one.cpu_s,
        rss_mib=one.rss_mib,
        log_bytes=one.log_bytes + other.log_bytes,
        fsync=one.fsync and other.fsync,
    )
