"""`/v1/evaluations` and `/v1/evaluation/<id>`: reads. Evaluations are facts and cannot be deleted."""

import numpy as np

from services.gateway.change_index import job as job_topic
from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.allocations import alloc_stub, evaluation_of, rows_in_order
from services.gateway.nomad.evaluations import nomad_eval
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.routes.lookup import (
    check_namespace,
    evals_with_prefix,
    find_eval,
    with_id_order,
)
from shared.core.state.ids import EVAL_SALT, eval_id

_TABLES = ("evaluations",)


async def list_evals(call: Call) -> object:
    """The evaluations, oldest first; with a prefix by id."""
    role = call.role
    await call.block(map(table, _TABLES), lambda: role.changes.newest(_TABLES))
    prefix, job_id, status = call.text("prefix"), call.text("job"), call.text("status")
    found = [
        one
        for one in (evals_with_prefix(call, prefix) if check_namespace(call) else [])
        if (not job_id or one.job_id == job_id) and (not status or one.status == status)
    ]
    shown = with_id_order([int(one.key) for one in found], EVAL_SALT)
    incarnations = role.state.policy.incarnations
    return page(
        call,
        found,
        order=lambda one: (0 if prefix else incarnations.seq(one.key), shown[int(one.key)]),
        whole=lambda one: nomad_eval(role.source, one),
        compile_filter=compile_filter,
    )


async def count_evals(call: Call) -> object:
    """How many evaluations there are."""
    return {"Count": len(call.role.state.evaluations.by_key)}


async def read_eval(call: Call) -> object:
    """One evaluation; with `related` the others of its job."""
    role, one = call.role, find_eval(call)

    def index() -> int:
        found = role.state.evaluations.by_key.get(one.key)
        return found.modify_seq if found is not None else role.changes.of_table("evaluations")

    await call.block([job_topic(str(one.job_id))], index)
    return nomad_eval(role.source, find_eval(call), with_related=call.flag("related"))


async def list_eval_allocs(call: Call) -> object:
    """The allocations that an evaluation placed."""
    role, one = call.role, find_eval(call)
    await call.block([job_topic(str(one.job_id))], lambda: role.changes.of_table("allocations"))
    state, own = role.state, eval_id(one.key)
    rows = state.allocations.rows_of(one.job_id)
    first = np.int64(int(one.key))
    # What was placed before the evaluation was created is not its.
    rows = rows[state.allocations.key[rows] >= first]
    found = []
    for row in rows_in_order(state, rows):
        create_seq = state.policy.incarnations.seq(int(state.allocations.key[row]))
        if evaluation_of(role.source, one.job_id, create_seq) == own:
            found.append(alloc_stub(role.source, row))
    return found


async def refuse_deletion(call: Call) -> object:
    """Refuse: evaluations are facts of the log, collected by age."""
    del call
    raise HttpFault(400, "evaluations are facts of the log and cannot be deleted")


_EVAL = "/v1/evaluation/{eval}"
ENDPOINTS = (
    Endpoint(
        pattern="/v1/evaluations",
        summary="List evaluations.",
        read=list_evals,
        delete=refuse_deletion,
    ),
    Endpoint(pattern="/v1/evaluations/count", summary="Count evaluations.", read=count_evals),
    Endpoint(
        pattern=_EVAL + "/allocations",
        summary="Allocations of an evaluation.",
        read=list_eval_allocs,
    ),
    Endpoint(pattern=_EVAL, summary="Read an evaluation.", read=read_eval),
)
