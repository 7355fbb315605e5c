"""A state machine as data: a state, and a table of the transitions that it may take.

For states of a role that exclude one another and change for many reasons. What the states mean, and what is done in
them, is the role's matter. A trigger that the table does not name for the current state is a defect of the role: it
raises, which ends the process, and a restart rebuilds the state from the log.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from shared.errors import CaravanError

S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)


class IllegalTransition(CaravanError):
    """The current state has no transition for the trigger."""


class StateMachine(Generic[S, T]):
    """A state that changes only by its table: (state, trigger) -> next state."""

    __slots__ = ("_table", "state")

    def __init__(self, first: S, table: Mapping[tuple[S, T], S]) -> None:
        self.state = first
        self._table = table

    def move(self, trigger: T) -> None:
        """Take the transition of a trigger. Raises IllegalTransition."""
        after = self._table.get((self.state, trigger))
        if after is None:
            raise IllegalTransition(f"{trigger.name} in state {self.state.name}")
        self.state = after
