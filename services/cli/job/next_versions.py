"""`caravan job revert|scale|start`: the next version of a job out of one that is kept, followed as `job run` does."""

from typing import Any
from uuid import uuid4

from services.cli.job.run import report_rollout
from services.cli.job.submission import submit_request
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.public_client import Client


def revert(
    out: CommandOutput,
    *,
    job_id: str,
    version: str,
    check_version: int,
    check_index: int,
    submission_id: str,
    detach: bool,
) -> int:
    """Register the text of an older version again; follow it."""
    is_number = version.isascii() and version.isdigit()
    body: dict[str, Any] = {"JobVersion": int(version)} if is_number else {"VersionTag": version}
    if check_version >= 0:
        body["EnforcePriorVersion"] = check_version
    body |= _checked(check_index)
    word = f"version {version}" if is_number else f"the version with the tag {version!r}"
    return _submit(
        out,
        "revert",
        job_id,
        body,
        submission_id=submission_id,
        word=f"reverts to {word}",
        detach=detach,
    )


def scale(
    out: CommandOutput,
    *,
    job_id: str,
    group: str,
    count: int,
    check_index: int,
    submission_id: str,
    detach: bool,
) -> int:
    """Register a job with another count of a group; follow it."""
    body = {"Group": group, "Count": count} | _checked(check_index)
    word = f"scales {group} to {count}" if group else f"scales to {count}"
    return _submit(
        out, "scale", job_id, body, submission_id=submission_id, word=word, detach=detach
    )


def start(
    out: CommandOutput, *, job_id: str, check_index: int, submission_id: str, detach: bool
) -> int:
    """Run a stopped job again; follow it."""
    body = _checked(check_index)
    return _submit(
        out, "start", job_id, body, submission_id=submission_id, word="starts again", detach=detach
    )


def _checked(check_index: int) -> dict[str, Any]:
    if check_index < -1:
        raise CliError("usage", "--check-index must not be negative")
    return {"EnforceIndex": True, "JobModifyIndex": check_index} if check_index >= 0 else {}


def _submit(
    out: CommandOutput,
    verb: str,
    job_id: str,
    body: dict[str, Any],
    *,
    submission_id: str,
    word: str,
    detach: bool,
) -> int:
    """Submit a change of a job by its exact id: repeated by a script it must not change another job."""
    whole = {**body, "JobID": job_id, "SubmissionID": submission_id or str(uuid4())}

    async def work(client: Client) -> int:
        verdict = await submit_request(client, verb, whole)
        if not out.is_live:
            out.progress(f"job {job_id} {word}, as version {verdict.version}")
        return await report_rollout(client, out, verdict, detach=detach)

    return with_bus(work)
