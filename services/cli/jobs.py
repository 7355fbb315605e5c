"""`caravan job`: run, stop, status, validate."""

import asyncio
import sys
import time
from pathlib import Path
from uuid import uuid4

import msgspec

from schemas.answers import EvalAnswer, JobAnswer, JobsAnswer
from schemas.evaluations import EVAL_STATUSES
from schemas.jobs import Verdict
from schemas.projections import EvalSummary, Query
from services.cli import lines
from services.cli.asking import ask, ask_once, ask_pages, with_bus
from services.cli.output import CliError, Column, Output, short
from shared.bus import subjects
from shared.bus.client import Client
from shared.errors import BusUnavailable

#: How long a person waits for an evaluation before the command goes on without.
WAIT_S = 60.0
_VERDICT_S = 10.0
_POLL_S = 0.03
_ENDED = frozenset(EVAL_STATUSES) - {"pending", "blocked"}


def run(out: Output, *, file: str, detach: bool, check_index: int, submission_id: str) -> int:
    """Submit a job file; wait until its evaluation ended, and say what found a place."""
    from shared.jobspec.load import load_file

    loaded = load_file(_read(file), file)
    if loaded.errors:
        first = loaded.errors[0]
        for error in loaded.errors[1:]:
            out.progress(lines.of_error(error))
        raise CliError(first.code, first.message, path=first.path, file=first.file, line=first.line)
    body = msgspec.json.decode(loaded.body)
    body["SubmissionID"] = submission_id or body.get("SubmissionID") or str(uuid4())
    if check_index >= 0:
        body |= {"EnforceIndex": True, "JobModifyIndex": check_index}

    async def work(client: Client) -> int:
        verdict = await submit(client, "submit", msgspec.json.encode(body))
        if not detach:
            out.progress(f"job {verdict.job_id}, version {verdict.version}: accepted")
        return await _follow(client, out, verdict, loaded.warnings, detach=detach)

    return with_bus(work)


async def _follow(
    client: Client, out: Output, verdict: Verdict, warnings: tuple[str, ...], *, detach: bool
) -> int:
    evaluation: EvalSummary | None = None
    placed: dict[str, int] = {}
    waiting: dict[str, dict[str, object]] = {}
    seq = verdict.seq
    if verdict.eval_id and not detach:
        evaluation = await wait_evaluation(client, verdict.eval_id, verdict.seq)
        query = Query(id=verdict.job_id, limit=0, min_seq=evaluation.modify_seq)
        job = await ask(client, "job", JobAnswer, query)
        placed, seq = job.placed, job.seq
        waiting = {
            one.group: {"n": one.n, "class": one.wait_class, "reasons": one.reasons}
            for one in job.waiting
        }
    every = tuple(dict.fromkeys((*warnings, *verdict.warnings)))
    out.result(
        {
            "job": verdict.job_id,
            "version": verdict.version,
            "modify_index": verdict.modify_index,
            "eval_id": verdict.eval_id,
            "eval_status": evaluation.status if evaluation is not None else "",
            "placed": placed,
            "waiting": waiting,
            "warnings": every,
            "submission_id": verdict.submission_id,
            "seq": seq,
        }
    )
    for warning in every:
        out.line(f"warning: {warning}", "yellow")
    if evaluation is None:
        out.line(f"evaluation {short(verdict.eval_id) or 'none'}; not waited for")
        return 0
    out.line(f"evaluation {short(verdict.eval_id)}: {evaluation.status}")
    for group, count in sorted(placed.items()):
        out.line(f"  {group}: {count} placed", "green" if count else "")
    for group, one in sorted(waiting.items()):
        reasons = one["reasons"]
        text = "; ".join(reasons) if isinstance(reasons, tuple) and reasons else str(one["class"])
        out.line(f"  {group}: {one['n']} waiting, {text}", "yellow")
    if evaluation.status in {"failed", "canceled"}:
        raise CliError(
            "evaluation",
            f"evaluation {evaluation.status}: {evaluation.reason or 'no reason given'}",
        )
    return 2 if waiting else 0


async def submit(client: Client, verb: str, body: bytes) -> Verdict:
    """Ask for a verdict until there is one. Raises CliError with the refusal."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            raw = await client.request_bytes(subjects.api_jobs(verb), body, timeout_s=_VERDICT_S)
        except BusUnavailable as err:
            raise CliError(
                "unavailable", f"the bus is there, but no intake answers: {err}"
            ) from err
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


async def wait_evaluation(client: Client, eval_id: str, min_seq: int) -> EvalSummary:
    """Wait until an evaluation is no longer pending. Raises CliError `pending` after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = await ask(client, "eval", EvalAnswer, Query(id=eval_id, min_seq=min_seq))
        one = answer.evaluation
        if one.status in _ENDED or one.status == "blocked":
            return one
        if time.monotonic() > deadline:
            raise CliError("pending", f"evaluation {eval_id} is still pending after {WAIT_S:.0f} s")
        await asyncio.sleep(_POLL_S)


def stop(out: Output, *, job_id: str, purge: bool, detach: bool) -> int:
    """Stop a job; wait until nothing of it runs."""
    body = {"JobID": job_id, "Purge": purge, "SubmissionID": str(uuid4())}

    async def work(client: Client) -> int:
        verdict = await submit(client, "stop", msgspec.json.encode(body))
        status, stopped, seq = "", False, verdict.seq
        if not detach:
            out.progress(f"job {verdict.job_id}: stopping")
            if verdict.eval_id:
                status = (await wait_evaluation(client, verdict.eval_id, verdict.seq)).status
            stopped, seq = await wait_ended(client, job_id, verdict.seq)
        out.result(
            {
                "job": verdict.job_id,
                "eval_id": verdict.eval_id,
                "eval_status": status,
                "stopped": stopped,
                "submission_id": verdict.submission_id,
                "seq": seq,
            }
        )
        if detach:
            out.line(f"job {verdict.job_id}: will stop")
        elif stopped:
            out.line(f"job {verdict.job_id}: stopped, nothing of it runs")
        else:
            out.line(f"job {verdict.job_id}: accepted, but some of it still runs", "yellow")
        return 0

    return with_bus(work)


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
        await asyncio.sleep(_POLL_S)


def status(out: Output, *, job_id: str, limit: int, verbose: bool) -> int:
    """List jobs, or show one."""
    if not job_id:
        answer = ask_pages("jobs", JobsAnswer, Query(limit=limit), "jobs")
        out.result(answer)
        rows = [
            (job.id, job.job_type, job.status, lines.alive(job.groups), job.priority, job.version)
            for job in answer.jobs
        ]
        columns = [
            Column("ID"),
            Column("TYPE", 2),
            Column("STATUS"),
            Column("RUNNING", 1, right=True),
            Column("PRIORITY", 4, right=True),
            Column("VERSION", 3, right=True),
        ]
        out.table(columns, rows)
        lines.footer(out, len(answer.jobs), answer.total, "jobs")
        return 0
    one = ask_once("job", JobAnswer, Query(id=job_id, limit=limit))
    out.result(one)
    lines.job(out, one, verbose=verbose)
    return 0


def validate(out: Output, *, file: str) -> int:
    """Check a job file without a bus."""
    from shared.jobspec.load import load_file

    loaded = load_file(_read(file), file)
    ok = not loaded.errors
    errors = [{"path": e.path, "line": e.line, "message": e.message} for e in loaded.errors]
    out.result({"ok": ok, "job": loaded.job_id, "warnings": loaded.warnings, "errors": errors})
    for error in loaded.errors:
        out.line(lines.of_error(error), "red")
    for warning in loaded.warnings:
        out.line(f"warning: {warning}", "yellow")
    if ok:
        out.line(f"{file}: job {loaded.job_id} is valid", "green")
    return 0 if ok else 1


def _read(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
