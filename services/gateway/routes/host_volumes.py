"""`/v1/volumes` and `/v1/volume/host/…`: host volumes that are created by request. CSI is not built."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

import msgspec

from schemas.operator import CreateVolumeRequest, DeleteVolumeRequest
from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.nomad.host_volumes import nomad_volume, volume_stub
from services.gateway.routes.lookup import check_namespace
from shared.core.state.tables.host_volumes import DELETING, FAILED, PENDING, VolumeRow
from shared.errors import CommandInvalid
from shared.jobspec.volume_spec import read_volume_object
from shared.protocol import subjects

_TABLES = ("volumes", "fleet", "allocations")
_NOT_FOUND = "volume not found"
#: How long a request waits for the node: then its answer says pending, as Nomad's clients expect it.
NODE_S = 20.0
_REGISTER = "registration is not built: volumes are created, or named in the settings of an agent"


async def list_volumes(call: Call) -> object:
    """Volumes by name. Of type csi there are none."""
    await call.block(map(table, _TABLES), lambda: call.role.changes.newest(_TABLES))
    kind = call.text("type", "host")
    if kind not in ("host", "csi"):
        raise HttpFault(400, f"type must be host or csi, was {kind[:40]!r}")
    if kind == "csi" or not check_namespace(call):
        return []
    rows = call.role.state.volumes.by_id.values()
    wanted = {"node_id": call.text("node_id"), "node_pool": call.text("node_pool")}
    source, prefix = call.role.source, call.text("prefix")
    found = [
        one
        for one in rows
        if one.spec.id.startswith(prefix)
        and wanted["node_id"] in ("", one.node_id)
        and wanted["node_pool"] in ("", volume_stub(source, one)["NodePool"])
    ]
    return page(
        call,
        found,
        order=lambda one: (one.create_seq, one.spec.id),
        whole=lambda one: nomad_volume(source, one),
        stub=lambda one: volume_stub(source, one),
        compile_filter=compile_filter,
    )


async def read_volume(call: Call) -> object:
    """A volume with the allocations that use it. Raises HttpFault 404."""
    await call.block(map(table, _TABLES), lambda: call.role.changes.newest(_TABLES))
    return nomad_volume(call.role.source, _asked(call))


async def create_volume(call: Call) -> object:
    """Create a volume, and wait a while for its node. Raises HttpFault 500 where the plugin failed."""
    body = await call.body()
    try:
        asked = read_volume_object(body.get("Volume"))
    except CommandInvalid as err:
        raise HttpFault(400, err.message) from None
    spec = msgspec.structs.replace(asked.spec, id=asked.id or str(uuid4()))
    request = CreateVolumeRequest(spec=spec, node_id=asked.node_id, request_id=str(uuid4()))
    await call.write(subjects.api("volume", "create"), request)
    row = await _until(call, spec.id, lambda one: one is None or one.status != PENDING)
    if row is None:
        raise HttpFault(404, _NOT_FOUND)
    if row.status == FAILED:
        raise HttpFault(500, f"volume {spec.id} could not be created: {row.reason}")
    return {"Volume": nomad_volume(call.role.source, row), "Warnings": ""}


async def delete_volume(call: Call) -> object:
    """Delete a volume, and wait a while for its node. Raises HttpFault 404, 500 while something uses it."""
    row = _asked(call)
    request = DeleteVolumeRequest(
        volume_id=row.spec.id, force=call.flag("force"), request_id=str(uuid4())
    )
    await call.write(subjects.api("volume", "delete"), request)
    left = await _until(call, row.spec.id, lambda one: one is None or bool(one.reason))
    if left is not None and left.status == DELETING and left.reason:
        raise HttpFault(500, f"volume {row.spec.id} is not deleted yet: {left.reason}")
    return {}


async def refuse_register(_call: Call) -> object:
    """Refuse. Raises HttpFault 501."""
    raise HttpFault(501, _REGISTER)


async def _until(
    call: Call, volume_id: str, holds: Callable[[VolumeRow | None], bool]
) -> VolumeRow | None:
    """Wait until something holds of a volume, or the time is over; return the volume."""
    rows, woken = call.role.state.volumes.by_id, asyncio.Event()
    forget = call.role.changes.wait([table("volumes")], woken.set)
    try:
        async with asyncio.timeout(NODE_S):
            while not holds(rows.get(volume_id)):
                woken.clear()
                await woken.wait()
    except TimeoutError:
        pass
    finally:
        forget()
    await call.wait_for_seq(call.role.seq)
    call.index = max(call.index, call.role.changes.of_table("volumes"))
    return rows.get(volume_id)


def _asked(call: Call) -> VolumeRow:
    """The volume of the path. Raises HttpFault 404."""
    row = call.role.state.volumes.by_id.get(call.path["volume"])
    if row is None or not check_namespace(call):
        raise HttpFault(404, _NOT_FOUND)
    return row


ENDPOINTS = (
    Endpoint(pattern="/v1/volumes", summary="Host volumes created by request.", read=list_volumes),
    Endpoint(
        pattern="/v1/volume/host/create", summary="Create a host volume.", write=create_volume
    ),
    Endpoint(
        pattern="/v1/volume/host/register",
        summary="Refused: volumes are created, or named by the agent's settings.",
        write=refuse_register,
    ),
    Endpoint(
        pattern="/v1/volume/host/{volume}/delete",
        summary="Delete a host volume.",
        delete=delete_volume,
    ),
    Endpoint(
        pattern="/v1/volume/host/{volume}",
        summary="Read a host volume.",
        read=read_volume,
        delete=delete_volume,
    ),
)
