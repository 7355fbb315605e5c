"""What the benchmarks of running containers share: a fleet that runs what is placed on it, jobs, and proofs.

Decides when the clock runs: from the first submission until `done` says that enough of them has run, once the fleet is
up and the processes are quiet. What is wanted, and what else must hold in the end, is for `p2.py`, `p3.py`, `p11.py`.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from bench.harness import Harness, between, until, usage
from bench.observer import Observer
from bench.outcome import Run
from bench.p1 import SUBMITTERS, Figures, fsyncs, proved, settled, submit_all
from schemas.nodes import NodeSpec
from shared.fleet.profile import Profile


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to run, in Nomad's JSON, each with so many allocations."""

    fleet: int | list[NodeSpec]
    jobs: Sequence[dict[str, Any]]
    a_job: int
    #: how far it has come: how many run, or are over.
    done: Callable[[Observer], int]
    figures: Figures
    #: what must hold in the end beside what holds everywhere, given how many were wanted.
    holds: Callable[[Observer, int], Mapping[str, bool]]
    within_s: float
    submitters: int = SUBMITTERS
    #: before the clock runs.
    first: Callable[[Harness], Awaitable[None]] | None = None


async def ran(cluster: Harness, work: Work) -> Run:
    """Let it run on a fresh cluster, and prove what it holds."""
    want = len(work.jobs) * work.a_job
    bodies = [
        msgspec.json.encode({"Job": job, "SubmissionID": f"s-{at}"})
        for at, job in enumerate(work.jobs)
    ]
    async with cluster.observer() as observer, cluster.client() as public:
        await settled(cluster, observer, work.fleet, Profile())
        if work.first is not None:
            await work.first(cluster)
        pids = cluster.all_pids()
        log_before = (await cluster.log_state()).bytes
        before = usage(pids)
        start = time.perf_counter()
        verdicts = await submit_all(public.bus, bodies, work.submitters)
        await until(lambda: work.done(observer) >= want, f"{want} done", work.within_s)
        took = usage(pids)
        log_after = (await cluster.log_state()).bytes
        wanted = {job["ID"]: work.a_job for job in work.jobs}
        checks = await proved(cluster, observer, verdicts, wanted)
        checks |= work.holds(observer, want)
        checks["nobody_restarted"] = pids == cluster.all_pids()
        fsync = await fsyncs(cluster, observer)
    return Run(
        result=work.figures(observer, start, want),
        checks=checks,
        cpu_s=between(before, took),
        rss_mib=took.rss_mib,
        log_bytes=log_after - log_before,
        fsync=fsync,
    )
