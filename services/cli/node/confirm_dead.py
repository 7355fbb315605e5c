"""`caravan node confirm-dead`: an operator's word about a node that is out of reach. It is an event in the log."""

from schemas.operator import ConfirmDeathRequest
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CommandOutput


class NodeConfirmDeadResult(OperatorResult, frozen=True):
    """`node confirm-dead --json`."""

    node: str


def confirm_dead(out: CommandOutput, *, node_id: str) -> int:
    """Confirm that nothing runs on a node any more."""
    verdict = request_operator(out, ConfirmDeathRequest(node_id=node_id), NodeConfirmDeadResult)
    text = "confirmed dead" if verdict.changed else "confirmed dead already"
    out.line(f"node {verdict.node_id}: {text}")
    return 0
