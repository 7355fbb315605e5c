"""P3, two million containers running: 2,000 jobs of 1,000, spread over 6,100 nodes in 10 datacenters.

75 submit at once. The clock runs from the first submission until a replaying process sees the last one placed, and
the last one running on a fleet in a process of its own. `slope` is the rate at which the second million is placed
over that of the first. The figure to reach: placed within 2 s, running within 10 s, slope within a tenth of 1.
"""

import sys
from typing import Any

from bench.harness import Harness, run_in
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from bench.p2 import all_run, times
from bench.running import Work, ran
from schemas.base import NodeId
from schemas.nodes import NodeSpec
from schemas.operator import PolicyWish
from services.cli.machines import Needs
from shared.bus import subjects

NODES = 6_100
DATACENTERS = 10
RUNS = 5
JOBS = 2_000
COUNT = 1_000
SUBMITTERS = 75
#: A run that takes longer has failed.
LIMIT_S = 300.0
NEEDS = Needs(memory_mib=6_144)


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), DATACENTERS), max(int(JOBS * size), 2)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await _once(cluster, nodes, jobs))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    wanted = {"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}
    return merge({**wanted, "placements": jobs * COUNT}, found)


def fleet(count: int) -> list[NodeSpec]:
    """Hosts of four sizes, as m4, m5 and t3 have them, in ten datacenters by turns; 330 containers fit the smallest."""
    return [
        NodeSpec(
            node_id=NodeId(f"n{number:05d}"),
            name=f"n{number:05d}",
            datacenter=f"dc{number % DATACENTERS + 1}",
            cpu_mhz=20_000 * (1 + number // DATACENTERS % 4),
            memory_mib=16_384 * (1 + number // DATACENTERS % 4),
            disk_mib=102_400,
            attributes={"driver.raw_exec": "1", "kernel.name": "linux"},
        )
        for number in range(count)
    ]


def job(number: int) -> dict[str, Any]:
    """One job of the two million container challenge, in Nomad's JSON: deployments are off."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "Resources": {"CPU": 50, "MemoryMB": 30},
    }
    group = {"Name": "g", "Count": COUNT, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    return {
        "ID": f"c2m-{number}",
        "Name": f"c2m-{number}",
        "Type": "service",
        "Datacenters": [f"dc{at + 1}" for at in range(DATACENTERS)],
        "Update": {"MaxParallel": 0},
        "TaskGroups": [group],
    }


async def _once(cluster: Harness, nodes: int, jobs: int) -> Run:
    work = Work(
        fleet=fleet(nodes),
        jobs=[job(at) for at in range(jobs)],
        a_job=COUNT,
        done=lambda observer: observer.running,
        figures=_times,
        holds=all_run,
        within_s=LIMIT_S,
        submitters=SUBMITTERS,
        first=spread,
    )
    return await ran(cluster, work)


def _times(observer: Observer, start: float, want: int) -> dict[str, float]:
    half = observer.time_of(want // 2) - start
    found = times(observer, start, want)
    return {**found, "slope": half / max(found["t_all_s"] - half, 1e-3)}


async def spread(cluster: Harness) -> None:
    """Have the cluster place by spreading, as theirs did."""
    wish = PolicyWish(request_id="spread", change={"algorithm": "spread"})
    async with cluster.client() as public:
        answer = await public.request(subjects.api("operator", "set_policy"), wish)
    if answer.get("status") != "accepted":
        raise RuntimeError(f"the policy was not set: {answer}")
