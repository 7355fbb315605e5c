"""`/v1/allocations` and `/v1/allocation/<id>`: reads, and stopping one."""

from services.gateway.change_index import node as node_topic
from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.allocations import alloc_stub, nomad_alloc
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.routes.lookup import (
    allocs_with_prefix,
    check_namespace,
    find_alloc,
    with_id_order,
)
from shared.core.state.ids import ALLOC_SALT, eval_id
from shared.protocol import subjects

_TABLES = ("allocations",)


async def list_allocs(call: Call) -> object:
    """The allocations, oldest first; with a prefix by id."""
    role = call.role
    await call.block(map(table, _TABLES), lambda: role.changes.newest(_TABLES))
    prefix = call.text("prefix")
    rows = allocs_with_prefix(call, prefix).tolist() if check_namespace(call) else []
    keys, incarnations = role.state.allocations.key, role.state.policy.incarnations
    shown = with_id_order([int(keys[row]) for row in rows], ALLOC_SALT)
    with_resources = call.flag("resources")
    with_tasks = call.flag("task_states", default=True)

    def order(row: int) -> tuple[int, str]:
        key = int(keys[row])
        return (0 if prefix else incarnations.seq(key)), shown[key]

    def stub(row: int) -> object:
        found = alloc_stub(role.source, row, with_tasks=with_tasks)
        if with_resources:
            found["AllocatedResources"] = nomad_alloc(role.source, row)["AllocatedResources"]
        return found

    return page(
        call,
        rows,
        order=order,
        whole=lambda row: nomad_alloc(role.source, row),
        stub=stub,
        compile_filter=compile_filter,
    )


async def read_alloc(call: Call) -> object:
    """One allocation."""
    role, row = call.role, find_alloc(call)
    key = int(role.state.allocations.key[row])
    node_id = str(role.state.fleet.ids[int(role.state.allocations.node[row])])

    def index() -> int:
        # The row may be another allocation's by now.
        known = role.state.allocations
        is_same = row < known.size and int(known.key[row]) == key
        return int(known.modify_seq[row]) if is_same else role.changes.of_table("allocations")

    await call.block([node_topic(node_id)], index)
    return nomad_alloc(role.source, find_alloc(call))


async def stop_alloc(call: Call) -> object:
    """Stop an allocation; its job replaces it if it still needs it."""
    row = find_alloc(call)
    table_ = call.role.state.allocations
    job_id = table_.groups.job_ids[int(table_.group[row])]
    verdict = await call.write(subjects.api("alloc", "stop"), {"alloc_id": call.path["alloc"]})
    newest = call.role.histories.newest(job_id)
    return {
        "EvalID": eval_id(newest.key) if newest is not None else "",
        "Index": int(verdict.get("seq", 0)),
    }


_ALLOC = "/v1/allocation/{alloc}"
ENDPOINTS = (
    Endpoint(pattern="/v1/allocations", summary="List allocations.", read=list_allocs),
    Endpoint(pattern=_ALLOC + "/stop", summary="Stop an allocation.", write=stop_alloc),
    Endpoint(pattern=_ALLOC, summary="Read an allocation.", read=read_alloc),
)
