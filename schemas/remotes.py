"""Remote tasks: what runs elsewhere for a slot, and which allocation tracks it.

A slot is an index of a group of a job, with a generation: the key of the allocation that began it. What runs for it
belongs to the slot, and is handed from one allocation to the next.
"""

import msgspec

from schemas.base import Command, Event, JobId, NodeId, Wire

#: Statuses of a slot: an allocation tracks it; the next one will; a node ends what runs; nothing runs any more.
SLOT_STATUSES = ("tracked", "vacant", "ending", "ended")


class RemoteTask(Wire, frozen=True, kw_only=True):
    """What runs elsewhere for one task. `state`: starting (it may be there), running or ended.

    `attempt` counts from 1 over all allocations of the slot: each is another remote task, with a token of its own.
    """

    driver: str
    attempt: int = 1
    state: str = "starting"
    #: what the driver says of it, any JSON of at most 16 KiB.
    handle: msgspec.Raw = msgspec.Raw(b"null")


class RemoteSlot(Wire, frozen=True, kw_only=True):
    """What an allocation's node said of its slot."""

    #: key of the allocation that began the slot.
    generation: int
    job_id: JobId
    group: str
    index: int
    #: of the group's text: an allocation of another one does not take it over.
    digest: str
    #: key of the allocation that tracks it.
    tracker: int
    tasks: dict[str, RemoteTask] = {}


class RemotesReported(Event, frozen=True, kw_only=True, tag="remotes.reported"):
    """Nodes said what runs elsewhere for their allocations; a start is known here before it is made."""

    slots: tuple[RemoteSlot, ...]


class RemoteMoved(Event, frozen=True, kw_only=True, tag="remote.moved"):
    """A slot has another tracker, none, or a node that ends it; or nothing of it is left."""

    generation: int
    #: one of SLOT_STATUSES.
    status: str
    #: key of the allocation that tracks it, or that is to end it; 0: none.
    tracker: int = 0
    #: node that ends it without an allocation; empty: none can, or none needs to.
    node_id: NodeId = NodeId("")
    #: of the order to end it: above those of all trackers.
    epoch: int = 0


class RemoteWanted(Wire, frozen=True, kw_only=True):
    """What a projection says of an allocation with remote tasks, where it is more than that it begins a slot."""

    #: key of the allocation that began the slot; 0: its own.
    generation: int = 0
    #: as the last tracker left them.
    tasks: dict[str, RemoteTask] = {}
    #: of one that must stop: what runs elsewhere ends with it; else it is only not tracked any more.
    ends: bool = False


class RemoteEnding(Wire, frozen=True, kw_only=True):
    """An order of a projection: end what runs elsewhere for a slot that no allocation tracks."""

    generation: int
    epoch: int
    job_id: JobId = JobId("")
    group: str = ""
    index: int = 0
    tasks: dict[str, RemoteTask] = {}


class ReportRemoteEnded(Command, frozen=True, kw_only=True, tag="report_remote_ended"):
    """A node did what its projection ordered: nothing of the slot runs. Natural key: the slot and the epoch."""

    node_id: NodeId
    generation: int
    epoch: int
