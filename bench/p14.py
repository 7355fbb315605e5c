"""P14, fsync: what the log takes a second when every write is on the disk, on one server and on three.

Three kinds of record, each written by one writer with one append in flight, as everywhere in the product. `events`:
transactions of 256 events of one placement each, made, sealed and appended by the real chain and shell; `lone_events`:
the same with one event a transaction, so each waits for the disk alone, as on an idle cluster.
`placements`: the real plan applier, in this process, gets plans of 1,000 placements on 5,000 nodes, verifies each
against its state, and appends. With _r1 one server, with _r3 three on loopback. Beside them `p1_t_all_s_r3`: P1 through
the whole product on three servers that share this machine. The time that the disk takes for one flush is part of the
result: nothing here means much without it. The figures to reach: 50,000 events a second, 250,000 placements.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import orjson

from bench import p1
from bench.fleet import n1_standard_8
from bench.harness import between, until, usage
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS, NODES, job
from bench.streams import Servers, fsync_ms, put, servers
from bench.trio import TrioHarness, run_in_trio
from bench.written import Written
from schemas.base import EvalKey, JobId
from schemas.envelope import CORE_VERSION, ENCODER, CommandBatch, LeaseHeld
from schemas.envelope import Record as LogRecord
from schemas.jobs import JobRegistered
from schemas.plans import GroupPlacement, Origin, PlanCommitted, SubmitPlan
from services.cli.machines import Needs
from services.plan_applier.role import PlanApplier
from shared.bus.client import Client
from shared.bus.runner import loop_factory
from shared.bus.shell import Shell
from shared.core import role as r
from shared.core.invariants import check
from shared.core.log import Chain, seal
from shared.core.replica import Replica
from shared.jobspec.submission import command_of, read_submission

RUNS = 3
NEEDS = Needs(memory_mib=2_048)
EVENTS = 1_000_000
JOBS = 1_000
A_TRANSACTION = 256
LIMIT_S = 300.0
_CLUSTER = "p14"


def run(size: float, runs: int) -> Outcome:
    """Write both kinds `runs` times on each bus; `size` scales events, nodes and jobs."""
    events = max(int(EVENTS * size) // A_TRANSACTION, 4) * A_TRANSACTION
    nodes, jobs = max(int(NODES * size), GROUPS * COUNT), max(int(JOBS * size), 2)
    world = _World(nodes, jobs)
    found: list[Run] = []
    for _ in range(runs):
        parts = [_on(replicas, events, world) for replicas in (1, 3)]
        found.append(_with_p1(_joined(parts), size))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)
    wanted = {"events": events, "nodes": nodes, "placements": jobs * GROUPS * COUNT}
    return merge(wanted, found)


def _with_p1(found: Run, size: float) -> Run:
    """Add P1 on three servers: its time, and all that it proves."""
    runs: list[Run] = []

    async def story(cluster: TrioHarness) -> None:
        nodes, jobs = p1.sized(size)
        runs.append(await p1.once(cluster, nodes, jobs, p1.times))

    run_in_trio(story, appliers=1, schedulers=1)
    (whole,) = runs
    return msgspec.structs.replace(
        found,
        result={**found.result, "p1_t_all_s_r3": whole.result["t_all_s"]},
        checks={**found.checks, **{f"p1_{name}_r3": ok for name, ok in whole.checks.items()}},
        fsync=found.fsync and whole.fsync,
    )


def _joined(parts: list[Run]) -> Run:
    """One run of both buses."""
    cpu = {f"{name}_r{p.replicas}": s for p in parts for name, s in p.cpu_s.items()}
    with tempfile.TemporaryDirectory(prefix="caravan-fsync-") as folder:
        flush = fsync_ms(Path(folder))
    result = {f"{name}_r{p.replicas}": value for p in parts for name, value in p.result.items()}
    return Run(
        # Without a suffix: of one server.
        result={**parts[0].result, **result, "disk_fsync_ms": flush},
        checks={f"{name}_r{p.replicas}": ok for p in parts for name, ok in p.checks.items()},
        cpu_s=cpu,
        rss_mib=parts[0].rss_mib,
        log_bytes=parts[0].log_bytes,
        fsync=all(part.fsync for part in parts),
        replicas=1,
    )


def _on(replicas: int, events: int, world: "_World") -> Run:
    """Both kinds on fresh servers."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        with servers(replicas) as bus:
            before = usage(bus.pids())
            rate, checks, fsync = runner.run(_write_events(bus, events, A_TRANSACTION))
            spent = between(before, usage(bus.pids()))
        with servers(replicas) as bus:
            lone, also, _ = runner.run(_write_events(bus, events // A_TRANSACTION, 1))
        with servers(replicas) as bus:
            runner.run(bus.begin())
            before = usage(bus.pids())
            placed, proofs = runner.run(_place(bus, world))
            took = usage(bus.pids())
    return Run(
        result={"events_per_s": rate, "lone_events_per_s": lone, "placements_per_s": placed},
        checks={**checks, **{f"lone_{name}": ok for name, ok in also.items()}, **proofs},
        cpu_s={"events": sum(spent.values()), "placements": sum(between(before, took).values())},
        rss_mib=took.rss_mib,
        log_bytes=0,
        fsync=fsync,
        replicas=replicas,
    )


# ---- events ----


class _Pen:
    """Writes transactions of single placements, one append after the other, as fast as they become durable."""

    name = "plan_applier"
    instance = "p14"
    leader_key = ""

    def __init__(self, events: int, a_transaction: int) -> None:
        self._left = events // a_transaction
        self._a_transaction = a_transaction
        self._chain = Chain()
        self._under_way: tuple[int, LogRecord, str] | None = None
        self._number = 0
        self.fsync = False
        self.began_s = self.ended_s = 0.0
        self.failure = ""

    @property
    def next_seq(self) -> int:
        """First seq that is not written yet."""
        return self._chain.next_seq

    def sources(self) -> tuple[r.Source, ...]:
        """The log, whose tail every role follows."""
        return (r.Replay(),)

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def step(self, inputs: list[r.Input], now_ns: int) -> list[r.Effect]:
        """Write the next one when the last is durable."""
        for one in inputs:
            match one:
                case r.Reconnected():
                    self.fsync = one.fsync
                case r.CaughtUp() if not self.began_s:
                    self.began_s = time.perf_counter()
                    held = LeaseHeld(holder="p14", cluster_id=_CLUSTER, fsync=self.fsync)
                    return self._write(self._chain.draft("lease", now_ns, lease=held))
                case r.Appended():
                    assert self._under_way is not None
                    self._chain.wrote(*self._under_way)
                    if self._left:
                        self._left -= 1
                        return self._write(self._chain.draft("tx", now_ns, events=self._events()))
                    self.ended_s = time.perf_counter()
                case r.AppendRefused() | r.AppendUnknown():
                    self.failure = str(one)
                case _:
                    pass
        return []

    def _events(self) -> Iterable[PlanCommitted]:
        for _ in range(self._a_transaction):
            self._number += 1
            placement = GroupPlacement(
                group="main", version=0, rows=(self._number % NODES,), counts=(1,), names=(0, 1)
            )
            origin = Origin(
                worker="scheduler-1", number=self._number, snapshot_seq=self._chain.next_seq - 1
            )
            job_id = JobId(f"lone-{self._number}")
            yield PlanCommitted(
                key=EvalKey(self._number << 16),
                job_id=job_id,
                origin=origin,
                placements=(placement,),
            )

    def _write(self, record: LogRecord) -> list[r.Effect]:
        data, digest = seal(record)
        seq = self._chain.next_seq
        self._under_way = seq, record, digest
        return [r.Append(record.kind, data, seq - 1, f"{seq}-{digest}")]


async def _write_events(
    bus: Servers, events: int, a_transaction: int
) -> tuple[float, dict[str, bool], bool]:
    await bus.begin()
    pen = _Pen(events, a_transaction)

    async def story(_: Shell) -> None:
        await until(lambda: pen.ended_s or pen.failure, "the last append", LIMIT_S)

    await bus.drive(pen, story)
    chain, count = Chain(), 0
    async with Client(bus.url.partition(",")[0]) as client:
        async for record in client.read_log():
            accepted = chain.accept(record.seq, record.subject, record.data)
            count += len(accepted.events) if accepted is not None else 0
    checks = {"events_all_there": count == events and not pen.failure and not chain.foreign}
    return events / (pen.ended_s - pen.began_s), checks, pen.fsync


# ---- placements ----


class _World:
    """A fleet and jobs whose evaluations wait, and the plans for them."""

    def __init__(self, nodes: int, jobs: int) -> None:
        log = Written(_CLUSTER)
        log.nodes(n1_standard_8(nodes))
        self.plans: list[bytes] = []
        for number in range(jobs):
            body = orjson.dumps({"Job": job(number)})
            command = command_of(read_submission(body, "submit"), f"c1m-{number}")
            key = next(
                one.evaluation for one in log.take([command]) if isinstance(one, JobRegistered)
            )
            self.plans.append(_plan(number, key, nodes, log))
        self.records = log.close()
        self.want = jobs * GROUPS * COUNT


def _plan(number: int, key: EvalKey, nodes: int, log: Written) -> bytes:
    """A plan as a scheduler sends it, over nodes of each group's class in turn."""
    placements = []
    for group in range(GROUPS):
        own = range(group, nodes, GROUPS)
        at = number * COUNT
        rows = tuple(own[(at + n) % len(own)] for n in range(COUNT))
        placements.append(
            GroupPlacement(
                group=f"group_{group + 1}",
                version=0,
                rows=rows,
                counts=(1,) * COUNT,
                names=(0, COUNT),
            )
        )
    origin = Origin(
        worker="scheduler-1",
        number=number + 1,
        snapshot_seq=log.replica.seq,
        policy=log.replica.state.policy.policy_hash,
        core=CORE_VERSION,
    )
    plan = SubmitPlan(
        key=key,
        job_id=JobId(f"c1m-{number}"),
        origin=origin,
        placements=tuple(placements),
        end="complete",
    )
    return ENCODER.encode(CommandBatch(sender="scheduler-1", commands=(plan,)))


async def _place(bus: Servers, world: _World) -> tuple[float, dict[str, bool]]:
    async with bus.connection("plan_applier") as client:
        await put(client, world.records)
    applier = PlanApplier(instance="p14", cluster_id=_CLUSTER, require_fsync=False)
    table = applier.replica.state.allocations
    took = 0.0

    async def story(shell: Shell) -> None:
        nonlocal took, table
        await until(lambda: applier._is_active, "the applier has the pen", LIMIT_S)  # noqa: SLF001
        table = applier.replica.state.allocations
        start = time.perf_counter()
        for token, data in enumerate(world.plans, 1_000_000):
            shell.inject([r.Message("plan", "cmd.plan", data, token)])
        done = len(world.plans)
        workers = applier.replica.state.evaluations.workers
        await until(
            lambda: (
                "scheduler-1" in workers
                and workers["scheduler-1"].number == done
                and not applier._is_unanswered  # noqa: SLF001
            ),
            "all plans",
            LIMIT_S,
        )
        took = time.perf_counter() - start

    await bus.drive(applier, story)
    again = Replica()
    async with Client(bus.url.partition(",")[0]) as reader:
        async for record in reader.read_log():
            again.apply(record)
    same = again.state.allocations.digest() == table.digest()
    return world.want / took, {
        "placements_counts_exact": len(table.live_rows()) == world.want,
        "placements_within_capacity": not check(again.state),
        "placements_replay_equals_live": same,
    }
