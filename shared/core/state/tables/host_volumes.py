"""Host volumes that were created by request: on which node each lies, and how far it is.

That a node is away is in the table of nodes, who uses a volume in those of allocations and claims.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from schemas.base import NodeId
from schemas.host_volumes import (
    VolumeDeleted,
    VolumeDeleting,
    VolumeFailed,
    VolumeReady,
    VolumeRequested,
    VolumeSpec,
)
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: What `VolumeRow.status` may be.
PENDING, READY, FAILED, DELETING = "pending", "ready", "failed", "deleting"


class VolumeRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A volume."""

    spec: VolumeSpec
    node_id: NodeId
    #: pending, ready, failed or deleting.
    status: str
    attempt: int = 1
    #: why it failed, or could not be deleted yet.
    reason: str = ""
    capacity_bytes: int = 0
    #: where it is on its node.
    path: str = ""
    create_seq: int = 0
    modify_seq: int = 0


class VolumeTable(EventConsumer):
    """All volumes by id. A name is unique on a node."""

    def __init__(self) -> None:
        self.by_id: dict[str, VolumeRow] = {}
        #: ids on each node, in the order in which they were asked for.
        self.of_node: dict[NodeId, dict[str, None]] = {}
        #: ids of those that are being deleted.
        self.leaving: dict[str, None] = {}
        self._hashes = EntryHashes[str]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            VolumeRequested: self._request,
            VolumeReady: self._make_ready,
            VolumeFailed: self._fail,
            VolumeDeleting: self._leave,
            VolumeDeleted: self._delete,
        }

    def on_node(self, node_id: NodeId) -> Iterable[VolumeRow]:
        """The volumes of a node."""
        return [self.by_id[one] for one in self.of_node.get(node_id, ())]

    def named(self, node_id: NodeId, name: str) -> VolumeRow | None:
        """The volume of a name on a node; None: there is none."""
        return next((one for one in self.on_node(node_id) if one.spec.name == name), None)

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""

        def texts(keys: list[str]) -> list[bytes]:
            held = self.by_id
            return encode_entries([(key, held[key]) if key in held else None for key in keys])

        return blake2b(self._hashes.digest(texts).encode(), digest_size=8).hexdigest()

    def settle(self) -> None:
        """Make what is derived, of a table that was read from a snapshot."""
        for volume_id, row in self.by_id.items():
            self.of_node.setdefault(row.node_id, {})[volume_id] = None
            if row.status == DELETING:
                self.leaving[volume_id] = None
        self._hashes.touched.extend(self.by_id)

    def _request(self, event: VolumeRequested, seq: int) -> None:
        known = self.by_id.get(event.spec.id)
        row = VolumeRow(
            spec=event.spec,
            node_id=event.node_id,
            status=PENDING,
            attempt=event.attempt,
            create_seq=seq if known is None else known.create_seq,
            modify_seq=seq,
        )
        self.by_id[event.spec.id] = row
        self.of_node.setdefault(event.node_id, {})[event.spec.id] = None
        self._hashes.touch(event.spec.id)

    def _make_ready(self, event: VolumeReady, seq: int) -> None:
        capacity, path = event.capacity_bytes, event.path
        self._change(
            event.volume_id, seq, status=READY, reason="", capacity_bytes=capacity, path=path
        )

    def _fail(self, event: VolumeFailed, seq: int) -> None:
        row = self.by_id[event.volume_id]
        status = DELETING if row.status == DELETING else FAILED
        self._change(event.volume_id, seq, status=status, reason=event.reason)

    def _leave(self, event: VolumeDeleting, seq: int) -> None:
        self._change(event.volume_id, seq, status=DELETING, reason="")
        self.leaving[event.volume_id] = None

    def _change(self, volume_id: str, seq: int, **fields: object) -> None:
        row = self.by_id[volume_id]
        self.by_id[volume_id] = msgspec.structs.replace(row, modify_seq=seq, **fields)
        self._hashes.touch(volume_id)

    def _delete(self, event: VolumeDeleted, _seq: int) -> None:
        row = self.by_id.pop(event.volume_id)
        self.leaving.pop(event.volume_id, None)
        here = self.of_node[row.node_id]
        del here[event.volume_id]
        if not here:
            del self.of_node[row.node_id]
        self._hashes.touch(event.volume_id)
