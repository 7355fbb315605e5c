"""Forks of a rollout: with another pace, with requests to its deployment, and with its deadlines."""

from typing import Any

import msgspec
import pytest

from schemas.base import JobId
from schemas.envelope import RECORD_DECODER
from schemas.gates import GateDue, GateReading
from schemas.plans import PlanCommitted
from shared.core.runtime.chain import Chain, seal
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.verify_decisions import verify_decisions
from shared.errors import CommandInvalid
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins, ScriptedSubmission
from shared.sim.virtual_time import SECOND, START_NS
from shared.whatif.changes import DeploymentVerb, RequestedChanges
from shared.whatif.fork import RecordedLog
from shared.whatif.report import DeploymentOutcome, WhatIfReport
from shared.whatif.what_if import WhatIfQuestion, build_what_if_report, run_what_if
from tests.sim.recorded import PROFILE, job, read, seq_at, spec

SHOP = JobId("shop")
COUNT = 6
#: When the second version is submitted.
UPDATE_S = 60


def submission(version: int, **update: Any) -> ScriptedSubmission:
    """A version of a service of six that is replaced one by one, and healthy after 5 s."""
    pace = {"MaxParallel": 1, "MinHealthyTime": 5 * SECOND, **update}
    one = job("shop", COUNT, "service", 500, Update=pace, Meta={"release": str(version)})
    return msgspec.structs.replace(one, submission_id=f"s-shop-{version}")


def rollout(until_s: int = 200, **update: Any) -> list[Record]:
    """The log of a first version and its update."""
    engine = SimulationEngine(EngineSetup(seed=3, profile=PROFILE))
    for number in range(1, 4):
        engine.at(START_NS, NodeJoins(spec=spec(number)))
    engine.at(START_NS + 2 * SECOND, submission(0))
    engine.at(START_NS + UPDATE_S * SECOND, submission(1, **update))
    engine.run(START_NS + until_s * SECOND)
    return list(engine.records)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return rollout()


def forked(records: list[Record], seconds: float) -> RecordedLog:
    return read(records, seq_at(records, seconds))


def asked(recorded: RecordedLog, **changes: Any) -> WhatIfReport:
    """The report of a fork with these changes."""
    until_ns = recorded.timeline.t_ns
    question = WhatIfQuestion(changes=RequestedChanges(**changes), until_ns=until_ns)
    return build_what_if_report(recorded, question, run_what_if(recorded, question))


def outcomes(
    report: WhatIfReport, version: int = 1
) -> tuple[DeploymentOutcome | None, DeploymentOutcome | None]:
    (found,) = [one for one in report.deployments if (one.job, one.version) == ("shop", version)]
    return found.before, found.after


def test_another_pace_takes_another_time_and_costs_other_allocations(records: list[Record]) -> None:
    """Six steps of 5 s against two: sooner done, and three are missing at a time instead of one."""
    before, after = outcomes(asked(forked(records, 50), updates={SHOP: {"max_parallel": 3}}))
    assert before is not None and after is not None
    assert (before.status, before.lowest_healthy) == ("successful", COUNT - 1)
    assert (after.status, after.lowest_healthy) == ("successful", COUNT - 3)
    assert 6 * 5 <= before.seconds <= 6 * 8
    assert 2 * 5 <= after.seconds <= 2 * 8


def test_the_unchanged_fork_goes_as_the_log_did(records: list[Record]) -> None:
    """Wherever it begins, also in the middle of the update, it ends when the record did."""
    whole = asked(forked(records, 50))
    recorded_end = next(iter(reversed(forked(records, 50).timeline.deployments.runs.values())))
    before, _ = outcomes(whole)
    assert before is not None
    recorded_s = (recorded_end.ended_ns - recorded_end.began_ns) / SECOND
    assert abs(before.seconds - recorded_s) < 0.5
    assert (whole.agreement.elsewhere, whole.agreement.missing, whole.agreement.extra) == (0, 0, 0)
    half = forked(records, UPDATE_S + 15)
    middle, _ = outcomes(asked(half))
    assert middle is not None and middle.status == "successful"
    rest_s = (recorded_end.ended_ns - half.fork_timeline.begin_ns) / SECOND
    assert abs(middle.seconds - rest_s) < 0.5


def test_longer_health_takes_longer(records: list[Record]) -> None:
    """min_healthy_time is a part of each step."""
    changed_update = {SHOP: {"min_healthy_time": 20 * SECOND}}
    before, after = outcomes(asked(forked(records, 50), updates=changed_update))
    assert before is not None and after is not None
    assert after.seconds > before.seconds + 6 * 14


def test_an_update_that_runs_begins_anew_with_the_pace(records: list[Record]) -> None:
    """The version is registered again at the fork: the first deployment ends, the next one is quicker."""
    report = asked(forked(records, UPDATE_S + 15), updates={SHOP: {"max_parallel": 6}})
    _, cancelled = outcomes(report)
    _, again = outcomes(report, 2)
    assert cancelled is not None and cancelled.status == "cancelled"
    assert again is not None and again.status == "successful" and again.seconds < 15
    assert any("shop at the fork begins anew" in text for text in report.assumptions.texts)


def gated_rollout() -> list[Record]:
    """An update behind a gate, whose gauge came within its bound 20 s after the submission, for 3 s."""
    engine = SimulationEngine(EngineSetup(seed=3, profile=PROFILE))
    for number in range(1, 4):
        engine.at(START_NS, NodeJoins(spec=spec(number)))
    engine.at(START_NS + 2 * SECOND, submission(0))
    gate = {"Name": "load", "Gauge": "depth", "Below": 100, "For": 3 * SECOND}
    engine.at(START_NS + UPDATE_S * SECOND, submission(1, Gates=[gate]))
    for second, value in (
        (UPDATE_S + 5, 120_000),
        (UPDATE_S + 20, 40_000),
        (UPDATE_S + 24, 40_000),
    ):
        engine.run(START_NS + second * SECOND)
        one = engine.state.deployments.active_of(SHOP)
        assert one is not None
        reading = GateReading(gate="load", since_ns=one.gates[0].since_ns, value=value)
        engine.at(engine.now_ns, GateDue(key=one.key, readings=(reading,)))
    engine.run(START_NS + 200 * SECOND)
    return list(engine.records)


def test_a_gate_opens_in_a_fork_as_its_gauge_was_recorded() -> None:
    """Wherever the fork begins; with another pace the gate reads the same gauge."""
    records = gated_rollout()
    recorded = forked(records, 50)
    record = next(iter(reversed(recorded.timeline.deployments.runs.values())))
    recorded_s = (record.ended_ns - record.began_ns) / SECOND
    assert record.status == "successful" and recorded_s > 24 + 6 * 5
    for seconds in (50, UPDATE_S + 10, UPDATE_S + 21):
        before, _ = outcomes(asked(forked(records, seconds)))
        assert before is not None and before.status == "successful"
    before, after = outcomes(asked(recorded, updates={SHOP: {"max_parallel": 3}}))
    assert before is not None and abs(before.seconds - recorded_s) < 1
    assert after is not None and after.status == "successful"
    assert 23 + 2 * 5 <= after.seconds <= 24 + 2 * 8


def test_canaries_wait_for_a_request_that_the_fork_may_make(records: list[Record]) -> None:
    """With canaries the update waits; promoted in the fork it is done, failed it is over."""
    canary = {SHOP: {"canary": 1}}
    recorded = forked(records, 50)
    waits = outcomes(asked(recorded, updates=canary))[1]
    assert waits is not None and waits.status == "running"
    at_ns = START_NS + (UPDATE_S + 20) * SECOND
    for verb, status in (("promote", "successful"), ("fail", "failed")):
        request = DeploymentVerb(job_id=SHOP, verb=verb, t_ns=at_ns)
        after = outcomes(asked(recorded, updates=canary, verbs=(request,)))[1]
        assert after is not None and after.status == status


def test_a_pause_lasts_until_it_is_resumed(records: list[Record]) -> None:
    """Nothing is replaced in between."""
    at_ns = START_NS + (UPDATE_S + 10) * SECOND
    verbs = (
        DeploymentVerb(job_id=SHOP, verb="pause", t_ns=at_ns),
        DeploymentVerb(job_id=SHOP, verb="resume", t_ns=at_ns + 100 * SECOND),
    )
    before, after = outcomes(asked(forked(records, 50), verbs=verbs))
    assert before is not None and after is not None and after.status == "successful"
    assert before.seconds + 80 < after.seconds < before.seconds + 120
    paused = outcomes(asked(forked(records, 50), verbs=verbs[:1]))[1]
    assert paused is not None and paused.status == "paused"


def test_requests_and_reverts_of_the_record_happen_once() -> None:
    """A recorded failure by an operator reverts the job in the fork as it did in the log: one version, not two."""
    recorded = forked(failed_by_hand(), 50)
    report = asked(recorded)
    assert [(one.version, one.before and one.before.status) for one in report.deployments] == [
        (1, "failed"),
        (2, "successful"),
    ]
    assert report.assumptions.missed == 0


def failed_by_hand() -> list[Record]:
    """An update with auto_revert that an operator fails after 12 s."""
    before = forked(rollout(AutoRevert=True), 50)
    at_ns = START_NS + (UPDATE_S + 12) * SECOND
    verb = DeploymentVerb(job_id=SHOP, verb="fail", t_ns=at_ns)
    question = WhatIfQuestion(
        changes=RequestedChanges(verbs=(verb,)), until_ns=before.timeline.t_ns, keep=True
    )
    found = run_what_if(before, question)
    assert found.after is not None
    return [*before.past(), *found.after.records]


def test_a_deadline_passes_in_a_fork(records: list[Record]) -> None:
    """Without progress for progress_deadline it fails, at its time."""
    changed_update = {
        SHOP: {
            "min_healthy_time": 90 * SECOND,
            "healthy_deadline": 100 * SECOND,
            "progress_deadline": 60 * SECOND,
        }
    }
    with pytest.raises(CommandInvalid, match="HealthyDeadline"):
        asked(forked(records, 50), updates=changed_update)
    manual = {SHOP: {"health_check": "manual", "progress_deadline": 301 * SECOND}}
    after = outcomes(asked(forked(records, 50), updates=manual))[1]
    assert after is not None and after.status == "failed"
    assert 301 <= after.seconds <= 315


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"updates": {JobId("gone"): {"max_parallel": 2}}}, "no job 'gone'"),
        ({"updates": {SHOP: {"health_check": "hope"}}}, "HealthCheck"),
        ({"updates": {SHOP: {"auto_promote": True}}}, "update of shop"),
        ({"verbs": (DeploymentVerb(job_id=JobId("gone"), verb="fail", t_ns=0),)}, "no job 'gone'"),
    ],
)
def test_impossible_wishes_are_refused(
    records: list[Record], changes: dict[str, Any], text: str
) -> None:
    """By the rules of submissions, and with the job's name."""
    with pytest.raises(CommandInvalid, match=text):
        asked(forked(records, 50), **changes)


def test_a_pace_without_an_update_is_refused(records: list[Record]) -> None:
    """Behind the last update nothing would change: the message says where to fork."""
    with pytest.raises(CommandInvalid, match="fork before its update"):
        asked(forked(records, 190), updates={SHOP: {"max_parallel": 2}})


def test_a_request_after_the_end_is_refused(records: list[Record]) -> None:
    """A run with a given end has no later requests."""
    recorded = forked(records, 50)
    verb = DeploymentVerb(job_id=SHOP, verb="pause", t_ns=recorded.timeline.t_ns + SECOND)
    question = WhatIfQuestion(
        changes=RequestedChanges(verbs=(verb,)), until_ns=recorded.timeline.t_ns, settle=False
    )
    with pytest.raises(CommandInvalid, match="after the end"):
        run_what_if(recorded, question)


def test_a_request_without_its_deployment_is_counted(records: list[Record]) -> None:
    """Before the update there is none to promote."""
    verb = DeploymentVerb(job_id=SHOP, verb="pause", t_ns=START_NS + 52 * SECOND)
    report = asked(forked(records, 50), verbs=(verb,))
    assert report.assumptions.missed == 1
    assert any("1 requests were dropped" in text for text in report.assumptions.texts)


def test_decisions_of_deployments_are_verified() -> None:
    """Each plan of an update, its failure and its revert is decided again, equal, also in the log of a fork."""
    records, replica, planned = failed_by_hand(), Replica(), 0
    for record in records:
        decoded = replica.apply(record)
        for event in decoded.events if decoded is not None else ():
            if isinstance(event, PlanCommitted):
                planned += any(one.deployment for one in event.placements)
    found = verify_decisions(lambda: records)
    assert found.checked == found.equal >= planned > 3
    assert replica.state.jobs.by_id[SHOP].version == 2


def test_a_decision_against_the_pace_is_found(records: list[Record]) -> None:
    """A plan that stops two where max_parallel is 1 differs from the one that is decided again."""
    altered = records_with_a_second_stop(records)
    found = verify_decisions(lambda: altered)
    assert found.checked - found.equal == 1
    assert "stop" in found.differences[0].recorded


def records_with_a_second_stop(records: list[Record]) -> list[Record]:
    """Seal the log again up to its first plan with a stop, which stops one allocation more."""
    chain, out, state = Chain(), list[Record](), Replica()
    for record in records:
        decoded = RECORD_DECODER.decode(record.data)
        events = list(decoded.events)
        at = next(
            (n for n, one in enumerate(events) if isinstance(one, PlanCommitted) and one.stops), -1
        )
        if at >= 0:
            plan = events[at]
            assert isinstance(plan, PlanCommitted)
            stop = plan.stops[0]
            rows = state.state.allocations.rows_of(SHOP).tolist()
            other = next(row for row in rows if row not in stop.rows)
            more = msgspec.structs.replace(stop, rows=(*stop.rows, other))
            events[at] = msgspec.structs.replace(plan, stops=(more, *plan.stops[1:]))
        again = msgspec.structs.replace(decoded, events=tuple(events), prev=chain.head, sum="")
        data, digest = seal(again)
        chain.wrote(record.seq, again, digest)
        out.append(Record(record.seq, record.subject, data))
        if at >= 0:
            break
        state.apply(record)
    return out
