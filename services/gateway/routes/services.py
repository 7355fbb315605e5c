"""`/v1/services` and `/v1/service/<name>`: services with `provider = "nomad"`, as they follow from allocations."""

from schemas.base import JobId
from schemas.projections import Query, ServiceInstance
from services.gateway.change_index import job, table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.source import Object
from services.gateway.routes.lookup import find_alloc, find_job
from shared.errors import CommandInvalid
from shared.jobspec.service_names import registration_id
from shared.protocol.node_uuids import node_uuid

_TABLES = ("allocations", "jobs")
#: Nomad does not page these lists.
_EVERY = 2**31


async def list_services(call: Call) -> object:
    """Services by name."""
    role = call.role
    await call.block(map(table, _TABLES), lambda: role.changes.newest(_TABLES))
    found = role.answers.catalog.services(role.state, Query(limit=_EVERY))
    lines = [{"ServiceName": one.name, "Tags": list(one.tags)} for one in found.services]
    return [{"Namespace": "default", "Services": lines}] if lines else []


async def read_service(call: Call) -> object:
    """The instances of one service."""
    role = call.role
    await call.block(map(table, _TABLES), lambda: role.changes.newest(_TABLES))
    try:
        query = Query(id=call.path["name"], limit=_EVERY)
        found = role.answers.catalog.service(role.state, query)
    except CommandInvalid as err:
        if err.code == "not_found":
            return []
        raise
    return [_registration(call, one) for one in found.instances]


async def list_job_services(call: Call) -> object:
    """The instances of a job's services."""
    await call.block([job(call.path["job"])], lambda: max(call.role.changes.newest(_TABLES), 1))
    return _of_job(call, find_job(call).id)


async def list_alloc_services(call: Call) -> object:
    """The instances of an allocation's services."""
    allocations = call.role.state.allocations
    job_id = allocations.groups.job_ids[int(allocations.group[find_alloc(call)])]
    found = _of_job(call, JobId(job_id))
    return [one for one in found if one["AllocID"] == call.path["alloc"]]


def _of_job(call: Call, job_id: JobId) -> list[Object]:
    found = call.role.answers.catalog.instances_of(call.role.state, job_id)
    return [_registration(call, one) for name in sorted(found) for one in found[name]]


def _registration(call: Call, one: ServiceInstance) -> Object:
    """An instance as Nomad registers it."""
    index = call.role.changes.newest(_TABLES)
    return {
        "ID": registration_id(one),
        "ServiceName": one.service,
        "Namespace": "default",
        "NodeID": node_uuid(one.node),
        "Datacenter": one.datacenter,
        "JobID": one.job,
        "AllocID": one.alloc,
        "Tags": list(one.tags),
        "Address": one.address,
        "Port": one.port,
        "CreateIndex": index,
        "ModifyIndex": index,
    }


async def refuse_deletion(_call: Call) -> object:
    """Refuse: an instance follows from its allocation."""
    raise HttpFault(400, "a service instance follows from its allocation: stop the allocation")


ENDPOINTS = (
    Endpoint(
        pattern="/v1/job/{job:path}/services",
        summary="Instances of a job's services.",
        read=list_job_services,
    ),
    Endpoint(
        pattern="/v1/allocation/{alloc}/services",
        summary="Instances of an allocation's services.",
        read=list_alloc_services,
    ),
    Endpoint(pattern="/v1/services", summary="List services.", read=list_services),
    Endpoint(pattern="/v1/service/{name}/{id}", summary="Refused.", delete=refuse_deletion),
    Endpoint(pattern="/v1/service/{name}", summary="Instances of a service.", read=read_service),
)
