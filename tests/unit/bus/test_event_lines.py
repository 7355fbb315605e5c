"""INFO lines of roles: which records make one, and what is bound to it."""

import msgspec
import pytest
import structlog

from schemas.base import SECOND_NS, DeploymentKey, EvalKey, JobId
from schemas.deployments import DeploymentEnded, DeploymentHeld, DeploymentPromoted
from schemas.envelope import AnyCommand, AnyEvent, LogRecord
from schemas.evaluations import EvaluationEnded
from schemas.jobs import JobRegistered
from schemas.plans import Evictions, Origin, PlanCommitted
from services.eval_broker.role import EvalBroker
from services.intake.role import Intake
from services.plan_applier.role import PlanApplier
from shared.bus.process.event_lines import LINES_PER_S, write_event_lines
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.state.ids import alloc_id, deployment_id, eval_id, make_key
from shared.core.state.state import State
from tests.builders import group
from tests.unit.core.decide.test_versions import registered, revert, scale, two_versions, version_of
from tests.unit.view.test_view_variables import put


def _lines(
    role: ReplicatedRole, *events: AnyEvent, state: State | None = None
) -> list[dict[str, object]]:
    write_event_lines(role)
    record = LogRecord(kind="tx", schema=1, core="0.1.0", epoch=1, prev="", t_ns=1, events=events)
    assert role.observe is not None
    with structlog.testing.capture_logs() as lines:
        role.observe(state or State(), record, 7)
    return [dict(line) for line in lines]


def _registered(job: str) -> JobRegistered:
    return JobRegistered(
        submission_id=f"s-{job}",
        digest="",
        job_id=JobId(job),
        version=0,
        evaluation=EvalKey(make_key(7, 0)),
    )


def test_a_record_makes_one_line_of_a_kind() -> None:
    """Of two jobs in one record the line names the first, and counts both."""
    (line,) = _lines(Intake(instance="i"), _registered("a"), _registered("b"))
    assert line == {
        "event": "job.accepted",
        "log_level": "info",
        "seq": 7,
        "job": "a",
        "version": 0,
        "evaluation": eval_id(make_key(7, 0)),
        "count": 2,
    }


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (scale(7), "job.scaled"),
        (revert(), "job.reverted"),
        (version_of(group(count=7, digest="d2"), number=2), "job.accepted"),
    ],
)
def test_a_version_is_named_by_what_made_it(command: AnyCommand, name: str) -> None:
    """A new text with other counts is no scaling, and a revert with other counts is a revert."""
    world = two_versions()
    event = registered(world.do(command))
    (line,) = _lines(Intake(instance="i"), event, state=world.state)
    assert (line["event"], line["job"], line["version"]) == (name, "app", 2)
    assert line["evaluation"] == eval_id(event.evaluation)


def test_the_end_of_a_deployment_says_why() -> None:
    """With its job, cause and the version that came back; so do a promotion and a hold before it."""
    key = DeploymentKey(make_key(5, 0))
    ended = DeploymentEnded(
        key=key,
        job_id=JobId("web"),
        version=3,
        status="failed",
        cause="unhealthy",
        reason="failed",
        reverted_to=2,
    )
    promoted = DeploymentPromoted(key=key, groups=("api",))
    held = DeploymentHeld(key=key, cause="gate", reason="p99 is 120", since_ns=1)
    lines = _lines(PlanApplier(instance="a", cluster_id="c"), promoted, held, ended)
    assert [one["event"] for one in lines] == [
        "deployment.promoted",
        "deployment.held",
        "deployment.ended",
    ]
    assert {one["deployment"] for one in lines} == {deployment_id(key)}
    last = {name: lines[-1][name] for name in ("job", "version", "status", "cause", "reverted_to")}
    assert last == {
        "job": "web",
        "version": 3,
        "status": "failed",
        "cause": "unhealthy",
        "reverted_to": 2,
    }


def test_an_eviction_names_the_victim_and_its_cause() -> None:
    """A plan without evictions has no line."""
    world = two_versions()
    rows = tuple(world.rows())
    plan = PlanCommitted(
        key=EvalKey(make_key(9, 0)),
        job_id=JobId("urgent"),
        origin=Origin(worker="w", number=1, snapshot_seq=1),
        evictions=(Evictions(job_id=JobId("app"), rows=rows),),
    )
    plain = msgspec.structs.replace(plan, evictions=())
    (line,) = _lines(PlanApplier(instance="a", cluster_id="c"), plain, plan, state=world.state)
    assert (line["event"], line["job"], line["by"]) == ("alloc.evicted", "app", "urgent")
    assert (line["allocation"], line["allocations"]) == (
        alloc_id(int(world.state.allocations.key[rows[0]])),
        len(rows),
    )


def test_an_evaluation_that_completes_makes_no_line() -> None:
    """The broker reports evaluations that failed; other roles report their own events."""
    done = EvaluationEnded(key=EvalKey(1), status="complete")
    failed = EvaluationEnded(key=EvalKey(2), status="failed", reason="too many attempts")
    (line,) = _lines(EvalBroker(instance="b"), done, failed, _registered("a"))
    assert (line["event"], line["evaluation"]) == ("evaluation.failed", eval_id(2))


def test_a_flood_makes_a_bounded_number_of_lines() -> None:
    """Of a thousand records in one second twenty have a line; the first of the next second counts the others."""
    role = Intake(instance="i")
    write_event_lines(role)
    assert role.observe is not None
    with structlog.testing.capture_logs() as lines:
        for seq in range(1000):
            _observe(role, seq, t_ns=5 * SECOND_NS + seq)
        _observe(role, 1000, t_ns=6 * SECOND_NS)
    assert len(lines) == LINES_PER_S + 1
    assert lines[-1]["count"] == 1000 - LINES_PER_S + 1


def _observe(role: ReplicatedRole, seq: int, *, t_ns: int) -> None:
    record = LogRecord(
        kind="tx", schema=1, core="0.1.0", epoch=1, prev="", t_ns=t_ns, events=(_registered("a"),)
    )
    assert role.observe is not None
    role.observe(State(), record, seq)


def test_a_put_of_a_variable_is_a_line_without_its_ciphertext() -> None:
    """Path, life, count and size are written; nothing else of the fact."""
    (line,) = _lines(PlanApplier(instance="a", cluster_id="c"), put("app/db"))
    assert line == {
        "event": "variable.put",
        "log_level": "info",
        "seq": 7,
        "path": "app/db",
        "incarnation": 1,
        "items": 2,
        "size": 10,
    }
