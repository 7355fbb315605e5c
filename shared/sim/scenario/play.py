"""Playing a scenario: nodes join, what ran before is placed, then its time passes, and the report is made.

Decides when what of a plan is put into the engine, and when it is over. Must not know a file's form (`reading.py`).
"""

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from schemas.base import EvalKey, JobId
from schemas.nodes import NodeSpec
from schemas.policy import Policy, SetPolicy
from shared.core.replica import Replica
from shared.core.role import Record
from shared.core.tables.allocations import TERMINAL
from shared.errors import ConfigInvalid
from shared.fleet.profile import Profile, Runs
from shared.sim.engine.engine import Engine
from shared.sim.engine.setup import NodeJoins, Setup, Submission
from shared.sim.loop import SECOND
from shared.sim.scenario.arrivals import Open, coming
from shared.sim.scenario.faults import KINDS, happening
from shared.sim.scenario.form import Scenario, Whom
from shared.sim.scenario.ledger import JobNote, Ledger
from shared.sim.scenario.reading import Plan, duration, policy_of
from shared.sim.scenario.report import Measured, Report, measured_of, report_of

#: Samples of a run, for shares over time.
SAMPLES = 240
#: What runs before the first moment is placed within so much virtual time.
_BEFORE_NS = 600 * SECOND
_CLUSTER = "simulated"


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    report: Report
    #: None: no clock of the machine was given.
    measured: Measured | None
    engine: Engine
    #: every job, and by kind how long allocations waited: (ns, how many).
    jobs: dict[JobId, JobNote]
    waits: dict[str, list[tuple[int, int]]]


def play(
    plan: Plan,
    *,
    opens: Open,
    start: Replica | None = None,
    sink: Callable[[Record], None] | None = None,
    cpu_ns: Callable[[], int] | None = None,
    wall_ns: Callable[[], int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Played:
    """Play a plan. `start`: the state of its cluster; `progress` hears of virtual time passed, and of all of it, ns.

    Raises EngineStopped, TraceInvalid, ConfigInvalid: a node that the cluster refuses.
    """
    began = wall_ns() if wall_ns is not None else 0
    if start is not None:
        # A recorded cluster has its own policy, and what the scenario says is laid over that.
        recorded = start.state.policy.policy
        plan = msgspec.structs.replace(plan, policy=policy_of(plan.changes, recorded, "policy"))
    engine = Engine(_setup(plan, start, sink, cpu_ns))
    begin_ns = _prepare(engine, plan, opens)
    names = [one.name for one in (*plan.scenario.before, *plan.scenario.arrivals)]
    ledger = Ledger(names, begin_ns)
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
    report = _reported(engine, plan, ledger)
    measured = None
    if wall_ns is not None:
        passed = engine.now_ns - engine.begin_ns
        measured = measured_of(
            engine.decisions, engine.stats, wall_ns=wall_ns() - began, virtual_ns=passed
        )
    return Played(
        report=report, measured=measured, engine=engine, jobs=ledger.jobs, waits=ledger.waits
    )


def _setup(
    plan: Plan,
    start: Replica | None,
    sink: Callable[[Record], None] | None,
    cpu_ns: Callable[[], int] | None,
) -> Setup:
    scenario = plan.scenario
    return Setup(
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


def _profile(plan: Plan) -> Profile:
    """Let templates say how long their jobs run; they go before what the scenario says of all.

    Longer names first: jobs of `web-blue` are none of `web`.
    """
    scenario = plan.scenario
    kinds = sorted((*scenario.before, *scenario.arrivals), key=lambda one: -len(one.name))
    own = tuple(
        Runs(job=f"{one.name}-*", lasts=one.job.runs)
        for one in kinds
        if one.job is not None and one.job.runs
    )
    return msgspec.structs.replace(plan.profile, runs=(*own, *plan.profile.runs))


def _reported(engine: Engine, plan: Plan, ledger: Ledger) -> Report:
    scenario = plan.scenario
    return report_of(
        ledger,
        engine.stats,
        [one for one in engine.latencies if one.at_ns >= ledger.begin_ns],
        name=scenario.name,
        about=scenario.about,
        seed=scenario.seed,
        algorithm=plan.policy.algorithm,
        schedulers=scenario.schedulers,
        nodes=len(engine.state.fleet.row_of),
        end_ns=engine.now_ns,
        digest=engine.digest,
    )


def _prepare(engine: Engine, plan: Plan, opens: Open) -> int:
    """Let nodes join and what runs before be placed; returns the wall time of the first moment."""
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
        found = coming(
            plan.scenario.before,
            seed=plan.scenario.seed,
            folder=plan.folder,
            data=plan.data,
            duration_ns=_BEFORE_NS,
            ns=_ns,
            opens=opens,
        )
        begin = engine.now_ns
        engine.feed((begin + wait_ns, what) for wait_ns, what in found)
        engine.settle(quiet_ns=10 * SECOND, limit_ns=_BEFORE_NS)
    return engine.now_ns


def _script(engine: Engine, plan: Plan, begin_ns: int, opens: Open) -> None:
    scenario = plan.scenario
    found = coming(
        scenario.arrivals,
        seed=scenario.seed,
        folder=plan.folder,
        data=plan.data,
        duration_ns=plan.duration_ns,
        ns=_ns,
        opens=opens,
    )
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
        for wait_ns, what in happening(
            fault,
            number,
            seed=scenario.seed,
            nodes=nodes,
            begin_ns=begin_ns,
            duration_ns=plan.duration_ns,
            policy=policy,
            ns=_ns,
        ):
            engine.at(begin_ns + wait_ns, what)
        if fault.stop:
            engine.call(begin_ns + _ns(fault.at), partial(_stop, engine, fault.stop, number))


def _known(scenario: Scenario, nodes: list[tuple[NodeSpec, str]]) -> None:
    """Raise ConfigInvalid for a fault of nodes that are not there."""
    ids = {str(spec.node_id) for spec, _ in nodes}
    classes = {name for _, name in nodes}
    for number, fault in enumerate(scenario.faults):
        for kind in KINDS:
            whom: Whom | None = getattr(fault, kind)
            if whom is None:
                continue
            missing = [one for one in whom.nodes if one not in ids]
            if missing:
                text = f"there is no node {missing[0]!r}"
                raise ConfigInvalid(f"faults[{number}].{kind}.nodes: {text}")
            if whom.of and whom.of not in classes:
                text = f"there is no class of nodes {whom.of!r}"
                raise ConfigInvalid(f"faults[{number}].{kind}.of: {text}")


def _ns(text: str) -> int:
    return duration(text, "time")


def _stop(engine: Engine, prefix: str, number: int) -> None:
    """Stop every job whose id begins so."""
    for job_id in sorted(engine.state.jobs.by_id):
        if job_id.startswith(prefix):
            body = msgspec.json.encode({"JobID": job_id})
            wanted = Submission(verb="stop", body=body, submission_id=f"stop-{number}-{job_id}")
            engine.at(engine.now_ns, wanted)


def _sample(ledger: Ledger, engine: Engine) -> None:
    ledger.sample(engine.state, engine.now_ns)


def _settle(engine: Engine, plan: Plan, ledger: Ledger) -> None:
    """Let time pass until nobody waits and nothing that ends runs."""
    if not plan.settle_ns:
        return
    limit = engine.now_ns + plan.settle_ns
    step = max(plan.settle_ns // 60, SECOND)
    while engine.now_ns < limit and not _is_over(engine, ledger):
        engine.run(min(engine.now_ns + step, limit))
        _sample(ledger, engine)


def _is_over(engine: Engine, ledger: Ledger) -> bool:
    state = engine.state
    pending = any(not _is_blocked(engine, key) for key in state.evaluations.open)
    table = state.allocations
    rows = table.live_rows()
    rows = rows[~TERMINAL[table.client[rows]]]
    refs = np.unique(table.group[rows]).tolist()
    jobs = state.jobs.by_id
    ends = any(
        (job := jobs.get(table.groups.job_ids[ref])) is None
        or job.job_type in {"batch", "sysbatch"}
        for ref in refs
    )
    return not pending and not ends and (not ledger.waiting or not refs)


def _is_blocked(engine: Engine, key: EvalKey) -> bool:
    evaluation = engine.state.evaluations.by_key.get(key)
    return evaluation is None or evaluation.blocked is not None
