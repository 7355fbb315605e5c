"""`caravan job allocs`: the allocations of a job, of all its versions."""

import time

from schemas.node_answers import AllocsAnswer
from schemas.projections import AllocSummary, Query
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_pages, resolve_job, with_bus
from services.cli.runtime.output import CommandOutput, short_id
from shared.display.formats import format_age, format_time_and_age


def list_of_job(out: CommandOutput, *, job_id: str, limit: int, verbose: bool) -> int:
    """List the allocations of a job with their version and health."""
    job = with_bus(lambda client: resolve_job(client, job_id))
    query = Query(job_id=job, limit=limit)
    answer = query_pages("allocs", AllocsAnswer, query, "allocations")
    now_ns = time.time_ns()
    rows = [
        (
            one.id if verbose else short_id(one.id),
            one.name.removeprefix(f"{job}."),
            one.node,
            one.version,
            one.desired_status,
            one.client_status,
            _health(one),
            format_time_and_age(one.event_ns, now_ns)
            if verbose
            else format_age(one.event_ns, now_ns),
        )
        for one in answer.allocations
    ]
    columns = "ID|NAME|NODE|VERSION>|DESIRED|STATUS|HEALTH|CHANGED"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="allocations")


def _health(one: AllocSummary) -> str:
    words = [one.health] if one.health else []
    return ", ".join([*words, "canary"] if one.canary else words)
