"""Host volumes that were created by request, in Nomad's shape."""

from services.gateway.nomad.allocations import alloc_stub
from services.gateway.nomad.source import Object, ShapeSource
from shared.core.decide.host_volumes import user_rows
from shared.core.state.tables.host_volumes import PENDING, READY, VolumeRow
from shared.query.host_volumes import volume_status

_STATES = {PENDING: "pending", READY: "ready"}


def volume_stub(source: ShapeSource, row: VolumeRow) -> Object:
    """A volume as lists have it. `State`: pending, ready or unavailable."""
    return {
        "Namespace": "default",
        "ID": row.spec.id,
        "Name": row.spec.name,
        "PluginID": row.spec.plugin,
        "NodePool": _pool(source, row),
        "NodeID": str(row.node_id),
        "CreateIndex": row.create_seq,
        "CreateTime": source.time_of(row.create_seq),
        "ModifyIndex": row.modify_seq,
        "ModifyTime": source.time_of(row.modify_seq),
        "State": _STATES.get(volume_status(source.state, row), "unavailable"),
    }


def nomad_volume(source: ShapeSource, row: VolumeRow) -> Object:
    """A volume as a whole, with the allocations that use it."""
    spec = row.spec
    users = user_rows(source.state, row.node_id, spec.name)
    return {
        **volume_stub(source, row),
        "Constraints": [
            {"LTarget": one.left, "Operand": one.operator, "RTarget": one.right}
            for one in spec.constraints
        ],
        "RequestedCapacityMinBytes": spec.capacity_min_bytes,
        "RequestedCapacityMaxBytes": spec.capacity_max_bytes,
        "CapacityBytes": row.capacity_bytes,
        "RequestedCapabilities": [
            {"AttachmentMode": one.attachment_mode, "AccessMode": one.access_mode}
            for one in spec.capabilities
        ],
        "Parameters": dict(spec.parameters) or None,
        "HostPath": row.path,
        "Allocations": [alloc_stub(source, one) for one in users],
    }


def _pool(source: ShapeSource, row: VolumeRow) -> str:
    fleet = source.state.fleet
    at = fleet.row_of.get(row.node_id)
    return row.spec.node_pool if at is None else fleet.specs[at].node_pool
