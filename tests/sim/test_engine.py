"""The engine: real roles in virtual time write the same log twice, and it is a log like any other."""

from collections.abc import Iterator
from typing import Any

import orjson

from schemas.base import NodeId
from schemas.policy import DrainNode, Policy, SetPolicy
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.verify_decisions import verify_decisions
from shared.core.state.invariants import check
from shared.core.state.tables.allocations import COMPLETE, RUNNING
from shared.core.state.tables.fleet import DOWN, READY
from shared.fleet.profile import (
    DurationSpec,
    FleetProfile,
    NodeClass,
    NodeFailures,
    RunProfile,
    StartProfile,
    node_specs,
)
from shared.sim.engine.engine import Scripted, SimulationEngine
from shared.sim.engine.run_setup import (
    EngineSetup,
    NodeComesBack,
    NodeFallsSilent,
    NodeJoins,
    ScriptedSubmission,
)
from shared.sim.virtual_time import SECOND, START_NS

NODES = 20
PROFILE = FleetProfile(
    nodes=(NodeClass(count=NODES, cpu_mhz=4_000, memory_mib=8_192),),
    starts=StartProfile(after=DurationSpec(uniform=("100ms", "2s")), fail=0.05),
    runs=(
        RunProfile(job_type="batch", lasts=DurationSpec(lognormal="30s", p99="300s"), fail=0.05),
    ),
)


def job(job_id: str, count: int = 1, kind: str = "batch", **fields: Any) -> ScriptedSubmission:
    """A submission of one group."""
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": {"CPU": 500, "MemoryMB": 256},
    }
    group = {"Name": "g", "Count": count, "Tasks": [task]}
    body = {"ID": job_id, "Type": kind, "TaskGroups": [group], **fields}
    return ScriptedSubmission(body=orjson.dumps({"Job": body}))


def story(*, faults: bool) -> Iterator[tuple[int, Scripted]]:
    """A quarter of an hour: nodes, a service, a batch job every ten seconds, and what an operator and chance do."""
    specs = node_specs(PROFILE)
    for spec in specs:
        yield START_NS, NodeJoins(spec=spec)
    yield START_NS + SECOND, job("web", 30, "service")
    for n in range(80):
        at = START_NS + (2 + 10 * n) * SECOND
        yield at, job(f"batch-{n}", 1 + n % 4)
        if faults and n == 20:
            yield at, NodeFallsSilent(node_id=specs[3].node_id)
            yield at, NodeFallsSilent(node_id=specs[4].node_id, dies=False)
        if faults and n == 30:
            yield at, DrainNode(request_id="d", node_id=specs[7].node_id, draining=True)
        if faults and n == 40:
            yield at, NodeComesBack(node_id=specs[3].node_id)
            yield at, NodeComesBack(node_id=specs[4].node_id)
            yield at, SetPolicy(request_id="p", policy=Policy(algorithm="spread"))


def played(*, faults: bool, **settings: Any) -> SimulationEngine:
    """Run the story."""
    profile = PROFILE
    if faults:
        failures = NodeFailures(per_node_day=20, away="60s", boot="20s")
        profile = FleetProfile(
            nodes=PROFILE.nodes, starts=PROFILE.starts, runs=PROFILE.runs, failures=failures
        )
    engine = SimulationEngine(EngineSetup(seed=7, schedulers=2, profile=profile, **settings))
    engine.feed(story(faults=faults))
    engine.run(START_NS + 900 * SECOND)
    return engine


def test_the_same_twice_is_the_same_log() -> None:
    """A run is a pure function of its setup and script, faults included; another seed is another run."""
    for faults in (False, True):
        one, two = played(faults=faults), played(faults=faults)
        assert one.digest == two.digest
        assert one.stats.records == two.stats.records > 300
    assert played(faults=False).digest != played(faults=True).digest


def test_sharing_a_state_changes_nothing() -> None:
    """Roles that read one state together write the same log as roles that have each their own."""
    for faults in (False, True):
        shared, alone = played(faults=faults), played(faults=faults, shares=False)
        assert shared.digest == alone.digest


def test_the_log_is_a_log_like_any_other() -> None:
    """Its records make a chain, its checkpoints hold, its decisions come out the same, its state breaks no rule."""
    engine = played(faults=True, checkpoint_every=100)
    replica = Replica()
    for record in engine.records:
        replica.apply(record)
    assert replica.checked > 2
    assert replica.state.hashes() == engine.state.hashes()
    assert check(replica.state) == []
    decided = verify_decisions(lambda: iter(engine.records))
    assert decided.differences == []
    assert decided.equal == decided.checked > 80


def test_a_lost_node_is_noticed_and_nobody_else() -> None:
    """Only the silent node goes down, what ran there runs elsewhere, and it is ready again when it comes back."""
    engine = SimulationEngine(EngineSetup(profile=PROFILE))
    for spec in node_specs(PROFILE):
        engine.at(START_NS, NodeJoins(spec=spec))
    engine.at(START_NS + SECOND, job("web", 40, "service"))
    engine.run(START_NS + 120 * SECOND)
    lost = NodeId("sim-00000")
    fleet, table = engine.state.fleet, engine.state.allocations
    row = fleet.row_of[lost]
    assert bool((table.node[: table.size] == row).any())
    engine.at(engine.now_ns, NodeFallsSilent(node_id=lost))
    engine.run(engine.now_ns + 300 * SECOND)
    assert [int(one) for one in (fleet.status[: fleet.size] == DOWN).nonzero()[0]] == [row]
    running = table.client[: table.size] == RUNNING
    assert int(running.sum()) == 40
    assert not bool((table.node[: table.size][running] == row).any())
    engine.at(engine.now_ns, NodeComesBack(node_id=lost))
    engine.run(engine.now_ns + 10 * SECOND)
    assert bool((fleet.status[: fleet.size] == READY).all())


def test_an_idle_day_costs_next_to_nothing() -> None:
    """While nothing happens no heartbeat is sent, no worker wakes, and the log does not grow."""
    engine = SimulationEngine(EngineSetup(profile=PROFILE))
    for spec in node_specs(PROFILE):
        engine.at(START_NS, NodeJoins(spec=spec))
    engine.run(START_NS + 3_600 * SECOND)
    before = engine.stats
    records, steps = before.records, dict(before.steps)
    engine.run(START_NS + 25 * 3_600 * SECOND)
    after = engine.stats
    assert after.records == records
    spent = {name: after.steps[name] - steps[name] for name in steps}
    assert spent["heartbeat-1"] == 0
    assert spent["scheduler-1"] == 0
    # The broker looks after its workers every two seconds.
    assert sum(spent.values()) < 50_000


def test_a_run_goes_on_from_a_recorded_state() -> None:
    """A fork at a seq keeps what ran, chains its records behind the recorded ones, and is the same each time."""
    engine = played(faults=False)
    prefix = engine.records[:200]
    start = Replica()
    for record in prefix:
        start.apply(record)
    before = start.state.hashes()
    ran = int((start.state.allocations.client == RUNNING).sum())
    assert ran > 20
    digests = []
    for _ in range(2):
        fork = SimulationEngine(EngineSetup(seed=7, profile=PROFILE, start=start))
        fork.at(fork.begin_ns + 5 * SECOND, job("late", 3))
        fork.run(fork.begin_ns + 600 * SECOND)
        digests.append(fork.digest)
        whole = Replica()
        for record in [*prefix, *fork.records]:
            whole.apply(record)
        assert whole.state.hashes() == fork.state.hashes()
        table = fork.state.allocations
        late = table.rows_of("late")  # type: ignore[arg-type]
        assert [int(one) for one in table.client[late]] == [COMPLETE] * 3
    assert digests[0] == digests[1]
    assert start.state.hashes() == before


def test_the_broker_tells_intake_what_waits() -> None:
    """What one role says to another arrives: a flood is known at the door, and all of it is placed."""
    vast = NodeClass(count=4, cpu_mhz=2_000_000, memory_mib=2_000_000, disk_mib=2_000_000)
    profile = FleetProfile(nodes=(vast,), runs=(RunProfile(lasts="forever"),))
    engine = SimulationEngine(EngineSetup(profile=profile))
    for spec in node_specs(profile):
        engine.at(START_NS, NodeJoins(spec=spec))
    engine.run(START_NS + SECOND)
    for n in range(3_000):
        engine.at(START_NS + SECOND, job(f"flood-{n}"))
    engine.run(START_NS + 4 * SECOND)
    intake: Any = engine._cluster.intake.role
    assert intake._admission._until_ns > START_NS + SECOND
    engine.run(START_NS + 30 * SECOND)
    table = engine.state.allocations
    assert int((table.client[: table.size] == RUNNING).sum()) == 3_000
    assert engine.stats.dead_letters == []
