"""Which commands a script may give, and on which subject each goes: as its own sender would send it."""

from schemas.base import Command
from schemas.evaluations import EndEvaluations, WakeEvaluations
from schemas.jobs import EvaluateJob, RegisterJob, StopJob
from schemas.nodes import ChangeLiveness

_JOB = (RegisterJob, StopJob, EvaluateJob)
_EVALUATION = (WakeEvaluations, EndEvaluations)


def kind_of(command: Command) -> str:
    """Name the kind of a command, a token of its subject; what is no role's is an operator's."""
    if isinstance(command, _JOB):
        return "job"
    if isinstance(command, _EVALUATION):
        return "evaluation"
    return "liveness" if isinstance(command, ChangeLiveness) else "operator"
