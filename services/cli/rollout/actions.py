"""`caravan rollout promote|fail`: requests to the operator API."""

from schemas.operator import FailRolloutRequest, OperatorVerdict, PromoteRolloutRequest
from schemas.rollout_answers import RolloutAnswer
from services.cli.rollout import monitor
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.operator_client import OperatorResult, request_verdict
from services.cli.runtime.output import CommandOutput, result_from, short_id
from shared.bus.connection.public_client import Client


class RolloutChangeResult(OperatorResult, frozen=True):
    """What a command prints with `--json` that changes a rollout."""

    rollout: str
    rollout_status: str
    description: str


def promote(out: CommandOutput, *, rollout_id: str, detach: bool) -> int:
    """Promote the canaries of all members; follow the rollout."""
    body = PromoteRolloutRequest(rollout_id=rollout_id)
    return _change(out, body, "promoted", follow=not detach)


def fail(out: CommandOutput, *, rollout_id: str) -> int:
    """End a rollout as failed."""
    return _change(out, FailRolloutRequest(rollout_id=rollout_id), "marked as failed")


def _change(
    out: CommandOutput,
    body: PromoteRolloutRequest | FailRolloutRequest,
    word: str,
    *,
    follow: bool = False,
) -> int:
    """Send a request, say what became of it, follow the rollout. Raises CliError with the refusal."""
    verdict = request_verdict(body)
    shown = short_id(verdict.rollout_id)
    out.line(f"rollout {shown}: {word if verdict.changed else f'was {word} already'}")

    async def look(client: Client) -> tuple[RolloutAnswer, list[str]]:
        if not follow:
            return await monitor.query_rollout(client, verdict.rollout_id, verdict.seq), []
        found = await monitor.follow_rollout(client, out, verdict.rollout_id, verdict.seq)
        return found, await monitor.member_failures(client, found)

    answer, failures = with_bus(look)
    out.result(_result(verdict, answer))
    monitor.print_outcome(out, answer, failures)
    return monitor.exit_code(answer) if follow else 0


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
