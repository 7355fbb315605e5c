"""`caravan job`: status, stop, eval. Beside it: `job_run.py`, `job_plan.py`, `job_versions.py`, `job_files.py`."""

from uuid import uuid4

import msgspec

from schemas.answers import JobAnswer, JobsAnswer
from schemas.projections import Query
from services.cli import lines
from services.cli.asking import ask_once, ask_pages, with_bus
from services.cli.output import CliError, Column, Output, short
from services.cli.submitting import evaluation_fault, submit, wait_ended, wait_evaluation
from shared.bus.client import Client


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


def evaluate(out: Output, *, job_id: str, detach: bool) -> int:
    """Ask for another look at a job; wait for its outcome."""
    body = {"JobID": job_id, "SubmissionID": str(uuid4())}

    async def work(client: Client) -> int:
        verdict = await submit(client, "evaluate", msgspec.json.encode(body))
        status, seq, fault, parked = "", verdict.seq, None, False
        if not detach:
            one = await wait_evaluation(client, verdict.eval_id, verdict.seq)
            status, seq, fault = one.status, max(seq, one.modify_seq), evaluation_fault(one)
            parked = one.parked
        out.result(
            {
                **(fault.as_object() if fault is not None else {}),
                "job": verdict.job_id,
                "eval_id": verdict.eval_id,
                "eval_status": status,
                "submission_id": verdict.submission_id,
                "seq": seq,
            }
        )
        if fault is not None:
            if out.is_json:
                return 1
            raise fault
        told = f"{status}, parked behind others that wait for the same" if parked else status
        out.line(f"evaluation {short(verdict.eval_id)}: {told or 'not waited for'}")
        return 0

    return with_bus(work)


def status(out: Output, *, job_id: str, limit: int, verbose: bool) -> int:
    """List jobs, or show one."""
    if not job_id:
        answer = ask_pages("jobs", JobsAnswer, Query(limit=limit), "jobs")
        out.result(answer)
        rows = [
            (
                *(job.id, job.job_type, lines.status(job), lines.alive(job.groups)),
                *(job.priority, job.version),
            )
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
    one = _find(job_id, limit)
    out.result(one)
    lines.job(out, one, verbose=verbose)
    return 0


def _find(job_id: str, limit: int) -> JobAnswer:
    """Ask for a job by its id, or by the one beginning of it that fits. Raises CliError, naming what there is."""
    try:
        return ask_once("job", JobAnswer, Query(id=job_id, limit=limit))
    except CliError as err:
        if err.code != "not_found":
            raise
        near = ask_once("jobs", JobsAnswer, Query(id=job_id, limit=10))
        if near.total == 1:
            return ask_once("job", JobAnswer, Query(id=near.jobs[0].id, limit=limit))
        if near.total:
            some = ", ".join(job.id for job in near.jobs)
            text = f"{job_id!r} is not unique among jobs: {some}"
            raise CliError("ambiguous", text) from err
        raise
