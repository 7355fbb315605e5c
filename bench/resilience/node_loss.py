"""P16, node loss: of 5,000 nodes with a million allocations one dies, then fifty at once; until all is placed again.

Through the whole product: heartbeats stop, the monitor detects the loss and records it, every affected job is
evaluated, and its plan committed. The clock runs from the last possible heartbeat of a dead node. Bars: 4 s for one
node (200 allocations), 5 s for fifty (10,000), nothing lost, nothing doubled.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fault_load import await_down, count, every_nth
from bench.harness.fleet_process import n1_standard_8
from bench.harness.heartbeat_process import HeartbeatProcess
from bench.harness.host_info import HostRequirements
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    await_checkpoint,
    job_body,
    on_fresh_clusters,
    replay_log,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.submit import submit_all, submit_with_retries
from bench.throughput.million_placements import COUNT, GROUPS, JOBS, NODES, c1m_job
from schemas.base import NodeId
from shared.core.state.invariants import check
from shared.core.state.tables.allocations import RUN, TERMINAL

RUNS = 3
#: in the large loss one of so many nodes dies.
LOST_PART = 100
LIMIT_S = 60.0
NEEDS = HostRequirements(memory_mib=3_072)


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), 100), max(int(JOBS * size), 1)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, jobs)

    wanted = {"nodes": nodes, "jobs": jobs, "allocations": jobs * GROUPS * COUNT}
    return on_fresh_clusters(once, runs, {**wanted, "workers": workers}, workers)


async def _once(cluster: BenchCluster, nodes: int, jobs: int) -> BenchRun:
    specs = n1_standard_8(nodes)
    wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
    # Spread: at full size each node gets two hundred allocations.
    bodies = [job_body({**c1m_job(at), "SchedulerAlgorithm": "spread"}) for at in range(jobs)]
    async with cluster.observer() as observer, cluster.client() as public:
        with HeartbeatProcess(cluster.data_dir, cluster.url, specs) as beats:
            state = observer.state
            await wait_until(
                lambda: state.fleet.ready().sum() == nodes, f"{nodes} nodes ready", 120
            )
            await submit_all(public.bus, bodies, submit=submit_with_retries)
            await wait_until(lambda: observer.placed >= sum(wanted.values()), "all placed", LIMIT_S)
            await await_checkpoint(observer, LIMIT_S)
            measured = Measurement(cluster)
            await measured.start()
            victims = every_nth(specs, LOST_PART)
            cluster.sample()
            one = await _lose(observer, beats, _typical(observer, victims))
            many = await _lose(observer, beats, *victims)
            await measured.stop()
            cluster.sample(until=True)
            await await_checkpoint(observer, LIMIT_S)
            checks = {
                "counts_exact": count(observer, wanted).exact,
                "within_capacity": not check(state),
                "replay_equals_live": (await replay_log(cluster)).state.hashes() == state.hashes(),
                "nobody_restarted": measured.same_processes,
            }
        result = {
            **{f"one_node_{name}": value for name, value in one.items()},
            **{f"fifty_nodes_{name}": value for name, value in many.items()},
            "refused": len(observer.refused),
        }
        return await measured.make_run(observer, result, checks)


async def _lose(
    observer: LogObserver, beats: HeartbeatProcess, *node_ids: NodeId
) -> dict[str, float]:
    """Silence nodes; measure until the last is detected, and until all their allocations are placed elsewhere."""
    fleet = observer.state.fleet
    rows = np.array([fleet.row_of[one] for one in node_ids])
    gone = int(_held(observer)[rows].sum())
    placed = observer.placed
    silenced = await beats.silence(node_ids)
    down = await await_down(observer, rows)
    await wait_until(lambda: observer.placed >= placed + gone, f"{gone} replacements", LIMIT_S)
    last, done = max(down.values()), observer.time_of(placed + gone)
    return {
        "allocations": gone,
        "first_down_s": min(down.values()) - silenced.at_s,
        "down_s": last - silenced.at_s,
        "s": done - silenced.at_s,
        "after_down_s": done - last,
    }


def _held(observer: LogObserver) -> NDArray[np.int64]:
    """Allocations of each node that should run and have not ended. Shape: (N,)."""
    table, fleet = observer.state.allocations, observer.state.fleet
    size = table.size
    counts = (table.desired[:size] == RUN) & ~TERMINAL[table.client[:size]]
    return np.bincount(table.node[:size][counts], minlength=fleet.size)


def _typical(observer: LogObserver, others: Sequence[NodeId]) -> NodeId:
    """Return a node, none of `others`, with the median number of allocations."""
    fleet, held = observer.state.fleet, _held(observer)
    middle = int(np.median(held[held > 0]))
    taken = {fleet.row_of[one] for one in others}
    rows = np.argsort(np.abs(held - middle), kind="stable").tolist()
    row: int = next(row for row in rows if row not in taken)
    return fleet.ids[row]
