"""`caravan job periodic force`: launch a child of a periodic job now."""

from uuid import uuid4

from schemas.operator import ForceLaunchRequest
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CommandOutput


class JobForceResult(OperatorResult, frozen=True):
    """`job periodic force --json`."""

    job: str
    child: str


def force(out: CommandOutput, *, job_id: str) -> int:
    """Launch a child of a periodic job now."""
    # The exact id: repeated by a script it must not launch another job.
    body = ForceLaunchRequest(job_id=job_id, request_id=str(uuid4()))
    verdict = request_operator(out, body, JobForceResult, job=job_id)
    word = "launched" if verdict.changed else "was launched in this second already"
    out.line(f"job {verdict.child_id}: {word}; caravan job status {verdict.child_id} shows more")
    return 0
