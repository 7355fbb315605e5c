"""`caravan eval`: list, status."""

from schemas.answers import EvalAnswer, EvalsAnswer
from schemas.projections import Query
from services.cli import lines
from services.cli.asking import ask_once, ask_pages
from services.cli.output import Output, short


def list_all(out: Output, *, job: str, status: str, limit: int, verbose: bool) -> int:
    """List evaluations, newest first."""
    query = Query(job_id=job, status=status, limit=limit)
    answer = ask_pages("evals", EvalsAnswer, query, "evaluations")
    out.result(answer)
    lines.evaluations(out, answer.evaluations, "", verbose=verbose)
    lines.footer(out, len(answer.evaluations), answer.total, "evaluations")
    return 0


def status(out: Output, *, eval_id: str, verbose: bool) -> int:
    """Show one evaluation."""
    answer = ask_once("eval", EvalAnswer, Query(id=eval_id))
    out.result(answer)
    one = answer.evaluation
    shown = [
        ("ID", one.id if verbose else short(one.id)),
        ("Job", one.job_id),
        ("Status", one.status),
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
