"""A log to fork: three small nodes, a service, and batch jobs that outgrow them. Asserts nothing."""

from typing import Any

import orjson

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.fleet.profile import DurationSpec, FleetProfile, RunProfile, StartProfile
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins, ScriptedSubmission
from shared.sim.virtual_time import SECOND, START_NS
from shared.whatif import fork
from shared.whatif.fork import RecordedLog

PROFILE = FleetProfile(
    starts=StartProfile(after=DurationSpec(uniform=("100ms", "2s"))),
    runs=(RunProfile(job_type="batch", lasts="60s"),),
)
#: Nodes of 4,000 MHz.
NODES = 3


def job(
    job_id: str, count: int = 1, kind: str = "batch", cpu: int = 1000, **fields: Any
) -> ScriptedSubmission:
    """A submission of one group `g`."""
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": {"CPU": cpu, "MemoryMB": 64},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {"Name": "g", "Count": count, "Tasks": [task], "EphemeralDisk": {"SizeMB": 10}}
    body = {"ID": job_id, "Type": kind, "TaskGroups": [group], **fields}
    return ScriptedSubmission(body=orjson.dumps({"Job": body}), submission_id=f"s-{job_id}")


def spec(number: int) -> NodeSpec:
    name = NodeId(f"node-{number}")
    return NodeSpec(
        node_id=name,
        name=name,
        cpu_mhz=4000,
        memory_mib=8192,
        disk_mib=10_000,
        attributes={"driver.raw_exec": "1"},
    )


def written(until_s: int = 300, profile: FleetProfile = PROFILE) -> list[Record]:
    """A service of 4, a batch of 6 for a minute, and at 20 s a batch of 6 of which 2 fit at once."""
    engine = SimulationEngine(EngineSetup(seed=3, profile=profile))
    for number in range(1, NODES + 1):
        engine.at(START_NS, NodeJoins(spec=spec(number)))
    engine.at(START_NS + 2 * SECOND, job("web", 4, "service"))
    engine.at(START_NS + 5 * SECOND, job("import", 6))
    engine.at(START_NS + 20 * SECOND, job("report", 6))
    engine.run(START_NS + until_s * SECOND)
    return list(engine.records)


def seq_at(records: list[Record], seconds: float) -> int:
    """Last record written by then."""
    replica, last = Replica(), 1
    for record in records:
        replica.apply(record)
        if replica.chain.t_ns > START_NS + int(seconds * SECOND):
            break
        last = record.seq
    return last


def read(records: list[Record], seq: int) -> RecordedLog:
    """Read a log, forked behind a seq."""
    return fork.read_log(records, base=Replica(), is_before=lambda one: one.seq <= seq)
