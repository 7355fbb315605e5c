"""Refusals of commands that could not be decided: the fact that the sender waits for.

Without a refusal in the log, the sender repeats the command against the state as it is then.
"""

from schemas.base import Event
from schemas.envelope import AnyCommand
from schemas.jobs import SkipSubmission
from schemas.plans import PlanRefused, SubmitPlan
from schemas.variables import VARIABLE_CODES
from shared.core.decide.jobs.submissions import SubmissionCommand, decide_refusal
from shared.core.decide.operator import refuse
from shared.core.decide.variables import RequestCommand, refuse_request
from shared.core.state.state import State

_REASON_CHARS_MAX = 600


def refuse_command(state: State, command: AnyCommand, code: str, reason: str) -> list[Event]:
    """Return the refusal of a command; empty where its kind has none: then only a dead letter tells of it."""
    reason = reason[:_REASON_CHARS_MAX]
    if isinstance(command, SubmissionCommand | SkipSubmission):
        return decide_refusal(state, command, code, reason)
    if isinstance(command, SubmitPlan):
        if not state.evaluations.is_next(command.origin):
            # A late copy: refusing it would put its worker's numbers back.
            return []
        return [
            PlanRefused(
                key=command.key,
                job_id=command.job_id,
                origin=command.origin,
                code=code,
                reason=reason,
            )
        ]
    if isinstance(command, RequestCommand):
        known = code if code in VARIABLE_CODES else "invalid"
        return refuse_request(state, command, known, reason)
    request_id = getattr(command, "request_id", "")
    return refuse(request_id, code, reason) if request_id else []
