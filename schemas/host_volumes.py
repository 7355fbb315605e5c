"""Host volumes that are created by request: what was asked for, on which node, and what became of it.

A node makes a volume with a plugin and then offers it by its name, exactly like one that its operator names.
"""

from schemas.base import Command, Event, NodeId, Wire
from schemas.jobs import Constraint

#: What `VolumeStatus.status` may be.
VOLUME_READY, VOLUME_FAILED, VOLUME_DELETED = "ready", "failed", "deleted"


class VolumeCapability(Wire, frozen=True, kw_only=True):
    """A way in which a volume may be used."""

    access_mode: str
    attachment_mode: str = "file-system"


class VolumeSpec(Wire, frozen=True, kw_only=True):
    """The specification of a volume. The client draws its id, so that a request that comes twice makes one volume."""

    id: str
    name: str
    plugin: str = "mkdir"
    #: empty: any.
    node_pool: str = ""
    #: what the node must satisfy.
    constraints: tuple[Constraint, ...] = ()
    #: 0: no bound.
    capacity_min_bytes: int = 0
    capacity_max_bytes: int = 0
    capabilities: tuple[VolumeCapability, ...] = ()
    #: for the plugin.
    parameters: dict[str, str] = {}


class VolumeOrder(Wire, frozen=True, kw_only=True):
    """In a node's projection: a volume that it is to have, or to delete."""

    spec: VolumeSpec
    #: how often it was asked for; a higher number asks again after a failure.
    attempt: int = 1
    delete: bool = False


class VolumeStatus(Wire, frozen=True, kw_only=True):
    """In a node's report: what became of an order."""

    id: str
    attempt: int = 1
    #: ready, failed or deleted.
    status: str = ""
    #: why it failed, at most 300 characters.
    reason: str = ""
    capacity_bytes: int = 0
    #: where it is on the node.
    path: str = ""


class VolumeRequested(Event, frozen=True, kw_only=True, tag="volume.requested"):
    """A volume is to be made on a node, or after a failure is to be tried again there."""

    request_id: str
    spec: VolumeSpec
    node_id: NodeId
    attempt: int = 1


class VolumeReady(Event, frozen=True, kw_only=True, tag="volume.ready"):
    """A node has made a volume, and offers it by its name."""

    volume_id: str
    capacity_bytes: int = 0
    path: str = ""


class VolumeFailed(Event, frozen=True, kw_only=True, tag="volume.failed"):
    """A node could not make a volume, has it no more, or could not delete it yet."""

    volume_id: str
    reason: str


class VolumeDeleting(Event, frozen=True, kw_only=True, tag="volume.deleting"):
    """A volume that nothing uses is to be deleted; nothing new is placed on it."""

    request_id: str
    volume_id: str


class VolumeDeleted(Event, frozen=True, kw_only=True, tag="volume.deleted"):
    """A volume is gone: its node deleted it, or an operator had it forgotten."""

    volume_id: str
    #: of the operator who had it forgotten; empty: its node deleted it.
    request_id: str = ""


class RequestVolume(Command, frozen=True, kw_only=True, tag="request_volume"):
    """Make a volume. Natural key: its id. With an empty `node_id` the plan applier chooses the node."""

    request_id: str
    spec: VolumeSpec
    node_id: str = ""


class RemoveVolume(Command, frozen=True, kw_only=True, tag="remove_volume"):
    """Delete a volume. Natural key: its id. `force`: forget it where its node is down or gone."""

    request_id: str
    volume_id: str
    force: bool = False
