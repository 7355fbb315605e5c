"""`caravan eval list` and `eval status`."""

import time

from schemas.evaluation_answers import EvalAnswer, EvalsAnswer, WaitingAnswer
from schemas.projections import Query
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_once, query_pages
from services.cli.runtime.output import CommandOutput, short_id
from shared.display.formats import format_age, format_time_and_age


def list_all(
    out: CommandOutput, *, job: str, status: str, waiting: bool, limit: int, verbose: bool
) -> int:
    """List evaluations, newest first; or waiting task groups in queue order."""
    if waiting:
        return _waiting(out, job, limit=limit, verbose=verbose)
    query = Query(status=status, limit=limit)
    answer = query_pages("evals", EvalsAnswer, query, "evaluations", job=job)
    out.result(answer)
    tables.print_evaluations(out, answer.evaluations, "", verbose=verbose)
    tables.print_footer(out, len(answer.evaluations), answer.total, "evaluations")
    return 0


def _waiting(out: CommandOutput, job: str, *, limit: int, verbose: bool) -> int:
    answer = query_pages("waiting", WaitingAnswer, Query(limit=limit), "waiting", job=job)
    now_ns, since = time.time_ns(), format_time_and_age if verbose else format_age
    rows = [
        (
            one.position or "-",
            one.job,
            one.group,
            one.n,
            one.wait_class,
            one.priority,
            one.pool,
            since(one.since_ns, now_ns),
            one.decided_seq or "-",
            "; ".join((*one.reasons, *one.wakes) if verbose else one.reasons[:1]),
            ", ".join(one.nodes),
        )
        for one in answer.waiting
    ]
    columns = "POSITION>|JOB|GROUP|N>|CLASS|PRIORITY>|POOL|SINCE|DECIDED>|REASON|RESERVED NODES"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="waiting groups")


def status(out: CommandOutput, *, eval_id: str, verbose: bool) -> int:
    """Show one evaluation."""
    answer = query_once("eval", EvalAnswer, Query(id=eval_id))
    out.result(answer)
    one = answer.evaluation
    shown = [
        ("ID", one.id if verbose else short_id(one.id)),
        ("Job", one.job_id),
        ("Status", f"{one.status}, parked" if one.parked else one.status),
        ("Triggered by", one.triggered_by),
        ("Priority", str(one.priority)),
        ("Created", f"seq {one.create_seq}"),
        ("Modified", f"seq {one.modify_seq}"),
    ]
    shown += [("Reason", one.reason)] if one.reason else []
    out.fields(shown)
    for group, waiting in sorted(one.waiting.items()):
        text = "; ".join(waiting.reasons) or waiting.wait_class
        out.line(f"{waiting.n} of {group} waiting: {text}", "yellow")
    tables.print_evaluations(out, answer.follow_ups, "Follow-ups", verbose=verbose, with_job=False)
    return 0
