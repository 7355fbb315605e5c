"""P16, node loss: of 5,000 nodes with a million allocations one dies, then fifty at once; until all is placed again.

Through the whole product: the heartbeats stop, the monitor notices, the log says so, every job that lost something is
looked at, and its plan is a fact. The clock runs from the last moment at which a dead node might have sent. Bars: 4 s
for one node (200 allocations), 5 s for fifty (10,000), nothing lost, nothing doubled.
"""

import sys
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.beats import Beats
from bench.faults import count, noticed, one_in, submit_all
from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS, JOBS, NODES, fsyncs, job, replayed
from schemas.base import NodeId
from services.cli.machines import Needs
from shared.core.invariants import check
from shared.core.tables.allocations import RUN, TERMINAL

RUNS = 3
#: one of so many nodes dies in the large loss.
LOST_PART = 100
LIMIT_S = 60.0
NEEDS = Needs(memory_mib=3_072)


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), 100), max(int(JOBS * size), 1)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": workers})
    wanted = {"nodes": nodes, "jobs": jobs, "allocations": jobs * GROUPS * COUNT}
    return merge({**wanted, "workers": workers}, found)


async def _once(cluster: Harness, nodes: int, jobs: int) -> Run:
    specs = n1_standard_8(nodes)
    wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
    bodies = [msgspec.json.encode(_submission(at)) for at in range(jobs)]
    async with cluster.observer() as observer, cluster.client() as public:
        with Beats(cluster.data_dir, cluster.url, specs) as beats:
            state, replica = observer.state, observer.replica
            await until(lambda: state.fleet.ready().sum() == nodes, f"{nodes} nodes ready", 120)
            await submit_all(public.bus, bodies)
            await until(lambda: observer.placed >= sum(wanted.values()), "all placed", LIMIT_S)
            await until(lambda: replica.checked_seq > state.seq, "a quiet moment", LIMIT_S)
            pids = cluster.pids()
            log_before = (await cluster.log_state()).bytes
            before = usage(pids)
            victims = one_in(specs, LOST_PART)
            cluster.sample()
            one = await _lose(observer, beats, _typical(observer, victims))
            many = await _lose(observer, beats, *victims)
            took = usage(pids)
            cluster.sample(until=True)
            await until(lambda: replica.checked_seq > state.seq, "a checkpoint at the end", LIMIT_S)
            checks = {
                "counts_exact": count(observer, wanted).exact,
                "within_capacity": not check(state),
                "replay_equals_live": (await replayed(cluster)).state.hashes() == state.hashes(),
                "nobody_restarted": pids == cluster.pids(),
            }
        log_after = (await cluster.log_state()).bytes
        fsync = await fsyncs(cluster, observer)
    return Run(
        result={
            **{f"one_node_{name}": value for name, value in one.items()},
            **{f"fifty_nodes_{name}": value for name, value in many.items()},
            "refused": len(observer.refused),
        },
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


def _submission(number: int) -> dict[str, object]:
    """Ask for a job that the whole fleet gets a share of: two hundred allocations a node, at full size."""
    return {"Job": {**job(number), "SchedulerAlgorithm": "spread"}, "SubmissionID": f"s-{number}"}


async def _lose(observer: Observer, beats: Beats, *node_ids: NodeId) -> dict[str, float]:
    """Let nodes die; times from then until the last is noticed, and until all they held is placed elsewhere."""
    fleet = observer.state.fleet
    rows = np.array([fleet.row_of[one] for one in node_ids])
    gone = int(_held(observer)[rows].sum())
    placed = observer.placed
    silenced = await beats.silence(node_ids)
    down = await noticed(observer, rows)
    await until(lambda: observer.placed >= placed + gone, f"{gone} replacements", LIMIT_S)
    last, done = max(down.values()), observer.time_of(placed + gone)
    return {
        "allocations": gone,
        "first_down_s": min(down.values()) - silenced.at_s,
        "down_s": last - silenced.at_s,
        "s": done - silenced.at_s,
        "after_down_s": done - last,
    }


def _held(observer: Observer) -> NDArray[np.int64]:
    """Allocations that each node shall run and that have not ended. Shape: (N,)."""
    table, fleet = observer.state.allocations, observer.state.fleet
    size = table.size
    counts = (table.desired[:size] == RUN) & ~TERMINAL[table.client[:size]]
    return np.bincount(table.node[:size][counts], minlength=fleet.size)


def _typical(observer: Observer, others: Sequence[NodeId]) -> NodeId:
    """Name a node, none of `others`, that holds as much as the middle one of those that hold anything."""
    fleet, held = observer.state.fleet, _held(observer)
    middle = int(np.median(held[held > 0]))
    taken = {fleet.row_of[one] for one in others}
    rows = np.argsort(np.abs(held - middle), kind="stable").tolist()
    row: int = next(row for row in rows if row not in taken)
    return fleet.ids[row]
