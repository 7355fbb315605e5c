"""A state machine takes the transitions of its table, and no others."""

from enum import Enum, auto

import pytest

from shared.core.runtime.state_machine import IllegalTransition, StateMachine


class Door(Enum):
    """Its states."""

    OPEN = auto()
    SHUT = auto()


class Push(Enum):
    """Its triggers."""

    PULL = auto()
    PUSH = auto()


TABLE = {(Door.OPEN, Push.PUSH): Door.SHUT, (Door.SHUT, Push.PULL): Door.OPEN}


def test_a_machine_follows_its_table() -> None:
    """Each trigger leads to the state that the table names."""
    machine = StateMachine(Door.OPEN, TABLE)
    machine.move(Push.PUSH)
    assert machine.state is Door.SHUT
    machine.move(Push.PULL)
    assert machine.state is Door.OPEN


def test_a_trigger_without_a_transition_raises_and_changes_nothing() -> None:
    """What the table does not name for the current state is a defect of the role."""
    machine = StateMachine(Door.OPEN, TABLE)
    with pytest.raises(IllegalTransition, match="PULL in state OPEN"):
        machine.move(Push.PULL)
    assert machine.state is Door.OPEN
