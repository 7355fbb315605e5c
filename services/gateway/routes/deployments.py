"""`/v1/deployments` and `/v1/deployment/…`: reads, and an operator's decisions about one."""

from typing import Any

from services.gateway.change_index import job as job_topic
from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.allocations import alloc_stub, rows_in_order
from services.gateway.nomad.deployments import nomad_deployment
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.routes.job_writes import field
from services.gateway.routes.lookup import (
    check_namespace,
    deployments_with_prefix,
    find_deployment,
    with_id_order,
)
from shared.core.state.ids import DEPLOYMENT_SALT, eval_id
from shared.core.state.tables.deployments import Deployment
from shared.protocol import subjects
from shared.query.deployments import deployment_rows

_TABLES = ("deployments",)


async def list_deployments(call: Call) -> object:
    """The deployments, oldest first; with a prefix by id."""
    role = call.role
    await call.block(map(table, _TABLES), lambda: role.changes.newest(_TABLES))
    prefix = call.text("prefix")
    found = deployments_with_prefix(call, prefix) if check_namespace(call) else []
    shown = with_id_order([int(one.key) for one in found], DEPLOYMENT_SALT)
    return page(
        call,
        found,
        order=lambda one: (0 if prefix else one.create_seq, shown[int(one.key)]),
        whole=lambda one: nomad_deployment(role.source, one),
        compile_filter=compile_filter,
    )


async def read_deployment(call: Call) -> object:
    """One deployment."""
    role, one = call.role, await _at_index(call)
    return nomad_deployment(role.source, one)


async def list_allocs(call: Call) -> object:
    """The allocations of a deployment."""
    role, one = call.role, await _at_index(call)
    rows = deployment_rows(role.state, one)
    return [alloc_stub(role.source, row) for row in rows_in_order(role.state, rows)]


async def _at_index(call: Call) -> Deployment:
    role, one = call.role, find_deployment(call)

    def index() -> int:
        found = role.state.deployments.by_key.get(one.key)
        return found.modify_seq if found is not None else role.changes.of_table("deployments")

    await call.block([job_topic(str(one.job_id))], index)
    return find_deployment(call)


async def promote(call: Call) -> object:
    """Promote the canaries of all groups, or of some."""
    body = await call.body()
    groups = () if field(body, "All", False) else tuple(field(body, "Groups", ()) or ())
    return await _decide(call, "promote", "promote", {"groups": groups})


async def fail(call: Call) -> object:
    """End a deployment as failed."""
    return await _decide(call, "fail", "fail", {})


async def pause(call: Call) -> object:
    """Pause a deployment, or resume it."""
    is_pause = bool(field(await call.body(), "Pause", False))
    verb = "pause" if is_pause else "resume"
    return await _decide(call, verb, verb, {})


async def unblock(call: Call) -> object:
    """Refuse: only deployments over several regions block."""
    _require_active(find_deployment(call), "unblock")
    raise HttpFault(400, "only deployments of several regions can be unblocked")


async def set_health(call: Call) -> object:
    """Say which allocations are healthy, and which are not."""
    body = await call.body()
    request = {
        "healthy": tuple(field(body, "HealthyAllocationIDs", ()) or ()),
        "unhealthy": tuple(field(body, "UnhealthyAllocationIDs", ()) or ()),
    }
    if not request["healthy"] and not request["unhealthy"]:
        raise HttpFault(500, "must specify at least one healthy/unhealthy allocation ID")
    return await _decide(call, "set_health", "set health of allocations for", request)


async def _decide(call: Call, verb: str, words: str, more: dict[str, Any]) -> dict[str, Any]:
    one = find_deployment(call)
    _require_active(one, words)
    request = {"deployment_id": call.path["deployment"], **more}
    verdict = await call.write(subjects.api("deployment", verb), request)
    seq = int(verdict.get("seq", 0))
    newest = call.role.histories.newest(one.job_id)
    now = call.role.state.deployments.by_key.get(one.key)
    found = {
        "EvalID": eval_id(newest.key) if newest is not None else "",
        "EvalCreateIndex": seq,
        "DeploymentModifyIndex": now.modify_seq if now is not None else seq,
        "Index": seq,
    }
    if now is not None and now.reverted_to >= 0:
        found["RevertedJobVersion"] = now.reverted_to
    return found


def _require_active(one: Deployment, words: str) -> None:
    """Raise HttpFault 500 with Nomad's text for a deployment that has ended."""
    if not one.is_active:
        noun = "a terminal deployment" if " " in words else "terminal deployment"
        raise HttpFault(500, f"can't {words} {noun}")


ENDPOINTS = (
    Endpoint(pattern="/v1/deployments", summary="List deployments.", read=list_deployments),
    Endpoint(
        pattern="/v1/deployment/allocations/{deployment}",
        summary="Allocations of a deployment.",
        read=list_allocs,
    ),
    Endpoint(
        pattern="/v1/deployment/promote/{deployment}", summary="Promote canaries.", write=promote
    ),
    Endpoint(pattern="/v1/deployment/fail/{deployment}", summary="Fail a deployment.", write=fail),
    Endpoint(pattern="/v1/deployment/pause/{deployment}", summary="Pause or resume.", write=pause),
    Endpoint(pattern="/v1/deployment/unblock/{deployment}", summary="Refused.", write=unblock),
    Endpoint(
        pattern="/v1/deployment/allocation-health/{deployment}",
        summary="Set the health of allocations.",
        write=set_health,
    ),
    Endpoint(
        pattern="/v1/deployment/{deployment}", summary="Read a deployment.", read=read_deployment
    ),
)
