"""`caravan service list` and `service info`."""

from schemas.answers import ServiceAnswer, ServicesAnswer
from schemas.projections import Query, ServiceInstance
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_pages
from services.cli.runtime.output import CommandOutput, short_id


def list_all(out: CommandOutput, *, job: str, limit: int) -> int:
    """List services by name."""
    answer = query_pages("services", ServicesAnswer, Query(limit=limit), "services", job=job)
    rows = [
        (one.name, one.instances, one.passing, ",".join(one.tags), ",".join(one.jobs))
        for one in answer.services
    ]
    columns = "SERVICE|INSTANCES>|PASSING>|TAGS|JOBS"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="services")


def info(out: CommandOutput, *, name: str, job: str, status: str, limit: int, verbose: bool) -> int:
    """Show the instances of one service."""
    query = Query(id=name, status=status, limit=limit)
    answer = query_pages("service", ServiceAnswer, query, "instances", job=job)
    rows = [_row(one, verbose=verbose) for one in answer.instances]
    columns = "ADDRESS|STATUS|TAGS|JOB|GROUP|NODE|ALLOCATION|HEALTH"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="instances")


def _row(one: ServiceInstance, *, verbose: bool) -> tuple[str, ...]:
    host = f"[{one.address}]" if ":" in one.address else one.address or "-"
    return (
        f"{host}:{one.port}" if one.port else host,
        one.status,
        ",".join(one.tags),
        one.job,
        one.group,
        one.node,
        one.alloc if verbose else short_id(one.alloc),
        one.health or "-",
    )
