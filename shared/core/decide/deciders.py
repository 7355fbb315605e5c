"""The form of a decide function, and of the table in which each module of this package lists its own.

`route.py` merges the tables. A command without a row cannot be decided; tests/unit/core/decide/test_route.py holds that
every command has exactly one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from schemas.base import Command, Event
from shared.core.state.state import State

#: Decides a command of the type of its row against the state, which it never changes.
Decider = Callable[[State, Any], list[Event]]
#: The same with the time now, in ns of the wall clock.
TimedDecider = Callable[[State, Any, int], list[Event]]
#: By type of command.
Deciders = Mapping[type[Command], Decider]
TimedDeciders = Mapping[type[Command], TimedDecider]
