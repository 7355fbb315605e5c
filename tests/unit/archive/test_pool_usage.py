"""Devices, dedicated cores and custom resources in SQL: by job and time what the replayed state holds."""

from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from schemas.base import NodeId
from schemas.nodes import Instance, NodeSpec, Pool
from schemas.policy import Policy, Preemption
from shared.archive.database import FactDatabase
from shared.archive.export import ExportReader, write_export
from shared.archive.fact_extractor import FactExtractor
from shared.core.resources.asks import WHOLE
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.state import State
from shared.fleet.profile import DurationSpec, FleetProfile, RunProfile, StartProfile
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import (
    EngineSetup,
    NodeFallsSilent,
    NodeJoins,
    ScriptedSubmission,
)
from shared.sim.virtual_time import SECOND, START_NS

JOBS, NODES, MOMENTS = 24, 4, 40
POLICY = Policy(preemption=Preemption(service=True, batch=True))


def node(number: int) -> NodeSpec:
    """A node of four devices, eight cores and a sum."""
    name = NodeId(f"node-{number}")
    devices = tuple(Instance(id=f"gpu-{at}") for at in range(4))
    cores = tuple(Instance(id=str(at)) for at in range(8))
    pools = (
        Pool(name="device.gpu", vendor="nv", model="a", instances=devices),
        Pool(name="cores", instances=cores),
        Pool(name="scratch", amount=30 * WHOLE),
    )
    return NodeSpec(
        node_id=name,
        name=name,
        cpu_mhz=8000,
        core_mhz=1000,
        memory_mib=8192,
        disk_mib=10_000,
        pools=pools,
        attributes={"driver.raw_exec": "1"},
    )


def submission(draw: Random, number: int) -> ScriptedSubmission:
    """A job, or another version of one, that takes devices, cores and custom resources, or nothing of them."""
    name = f"job-{draw.randrange(JOBS // 2)}"
    resources: dict[str, Any] = {"MemoryMB": draw.choice((64, 128))}
    if draw.randrange(2):
        resources["Cores"] = draw.choice((1, 2))
    if draw.randrange(3):
        resources["Devices"] = [{"Name": "gpu", "Count": draw.choice((1, 2, 0.5))}]
    if draw.randrange(2):
        resources["Custom"] = [{"Name": "scratch", "Amount": draw.choice((0.25, 3, 7))}]
    logs = {"MaxFiles": 1, "MaxFileSizeMB": 1}
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    task |= {"Resources": resources, "LogConfig": logs}
    group = {"Name": "g", "Count": draw.choice((1, 2, 4)), "Tasks": [task]}
    kind = ("service", "batch")[int(name.removeprefix("job-")) % 2]
    body = {"ID": name, "Type": kind, "Priority": draw.choice((30, 50, 70)), "TaskGroups": [group]}
    return ScriptedSubmission(body=orjson.dumps({"Job": body}), submission_id=f"s-{number}")


def simulated(seed: int) -> list[Record]:
    """A crowded cluster with evictions, new versions, ends and a lost node."""
    draw = Random(seed)
    profile = FleetProfile(
        starts=StartProfile(after=DurationSpec(uniform=("100ms", "2s"))),
        runs=(RunProfile(job_type="batch", lasts="20s"),),
    )
    engine = SimulationEngine(EngineSetup(seed=seed, profile=profile, policy=POLICY))
    for number in range(NODES):
        engine.at(START_NS, NodeJoins(spec=node(number)))
    for number in range(JOBS):
        engine.at(START_NS + (2 + 3 * number) * SECOND, submission(draw, number))
    engine.at(START_NS + 40 * SECOND, NodeFallsSilent(node_id=NodeId("node-1")))
    engine.run(START_NS + 120 * SECOND)
    return list(engine.records)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return simulated(3)


@pytest.fixture(scope="module")
def database(records: list[Record]) -> FactDatabase:
    facts, database = FactExtractor(), FactDatabase()
    for record in records:
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    return database


Held = dict[tuple[str, str, str, str], Decimal]
ASKED = """SELECT job_id, node_id, pool, coalesce(instance, ''), sum(amount) FROM pool_usage
    WHERE from_seq <= ? AND (to_seq IS NULL OR to_seq > ?) GROUP BY ALL"""


def held(state: State) -> Held:
    """What allocations hold, by job, node, pool and instance."""
    table, found = state.allocations, dict[tuple[str, str, str, str], Decimal]()
    rows = table.live_rows()
    for row in rows[table.is_holding(rows)].tolist():
        node = int(table.node[row])
        job_id = str(table.groups.job_ids[int(table.group[row])])
        for pool, slot, amount in table.holdings[row].parts if row in table.holdings else ():
            instance = state.fleet.offers.instance_id(node, pool, slot)
            at = (job_id, str(state.fleet.ids[node]), pool, instance)
            found[at] = found.get(at, Decimal(0)) + Decimal(amount) / WHOLE
    return found


def totals(state: State, pool: str) -> Decimal:
    """What the state itself counts of a pool over all nodes."""
    table = state.allocations.held
    slots = table.slots_of(pool, state.fleet.size, 16).sum()
    return Decimal(int(slots + table.sum_of(pool, state.fleet.size).sum())) / WHOLE


def test_pool_usage_at_any_seq_is_that_of_the_state(
    records: list[Record], database: FactDatabase
) -> None:
    """At random seqs every job uses, of each pool and instance of each node, what the replayed state says it holds."""
    wanted = {*Random(1).sample(range(1, len(records)), MOMENTS), len(records)}
    replica, pools = Replica(), set[str]()
    for record in records:
        replica.apply(record)
        if record.seq not in wanted:
            continue
        rows = database.ask(ASKED, [record.seq, record.seq]).rows
        assert {row[:4]: row[4] for row in rows} == held(replica.state), record.seq
        for pool in ("device.gpu", "cores", "scratch"):
            sums = sum((row[4] for row in rows if row[2] == pool), Decimal(0))
            assert sums == totals(replica.state, pool), (record.seq, pool)
        pools |= {row[2] for row in rows}
    assert pools == {"device.gpu", "cores", "scratch"}


def test_usage_at_the_same_seqs_is_that_of_the_state(
    records: list[Record], database: FactDatabase
) -> None:
    """Of a cluster where replaced allocations leave their room to their replacements, CPU and memory agree too."""
    wanted = {*Random(2).sample(range(1, len(records)), MOMENTS), len(records)}
    replica, kept = Replica(), False
    for record in records:
        replica.apply(record)
        state = replica.state
        kept |= bool(state.allocations.predecessors.rooms)
        if record.seq not in wanted and not state.allocations.predecessors.rooms:
            continue
        used = state.allocations.used(state.fleet.size)
        told = database.ask(
            "SELECT node_id, cpu_mhz, memory_mib, disk_mib FROM usage_at(?)", [record.seq]
        )
        shown = {
            (str(name), *used[row].tolist())
            for row, name in enumerate(state.fleet.ids)
            if state.fleet.live[row]
        }
        assert set(told.rows) == shown, record.seq
        holding = state.allocations.live_rows()
        holding = holding[state.allocations.is_holding(holding)]
        (there,) = database.ask("SELECT count(*) FROM allocations_at(?)", [record.seq]).rows
        assert there == (len(holding),), record.seq
    assert kept


def test_an_export_tells_the_same_usage(
    records: list[Record], database: FactDatabase, tmp_path: Path
) -> None:
    """Over the files of an export the table has the rows that it has over the log itself."""
    write_export(tmp_path / "out", records)
    reading, over = ExportReader(tmp_path / "out"), FactDatabase()
    over.lock_sources(reading.files(), reading.bases())
    question = "SELECT * FROM pool_usage ORDER BY ALL"
    assert over.ask(question) == database.ask(question)


def test_pool_usage_answers_by_job_and_time(database: FactDatabase) -> None:
    """Device hours of a job are the sum of its intervals; an eviction and a lost node end one."""
    (ends,) = database.ask(
        """SELECT count(*) FILTER (desired_status = 'evict'), count(*) FILTER (client_status = 'lost')
        FROM pool_usage JOIN allocations USING (key) WHERE to_seq = ended_seq"""
    ).rows
    assert min(ends) > 0
    told = database.ask(
        """SELECT job_id, sum(amount * seconds) > 0, min(seconds) >= 0 FROM pool_usage
        WHERE pool = 'device.gpu' AND to_seq IS NOT NULL GROUP BY job_id"""
    ).rows
    assert told and all(more and sound for _, more, sound in told)
