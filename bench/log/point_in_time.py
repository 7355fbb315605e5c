"""Moments: the state at any of ten million placements, as `replay --to`, `--at` and `--diff` rebuild it from snapshots.

A log of ten million placements on 50,000 nodes is in a real stream; a view has followed it and kept its snapshots. Then
states at random positions of the log are rebuilt, one after the other: from the newest snapshot before it, proven by
the log, and the records after it. One of them is compared with a full replay. The figure to reach: 2 s each.
"""

import asyncio
import gc
import sys
import time
from functools import partial

from bench.footprint.ten_million_allocs import JOBS, NODES, HandPlannedLog
from bench.harness.bus_servers import BusServers, append_records, servers
from bench.harness.cluster import cpu_between, process_usage, wait_until
from bench.harness.fleet_process import n1_standard_8
from bench.harness.host_info import HostRequirements
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.throughput.million_placements import COUNT, GROUPS
from services.cli.runtime.log_position import replay_to
from services.view.role import View
from services.view.snapshot_writer import SnapshotSchedule
from shared.bus.connection.public_client import Client
from shared.bus.process.runner import loop_factory
from shared.bus.shell.shell import Shell
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.runtime.step import Step
from shared.core.splitmix import splitmix64

RUNS = 3
NEEDS = HostRequirements(memory_mib=6_144)
MOMENTS = 7
#: Sets that a view writes on the way: as many as it keeps.
_SETS = 15
LIMIT_S = 300.0


def run(size: float, runs: int) -> BenchOutcome:
    """Write the log and its snapshots once, ask `runs` times; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * COUNT), max(int(JOBS * size), 20)
    records: list[Record] = []
    log = HandPlannedLog(records.append)
    log.nodes(n1_standard_8(nodes))
    began = len(records)
    for number in range(jobs):
        log.run_job(f"c1m-{number}", nodes, number)
        if number % max(jobs // (3 * _SETS), 1) == 0:
            log.prove()
    log.close()
    with asyncio.Runner(loop_factory=loop_factory()) as runner, servers() as bus:
        runner.run(bus.begin())
        sets = runner.run(_grow(bus, records))
        print(f"{len(records)} records, {sets} sets", file=sys.stderr, flush=True)
        wanted = {"nodes": nodes, "placements": jobs * GROUPS * COUNT, "records": len(records)}
        numbers = iter(range(runs))
        return repeat_runs(
            lambda: runner.run(_once(bus, records, began, next(numbers))),
            runs,
            {**wanted, "snapshots": sets, "moments": MOMENTS},
        )


class _Writer(View):
    """A view that publishes nothing: publishing is not measured here."""

    def _publish(self, step: Step) -> None:
        """Publish nothing."""


async def _grow(bus: BusServers, records: list[Record]) -> int:
    """Let a view follow the log as it grows; returns the number of snapshots."""
    view = _Writer(
        instance="v", snapshots=SnapshotSchedule(records=max(len(records) // (_SETS + 1), 1))
    )
    parts = max(len(records) // (3 * _SETS), 1)

    async def story(shell: Shell) -> None:
        async with bus.connection("plan_applier") as writer:
            for start in range(0, len(records), parts):
                some = records[start : start + parts]
                await append_records(writer, some)
                read = partial(_has_read, view, some[-1].seq)
                await wait_until(read, "the view has read it and written its snapshot", LIMIT_S)
        await wait_until(lambda: shell.is_ready, "it is ready", LIMIT_S)

    await bus.drive(view, story, "view")
    return int(view.metrics()["caravan_view_snapshots_written_total"])


def _has_read(view: View, seq: int) -> bool:
    """Return whether a view has read so far, and writes no snapshot."""
    own = view._snapshots  # noqa: SLF001 - the view does not publish this state.
    return view.next_seq > seq and not own._is_busy and not own._queue  # noqa: SLF001


async def _once(bus: BusServers, records: list[Record], began: int, number: int) -> BenchRun:
    took: list[float] = []
    pids = bus.pids()
    before = process_usage(pids)
    is_equal = True
    async with Client(bus.client_url) as client:
        for at in range(MOMENTS):
            draw = splitmix64(number * 1_000 + at)
            seq = began + 1 + draw % (len(records) - began)
            gc.collect()
            start = time.perf_counter()
            found = await replay_to(client, str(seq))
            took.append(time.perf_counter() - start)
            is_equal &= found.replica.seq == seq
            if not at:
                is_equal &= found.state.hashes() == _replayed(records, seq)
            del found
    spent = process_usage(pids)
    took.sort()
    return BenchRun(
        result={"state_s": took[len(took) // 2], "slowest_s": took[-1], "fastest_s": took[0]},
        checks={"equal_to_a_full_replay": is_equal},
        cpu_s=cpu_between(before, spent),
        rss_mib=spent.rss_mib,
        log_bytes=sum(len(one.data) for one in records),
        fsync=True,
    )


def _replayed(records: list[Record], seq: int) -> dict[str, str]:
    replica = Replica()
    for record in records[:seq]:
        replica.apply(record)
    return replica.state.hashes()
