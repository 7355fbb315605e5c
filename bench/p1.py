"""P1, a million containers placed: 1,000 jobs of 5 groups of 200 on 5,000 nodes, by 64 submitters at once.

Through the whole product: the public door, validation, the log with fsync, the broker, workers, the verifying applier.
The clock runs from the first submission until a replaying process sees the last placement. The figure to reach: all
placed within 1 s; refused for capacity: none, with any number of workers.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bench.fleet import n1_standard_8
from bench.harness import Harness, between, run_in, until, usage
from bench.observer import Observer
from bench.outcome import Outcome, Run, merge, shown
from schemas.jobs import Verdict
from schemas.nodes import NodeSpec
from services.cli.machines import Needs
from shared.bus import subjects
from shared.bus.connect import BusClient
from shared.core.invariants import check
from shared.core.replica import Replica
from shared.core.role import Record
from shared.fleet.profile import Profile

NODES = 5_000
RUNS = 5
JOBS = 1_000
GROUPS = 5
COUNT = 200
SUBMITTERS = 64
#: A run that takes longer has failed.
LIMIT_S = 120.0
NEEDS = Needs(memory_mib=3_072)

#: Makes the figures of a run: given who watched, when the first submission went out, and how many were wanted.
Figures = Callable[[Observer, float, int], dict[str, float]]


def run(size: float, runs: int, workers: int = 1) -> Outcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes and jobs."""
    return filled(size, runs, workers, times)


def filled(size: float, runs: int, workers: int, figures: Figures) -> Outcome:
    """Fill a fresh cluster `runs` times; `figures` says what of it is the result."""
    nodes, jobs = sized(size)
    found: list[Run] = []

    async def story(cluster: Harness) -> None:
        found.append(await once(cluster, nodes, jobs, figures))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)

    for _ in range(runs):
        run_in(story, {"schedulers": max(workers, 1)})
    wanted = {"nodes": nodes, "jobs": jobs, "workers": max(workers, 1)}
    return merge({**wanted, "placements": jobs * GROUPS * COUNT}, found)


def sized(size: float) -> tuple[int, int]:
    """How many nodes and jobs a part of the size has."""
    return max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 1)


def times(observer: Observer, start: float, want: int) -> dict[str, float]:
    times = {
        name: observer.time_of(max(1, int(want * part))) - start
        for name, part in (("t_first_s", 0), ("t50_s", 0.5), ("t99_s", 0.99), ("t_all_s", 1))
    }
    return {"placements": want, **times, "rate_per_s": want / times["t_all_s"]}


def job(number: int) -> dict[str, Any]:
    """One job of the million container challenge, in Nomad's JSON."""
    groups = [
        {
            "Name": f"group_{group}",
            "Count": COUNT,
            "Constraints": [
                {"LTarget": "${node.class}", "Operand": "=", "RTarget": f"class_{group}"}
            ],
            "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [
                {
                    "Name": "task",
                    "Driver": "raw_exec",
                    "Config": {"command": "/bin/sleep", "args": ["3600"]},
                    "Resources": {"CPU": 20, "MemoryMB": 15},
                }
            ],
        }
        for group in range(1, GROUPS + 1)
    ]
    return {"ID": f"c1m-{number}", "Name": f"c1m-{number}", "Type": "service", "TaskGroups": groups}


async def settled(
    cluster: Harness,
    observer: Observer,
    fleet: int | list[NodeSpec],
    profile: Profile | None = None,
) -> None:
    """Wait until the fleet is up, proved by a checkpoint, and the processes are quiet. A number: of n1-standard-8.

    With `profile` its nodes run what is placed on them.
    """
    specs = n1_standard_8(fleet) if isinstance(fleet, int) else fleet
    nodes = len(specs)
    cluster.start_fleet(specs, profile)
    await until(lambda: observer.state.fleet.ready().sum() == nodes, f"{nodes} nodes ready", 60)
    checked = observer.replica.checked
    await until(lambda: observer.replica.checked > checked, "a checkpoint of the fleet", 20)
    pids = cluster.pids()
    for _ in range(60):
        before = usage(pids)
        await asyncio.sleep(0.5)
        busy = between(before, usage(pids))
        if sum(busy.values()) < 0.3:
            break
    cluster.sample()


async def once(cluster: Harness, nodes: int, jobs: int, figures: Figures) -> Run:
    """Fill one fresh cluster, and prove what it holds."""
    want = jobs * GROUPS * COUNT
    bodies = [
        msgspec.json.encode({"Job": job(at), "SubmissionID": f"s-{at}"}) for at in range(jobs)
    ]
    async with cluster.observer() as observer, cluster.client() as public:
        await settled(cluster, observer, nodes)
        pids = cluster.pids()
        log_before = (await cluster.log_state()).bytes
        before = usage(pids)
        start = time.perf_counter()
        verdicts = await submit_all(public.bus, bodies)
        await until(lambda: observer.placed >= want, f"{want} placements", LIMIT_S)
        took = usage(pids)
        log_after = (await cluster.log_state()).bytes
        wanted = {f"c1m-{at}": GROUPS * COUNT for at in range(jobs)}
        checks = await proved(cluster, observer, verdicts, wanted)
        checks["nobody_restarted"] = pids == cluster.pids()
        fsync = await fsyncs(cluster, observer)
    return Run(
        result=figures(observer, start, want),
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )


async def submit_all(
    bus: BusClient, bodies: Sequence[bytes], submitters: int = SUBMITTERS
) -> list[Verdict]:
    """64 submitters, or others, each waiting for its verdict before it sends the next; pending is asked again."""
    verdicts: list[Verdict] = []
    queue = iter(bodies)

    async def submitter() -> None:
        for body in queue:
            while True:
                answer = await ask(bus, body)
                if answer.status != "pending":
                    break
            if answer.error is not None:
                # Nobody would see what it waits for.
                raise RuntimeError(f"a job was refused: {answer.error}")
            verdicts.append(answer)

    await asyncio.gather(*(submitter() for _ in range(submitters)))
    return verdicts


async def ask(bus: BusClient, body: bytes) -> Verdict:
    """Submit one job by the fast door."""
    _, answer = await bus.request_raw(subjects.api_jobs("submit"), body, timeout_s=30)
    return msgspec.json.decode(answer, type=Verdict)


async def proved(
    cluster: Harness, observer: Observer, verdicts: Sequence[Verdict], wanted: Mapping[str, int]
) -> dict[str, bool]:
    """Everything that must hold, proved by the next checkpoint and by a second replay from the start.

    `wanted`: allocations by job.
    """
    cluster.sample(until=True)
    replica, state = observer.replica, observer.state
    # It may be there already: checkpoints come by number, too.
    await until(lambda: replica.checked_seq > state.seq, "a checkpoint behind the last plan", 60)
    again = await replayed(cluster)
    counts = state.allocations
    exact = all(len(counts.rows_of(name)) == count for name, count in wanted.items())
    accepted = sum(verdict.status == "accepted" for verdict in verdicts)
    return {
        "none_refused": not observer.refused and not observer.cut,
        "counts_exact": exact and observer.placed == sum(wanted.values()),
        "within_capacity": not check(state),
        "replay_equals_live": again.state.hashes() == state.hashes() and again.checked > 0,
        "nothing_lost": len(verdicts) == accepted == len(wanted),
    }


async def replayed(cluster: Harness) -> Replica:
    """Replay the log from its beginning as the public may read it. Raises LogError, StateDiverged."""
    again = Replica()
    async with cluster.client() as client:
        record: Record
        async for record in client.read_log():
            again.apply(record)
    return again


async def fsyncs(cluster: Harness, observer: Observer) -> bool:
    """What the server said to the applier, as the lease record holds it."""
    async with cluster.client() as client:
        async for record in client.read_log(
            observer.replica.chain.epoch, observer.replica.chain.epoch
        ):
            lease = msgspec.json.decode(record.data).get("lease") or {}
            return bool(lease.get("fsync"))
    return False
