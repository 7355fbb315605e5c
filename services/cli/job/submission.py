"""Sends job submissions until there is a verdict, and waits for their evaluations and allocations."""

import asyncio
import time
from typing import Any

import msgspec

from schemas.evaluation_answers import EvalAnswer
from schemas.evaluations import EVAL_STATUSES
from schemas.job_answers import JobAnswer
from schemas.jobs import Verdict
from schemas.projections import EvalSummary, Query
from services.cli.runtime.bus_client import query_view, request_until_decided
from services.cli.runtime.output import CliError
from shared.bus.connection.public_client import Client
from shared.protocol import subjects

#: How long a command waits.
WAIT_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.03
#: Statuses of an evaluation that is done; a blocked one waits for capacity.
EVAL_DONE_STATUSES = frozenset(EVAL_STATUSES) - {"pending"}
_VERDICT_S = 10.0


async def submit_request(client: Client, verb: str, body: dict[str, Any]) -> Verdict:
    """Request until there is a verdict. Raises CliError with the refusal."""
    verdicts = await request_until_decided(
        client,
        subjects.api_jobs(verb),
        msgspec.json.encode(body),
        Verdict,
        service="intake",
        wait_s=WAIT_TIMEOUT_S,
        verdict_s=_VERDICT_S,
    )
    return verdicts[-1]


async def get_evaluation(client: Client, eval_id: str, min_seq: int) -> EvalSummary:
    """Query an evaluation."""
    answer = await query_view(client, "eval", EvalAnswer, Query(id=eval_id, min_seq=min_seq))
    return answer.evaluation


async def wait_evaluation(client: Client, eval_id: str, min_seq: int) -> EvalSummary:
    """Wait until an evaluation is not pending, or is parked. Raises CliError `pending` after WAIT_TIMEOUT_S."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while True:
        one = await get_evaluation(client, eval_id, min_seq)
        if one.status in EVAL_DONE_STATUSES or one.parked:
            return one
        if time.monotonic() > deadline:
            raise CliError(
                "pending", f"evaluation {eval_id} is still pending after {WAIT_TIMEOUT_S:.0f} s"
            )
        await asyncio.sleep(POLL_INTERVAL_S)


def evaluation_error(evaluation: EvalSummary | None) -> CliError | None:
    """The error of a failed or canceled evaluation of an accepted job, else None."""
    if evaluation is None or evaluation.status not in {"failed", "canceled"}:
        return None
    reason = evaluation.reason or "no reason given"
    return CliError("evaluation", f"evaluation {evaluation.status}: {reason}")


async def wait_job_ended(
    client: Client, job_id: str, min_seq: int, wait_s: float = WAIT_TIMEOUT_S
) -> tuple[bool, int]:
    """Wait until no allocation of a job runs. Returns whether that happened, and the seq of the last answer."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            answer = await query_view(
                client, "job", JobAnswer, Query(id=job_id, limit=0, min_seq=min_seq)
            )
        except CliError as err:
            if err.code == "not_found":
                return True, min_seq
            raise
        if not any(g.pending or g.running or g.unknown for g in answer.groups.values()):
            return True, answer.seq
        if time.monotonic() > deadline:
            return False, answer.seq
        await asyncio.sleep(POLL_INTERVAL_S)
