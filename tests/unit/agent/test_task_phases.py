"""Phases of a task change along the table alone, and pauses between attempts double up to their limit."""

import pytest

from services.agent.backoff import Backoff
from services.agent.tasks.resolved_group import ResolvedRestartPolicy, ResolvedTask
from services.agent.tasks.runtime_state import NEXT_PHASES, TaskPhase, TaskRuntime

ALL = tuple(TaskPhase)
RESTART = ResolvedRestartPolicy(
    attempts=0, interval_ns=1, delay_ns=1, mode="fail", on_success=False
)


def _task(phase: TaskPhase) -> TaskRuntime:
    task = TaskRuntime(ResolvedTask(name="main", driver="raw_exec", restart=RESTART))
    task.phase = phase
    return task


@pytest.mark.parametrize("before", ALL)
@pytest.mark.parametrize("after", ALL)
def test_an_illegal_transition_raises(before: TaskPhase, after: TaskPhase) -> None:
    """What the table does not list raises and changes nothing."""
    task = _task(before)
    if after in NEXT_PHASES[before]:
        task.enter(after)
        assert task.phase is after
    else:
        with pytest.raises(AssertionError, match="illegal transition"):
            task.enter(after)
        assert task.phase is before


def test_every_phase_is_left_and_reached() -> None:
    """No phase is a dead end, and only RECOVERING is entered from the journal alone."""
    assert set(NEXT_PHASES) == set(ALL)
    assert set().union(*NEXT_PHASES.values()) == set(ALL) - {TaskPhase.RECOVERING}


def test_a_dead_task_never_runs_without_a_start() -> None:
    """A run is started or recovered before it is alive."""
    assert [phase for phase in ALL if TaskPhase.RUNNING in NEXT_PHASES[phase]] == [
        TaskPhase.STARTING,
        TaskPhase.RECOVERING,
    ]


def test_a_pause_doubles_up_to_its_limit() -> None:
    """Pauses double up to the limit, and start again after a success."""
    backoff = Backoff(0.5, 3.0)
    assert [backoff.take() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.take() == 0.5
