"""Host volumes that were created by request, in lines: where each lies, how far it is, what uses it."""

import msgspec

from schemas.base import NodeId
from schemas.host_volumes import VolumeOrder
from schemas.projections import Query
from schemas.volume_answers import VolumeLine
from shared.core.decide.host_volumes import user_rows
from shared.core.state.ids import alloc_id
from shared.core.state.state import State
from shared.core.state.tables.fleet import READY as NODE_READY
from shared.core.state.tables.host_volumes import DELETING, READY, VolumeRow

#: Status of a volume that was ready and whose node is not.
UNAVAILABLE = "unavailable"


def volume_lines(state: State, query: Query) -> list[VolumeLine]:
    """List the volumes that a query asks for, by name and id."""
    found = []
    by_name = sorted(state.volumes.by_id.items(), key=lambda one: (one[1].spec.name, one[0]))
    for volume_id, row in by_name:
        if not volume_id.startswith(query.id) or query.node_id not in ("", row.node_id):
            continue
        if query.status not in ("", volume_status(state, row)):
            continue
        found.append(_line(state, row))
    return found


def volume_orders(state: State, node_id: NodeId) -> tuple[VolumeOrder, ...]:
    """Say what a node is to do about host volumes, by id."""
    return tuple(
        VolumeOrder(
            spec=msgspec.structs.replace(one.spec, constraints=(), node_pool=""),
            attempt=one.attempt,
            delete=one.status == DELETING,
        )
        for one in sorted(state.volumes.on_node(node_id), key=lambda one: one.spec.id)
    )


def volume_status(state: State, row: VolumeRow) -> str:
    """Say how a volume is: as the table has it, or that its node is away."""
    at = state.fleet.row_of.get(row.node_id)
    if row.status == READY and (at is None or state.fleet.status[at] != NODE_READY):
        return UNAVAILABLE
    return row.status


def _line(state: State, row: VolumeRow) -> VolumeLine:
    at, spec = state.fleet.row_of.get(row.node_id), row.spec
    node = None if at is None else state.fleet.specs[at]
    users = user_rows(state, row.node_id, spec.name)
    return VolumeLine(
        id=spec.id,
        name=spec.name,
        node_id=row.node_id,
        status=volume_status(state, row),
        reason=row.reason,
        plugin=spec.plugin,
        node_name="" if node is None else node.name,
        node_pool="" if node is None else node.node_pool,
        asked_pool=spec.node_pool,
        constraints=spec.constraints,
        capacity_min_bytes=spec.capacity_min_bytes,
        capacity_max_bytes=spec.capacity_max_bytes,
        capacity_bytes=row.capacity_bytes,
        capabilities=spec.capabilities,
        parameters=spec.parameters,
        path=row.path,
        create_seq=row.create_seq,
        modify_seq=row.modify_seq,
        alloc_ids=tuple(alloc_id(int(state.allocations.key[one])) for one in users),
    )
