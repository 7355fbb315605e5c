"""Moments: the state at any of ten million placements, as `replay --to`, `--at` and `--diff` rebuild it from snapshots.

A log of ten million placements on 50,000 nodes stands in a real stream; a view followed it, wrote its snapshots,
and kept those that it keeps. Then moments drawn from the log are asked for, one after the other: the newest set
before it, proven by the log, and what follows. One of them is compared with a full replay. The figure to reach: 2 s
each.
"""

import asyncio
import gc
import sys
import time
from functools import partial

from bench.fleet import n1_standard_8
from bench.harness import between, until, usage
from bench.memory import JOBS, NODES, Planned
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS
from bench.streams import Servers, put, servers
from services.cli.machines import Needs
from services.cli.moments import past
from services.view.role import View
from services.view.snapshots import When
from shared.bus.client import Client
from shared.bus.runner import loop_factory
from shared.bus.shell import Shell
from shared.core.replica import Replica
from shared.core.role import Effect, Record
from shared.core.splitmix import splitmix64

RUNS = 3
NEEDS = Needs(memory_mib=6_144)
MOMENTS = 7
#: Sets that a view writes on the way: as many as it keeps.
_SETS = 15
LIMIT_S = 300.0


def run(size: float, runs: int) -> Outcome:
    """Write the log and its snapshots once, ask `runs` times; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * COUNT), max(int(JOBS * size), 20)
    records: list[Record] = []
    log = Planned(records.append)
    log.nodes(n1_standard_8(nodes))
    began = len(records)
    for number in range(jobs):
        log.run_job(f"c1m-{number}", nodes, number)
        if number % max(jobs // (3 * _SETS), 1) == 0:
            log.prove()
    log.close()
    found: list[Run] = []
    with asyncio.Runner(loop_factory=loop_factory()) as runner, servers() as bus:
        runner.run(bus.begin())
        sets = runner.run(_grow(bus, records))
        print(f"{len(records)} records, {sets} sets", file=sys.stderr, flush=True)
        for number in range(runs):
            found.append(runner.run(_once(bus, records, began, number)))
            print(f"run {number + 1} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)
    wanted = {"nodes": nodes, "placements": jobs * GROUPS * COUNT, "records": len(records)}
    return merge({**wanted, "snapshots": sets, "moments": MOMENTS}, found)


class _Writer(View):
    """A view that publishes nothing: fifty thousand projections are another benchmark's work."""

    def _publish(self, now_ns: int, out: list[Effect]) -> None:
        """Nothing."""
        del now_ns, out


async def _grow(bus: Servers, records: list[Record]) -> int:
    """Have a view follow the log as it grows; returns how many sets it wrote."""
    view = _Writer(instance="v", snapshots=When(records=max(len(records) // (_SETS + 1), 1)))
    parts = max(len(records) // (3 * _SETS), 1)

    async def story(shell: Shell) -> None:
        async with bus.connection("plan_applier") as writer:
            for start in range(0, len(records), parts):
                some = records[start : start + parts]
                await put(writer, some)
                read = partial(_has_read, view, some[-1].seq)
                await until(read, "the view has read it and written it down", LIMIT_S)
        await until(lambda: shell.is_ready, "it is ready", LIMIT_S)

    await bus.drive(view, story, "view")
    return int(view.metrics()["caravan_view_snapshots_written_total"])


def _has_read(view: View, seq: int) -> bool:
    """Tell whether a view has read so far, and writes nothing down."""
    own = view._snapshots  # noqa: SLF001 - whether it writes is nobody else's business.
    return view.next_seq > seq and not own._is_busy and not own._queue  # noqa: SLF001


async def _once(bus: Servers, records: list[Record], began: int, number: int) -> Run:
    took: list[float] = []
    pids = bus.pids()
    before = usage(pids)
    is_equal = True
    async with Client(bus.url) as client:
        for at in range(MOMENTS):
            draw = splitmix64(number * 1_000 + at)
            seq = began + 1 + draw % (len(records) - began)
            gc.collect()
            start = time.perf_counter()
            found = await past(client, str(seq))
            took.append(time.perf_counter() - start)
            is_equal &= found.replica.seq == seq
            if not at:
                is_equal &= found.state.hashes() == _replayed(records, seq)
            del found
    spent = usage(pids)
    took.sort()
    return Run(
        result={"state_s": took[len(took) // 2], "slowest_s": took[-1], "fastest_s": took[0]},
        checks={"equal_to_a_full_replay": is_equal},
        cpu_s=between(before, spent),
        rss_mib=spent.rss_mib,
        log_bytes=sum(len(one.data) for one in records),
        fsync=True,
    )


def _replayed(records: list[Record], seq: int) -> dict[str, str]:
    replica = Replica()
    for record in records[:seq]:
        replica.apply(record)
    return replica.state.hashes()
