"""`caravan job status`, `job stop` and `job eval`."""

from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from schemas.job_answers import JobsAnswer
from schemas.projections import Query
from services.cli.job.submission import (
    evaluation_error,
    submit_request,
    wait_evaluation,
    wait_job_ended,
)
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_job, query_pages, resolve_job, with_bus
from services.cli.runtime.output import CommandOutput, ErrorFields, result_from, short_id
from shared.bus.connection.public_client import Client


class JobStopResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job stop --json`."""

    job: str
    eval_id: str
    eval_status: str
    stopped: bool
    submission_id: str
    seq: int


class JobEvalResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job eval --json`."""

    #: the evaluation failed.
    error: ErrorFields | UnsetType = UNSET
    job: str
    eval_id: str
    eval_status: str
    submission_id: str
    seq: int


def stop(out: CommandOutput, *, job_id: str, purge: bool, detach: bool) -> int:
    """Stop a job; wait until none of its allocations runs."""

    async def work(client: Client) -> int:
        # The exact id: a repeated `job stop --purge web` must not stop `web-2`.
        body = {"JobID": job_id, "Purge": purge, "SubmissionID": str(uuid4())}
        verdict = await submit_request(client, "stop", body)
        status, stopped, seq = "", False, verdict.seq
        if not detach:
            out.progress(f"job {verdict.job_id}: stopping")
            if verdict.eval_id:
                status = (await wait_evaluation(client, verdict.eval_id, verdict.seq)).status
            stopped, seq = await wait_job_ended(client, job_id, verdict.seq)
        own = {"job": verdict.job_id, "eval_status": status, "seq": seq}
        out.result(result_from(JobStopResult, verdict, stopped=stopped, **own))
        if detach:
            out.line(f"job {verdict.job_id}: stop accepted")
        elif stopped:
            out.line(f"job {verdict.job_id}: stopped")
        else:
            out.line(
                f"job {verdict.job_id}: stop accepted; some allocations are still running", "yellow"
            )
        return 0

    return with_bus(work)


def evaluate(out: CommandOutput, *, job_id: str, detach: bool, force_reschedule: bool) -> int:
    """Create an evaluation of a job; wait until it is done."""

    async def work(client: Client) -> int:
        name = await resolve_job(client, job_id)
        body = {"JobID": name, "SubmissionID": str(uuid4()), "ForceReschedule": force_reschedule}
        verdict = await submit_request(client, "evaluate", body)
        status, seq, fault, parked = "", verdict.seq, None, False
        if not detach:
            one = await wait_evaluation(client, verdict.eval_id, verdict.seq)
            status, seq, fault = one.status, max(seq, one.modify_seq), evaluation_error(one)
            parked = one.parked
        own = {"job": verdict.job_id, "eval_status": status, "seq": seq}
        out.result(
            result_from(
                JobEvalResult, verdict, error=UNSET if fault is None else fault.as_fields(), **own
            )
        )
        if fault is not None:
            if out.is_json:
                return 1
            raise fault
        text = f"{status}, queued behind other evaluations" if parked else status
        out.line(f"evaluation {short_id(verdict.eval_id)}: {text or 'created'}")
        return 0

    return with_bus(work)


def status(out: CommandOutput, *, job_id: str, limit: int, verbose: bool) -> int:
    """List jobs, or show one."""
    if not job_id:
        answer = query_pages("jobs", JobsAnswer, Query(limit=limit), "jobs")
        rows = [tables.job_cells(job) for job in answer.jobs]
        columns = "ID|TYPE|STATUS|RUNNING>|PRIORITY>|VERSION>"
        return tables.print_list(out, answer, columns, rows, total=answer.total, what="jobs")
    one = with_bus(lambda client: query_job(client, job_id, limit=limit))
    out.result(one)
    tables.print_job(out, one, verbose=verbose)
    return 0
