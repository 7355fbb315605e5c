"""P15, liveness: 50,000 nodes at a heartbeat a second, jobs coming in, 1 % of the nodes killed at once.

Figures: the monitor's share of a core, the time from the last possible heartbeat of a killed node until its loss is a
fact in the log, and the number of other nodes declared down. The heartbeats come from a process of its own, which is
not counted. Bars: detection p99 within 3.5 s, half a core, no false positive.
"""

import asyncio
import contextlib
import itertools
import time

import numpy as np

from bench.harness.cluster import BenchCluster, cpu_between, process_usage, wait_until
from bench.harness.fault_load import await_down, down_rows, every_nth
from bench.harness.fleet_process import n1_standard_8
from bench.harness.heartbeat_process import HeartbeatProcess
from bench.harness.host_info import HostRequirements
from bench.harness.measured_run import (
    Measurement,
    await_checkpoint,
    job_body,
    on_fresh_clusters,
    replay_log,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.submit import submit_job
from bench.throughput.million_placements import c1m_job
from shared.bus.connection.nats_client import BusClient

NODES = 50_000
RUNS = 3
KILLED_PART = 100
#: how long the fleet is watched before nodes are killed.
WATCH_S = 60.0
#: how long it is watched after all killed nodes were detected.
AFTER_S = 5.0
#: Load while it is watched: jobs of a thousand allocations, one after the other, with a pause.
PAUSE_S = 0.2
NEEDS = HostRequirements(memory_mib=3_072)


def run(size: float, runs: int) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales the fleet, and below 1 how long it is watched."""
    nodes = max(int(NODES * size), 100)
    watch_s = WATCH_S * min(1.0, size)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, watch_s)

    wanted = {"nodes": nodes, "killed": nodes // KILLED_PART, "watched_s": int(watch_s)}
    return on_fresh_clusters(once, runs, wanted)


async def _once(cluster: BenchCluster, nodes: int, watch_s: float) -> BenchRun:
    specs = n1_standard_8(nodes)
    killed = every_nth(specs, KILLED_PART)
    async with cluster.observer() as observer, cluster.client() as public:
        with HeartbeatProcess(cluster.data_dir, cluster.url, specs) as beats:
            fleet = observer.state.fleet
            await wait_until(lambda: fleet.ready().sum() == nodes, f"{nodes} nodes ready", 120)
            load = asyncio.create_task(_load(public.bus))
            measured = Measurement(cluster)
            began = await measured.start()
            await asyncio.sleep(watch_s)
            took_s = time.perf_counter() - began
            used = cpu_between(measured.before, process_usage(measured.pids))
            wrongly = down_rows(observer)
            silenced = await beats.silence(killed)
            rows = np.array([fleet.row_of[one] for one in killed])
            found = await await_down(observer, rows)
            await asyncio.sleep(min(AFTER_S, watch_s))
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await load
            await measured.stop()
            late_s = (await beats.silence([])).late_s
        gone = down_rows(observer)
        await await_checkpoint(observer, 60)
        checks = {
            "nobody_wrongly": not wrongly and gone == set(rows.tolist()),
            "all_noticed": len(found) == len(killed),
            "nobody_restarted": measured.same_processes,
            "replay_equals_live": (await replay_log(cluster)).state.hashes()
            == observer.state.hashes(),
        }
        times = np.array(sorted(found.values())) - silenced.at_s
        result = {
            "nodes": nodes,
            "detect_p50_s": float(np.percentile(times, 50)),
            "detect_p99_s": float(np.percentile(times, 99)),
            "detect_max_s": float(times.max()),
            "cores": used.get("heartbeat", 0.0) / took_s,
            "bus_cores": used.get("bus", 0.0) / took_s,
            "false_positives": len(wrongly | gone) - len(killed),
            "placed": observer.placed,
            "sender_late_s": late_s,
        }
        return await measured.make_run(observer, result, checks)


async def _load(bus: BusClient) -> None:
    """Submit jobs of a thousand allocations until cancelled."""
    for number in itertools.count():
        await submit_job(bus, job_body(c1m_job(number)))
        await asyncio.sleep(PAUSE_S)
