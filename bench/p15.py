"""P15, liveness: 50,000 nodes at a heartbeat a second, jobs coming in, 1 % of the nodes killed at once.

What counts is the monitor's part of a core, from the last moment at which a killed node might have sent until its
loss is a fact in the log, and that nobody else was ever declared down. The sender of the heartbeats is a process of
its own, whose time is nobody's. Bars: detection p99 within 3.5 s, half a core, nobody wrongly.
"""

import asyncio
import contextlib
import sys
import time

import msgspec
import numpy as np

from bench.beats import Beats
from bench.faults import down, noticed, one_in
from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import ask, fsyncs, job, replayed
from services.cli.machines import Needs
from shared.bus.connect import BusClient

NODES = 50_000
RUNS = 3
KILLED_PART = 100
#: how long the fleet is watched before anybody dies.
WATCH_S = 60.0
#: and how long after everybody who died was noticed.
AFTER_S = 5.0
#: Load while it is watched: jobs of a thousand allocations, one after the other, with a pause.
PAUSE_S = 0.2
NEEDS = Needs(memory_mib=3_072)


def run(size: float, runs: int) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales the fleet, and below 1 how long it is watched."""
    nodes = max(int(NODES * size), 100)
    watch_s = WATCH_S * min(1.0, size)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, watch_s))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story)
    return merge({"nodes": nodes, "killed": nodes // KILLED_PART, "watched_s": int(watch_s)}, found)


async def _once(cluster: Harness, nodes: int, watch_s: float) -> Run:
    specs = n1_standard_8(nodes)
    killed = one_in(specs, KILLED_PART)
    async with cluster.observer() as observer, cluster.client() as public:
        with Beats(cluster.data_dir, cluster.url, specs) as beats:
            fleet = observer.state.fleet
            await until(lambda: fleet.ready().sum() == nodes, f"{nodes} nodes ready", 120)
            log_before = (await cluster.log_state()).bytes
            pids = cluster.pids()
            load = asyncio.create_task(_load(public.bus))
            before, began = usage(pids), time.perf_counter()
            await asyncio.sleep(watch_s)
            took_s, used = time.perf_counter() - began, between(before, usage(pids))
            wrongly = down(observer)
            silenced = await beats.silence(killed)
            rows = np.array([fleet.row_of[one] for one in killed])
            found = await noticed(observer, rows)
            await asyncio.sleep(min(AFTER_S, watch_s))
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await load
            took = usage(pids)
            late_s = (await beats.silence([])).late_s
        gone = down(observer)
        checks = {
            "nobody_wrongly": not wrongly and gone == set(rows.tolist()),
            "all_noticed": len(found) == len(killed),
            "nobody_restarted": pids == cluster.pids(),
            "replay_equals_live": await _replays(cluster, observer),
        }
        log_after = (await cluster.log_state()).bytes
        fsync = await fsyncs(cluster, observer)
    times = np.array(sorted(found.values())) - silenced.at_s
    return Run(
        result={
            "nodes": nodes,
            "detect_p50_s": float(np.percentile(times, 50)),
            "detect_p99_s": float(np.percentile(times, 99)),
            "detect_max_s": float(times.max()),
            "cores": used.get("heartbeat", 0.0) / took_s,
            "bus_cores": used.get("bus", 0.0) / took_s,
            "false_positives": len(wrongly | gone) - len(killed),
            "placed": observer.placed,
            "sender_late_s": late_s,
        },
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


async def _load(bus: BusClient) -> None:
    """Submit jobs of a thousand allocations for as long as it is watched, nobody waits for them."""
    number = 0
    while True:
        body = msgspec.json.encode({"Job": job(number), "SubmissionID": f"s-{number}"})
        await ask(bus, body)
        number += 1
        await asyncio.sleep(PAUSE_S)


async def _replays(cluster: Harness, observer: Observer) -> bool:
    """Whether a second replay from the start ends at the same state, once nothing happens any more."""
    replica = observer.replica
    await until(lambda: replica.checked_seq > observer.state.seq, "a checkpoint at the end", 60)
    return (await replayed(cluster)).state.hashes() == observer.state.hashes()
