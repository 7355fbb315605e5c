"""P14, fsync: what the log takes a second when every write is on the disk, on one server and on three.

Three kinds of record, each written by one writer with one append in flight, as everywhere in the product. `events`:
transactions of 256 events of one placement each, made, sealed and appended by the real chain and shell; `lone_events`:
the same with one event a transaction, so that each waits for the disk alone, as on an idle cluster. `placements`: the
real plan applier, in this process, gets plans of 1,000 placements on 5,000 nodes, verifies each against its state, and
appends. With _r1 one server, with _r3 three on loopback. Beside them `p1_t_all_s_r3`: P1 through the whole product on
three servers that share this machine. The time of one flush of the disk is part of the result, since all figures depend
on it. The figures to reach: 50,000 events a second, 250,000 placements.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import orjson

from bench.harness.bus_servers import BusServers, append_records, fsync_ms, servers
from bench.harness.cluster import cpu_between, process_usage, wait_until
from bench.harness.fleet_process import n1_standard_8
from bench.harness.generated_log import GeneratedLog
from bench.harness.host_info import HostRequirements
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.harness.three_servers import ThreeServerCluster, run_on_three_servers
from bench.throughput import million_placements
from bench.throughput.million_placements import COUNT, GROUPS, NODES, c1m_job
from schemas.base import EvalKey, JobId
from schemas.envelope import CORE_VERSION, ENCODER, CommandBatch, LeaseHeld, LogRecord
from schemas.jobs import JobRegistered
from schemas.plans import GroupPlacement, Origin, PlanCommitted, SubmitPlan
from services.plan_applier.role import PlanApplier
from services.plan_applier.tenure import AppendState
from shared.bus.connection.public_client import Client
from shared.bus.process.runner import loop_factory
from shared.bus.shell.shell import Shell
from shared.core.runtime import messages as r
from shared.core.runtime.chain import Chain, seal
from shared.core.runtime.replica import Replica
from shared.core.runtime.role import Input
from shared.core.state.invariants import check
from shared.jobspec.submission import read_submission, to_command

RUNS = 3
NEEDS = HostRequirements(memory_mib=2_048)
EVENTS = 1_000_000
JOBS = 1_000
A_TRANSACTION = 256
LIMIT_S = 300.0
_CLUSTER = "p14"


def run(size: float, runs: int) -> BenchOutcome:
    """Write both kinds `runs` times on each bus; `size` scales events, nodes and jobs."""
    events = max(int(EVENTS * size) // A_TRANSACTION, 4) * A_TRANSACTION
    nodes, jobs = max(int(NODES * size), GROUPS * COUNT), max(int(JOBS * size), 2)
    world = _PreparedPlans(nodes, jobs)

    def once() -> BenchRun:
        return _with_p1(_joined([_on(replicas, events, world) for replicas in (1, 3)]), size)

    wanted = {"events": events, "nodes": nodes, "placements": jobs * GROUPS * COUNT}
    return repeat_runs(once, runs, wanted)


def _with_p1(found: BenchRun, size: float) -> BenchRun:
    """Add P1 on three servers: its time, and all that it proves."""
    runs: list[BenchRun] = []

    async def story(cluster: ThreeServerCluster) -> None:
        nodes, jobs = million_placements.scaled_counts(size)
        runs.append(
            await million_placements.fill_once(
                cluster, nodes, jobs, million_placements.placement_times
            )
        )

    run_on_three_servers(story, appliers=1, schedulers=1)
    (whole,) = runs
    return msgspec.structs.replace(
        found,
        result={**found.result, "p1_t_all_s_r3": whole.result["t_all_s"]},
        checks={**found.checks, **{f"p1_{name}_r3": ok for name, ok in whole.checks.items()}},
        fsync=found.fsync and whole.fsync,
    )


def _joined(parts: list[BenchRun]) -> BenchRun:
    """One run of both buses."""
    cpu = {f"{name}_r{p.replicas}": s for p in parts for name, s in p.cpu_s.items()}
    with tempfile.TemporaryDirectory(prefix="caravan-fsync-") as folder:
        flush = fsync_ms(Path(folder))
    result = {f"{name}_r{p.replicas}": value for p in parts for name, value in p.result.items()}
    return BenchRun(
        # Without a suffix: of one server.
        result={**parts[0].result, **result, "disk_fsync_ms": flush},
        checks={f"{name}_r{p.replicas}": ok for p in parts for name, ok in p.checks.items()},
        cpu_s=cpu,
        rss_mib=parts[0].rss_mib,
        log_bytes=parts[0].log_bytes,
        fsync=all(part.fsync for part in parts),
        replicas=1,
    )


def _on(replicas: int, events: int, world: "_PreparedPlans") -> BenchRun:
    """Both kinds on fresh servers."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        with servers(replicas) as bus:
            before = process_usage(bus.pids())
            rate, checks, fsync = runner.run(_write_events(bus, events, A_TRANSACTION))
            spent = cpu_between(before, process_usage(bus.pids()))
        with servers(replicas) as bus:
            lone, also, _ = runner.run(_write_events(bus, events // A_TRANSACTION, 1))
        with servers(replicas) as bus:
            runner.run(bus.begin())
            before = process_usage(bus.pids())
            placed, proofs = runner.run(_place(bus, world))
            took = process_usage(bus.pids())
    return BenchRun(
        result={"events_per_s": rate, "lone_events_per_s": lone, "placements_per_s": placed},
        checks={**checks, **{f"lone_{name}": ok for name, ok in also.items()}, **proofs},
        cpu_s={
            "events": sum(spent.values()),
            "placements": sum(cpu_between(before, took).values()),
        },
        rss_mib=took.rss_mib,
        log_bytes=0,
        fsync=fsync,
        replicas=replicas,
    )


# ---- events ----


class _AppendWriter:
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

    def step(self, inputs: list[Input], now_ns: int) -> list[r.Effect]:
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
    bus: BusServers, events: int, a_transaction: int
) -> tuple[float, dict[str, bool], bool]:
    await bus.begin()
    writer = _AppendWriter(events, a_transaction)

    async def story(_: Shell) -> None:
        await wait_until(lambda: writer.ended_s or writer.failure, "the last append", LIMIT_S)

    await bus.drive(writer, story)
    chain, count = Chain(), 0
    async with Client(bus.client_url.partition(",")[0]) as client:
        async for record in client.read_log():
            accepted = chain.accept(record.seq, record.subject, record.data)
            count += len(accepted.events) if accepted is not None else 0
    checks = {"events_all_there": count == events and not writer.failure and not chain.foreign}
    return events / (writer.ended_s - writer.began_s), checks, writer.fsync


# ---- placements ----


class _PreparedPlans:
    """A fleet and jobs whose evaluations wait, and the plans for them."""

    def __init__(self, nodes: int, jobs: int) -> None:
        log = GeneratedLog(_CLUSTER)
        log.nodes(n1_standard_8(nodes))
        self.plans: list[bytes] = []
        for number in range(jobs):
            body = orjson.dumps({"Job": c1m_job(number)})
            command = to_command(read_submission(body, "submit"), f"c1m-{number}")
            key = next(
                one.evaluation for one in log.take([command]) if isinstance(one, JobRegistered)
            )
            self.plans.append(_plan(number, key, nodes, log))
        self.records = log.close()
        self.want = jobs * GROUPS * COUNT


def _plan(number: int, key: EvalKey, nodes: int, log: GeneratedLog) -> bytes:
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


async def _place(bus: BusServers, world: _PreparedPlans) -> tuple[float, dict[str, bool]]:
    async with bus.connection("plan_applier") as client:
        await append_records(client, world.records)
    applier = PlanApplier(instance="p14", cluster_id=_CLUSTER, require_fsync=False)
    table = applier.replica.state.allocations
    took = 0.0

    async def story(shell: Shell) -> None:
        nonlocal took, table
        await wait_until(lambda: applier.is_active, "the applier has the write lease", LIMIT_S)
        table = applier.replica.state.allocations
        start = time.perf_counter()
        for token, data in enumerate(world.plans, 1_000_000):
            shell.inject([r.Message("plan", "cmd.plan", data, token)])
        done = len(world.plans)
        workers = applier.replica.state.evaluations.workers
        await wait_until(
            lambda: (
                "scheduler-1" in workers
                and workers["scheduler-1"].number == done
                and applier._append_state.state is AppendState.IDLE  # noqa: SLF001
            ),
            "all plans",
            LIMIT_S,
        )
        took = time.perf_counter() - start

    await bus.drive(applier, story)
    again = Replica()
    async with Client(bus.client_url.partition(",")[0]) as reader:
        async for record in reader.read_log():
            again.apply(record)
    same = again.state.allocations.digest() == table.digest()
    return world.want / took, {
        "placements_counts_exact": len(table.live_rows()) == world.want,
        "placements_within_capacity": not check(again.state),
        "placements_replay_equals_live": same,
    }
