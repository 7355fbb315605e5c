"""Submissions from the command line: asking for a verdict until there is one, and waiting for what follows.

Decides how long a person waits. Used by every command that changes a job.
"""

import asyncio
import time

import msgspec

from schemas.answers import EvalAnswer, JobAnswer
from schemas.evaluations import EVAL_STATUSES
from schemas.jobs import Verdict
from schemas.projections import EvalSummary, Query
from services.cli.asking import ask, why_silent
from services.cli.output import CliError
from shared.bus import subjects
from shared.bus.client import Client
from shared.errors import BusUnavailable

#: How long a person waits before the command goes on without.
WAIT_S = 60.0
POLL_S = 0.03
#: What an evaluation says when it has its outcome; blocked ones wait for room.
ENDED = frozenset(EVAL_STATUSES) - {"pending"}
_VERDICT_S = 10.0


async def submit(client: Client, verb: str, body: bytes) -> Verdict:
    """Ask for a verdict until there is one. Raises CliError with the refusal."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            raw = await client.request_bytes(subjects.api_jobs(verb), body, timeout_s=_VERDICT_S)
        except BusUnavailable as err:
            raise CliError("unavailable", f"{await why_silent(client, 'intake')}: {err}") from err
        verdict = msgspec.json.decode(raw, type=Verdict)
        if verdict.status == "accepted":
            return verdict
        if verdict.status == "refused":
            first = verdict.error or (verdict.errors[0] if verdict.errors else None)
            if first is None:
                raise CliError("refused", "refused without a reason")
            raise CliError(first.code, first.message, path=first.path)
        if time.monotonic() > deadline:
            text = f"no verdict after {WAIT_S:.0f} s; submission {verdict.submission_id} may still be accepted"
            raise CliError("pending", text)


async def evaluation_of(client: Client, eval_id: str, min_seq: int) -> EvalSummary:
    """Look at an evaluation."""
    answer = await ask(client, "eval", EvalAnswer, Query(id=eval_id, min_seq=min_seq))
    return answer.evaluation


async def wait_evaluation(client: Client, eval_id: str, min_seq: int) -> EvalSummary:
    """Wait until an evaluation is no longer pending, or is parked. Raises CliError `pending` after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while True:
        one = await evaluation_of(client, eval_id, min_seq)
        if one.status in ENDED or one.parked:
            return one
        if time.monotonic() > deadline:
            raise CliError("pending", f"evaluation {eval_id} is still pending after {WAIT_S:.0f} s")
        await asyncio.sleep(POLL_S)


def evaluation_fault(evaluation: EvalSummary | None) -> CliError | None:
    """Make the error of a job that was accepted and whose evaluation came to nothing; None: it did not."""
    if evaluation is None or evaluation.status not in {"failed", "canceled"}:
        return None
    reason = evaluation.reason or "no reason given"
    return CliError("evaluation", f"evaluation {evaluation.status}: {reason}")


async def wait_ended(
    client: Client, job_id: str, min_seq: int, wait_s: float = WAIT_S
) -> tuple[bool, int]:
    """Wait until no allocation of a job lives. Returns whether that came, and the seq of the last look."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            answer = await ask(client, "job", JobAnswer, Query(id=job_id, limit=0, min_seq=min_seq))
        except CliError as err:
            if err.code == "not_found":
                return True, min_seq
            raise
        if not any(g.pending or g.running or g.unknown for g in answer.groups.values()):
            return True, answer.seq
        if time.monotonic() > deadline:
            return False, answer.seq
        await asyncio.sleep(POLL_S)
