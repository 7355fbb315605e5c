"""Each command has its decide function: one row in the table of one module."""

from typing import get_args

import pytest

from schemas.envelope import AnyCommand
from schemas.policy import CollectGarbage, RollLog
from shared.core.decide import route

COMMANDS = set(get_args(AnyCommand))


def test_every_command_has_exactly_one_decide_function() -> None:
    """The union of commands and the tables name the same types; collecting garbage alone needs more than a row."""
    untimed, timed = set(route.DECIDERS), set(route.TIMED_DECIDERS)
    assert not untimed & timed
    assert untimed | timed | {CollectGarbage} == COMMANDS
    assert CollectGarbage not in untimed | timed


def test_a_command_in_two_tables_is_a_defect() -> None:
    """Which of two functions decides must not depend on the order of the tables."""
    with pytest.raises(AssertionError, match="RollLog"):
        route._merge({RollLog: 1}, {RollLog: 2})
