"""What the shapes are made from: the state with what is kept beside it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shared.core.state.state import State
from shared.query.evaluation_index import EvaluationIndex

#: An object of Nomad's JSON.
Object = dict[str, Any]


class ShapeSource(NamedTuple):
    """A state, its evaluations by job, and log times. `time_of`: log time of a seq in ns, 0: not known."""

    state: State
    histories: EvaluationIndex
    time_of: Callable[[int], int]
