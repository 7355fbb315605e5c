"""P17's curve: 1 to 64 workers in virtual time, where every step takes the CPU time that it took on this machine.

The simulation runs the real roles over a log in memory. Each is busy for the CPU time that its step really took:
workers decide and replay the placements of others, the one applier verifies and seals, intake and broker do their part.
So two cores show the behaviour of many. Hops and appends take the times measured on the real bus
(`shared/sim/engine/service_times.py`). Not included: the server's own time. Overstated: CPU times, since all roles
share the caches of one core. Prints placements a second, conflicts, and how busy each role was: where the curve
bends, one of them is at a hundred per cent. The clock starts when every worker has read the whole log, and a small
job for each worker was placed.
"""

import sys
import time
from typing import Any

import msgspec

from bench.harness.fault_load import nest_results
from bench.harness.host_info import HostRequirements
from bench.harness.measured_run import job_body
from bench.harness.outcome import BenchOutcome, BenchRun, merge_runs
from bench.throughput.million_placements import COUNT, GROUPS, JOBS, NODES, c1m_job
from bench.throughput.worker_scaling import FULL_PART, filler_job
from schemas.envelope import LogRecord
from schemas.plans import PlanCommitted, PlanRefused
from shared.bus.process.runner import tune_garbage_collector
from shared.core.state.invariants import check
from shared.core.state.tables.allocations import RUN
from shared.fleet.profile import FleetProfile, NodeClass, StartProfile, node_specs
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.engine_role import EngineRole
from shared.sim.engine.run_setup import EngineSetup, NodeJoins, ScriptedSubmission
from shared.sim.virtual_time import SECOND

RUNS = 1
WORKERS = (1, 2, 4, 8, 16, 32, 64)
NEEDS = HostRequirements(memory_mib=8_192)
#: How many allocations pass between two submissions: what one client that does not wait sends.
_APART_NS = 20_000
#: Role by the name of its figure; of several instances the busiest counts.
_BUSY = {
    "worker": "scheduler",
    "applier": "plan_applier",
    "broker": "eval_broker",
    "intake": "intake",
}


class _PlanCounter:
    """What came of the jobs: when, and in how many plans."""

    def __init__(self, engine: SimulationEngine) -> None:
        self._engine = engine
        self.start_ns = self.last_ns = engine.now_ns
        self.placed = self.plans = self.conflicts = 0

    def follow(self, record: LogRecord, _seq: int) -> None:
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


def run(size: float, runs: int) -> BenchOutcome:
    """Run each number of workers `runs` times on both clusters; `size` scales nodes and jobs."""
    nodes = max(int(NODES * size), GROUPS * 20)
    jobs = max(int(JOBS * size), FULL_PART)
    tune_garbage_collector()
    found: list[BenchRun] = []
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
            BenchRun(result=result, checks=checks, cpu_s={}, rss_mib={}, log_bytes=0, fsync=False)
        )
    outcome = nest_results(
        merge_runs({"nodes": nodes, "jobs": jobs, "jobs_full": jobs // FULL_PART}, found)
    )
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
    profile = FleetProfile(nodes=classes, starts=StartProfile(after="24h"))
    engine = SimulationEngine(
        EngineSetup(schedulers=workers, profile=profile, shares=False, cpu_ns=time.thread_time_ns)
    )
    actors = _measured(engine)
    for spec in node_specs(profile):
        engine.at(engine.begin_ns, NodeJoins(spec=spec))
    engine.settle()
    if full:
        engine.at(engine.now_ns, _submission(filler_job(nodes)))
        engine.settle()
    _submit(engine, workers, "first", each=1)
    engine.settle()
    # An idle worker sleeps, and has not read the records that the others have.
    for one in actors:
        one.wake()
    engine.settle()
    want, before = jobs * GROUPS * COUNT, {one: one.cpu_ns for one in actors}
    watched = _PlanCounter(engine)
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


def _submit(engine: SimulationEngine, jobs: int, name: str, *, each: int) -> None:
    """Let so many jobs of P1 come in, one after the other, with `each` allocations a group."""
    start_ns = engine.now_ns
    for number in range(jobs):
        body = {**c1m_job(number), "ID": f"{name}-{number}", "Name": f"{name}-{number}"}
        for group in body["TaskGroups"]:
            group["Count"] = each
        engine.at(start_ns + number * _APART_NS, _submission(body))


def _measured(engine: SimulationEngine) -> list[EngineRole]:
    """Let each step take the CPU time that it took, and return who steps."""
    cluster: Any = engine._cluster  # noqa: SLF001 - the table of times gives way to a clock here, and only here.
    spent: dict[EngineRole, int] = {}

    def cost_ns(actor: EngineRole, _inputs: object) -> int:
        before, spent[actor] = spent.get(actor, 0), actor.cpu_ns
        return actor.cpu_ns - before

    cluster.cost_ns = cost_ns
    return [cluster.applier, cluster.intake, cluster.broker, *cluster.workers]


def _submission(body: dict[str, Any]) -> ScriptedSubmission:
    return ScriptedSubmission(body=job_body(body))
