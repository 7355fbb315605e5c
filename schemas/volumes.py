"""Claims on volumes: which index of a group has which volume, for as long as its job lives.

A claim is made in the transaction of the first placement, and says where every later allocation of the index runs.
"""

from schemas.base import Command, Event, JobId, NodeId


class ClaimMade(Event, frozen=True, kw_only=True, tag="claim.made"):
    """The first allocation of an index of a group was placed where a volume is: the index has it from now on."""

    job_id: JobId
    group: str
    index: int
    #: name of the volume.
    volume: str
    node_id: NodeId
    #: no other index or group may claim it, too.
    is_exclusive: bool = False


class ClaimReleased(Event, frozen=True, kw_only=True, tag="claim.released"):
    """An operator released the claims of an index: its next allocation claims a volume anew."""

    request_id: str
    job_id: JobId
    group: str
    index: int


class ReleaseClaim(Command, frozen=True, kw_only=True, tag="release_claim"):
    """Release the claims of an index. Natural key: the index, whether it has claims."""

    request_id: str
    job_id: JobId
    group: str
    index: int
