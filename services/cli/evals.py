"""`caravan eval`: list, status."""

from schemas.answers import EvalAnswer, EvalsAnswer, WaitingAnswer
from schemas.projections import Query
from services.cli import lines
from services.cli.asking import ask_once, ask_pages
from services.cli.output import Column, Output, short


def list_all(
    out: Output, *, job: str, status: str, waiting: bool, limit: int, verbose: bool
) -> int:
    """List evaluations, newest first; or what waits for a place, the next one first."""
    if waiting:
        return _waiting(out, Query(job_id=job, limit=limit), verbose=verbose)
    query = Query(job_id=job, status=status, limit=limit)
    answer = ask_pages("evals", EvalsAnswer, query, "evaluations")
    out.result(answer)
    lines.evaluations(out, answer.evaluations, "", verbose=verbose)
    lines.footer(out, len(answer.evaluations), answer.total, "evaluations")
    return 0


def _waiting(out: Output, query: Query, *, verbose: bool) -> int:
    answer = ask_pages("waiting", WaitingAnswer, query, "waiting")
    out.result(answer)
    columns = [
        Column("POSITION", right=True),
        Column("JOB"),
        Column("GROUP", 2),
        Column("N", right=True),
        Column("CLASS"),
        Column("PRIORITY", 3, right=True),
        Column("POOL", 4),
        Column("SINCE", 5),
        Column("REASON", 1),
        Column("NODES HELD", 6),
    ]
    rows = [
        (
            one.position or "-",
            one.job,
            one.group,
            one.n,
            one.wait_class,
            one.priority,
            one.pool,
            lines.moment(one.since_ns),
            "; ".join((*one.reasons, *one.wakes) if verbose else one.reasons[:1]),
            ", ".join(one.nodes),
        )
        for one in answer.waiting
    ]
    out.table(columns, rows)
    lines.footer(out, len(answer.waiting), answer.total, "groups that wait")
    return 0


def status(out: Output, *, eval_id: str, verbose: bool) -> int:
    """Show one evaluation."""
    answer = ask_once("eval", EvalAnswer, Query(id=eval_id))
    out.result(answer)
    one = answer.evaluation
    shown = [
        ("ID", one.id if verbose else short(one.id)),
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
        out.line(f"{waiting.n} of {group} wait: {text}", "yellow")
    lines.evaluations(out, answer.follow_ups, "Follow-ups", verbose=verbose, with_job=False)
    return 0
