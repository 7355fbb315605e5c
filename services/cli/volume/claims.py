"""`caravan volume claim list` and `volume claim release`."""

from uuid import uuid4

from schemas.operator import ReleaseClaimRequest
from schemas.projections import Query
from schemas.volume_answers import ClaimsAnswer
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_pages
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CommandOutput, short_id


class ClaimReleaseResult(OperatorResult, frozen=True):
    """`volume claim release --json`."""

    job: str
    group: str
    index: int


def list_all(out: CommandOutput, *, job: str, limit: int) -> int:
    """List the claims by job, group and index."""
    answer = query_pages("claims", ClaimsAnswer, Query(limit=limit), "claims", job=job)
    rows = [
        (
            f"{one.job_id}.{one.group}[{one.index}]",
            one.volume,
            short_id(one.node_id),
            "exclusive" if one.is_exclusive else "shared",
            short_id(one.alloc_id) if one.alloc_id else "-",
        )
        for one in answer.claims
    ]
    columns = "INDEX|VOLUME|NODE|CLAIM|ALLOCATION"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="claims")


def release(out: CommandOutput, *, job_id: str, group: str, index: int) -> int:
    """Release the claims of an index."""
    body = ReleaseClaimRequest(job_id=job_id, group=group, index=index, request_id=str(uuid4()))
    verdict = request_operator(out, body, ClaimReleaseResult, job=job_id, group=group, index=index)
    word = "are released" if verdict.changed else "do not exist: nothing changed"
    out.line(f"the claims of {job_id}.{group}[{index}] {word}")
    return 0
