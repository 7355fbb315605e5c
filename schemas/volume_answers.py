"""Answers of `query.claims`."""

from schemas.answers import QueryAnswer
from schemas.base import ExactWire, JobId, NodeId


class ClaimLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """A claim, and what uses it."""

    job_id: JobId
    group: str
    index: int
    volume: str
    node_id: NodeId
    is_exclusive: bool = False
    #: seq of the record in which it was made.
    create_seq: int = 0
    #: id of the allocation that runs there; empty: none does.
    alloc_id: str = ""


class ClaimsAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.claims`, by job, group, index and volume."""

    claims: tuple[ClaimLine, ...] = ()
    total: int = 0
