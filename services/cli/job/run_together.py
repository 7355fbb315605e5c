"""`caravan job run --together`: submit several jobs as one rollout, and follow it until it ended or waits."""

from collections.abc import Sequence
from typing import Unpack
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from schemas.rollout_answers import RolloutAnswer, RolloutLine, RolloutMemberLine
from services.cli.deployment.follow import exit_code, follow
from services.cli.job import files
from services.cli.job.submission import submit_request
from services.cli.rollout import monitor
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.output import CliError, CommandOutput, ErrorFields, short_id
from shared.bus.connection.public_client import Client
from shared.core.decide.deployments.rollout_members import member_fault
from shared.jobspec.strict_json import TEXT_BYTES_MAX

#: Of a rollout's body: a share of what is beside its jobs.
_AROUND_BYTES = 512


class TogetherResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job run --together --json`."""

    #: the rollout was accepted, and failed or was cancelled.
    error: ErrorFields | UnsetType = UNSET
    rollout: RolloutLine
    members: tuple[RolloutMemberLine, ...]
    warnings: tuple[str, ...]
    submission_id: str
    seq: int


def run_together(
    out: CommandOutput,
    file: Sequence[str],
    *,
    name: str,
    in_order: bool,
    detach: bool,
    submission_id: str,
    **options: Unpack[files.JobFileOptions],
) -> int:
    """Submit job files as one rollout; follow it until it ended or waits."""
    bodies, warnings = _read(out, file, **options)
    body = {
        "SubmissionID": submission_id or str(uuid4()),
        "Rollout": name,
        "Order": "in_order" if in_order else "together",
        "Jobs": bodies,
    }

    async def work(client: Client) -> int:
        verdict = await submit_request(client, "submit_together", body)
        warned = tuple(dict.fromkeys((*warnings, *verdict.warnings)))
        for warning in warned:
            out.line(f"warning: {warning}", "yellow")
        if detach:
            answer = await monitor.query_rollout(client, verdict.rollout_id, verdict.seq)
            failures: list[str] = []
        else:
            answer = await follow(
                monitor.ROLLOUT, client, out, verdict.rollout_id, min_seq=verdict.seq
            )
            failures = await monitor.member_failures(client, answer)
        _print_result(out, answer, warned, verdict.submission_id)
        if detach:
            line = answer.rollout
            out.line(
                f"rollout {short_id(line.id)} {line.name!r}: accepted, {len(answer.members)} jobs"
            )
            return 0
        monitor.print_outcome(out, answer, failures)
        return exit_code(monitor.outcome_of(answer))

    return with_bus(work)


def _read(
    out: CommandOutput, file: Sequence[str], **options: Unpack[files.JobFileOptions]
) -> tuple[list[object], list[str]]:
    """Read the files. Raises CliError for one with errors, one that no rollout can have, and a job that comes twice."""
    if file.count(files.STDIN) > 1:
        raise CliError("usage", "stdin can be read once")
    bodies: list[object] = []
    warnings: list[str] = []
    known: dict[str, str] = {}
    for one in file:
        loaded = files.read_valid_job_file(out, one, **options)
        if loaded.job_id in known:
            text = f"job {loaded.job_id!r} is also in {known[loaded.job_id]}"
            raise CliError("invalid", text, file=one)
        if fault := member_fault(loaded.register("")):
            raise CliError("invalid", f"not for a rollout: {fault}", file=one)
        known[loaded.job_id] = one
        body = msgspec.json.decode(loaded.body)
        body.pop("SubmissionID", None)
        # What its jobs and their files have together is bounded.
        warned = files.add_source(body, loaded, TEXT_BYTES_MAX // len(file) - _AROUND_BYTES)
        bodies.append(body)
        warnings += [f"{one}: {text}" for text in warned]
    return bodies, warnings


def _print_result(
    out: CommandOutput, answer: RolloutAnswer, warnings: tuple[str, ...], submission_id: str
) -> None:
    line = answer.rollout
    error = None
    if line.status in {"failed", "cancelled"}:
        error = CliError("rollout", f"rollout {line.status}: {line.description}")
    out.result(
        TogetherResult(
            error=UNSET if error is None else error.as_fields(),
            rollout=line,
            members=answer.members,
            warnings=warnings,
            submission_id=submission_id,
            seq=answer.seq,
        )
    )
