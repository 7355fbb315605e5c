"""P12, replay: how long an empty service takes to read a million placements, and how many single events a second.

(a) a log of the million container challenge with its plans as committed, a thousand placements each: `ready_s` is the
time from connecting until the whole state is there, proven by its last checkpoint, without a snapshot. (b) records of
one event with one placement each: `single_events_per_s` by batched direct get, `tail_per_s` by a consumer. A role in
the shell that every service uses, in this process, beside a real server; `inside_` is the same without the bus: only
decoding, proving and applying. The figures to reach: 0.5 s; 100,000 and 45,000 a second.
"""

import asyncio
import gc
import time

from bench.harness.bus_servers import BusServers, append_records, servers
from bench.harness.cluster import cpu_between, process_usage
from bench.harness.fleet_process import n1_standard_8
from bench.harness.generated_log import GeneratedLog
from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.throughput.million_placements import COUNT, GROUPS, NODES, c1m_job
from schemas.base import EvalKey, JobId
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from shared.bus.jetstream.pull_consumer import CurrentConnection, PullConsumer
from shared.bus.log.log_replay import TAIL_CREDIT
from shared.bus.log.stored_records import as_record
from shared.bus.process.runner import loop_factory
from shared.bus.shell.input_queue import InputQueue
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.protocol import subjects

RUNS = 5
NEEDS = HostRequirements(memory_mib=2_048)
JOBS = 1_000
SINGLES = 100_000
LIMIT_S = 120.0


def run(size: float, runs: int) -> BenchOutcome:
    """Write both logs once, read each `runs` times; `size` scales nodes, jobs and single events."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 1)
    singles = max(int(SINGLES * size), 1_000)
    logs = {"wide": wide(nodes, jobs), "single": single(nodes, singles)}
    with (
        asyncio.Runner(loop_factory=loop_factory()) as runner,
        servers() as wide_bus,
        servers() as single_bus,
    ):
        for bus, name in ((wide_bus, "wide"), (single_bus, "single")):
            runner.run(_fill(bus, logs[name]))
        wanted = {"nodes": nodes, "jobs": jobs, "placements": jobs * GROUPS * COUNT}
        return repeat_runs(
            lambda: runner.run(_once(wide_bus, single_bus, logs, singles)),
            runs,
            {**wanted, "records": len(logs["wide"]), "singles": singles},
        )


def wide(nodes: int, jobs: int) -> list[Record]:
    """The challenge, decided and committed job by job."""
    log = GeneratedLog("p12")
    log.nodes(n1_standard_8(nodes))
    for number in range(jobs):
        log.job(c1m_job(number))
    return log.close()


class _Singles(GeneratedLog):
    """A log of one job that is placed one by one."""

    def place_each(self, job_id: str, nodes: int, count: int) -> None:
        """Commit one placement a record, over the nodes in turn."""
        for number in range(count):
            self.now_ns += 1_000
            placement = GroupPlacement(
                group="group_1",
                version=0,
                rows=(number % nodes,),
                counts=(1,),
                names=(number, 1),
            )
            origin = Origin(worker="scheduler-1", number=number + 1, snapshot_seq=self.replica.seq)
            event = PlanCommitted(
                key=EvalKey(1), job_id=JobId(job_id), origin=origin, placements=(placement,)
            )
            self._commit([event])


def single(nodes: int, count: int) -> list[Record]:
    """Single placements behind a small beginning."""
    log = _Singles("p12-single")
    log.nodes(n1_standard_8(nodes))
    log.job({**c1m_job(0), "TaskGroups": [{**c1m_job(0)["TaskGroups"][0], "Count": 0}]})
    log.place_each("c1m-0", nodes, count)
    return log.close()


async def _fill(bus: BusServers, records: list[Record]) -> None:
    await bus.begin()
    async with bus.connection("plan_applier") as client:
        await append_records(client, records)


async def _once(
    wide_bus: BusServers, single_bus: BusServers, logs: dict[str, list[Record]], singles: int
) -> BenchRun:
    """Read both once."""
    pids = {"bus": wide_bus.pids()["bus"], "bus-single": single_bus.pids()["bus"]}
    gc.collect()
    before = process_usage(pids)
    wide_s, first = await _replay(wide_bus)
    took = process_usage(pids)
    gc.collect()
    single_s, second = await _replay(single_bus)
    gc.collect()
    tail_s, third = await _tail(single_bus, len(logs["single"]))
    inside_s, fourth = _inside(logs["wide"])
    inside_single_s, _ = _inside(logs["single"])
    size = sum(len(one.data) for one in logs["wide"])
    placements = len(first.state.allocations.live_rows())
    return BenchRun(
        result={
            "ready_s": wide_s,
            "placements_per_s": placements / wide_s,
            "mb_per_s": size / wide_s / 1e6,
            "single_events_per_s": singles / single_s,
            "tail_per_s": singles / tail_s,
            "inside_s": inside_s,
            "inside_singles_per_s": singles / inside_single_s,
        },
        checks={
            "wide_proven": first.checked > 0 and first.seq == len(logs["wide"]),
            "wide_equal": first.state.hashes() == fourth.state.hashes(),
            "single_proven": second.checked > 0 and third.checked > 0,
            "single_equal": second.state.hashes() == third.state.hashes(),
        },
        cpu_s=cpu_between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=size,
        fsync=True,
    )


async def _replay(bus: BusServers) -> tuple[float, Replica]:
    """Start an empty role; returns how long it took until it had caught up."""
    role = LogObserver()
    shell = Shell(role, ShellSettings(login=bus.login("admin"), snapshots=False))
    stop = asyncio.Event()
    start = time.perf_counter()
    running = asyncio.create_task(shell.run(stop))
    while not role.is_caught_up and not running.done():
        role.changed.clear()
        await asyncio.wait_for(role.changed.wait(), LIMIT_S)
    took = time.perf_counter() - start
    stop.set()
    await running
    return took, role.replica


async def _tail(bus: BusServers, records: int) -> tuple[float, Replica]:
    """Take the log from a consumer, as the shell takes its tail: what a turn of the loop brought is one step."""
    replica, wake, stream = Replica(), asyncio.Event(), subjects.log_stream(1)
    inbox = InputQueue(wake)
    async with bus.connection() as client:
        pull = PullConsumer(
            CurrentConnection(client),
            stream=stream,
            deliver=lambda at, subject, headers, data: inbox.put(
                as_record(
                    stream, at.stream_seq, subject=subject.decode(), headers=headers, data=data
                )
            ),
            credit=TAIL_CREDIT,
            owner="p12-log",
        )
        start = time.perf_counter()
        pull.open()
        while replica.seq < records:
            await asyncio.wait_for(wake.wait(), LIMIT_S)
            wake.clear()
            some = inbox.take(TAIL_CREDIT)
            for one in some:
                assert isinstance(one, Record)
                replica.apply(one)
            pull.give_back(len(some))
            await asyncio.sleep(0)
        took = time.perf_counter() - start
        pull.close()
    return took, replica


def _inside(records: list[Record]) -> tuple[float, Replica]:
    """Decode, prove and apply, without a bus."""
    gc.collect()
    replica = Replica()
    start = time.perf_counter()
    for record in records:
        replica.apply(record)
    return time.perf_counter() - start, replica
