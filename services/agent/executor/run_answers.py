"""What the executor tells the role of a run: the answers to its start and recovery, and its end."""

from typing import Any

from services.agent.drivers.driver import TaskExit, TaskMissing
from shared.core.runtime.agent_messages import (
    RecoverTask,
    StartTask,
    TaskExited,
    TaskGone,
    TaskStartFailed,
)


def names_of(effect: StartTask | RecoverTask) -> dict[str, Any]:
    """Fields of every event of a run."""
    return {"key": effect.key, "task": effect.task, "run": effect.run}


def start_failed(
    effect: StartTask, reason: str, *, recoverable: bool, is_closed: bool = False
) -> TaskStartFailed:
    """A start that failed; `is_closed`: what runs elsewhere was surely not started."""
    is_open = effect.remote is not None and not is_closed
    return TaskStartFailed(
        **names_of(effect), reason=reason, recoverable=recoverable, is_open=is_open
    )


def run_gone(effect: RecoverTask, found: TaskMissing) -> TaskGone:
    """A run that was not found again."""
    return TaskGone(
        **names_of(effect),
        started=found.started,
        reason=found.reason,
        charged=found.charged,
        is_open=found.is_open,
    )


def run_exited(
    effect: StartTask | RecoverTask, end: TaskExit, *, by_itself: bool = False
) -> TaskExited:
    """The end of a run; `by_itself`: neither signal nor kill reached it."""
    return TaskExited(
        **names_of(effect),
        exit_code=end.code,
        signal=end.signal,
        reason=end.reason,
        left=end.left,
        by_itself=by_itself,
        is_detached=end.is_detached,
    )
