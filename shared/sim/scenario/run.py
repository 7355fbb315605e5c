"""Running a scenario: nodes join, initial jobs are placed, its time passes, and the report is made."""

from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import msgspec
import numpy as np

from schemas.base import EvalKey, JobId
from schemas.jobs import FINITE_JOB_TYPES
from schemas.nodes import NodeSpec
from schemas.policy import Policy, SetPolicy
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL
from shared.durations import parse_duration
from shared.errors import ConfigInvalid
from shared.fleet.profile import RUN_MS, FleetProfile, NodeProfile, RunProfile
from shared.fleet.simulated_allocs import SimulatedAllocs
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins, ScriptedSubmission
from shared.sim.engine.simulated_nodes import meta_of
from shared.sim.scenario.arrivals import OpenExport, scripted_submissions
from shared.sim.scenario.faults import NODE_FAULTS, fault_events
from shared.sim.scenario.parser import ScenarioPlan, policy_of
from shared.sim.scenario.report import MachineTimes, ScenarioReport, build_report, measure_machine
from shared.sim.scenario.run_metrics import JobMetrics, RunMetrics
from shared.sim.scenario.schema import NodeSelection, Scenario
from shared.sim.virtual_time import SECOND

#: Samples per run, for shares over time.
SAMPLES = 240
#: Virtual time in which initial jobs are placed.
_BEFORE_NS = 600 * SECOND
_CLUSTER = "simulated"


class RecordedStart(Protocol):
    """Makes the tasks of a recorded cluster continue in a run (shared/whatif/continuation.py)."""

    def allocs(
        self, seed: int, state: Callable[[], State], says: Callable[[JobId], bool]
    ) -> SimulatedAllocs:
        """Return the allocations of the run. `says`: the scenario says how long a job runs."""
        ...

    def follow(self, engine: SimulationEngine) -> None:
        """Follow the run from its beginning."""
        ...

    def assumptions(self) -> tuple[str, ...]:
        """Describe what the run assumed."""
        ...


class ScenarioRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    report: ScenarioReport
    #: None: no machine clock was given.
    measured: MachineTimes | None
    engine: SimulationEngine
    #: every job, and the waits of allocations by kind: (ns, count).
    jobs: dict[JobId, JobMetrics]
    waits: dict[str, list[tuple[int, int]]]


def run_scenario(
    plan: ScenarioPlan,
    *,
    opens: OpenExport,
    start: Replica | None = None,
    record: RecordedStart | None = None,
    sink: Callable[[Record], None] | None = None,
    cpu_ns: Callable[[], int] | None = None,
    wall_ns: Callable[[], int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScenarioRun:
    """Run a plan. `start`: the state of a recorded cluster; `record`: its tasks continue as recorded.

    `progress` gets virtual time done and in all, ns.
    Raises EngineStopped, FileInvalid, ConfigInvalid: the cluster refuses a node.
    """
    began = wall_ns() if wall_ns is not None else 0
    if start is not None:
        # The scenario overrides the policy of a recorded cluster.
        recorded = start.state.policy.policy
        plan = msgspec.structs.replace(plan, policy=policy_of(plan.changes, recorded, "policy"))
    setup = _setup(plan, start, sink, cpu_ns)
    engine = SimulationEngine(setup if record is None else _with_record(setup, record))
    if record is not None:
        record.follow(engine)
    begin_ns = _prepare(engine, plan, opens)
    names = [one.name for one in (*plan.scenario.before, *plan.scenario.arrivals)]
    ledger = RunMetrics(names, begin_ns)
    engine.on_refused = ledger.refused
    engine.follow(lambda record, _seq: ledger.follow(engine.state, record))
    _script(engine, plan, begin_ns, opens)
    step = max(plan.duration_ns // SAMPLES, 1)
    for nth in range(SAMPLES + 1):
        at_ns = begin_ns + min(nth * step, plan.duration_ns)
        engine.call(at_ns, partial(_sample, ledger, engine))
    for nth in range(1, SAMPLES + 1):
        until = begin_ns + (plan.duration_ns if nth == SAMPLES else nth * step)
        engine.run(until)
        if progress is not None:
            progress(until - begin_ns, plan.duration_ns)
    _settle(engine, plan, ledger)
    report = build_report(plan, engine, ledger)
    if record is not None:
        report = msgspec.structs.replace(report, assumptions=record.assumptions())
    measured = None
    if wall_ns is not None:
        passed = engine.now_ns - engine.begin_ns
        measured = measure_machine(
            engine.decisions, engine.stats, wall_ns=wall_ns() - began, virtual_ns=passed
        )
    return ScenarioRun(
        report=report, measured=measured, engine=engine, jobs=ledger.jobs, waits=ledger.waits
    )


def _setup(
    plan: ScenarioPlan,
    start: Replica | None,
    sink: Callable[[Record], None] | None,
    cpu_ns: Callable[[], int] | None,
) -> EngineSetup:
    scenario = plan.scenario
    return EngineSetup(
        cluster_id=_CLUSTER,
        seed=scenario.seed,
        schedulers=scenario.schedulers,
        policy=plan.policy,
        profile=_profile(plan),
        times=scenario.times,
        start=start,
        sink=sink,
        cpu_ns=cpu_ns,
    )


def _with_record(setup: EngineSetup, record: RecordedStart) -> EngineSetup:
    """Let tasks of the recorded cluster continue as recorded, where the profile does not say how long they run."""
    profile = NodeProfile(setup.profile)

    def lives(seed: int, state: Callable[[], State]) -> SimulatedAllocs:
        @cache
        def says(job_id: JobId) -> bool:
            jobs = state().jobs
            job = jobs.by_id.get(job_id)
            if job is None:
                return profile.says_run_time(job_id, "batch")
            spec = jobs.spec(job_id, job.version)
            own = any(RUN_MS in meta_of(spec, group.name) for group in job.groups)
            return own or profile.says_run_time(job_id, job.job_type)

        return record.allocs(seed, state, says)

    return msgspec.structs.replace(setup, lives=lives)


def _profile(plan: ScenarioPlan) -> FleetProfile:
    """Return the run times of templates, which override those of the scenario.

    Longer names first: jobs of `web-blue` do not belong to `web`.
    """
    scenario = plan.scenario
    kinds = sorted((*scenario.before, *scenario.arrivals), key=lambda one: -len(one.name))
    own = tuple(
        RunProfile(job=f"{one.name}-*", lasts=one.job.runs)
        for one in kinds
        if one.job is not None and one.job.runs
    )
    return msgspec.structs.replace(plan.profile, runs=(*own, *plan.profile.runs))


def _prepare(engine: SimulationEngine, plan: ScenarioPlan, opens: OpenExport) -> int:
    """Let nodes join and place initial jobs; returns the wall time of the start."""
    at_ns = engine.begin_ns + SECOND
    if engine.setup.start is not None and plan.changes:
        engine.at(at_ns, SetPolicy(request_id="scenario", policy=plan.policy))
    for spec, _ in plan.nodes:
        engine.at(at_ns, NodeJoins(spec=spec))
    engine.run(at_ns + SECOND)
    engine.settle(limit_ns=_BEFORE_NS)
    for spec, _ in plan.nodes:
        refused = engine.state.fleet.refused.get(spec.node_id)
        if refused is not None:
            raise ConfigInvalid(f"nodes: {spec.node_id} was refused: {refused.reason}")
    if plan.scenario.before:
        found = scripted_submissions(plan.scenario.before, plan, _BEFORE_NS, opens)
        begin = engine.now_ns
        engine.feed((begin + wait_ns, what) for wait_ns, what in found)
        engine.settle(quiet_ns=10 * SECOND, limit_ns=_BEFORE_NS)
    return engine.now_ns


def _script(engine: SimulationEngine, plan: ScenarioPlan, begin_ns: int, opens: OpenExport) -> None:
    scenario = plan.scenario
    found = scripted_submissions(scenario.arrivals, plan, plan.duration_ns, opens)
    engine.feed((begin_ns + wait_ns, what) for wait_ns, what in found)
    fleet = engine.state.fleet
    known = {spec.node_id for spec, _ in plan.nodes}
    nodes: list[tuple[NodeSpec, str]] = [*plan.nodes]
    nodes += [
        (fleet.specs[row], fleet.specs[row].node_class)
        for node_id, row in sorted(fleet.row_of.items())
        if node_id not in known
    ]
    _known(scenario, nodes)
    policy: Policy = plan.policy
    for number, fault in enumerate(scenario.faults):
        if fault.policy:
            policy = policy_of(fault.policy, policy, "policy")
        events = fault_events(plan, number, nodes=nodes, begin_ns=begin_ns, policy=policy)
        for wait_ns, what in events:
            engine.at(begin_ns + wait_ns, what)
        if fault.stop:
            engine.call(
                begin_ns + parse_duration(fault.at), partial(_stop, engine, fault.stop, number)
            )


def _known(scenario: Scenario, nodes: list[tuple[NodeSpec, str]]) -> None:
    """Raise ConfigInvalid for a fault of unknown nodes."""
    ids = {str(spec.node_id) for spec, _ in nodes}
    classes = {name for _, name in nodes}
    for number, fault in enumerate(scenario.faults):
        for kind in NODE_FAULTS:
            whom: NodeSelection | None = getattr(fault, kind)
            if whom is None:
                continue
            missing = [one for one in whom.nodes if one not in ids]
            if missing:
                text = f"there is no node {missing[0]!r}"
                raise ConfigInvalid(f"faults[{number}].{kind}.nodes: {text}")
            if whom.of and whom.of not in classes:
                text = f"there is no node class {whom.of!r}"
                raise ConfigInvalid(f"faults[{number}].{kind}.of: {text}")


def _stop(engine: SimulationEngine, prefix: str, number: int) -> None:
    """Stop every job with this prefix of its id."""
    for job_id in sorted(engine.state.jobs.by_id):
        if job_id.startswith(prefix):
            body = msgspec.json.encode({"JobID": job_id})
            wanted = ScriptedSubmission(
                verb="stop", body=body, submission_id=f"stop-{number}-{job_id}"
            )
            engine.at(engine.now_ns, wanted)


def _sample(ledger: RunMetrics, engine: SimulationEngine) -> None:
    ledger.sample(engine.state, engine.now_ns)


def _settle(engine: SimulationEngine, plan: ScenarioPlan, ledger: RunMetrics) -> None:
    """Run until no allocation waits and none that ends by itself is running."""
    if not plan.settle_ns:
        return
    limit = engine.now_ns + plan.settle_ns
    step = max(plan.settle_ns // 60, SECOND)
    while engine.now_ns < limit and not _is_over(engine, ledger):
        engine.run(min(engine.now_ns + step, limit))
        _sample(ledger, engine)


def _is_over(engine: SimulationEngine, ledger: RunMetrics) -> bool:
    state = engine.state
    pending = any(not _is_blocked(engine, key) for key in state.evaluations.open)
    table = state.allocations
    rows = table.live_rows()
    rows = rows[~TERMINAL[table.client[rows]]]
    refs = np.unique(table.group[rows]).tolist()
    jobs = state.jobs.by_id
    ends = any(
        (job := jobs.get(table.groups.job_ids[ref])) is None or job.job_type in FINITE_JOB_TYPES
        for ref in refs
    )
    return not pending and not ends and (not ledger.waiting or not refs)


def _is_blocked(engine: SimulationEngine, key: EvalKey) -> bool:
    evaluation = engine.state.evaluations.by_key.get(key)
    return evaluation is None or evaluation.blocked is not None
