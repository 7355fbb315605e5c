"""Forks of a rollout of several jobs: it is begun, fails and goes back as one there, too."""

import msgspec
import orjson
import pytest

from schemas.base import JobId
from schemas.rollouts import FailRollout, RegisterJobs, RolloutEnded, RolloutStarted
from shared.core.runtime.chain import decode_record
from shared.core.runtime.messages import Record
from shared.jobspec.submission import read_submission, to_command
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins, ScriptedSubmission
from shared.sim.virtual_time import SECOND, START_NS
from shared.whatif.changes import RequestedChanges
from shared.whatif.what_if import WhatIfQuestion, run_what_if
from tests.sim.recorded import PROFILE, job, read, seq_at, spec

#: When the second versions are submitted.
TOGETHER_S = 60
UNTIL_S = 200
NAMES = ("api", "shop")


def version(name: str, number: int) -> ScriptedSubmission:
    """A version of a service of two, healthy after 5 s."""
    pace = {"MaxParallel": 1, "MinHealthyTime": 5 * SECOND}
    return job(name, 2, "service", 500, Update=pace, Meta={"release": str(number)})


def rollout_of(number: int, order: str) -> RegisterJobs:
    """The command that registers a version of both."""
    jobs = [orjson.loads(version(name, number).body) for name in NAMES]
    body = orjson.dumps({"Rollout": "both", "Order": order, "Jobs": jobs})
    command = to_command(read_submission(body, "submit_together"), "s-both")
    assert isinstance(command, RegisterJobs)
    return command


def recorded(order: str, fails_s: int = 0) -> list[Record]:
    """The log of two jobs that are updated as one rollout; an operator fails it at `fails_s`."""
    engine = SimulationEngine(EngineSetup(seed=3, profile=PROFILE))
    for number in range(1, 4):
        engine.at(START_NS, NodeJoins(spec=spec(number)))
    for at, name in enumerate(NAMES):
        engine.at(START_NS + (2 + at) * SECOND, version(name, 0))
    engine.at(START_NS + TOGETHER_S * SECOND, rollout_of(1, order))
    if fails_s:
        engine.run(START_NS + fails_s * SECOND)
        active = engine.state.rollouts.active_of(JobId("shop"))
        assert active is not None
        engine.at(engine.now_ns, FailRollout(request_id="by-hand", rollout_key=active.key))
    engine.run(START_NS + UNTIL_S * SECOND)
    return list(engine.records)


def story(records: list[Record]) -> list[tuple[object, ...]]:
    """What the rollouts of a log did, and the versions and ends of their members."""
    told: list[tuple[object, ...]] = []
    for record in records:
        decoded = decode_record(record.seq, record.subject, record.data)
        for event in decoded.events if decoded is not None else ():
            match event:
                case RolloutStarted():
                    versions = [(one.job_id, one.version, one.before) for one in event.members]
                    told.append((event.name, event.order, *versions))
                case RolloutEnded():
                    told.append((event.status, event.cause))
                case _:
                    pass
    return told


def forked(records: list[Record], seconds: float, **changes: object) -> list[Record]:
    """The log that the fork wrote, with what was there before it."""
    log = read(records, seq_at(records, seconds))
    wanted = msgspec.convert(changes, RequestedChanges)
    question = WhatIfQuestion(changes=wanted, until_ns=log.timeline.t_ns, keep=True)
    found = run_what_if(log, question)
    assert found.after is not None
    assert found.after.refused == []
    assert found.after.missed == 0
    return [*log.past(), *found.after.records]


@pytest.mark.parametrize("order", ["together", "in_order"])
@pytest.mark.parametrize("fails_s", [0, TOGETHER_S + 4])
@pytest.mark.parametrize("seconds", [50, TOGETHER_S + 2])
def test_a_rollout_is_one_in_a_fork(order: str, fails_s: int, seconds: float) -> None:
    """Forked before or within it, with another policy: the rollouts are those of the record."""
    records = recorded(order, fails_s)
    before = story(records)
    assert before[0] == ("both", order, ("api", 1, 0), ("shop", 1, 0))
    assert before[1:] == [("failed", "operator") if fails_s else ("successful", "healthy")]
    after = forked(records, seconds, policy={"algorithm": "spread"})
    assert story(after) == before


def test_the_pace_of_a_member_can_be_changed() -> None:
    """A change of a job reaches its registration within the rollout."""
    records = recorded("together")
    slow = {"shop": {"min_healthy_time": 30 * SECOND}}
    after = forked(records, 50, updates=slow)
    ends = [record.seq for record in after if b"rollout.ended" in record.data]
    assert story(after) == story(records)
    began = [record for record in after if b"rollout.started" in record.data]
    assert len(began) == len(ends) == 1
    times = {}
    for record in after:
        decoded = decode_record(record.seq, record.subject, record.data)
        assert decoded is not None
        times[record.seq] = decoded.t_ns
    assert times[ends[0]] - times[began[0].seq] >= 2 * 30 * SECOND
