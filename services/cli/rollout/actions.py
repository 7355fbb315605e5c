"""`caravan rollout promote|fail`: requests to the operator API."""

from functools import partial

from schemas.operator import FailRolloutRequest, OperatorVerdict, PromoteRolloutRequest
from schemas.rollout_answers import RolloutAnswer
from services.cli.deployment.follow import change
from services.cli.rollout.monitor import ROLLOUT, print_outcome
from services.cli.runtime.operator_client import OperatorResult
from services.cli.runtime.output import CommandOutput, result_from


class RolloutChangeResult(OperatorResult, frozen=True):
    """What a command prints with `--json` that changes a rollout."""

    rollout: str
    rollout_status: str
    description: str


def promote(out: CommandOutput, *, rollout_id: str, detach: bool) -> int:
    """Promote the canaries of all members; follow the rollout."""
    return _change(
        out, PromoteRolloutRequest(rollout_id=rollout_id), "promoted", follows=not detach
    )


def fail(out: CommandOutput, *, rollout_id: str) -> int:
    """End a rollout as failed."""
    return _change(out, FailRolloutRequest(rollout_id=rollout_id), "marked as failed")


def _result(verdict: OperatorVerdict, answer: RolloutAnswer) -> RolloutChangeResult:
    one = answer.rollout
    return result_from(
        RolloutChangeResult,
        verdict,
        rollout=one.id,
        rollout_status=one.status,
        description=one.description,
        seq=answer.seq,
    )


_change = partial(change, ROLLOUT, result=_result, print_unfollowed=print_outcome)
