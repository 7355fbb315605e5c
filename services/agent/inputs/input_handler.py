"""The interface of an input's handler, and how its failure is said.

A handler may hang or raise: `input_runner.py` bounds it, so that a fault costs its own task alone.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from services.agent.executor.data_dir import TaskDirs
from shared.core.runtime.agent_messages import TaskInput, TaskLaunch
from shared.errors import CaravanError

#: Nomad's word for whatever goes wrong before a start.
SETUP_FAILURE = "Setup Failure"
#: Nomad's word for a secret that cannot be had.
HOOK_FAILED = "Task hook failed"


class InputFailed(CaravanError):
    """An input could not be prepared. Not `recoverable`: another try would fail the same way. `kind`: of the event."""

    def __init__(self, reason: str, *, recoverable: bool, kind: str = SETUP_FAILURE) -> None:
        super().__init__(reason)
        self.recoverable = recoverable
        self.kind = kind


def _say_nothing(_kind: str, _message: str) -> None:
    """Drop it."""


class InputContext(msgspec.Struct, frozen=True, kw_only=True):
    """The run that an input is for, with its directories, which exist."""

    key: int
    alloc_id: str
    task: str
    run: int
    places: TaskDirs
    launch: TaskLaunch
    #: all inputs that are prepared with it.
    inputs: tuple[TaskInput, ...] = ()
    #: (kind, message): says an event of the run, while the input is prepared or followed.
    note: Callable[[str, str], None] = _say_nothing


class InputHandler(Protocol):
    """Prepares the inputs of one kind."""

    #: of `TaskInput.kind`.
    kind: str
    #: of a task event when the handler raises or takes too long.
    event_kind: str
    #: of the task event that says that it begins; empty: there is none.
    begin_kind: str
    #: prepared when all inputs of lower stages are there: a template may read an artifact.
    stage: int
    #: bound of one `prepare`; None: it waits as long as it must (data that does not exist yet).
    timeout_s: float | None

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Make the input, whole or not at all; returns what its digest is taken of.

        Repeatable: an earlier life may have made it without knowing. Cancelled when the task is stopped: then nothing
        of it may continue. Paths are opened below `about.places.top` (services/agent/safe_open.py), not by name. Raises
        InputFailed.
        """
        ...


@runtime_checkable
class EnvironmentHandler(Protocol):
    """A handler whose inputs are variables of the task, too. They are kept by the agent's process alone."""

    def environment(self, alloc_id: str, task: str, wanted: TaskInput) -> Mapping[str, str]:
        """Return the variables of a prepared input. Raises KeyError when it is not prepared."""
        ...

    def forget(self, alloc_id: str) -> None:
        """Drop those of an allocation that is over."""
        ...


@runtime_checkable
class ExpiringHandler(Protocol):
    """A handler whose inputs are worth nothing after a time."""

    def is_over(self, about: InputContext, wanted: TaskInput) -> bool:
        """Say of a prepared input whether it must be made anew: what came after it took longer than it lives."""
        ...


@runtime_checkable
class WatchingHandler(Protocol):
    """A handler that makes an input anew when what it was made of changes."""

    def watch(self, about: InputContext, wanted: TaskInput) -> AsyncIterator[bytes]:
        """Follow an input that was prepared, in this life or an earlier one.

        Yields what its digest is taken of, each time when the new content is in place; at once where this life did not
        prepare it. Ends when nothing can change any more. What fails is said by `about.note`, and tried again: an
        earlier content stays as it is. Closed when it is followed no longer: then nothing of it may continue.
        """
        ...
