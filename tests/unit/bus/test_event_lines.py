"""INFO lines of roles: which records make one, and what is bound to it."""

import structlog

from schemas.base import SECOND_NS, EvalKey, JobId
from schemas.envelope import AnyEvent, LogRecord
from schemas.evaluations import EvaluationEnded
from schemas.jobs import JobRegistered
from services.eval_broker.role import EvalBroker
from services.intake.role import Intake
from shared.bus.process.event_lines import LINES_PER_S, write_event_lines
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.state.ids import eval_id, make_key
from shared.core.state.state import State


def _lines(role: ReplicatedRole, *events: AnyEvent) -> list[dict[str, object]]:
    write_event_lines(role)
    record = LogRecord(kind="tx", schema=1, core="0.1.0", epoch=1, prev="", t_ns=1, events=events)
    assert role.observe is not None
    with structlog.testing.capture_logs() as lines:
        role.observe(State(), record, 7)
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
        "evaluation": eval_id(make_key(7, 0)),
        "count": 2,
    }


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
