"""Answers of `query.claims` and `query.volumes`."""

from schemas.answers import QueryAnswer
from schemas.base import ExactWire, JobId, NodeId
from schemas.host_volumes import VolumeCapability
from schemas.jobs import Constraint


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


class VolumeLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """A host volume that was created by request."""

    id: str
    name: str
    node_id: NodeId
    #: pending, ready, failed, deleting; unavailable: it was ready, and its node is not.
    status: str
    #: why it failed, or could not be deleted yet.
    reason: str = ""
    plugin: str = ""
    node_name: str = ""
    node_pool: str = ""
    #: as asked for; empty: any.
    asked_pool: str = ""
    constraints: tuple[Constraint, ...] = ()
    capacity_min_bytes: int = 0
    capacity_max_bytes: int = 0
    #: what its plugin says of it; 0: nothing.
    capacity_bytes: int = 0
    capabilities: tuple[VolumeCapability, ...] = ()
    parameters: dict[str, str] = {}
    #: where it is on its node.
    path: str = ""
    create_seq: int = 0
    modify_seq: int = 0
    #: shown ids of the allocations that use it.
    alloc_ids: tuple[str, ...] = ()
    capacity_min_bytes_text: str = ""
    capacity_max_bytes_text: str = ""
    capacity_bytes_text: str = ""


class VolumesAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.volumes`, by name and id."""

    volumes: tuple[VolumeLine, ...] = ()
    total: int = 0
