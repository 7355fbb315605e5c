"""`/v1/nodes` and `/v1/node/<id>/…`: reads, drains, eligibility."""

from typing import Any

import numpy as np

from services.gateway.change_index import node as node_topic
from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.allocations import nomad_alloc, rows_in_order
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.nomad.nodes import node_index, node_stub, nomad_node
from services.gateway.routes.job_writes import field, submission_id
from services.gateway.routes.lookup import find_node
from shared.core.state.ids import eval_id
from shared.protocol import subjects
from shared.protocol.node_uuids import node_uuid

_TABLES = ("fleet",)
#: Jobs that one request evaluates.
_JOBS_MAX = 100


async def list_nodes(call: Call) -> object:
    """The nodes, by id."""
    role = call.role
    await call.block(map(table, _TABLES), lambda: role.changes.newest(_TABLES))
    with_os, with_resources = call.flag("os"), call.flag("resources")
    fleet = role.state.fleet
    rows = [fleet.row_of[one] for one in role.node_ids.with_prefix(call.text("prefix"))]  # type: ignore[index]
    return page(
        call,
        rows,
        order=lambda row: (0, node_uuid(str(fleet.ids[row]))),
        whole=lambda row: nomad_node(role.source, row),
        stub=lambda row: node_stub(
            role.source, row, with_os=with_os, with_resources=with_resources
        ),
        compile_filter=compile_filter,
    )


async def read_node(call: Call) -> object:
    """One node."""
    role = call.role
    row, node_id = find_node(call)
    await call.block([node_topic(node_id)], lambda: node_index(role.state, row))
    row, _ = find_node(call)
    return nomad_node(role.source, row)


async def list_node_allocs(call: Call) -> object:
    """The allocations of a node, whole ones with their jobs."""
    role = call.role
    row, node_id = find_node(call)

    def index() -> int:
        rows = role.state.allocations.on_nodes(np.asarray([row], dtype=np.int32))
        newest = int(role.state.allocations.modify_seq[rows].max()) if len(rows) else 0
        return newest or role.changes.of_table("allocations")

    await call.block([node_topic(node_id)], index)
    rows = role.state.allocations.on_nodes(np.asarray([row], dtype=np.int32))
    return [nomad_alloc(role.source, one) for one in rows_in_order(role.state, rows)]


async def drain(call: Call) -> object:
    """Drain a node, or end its drain. A body without DrainSpec ends it."""
    body = await call.body()
    row, node_id = find_node(call)
    spec = field(body, "DrainSpec")
    request: dict[str, Any] = {"node_id": node_id, "draining": spec is not None}
    if spec is not None:
        deadline_ns = int(field(spec, "Deadline", 0) or 0)
        # Nomad: 0 is not a deadline, a negative one is at once.
        request["deadline_ns"] = -1 if deadline_ns == 0 else max(deadline_ns, 0)
        request["ignore_system"] = bool(field(spec, "IgnoreSystemJobs", False))
    else:
        request["keep_ineligible"] = not field(body, "MarkEligible", False)
    meta = field(body, "Meta", {}) or {}
    request["message"] = str(meta.get("message", ""))[:500]
    verdict = await call.write(subjects.api("node", "drain"), request)
    return _changed(call, row, verdict)


async def set_eligibility(call: Call) -> object:
    """Allow or forbid new allocations on a node. Raises HttpFault 400, 500."""
    body = await call.body()
    row, node_id = find_node(call)
    word = field(body, "Eligibility", "")
    if word not in ("eligible", "ineligible"):
        raise HttpFault(400, f"invalid scheduling eligibility {str(word)[:100]!r}")
    request = {"node_id": node_id, "eligible": word == "eligible"}
    verdict = await call.write(subjects.api("node", "set_eligibility"), request)
    return _changed(call, row, verdict)


async def evaluate_node(call: Call) -> object:
    """Evaluate the jobs that have allocations on a node. Raises HttpFault 400: there are too many."""
    row, _ = find_node(call)
    state = call.role.state
    rows = state.allocations.on_nodes(np.asarray([row], dtype=np.int32))
    refs = np.unique(state.allocations.group[rows]).tolist()
    jobs = sorted({str(state.allocations.groups.job_ids[ref]) for ref in refs})
    if len(jobs) > _JOBS_MAX:
        raise HttpFault(
            400, f"the node has {len(jobs)} jobs; at most {_JOBS_MAX} are evaluated at once"
        )
    created, seq = [], 0
    for job_id in jobs:
        request = {"JobID": job_id, "SubmissionID": submission_id(call)}
        verdict = await call.write(subjects.api_jobs("evaluate"), request)
        seq = int(verdict.get("seq", 0))
        created.append(verdict.get("eval_id", ""))
    return {
        "EvalIDs": created,
        "EvalCreateIndex": seq,
        "NodeModifyIndex": node_index(call.role.state, row),
        "Index": max(seq, 1),
    }


def _changed(call: Call, row: int, verdict: dict[str, Any]) -> dict[str, Any]:
    seq = int(verdict.get("seq", 0))
    state = call.role.state
    created = [
        eval_id(key)
        for key in state.evaluations.open
        if verdict.get("changed") and state.policy.incarnations.seq(key) == seq
    ]
    return {
        # A monitor waits for what comes behind this: the node may have changed again since.
        "NodeModifyIndex": min(node_index(state, row), seq or node_index(state, row)),
        "EvalIDs": created,
        "EvalCreateIndex": seq if created else 0,
        "Index": seq,
    }


_NODE = "/v1/node/{node}"
ENDPOINTS = (
    Endpoint(pattern="/v1/nodes", summary="List nodes.", read=list_nodes),
    Endpoint(
        pattern=_NODE + "/allocations", summary="Allocations of a node.", read=list_node_allocs
    ),
    Endpoint(pattern=_NODE + "/drain", summary="Drain a node, or end its drain.", write=drain),
    Endpoint(
        pattern=_NODE + "/eligibility",
        summary="Allow or forbid new allocations.",
        write=set_eligibility,
    ),
    Endpoint(
        pattern=_NODE + "/evaluate", summary="Evaluate the jobs of a node.", write=evaluate_node
    ),
    Endpoint(pattern=_NODE, summary="Read a node.", read=read_node),
)
