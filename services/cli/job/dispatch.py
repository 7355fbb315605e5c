"""`caravan job dispatch`: make a child of a parameterized job, and follow it as `job run` follows a job."""

import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from schemas.launches import PAYLOAD_BYTES_MAX
from services.cli.job.run import report_rollout
from services.cli.job.submission import submit_request
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.public_client import Client


def dispatch(
    out: CommandOutput,
    *,
    job_id: str,
    meta: Sequence[str],
    payload: str,
    idempotency_token: str,
    priority: int,
    submission_id: str,
    detach: bool,
) -> int:
    """Dispatch a job; follow the child until it runs, is complete, failed, or waits."""
    body: dict[str, Any] = {
        # The exact id: a script that dispatches must not make a child of another job.
        "JobID": job_id,
        "Meta": dict(_pair(one) for one in meta),
        "SubmissionID": submission_id or str(uuid4()),
        "IdempotencyToken": idempotency_token,
        "Priority": priority,
        "Payload": base64.b64encode(_read(payload)).decode(),
    }

    async def work(client: Client) -> int:
        verdict = await submit_request(client, "dispatch", body)
        if not out.is_live:
            # A child that was there before this verdict has the token already.
            is_known = verdict.modify_index < verdict.seq
            word = "the token is that of" if is_known else "dispatched as"
            out.progress(f"job {job_id}: {word} {verdict.job_id}")
        return await report_rollout(client, out, verdict, detach=detach)

    return with_bus(work)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CliError("usage", f"--meta {text[:80]!r} is not KEY=VALUE")
    return key, value


def _read(payload: str) -> bytes:
    """Read the payload of a file, or of stdin. Raises CliError."""
    if not payload:
        return b""
    try:
        if payload == "-":
            found = sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1)
        else:
            with Path(payload).open("rb") as file:
                found = file.read(PAYLOAD_BYTES_MAX + 1)
    except OSError as err:
        raise CliError("usage", f"--payload {payload}: {err.strerror}") from err
    if len(found) > PAYLOAD_BYTES_MAX:
        text = f"--payload {payload} has more than {PAYLOAD_BYTES_MAX} bytes"
        raise CliError("too_large", text)
    return found
