"""`caravan service list` and `service info`."""

from schemas.answers import ServiceAnswer, ServicesAnswer
from schemas.projections import Query, ServiceInstance
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_pages
from services.cli.runtime.output import CommandOutput, short_id


def list_all(out: CommandOutput, *, job: str, limit: int) -> int:
    """List services by name."""
    query = Query(job_id=job, limit=limit)
    answer = query_pages("services", ServicesAnswer, query, "services")
    out.result(answer)
    rows = [
        (one.name, one.instances, one.passing, ",".join(one.tags), ",".join(one.jobs))
        for one in answer.services
    ]
    out.table("SERVICE|INSTANCES>|PASSING>|TAGS|JOBS", rows)
    tables.print_footer(out, len(answer.services), answer.total, "services")
    return 0


def info(out: CommandOutput, *, name: str, job: str, status: str, limit: int, verbose: bool) -> int:
    """Show the instances of one service."""
    query = Query(id=name, job_id=job, status=status, limit=limit)
    answer = query_pages("service", ServiceAnswer, query, "instances")
    out.result(answer)
    rows = [_row(one, verbose=verbose) for one in answer.instances]
    out.table("ADDRESS|STATUS|TAGS|JOB|GROUP|NODE|ALLOCATION|HEALTH", rows)
    tables.print_footer(out, len(answer.instances), answer.total, "instances")
    return 0


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
