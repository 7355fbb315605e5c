"""Ephemeral disks that move to another node: what agents ask the view, and each other.

With `ephemeral_disk { migrate = true }` the node of a replacement fetches the data of the allocation that it replaces
from that one's node. Both ask the view, so that the log decides who gets what (ADR 39).
"""

from schemas.base import Wire
from schemas.jobs import ErrorDetail


class DiskSourceAsk(Wire, frozen=True, kw_only=True):
    """`ask.<node>.disk_source`: of an allocation that runs, or of one that replaces another that was on that node."""

    #: whole shown id.
    alloc_id: str


class DiskSourceAnswer(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Answer to a node: what the log says of an allocation and of the one that it replaces."""

    #: the node where the allocation is.
    node_id: str = ""
    #: shown id of the one that it replaces; empty: it replaces none.
    previous: str = ""
    #: where that one is or was; empty: the log has forgotten it.
    previous_node: str = ""
    #: client status of the replaced one: its data is at rest once it is complete or failed.
    previous_status: str = ""
    #: status of its node.
    previous_node_status: str = ""
    #: `not_found`: no such allocation, or it concerns other nodes alone; `unavailable` or `invalid`.
    error: ErrorDetail | None = None


class DiskAsk(Wire, frozen=True, kw_only=True):
    """`disk.<node>.<asker>.snapshot`: the data of an ended allocation, as a tar in Frames.

    The archive holds `alloc/data`, and `<directory of the task>/local` for each of the tasks; its last
    entry is an empty file `end`.
    """

    #: of the asker: the one that replaces `previous`.
    alloc_id: str
    #: of the node that is asked.
    previous: str
    #: names of the tasks whose `local/` is wanted.
    tasks: tuple[str, ...] = ()
    #: chosen by the asker, 128 bits as 32 hex digits: names the stream in SessionInput.
    session: str
