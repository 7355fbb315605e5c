"""P17's curve: 1 to 64 workers in virtual time, every step of every role as long as it took this machine to do it.

The engine runs the real roles over a log in memory; each of them is a server of its own that is busy for the CPU time
that its step really took, measured in the run: workers decide and replay what others placed, the one applier verifies
and seals, intake and broker do their part. So what many cores would do is seen on two. Hops and appends take what was
measured on the real bus (shared/sim/engine/times.py). What is not seen: the server's own time; what is seen too dark:
all of them share the caches of one core. It prints placements a second, conflicts, and how busy each role was: where
the curve bends, one of them is at a hundred per cent. The clock starts when every worker has read the whole log, and as
many small jobs as there are workers are placed, so that no figure is of first steps.
"""

import sys
import time
from typing import Any

import msgspec

from bench.faults import nested
from bench.outcome import Outcome, Run, merge
from bench.p1 import COUNT, GROUPS, JOBS, NODES, job
from bench.p17 import CPU_MHZ, FULL_PART, MEMORY_MIB
from schemas.envelope import Record
from schemas.plans import PlanCommitted, PlanRefused
from services.cli.machines import Needs
from shared.bus.runner import collect_rarely
from shared.core.invariants import check
from shared.core.tables.allocations import RUN
from shared.fleet.profile import NodeClass, Profile, Starts, node_specs
from shared.sim.engine.actor import Actor
from shared.sim.engine.engine import Engine
from shared.sim.engine.setup import NodeJoins, Setup, Submission
from shared.sim.loop import SECOND

RUNS = 1
WORKERS = (1, 2, 4, 8, 16, 32, 64)
NEEDS = Needs(memory_mib=8_192)
#: How many allocations pass between two submissions: what one client that does not wait sends.
_APART_NS = 20_000
#: Role by the name of its figure; of several instances the busiest counts.
_BUSY = {
    "worker": "scheduler",
    "applier": "plan_applier",
    "broker": "eval_broker",
    "intake": "intake",
}


class _Watched:
    """What came of the jobs: when, and in how many plans."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.start_ns = self.last_ns = engine.now_ns
        self.placed = self.plans = self.conflicts = 0

    def follow(self, record: Record, _seq: int) -> None:
        """Count one record."""
        for event in record.events:
            if isinstance(event, PlanCommitted) and event.placements:
                self.placed += sum(sum(one.counts) for one in event.placements)
                self.plans += 1
                self.conflicts += bool(event.cut)
                self.last_ns = self._engine.now_ns
            elif isinstance(event, PlanRefused):
                self.plans += 1
                self.conflicts += 1


def run(size: float, runs: int) -> Outcome:
    """Run each number of workers `runs` times on both clusters; `size` scales nodes and jobs."""
    nodes = max(int(NODES * size), GROUPS * 20)
    jobs = max(int(JOBS * size), FULL_PART)
    collect_rarely()
    found: list[Run] = []
    for _ in range(runs):
        parts: list[dict[str, float]] = []
        is_sound = True
        for workers in WORKERS:
            for name, count, full in (
                ("workers", jobs, False),
                ("workers_full", jobs // FULL_PART, True),
            ):
                figures, sound = _once(nodes, count, workers, full=full)
                is_sound &= sound
                parts.append({f"{name}.{workers}.{key}": value for key, value in figures.items()})
                shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
                print(f"{name} {workers}: {shown}", file=sys.stderr, flush=True)
        result = {key: value for part in parts for key, value in part.items()}
        checks = {"counts_exact_and_within_capacity": is_sound}
        found.append(
            Run(result=result, checks=checks, cpu_s={}, rss_mib={}, log_bytes=0, fsync=False)
        )
    outcome = nested(merge({"nodes": nodes, "jobs": jobs, "jobs_full": jobs // FULL_PART}, found))
    # No bus, so nothing to say about its disk.
    return msgspec.structs.replace(outcome, replicas=0)


def _once(nodes: int, jobs: int, workers: int, *, full: bool) -> tuple[dict[str, float], bool]:
    """Fill one cluster. Returns its figures, and whether every count is exact and no node over its capacity."""
    classes = tuple(
        NodeClass(
            name=f"c{number}",
            node_class=f"class_{number}",
            count=len(range(number - 1, nodes, GROUPS)),
            attributes={"driver.raw_exec": "1", "kernel.name": "linux"},
        )
        for number in range(1, GROUPS + 1)
    )
    # Nothing starts while it is looked at: placing alone is measured.
    profile = Profile(nodes=classes, starts=Starts(after="24h"))
    engine = Engine(
        Setup(schedulers=workers, profile=profile, shares=False, cpu_ns=time.thread_time_ns)
    )
    actors = _measured(engine)
    for spec in node_specs(profile):
        engine.at(engine.begin_ns, NodeJoins(spec=spec))
    engine.settle()
    if full:
        engine.at(engine.now_ns, _submission(_filler(nodes)))
        engine.settle()
    _submit(engine, workers, "first", each=1)
    engine.settle()
    # Who had nothing to decide sleeps, and has not read what the others have.
    for one in actors:
        one.wake()
    engine.settle()
    want, before = jobs * GROUPS * COUNT, {one: one.cpu_ns for one in actors}
    watched = _Watched(engine)
    engine.follow(watched.follow)
    _submit(engine, jobs, "curve", each=COUNT)
    engine.settle(quiet_ns=10 * SECOND)
    took_ns = max(1, watched.last_ns - watched.start_ns)
    busy = {one: 100 * (one.cpu_ns - before[one]) / took_ns for one in actors}
    table = engine.state.allocations
    others = workers * GROUPS + (nodes if full else 0)
    held = int((table.desired[: table.size] == RUN).sum()) - others
    figures = {
        "rate_per_s": want / took_ns * SECOND,
        "conflict_pct": 100 * watched.conflicts / max(1, watched.plans),
        **{
            f"{name}_busy_pct": max(busy[one] for one in actors if one.name == role)
            for name, role in _BUSY.items()
        },
    }
    return figures, held == watched.placed == want and not check(engine.state)


def _submit(engine: Engine, jobs: int, name: str, *, each: int) -> None:
    """Let so many jobs of P1 come in, one after the other, with `each` allocations a group."""
    start_ns = engine.now_ns
    for number in range(jobs):
        body = {**job(number), "ID": f"{name}-{number}", "Name": f"{name}-{number}"}
        for group in body["TaskGroups"]:
            group["Count"] = each
        engine.at(start_ns + number * _APART_NS, _submission(body))


def _measured(engine: Engine) -> list[Actor]:
    """Let each step take the CPU time that it took, and return who steps."""
    cluster: Any = engine._cluster  # noqa: SLF001 - the table of times gives way to a clock here, and only here.
    spent: dict[Actor, int] = {}

    def cost_ns(actor: Actor, _inputs: object) -> int:
        before, spent[actor] = spent.get(actor, 0), actor.cpu_ns
        return actor.cpu_ns - before

    cluster.cost_ns = cost_ns
    return [cluster.applier, cluster.intake, cluster.broker, *cluster.workers]


def _submission(body: dict[str, Any]) -> Submission:
    return Submission(body=msgspec.json.encode({"Job": body, "SubmissionID": f"s-{body['ID']}"}))


def _filler(nodes: int) -> dict[str, Any]:
    """A job of which one allocation goes on each node, and nearly fills it."""
    body: dict[str, Any] = {**job(0), "ID": "filler", "Name": "filler"}
    for number, group in enumerate(body["TaskGroups"]):
        group["Count"] = len(range(number, nodes, GROUPS))
        group["Tasks"][0]["Resources"] = {"CPU": CPU_MHZ, "MemoryMB": MEMORY_MIB}
    return body
