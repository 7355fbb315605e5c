"""Waking: by room at any time, by time only when the log's time has come."""

from schemas.base import EvalKey, JobId
from schemas.evaluations import (
    Blocked,
    EvaluationsCreated,
    EvaluationsWoken,
    NewEvaluation,
    WakeEvaluations,
)
from shared.core.decide.evaluations import decide_wake
from shared.core.state.ids import make_key
from shared.core.state.state import State

DUE_NS = 5_000
KEY = EvalKey(make_key(1, 0))


def state_with(evaluation: NewEvaluation, now_ns: int) -> State:
    state = State()
    state.begin(1, 1_000)
    state.evolve(EvaluationsCreated(evaluations=(evaluation,)), 1)
    state.begin(2, now_ns)
    return state


def test_a_delayed_one_sleeps_until_log_time_has_come() -> None:
    """A broker whose clock is ahead cannot wake an evaluation before its time; later it can."""
    delayed = NewEvaluation(job_id=JobId("a"), wait_until_ns=DUE_NS)
    command = WakeEvaluations(keys=(KEY, KEY))
    assert decide_wake(state_with(delayed, DUE_NS - 1), command) == []
    assert decide_wake(state_with(delayed, DUE_NS), command) == [EvaluationsWoken(keys=(KEY,))]


def test_a_blocked_one_wakes_at_any_time() -> None:
    """Room is no matter of time."""
    blocked = NewEvaluation(job_id=JobId("a"), blocked=Blocked())
    woken = decide_wake(state_with(blocked, 2_000), WakeEvaluations(keys=(KEY,), reason="room"))
    assert woken == [EvaluationsWoken(keys=(KEY,), reason="room")]
