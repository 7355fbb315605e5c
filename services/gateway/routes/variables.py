"""`/v1/vars` and `/v1/var/<path>`: variables in Nomad's shape.

Lists and times are read from the state; items are sealed here for the keeper, or opened here, on the connection of the
caller's own login. Nothing of them is kept or logged, and no error shows a piece of them.
"""

import msgspec
from starlette.responses import Response

from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault, permission_denied
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.routes.lookup import check_namespace
from services.gateway.routes.variable_calls import (
    VARIABLES,
    check_namespace_of,
    client_of,
    fault_of,
    items_of,
    known,
    put_answer,
    readable_by,
    shape,
    until,
    whole,
)
from services.gateway.routes.variable_locks import (
    lock_of_write,
    lock_operation,
    locked_conflict,
    operate,
    with_lock,
)
from shared.errors import CommandInvalid
from shared.protocol.task_variables import path_refusal
from shared.variable_client import ANY_REVISION, VariableClient, VariableFault

#: Clients of Nomad compare this text.
_NOT_FOUND = "variable not found"
_ENCODER = msgspec.json.Encoder()


async def list_variables(call: Call) -> object:
    """Variables by path, without their items."""
    await call.block([VARIABLES], lambda: call.role.changes.of_table("variables"))
    if not check_namespace(call):
        return []
    found = call.role.state.variables
    paths = found.paths(call.text("prefix"))
    readable = readable_by(call)
    if readable is not None:
        paths = [path for path in paths if path in readable]

    return page(
        call,
        paths,
        order=lambda one: (0, one),
        whole=lambda path: known(call, path),
        compile_filter=compile_filter,
    )


async def read_variable(call: Call) -> object:
    """A variable with its items. Raises HttpFault 404."""
    path = call.path["path"]
    _check_readable(call, path)
    await call.block([VARIABLES], lambda: _index_of(call, path))
    # A task may have ended while its request waited.
    _check_readable(call, path)
    try:
        found = await client_of(call).get(path)
    except CommandInvalid as err:
        if err.code == "not_found":
            raise HttpFault(404, _NOT_FOUND) from None
        raise fault_of(err) from None
    call.index = max(call.index, found.revision)
    return whole(found)


async def write_variable(call: Call) -> object:
    """Store a variable in place of what the path had; 409 with the present one where `cas` is not its index.

    With `lock-…` it is an operation on the lock of the path instead.
    """
    if operation := lock_operation(call):
        return await operate(call, operation)
    path, cas = call.path["path"], _cas(call)
    body = await call.body()
    items = items_of(body)
    if not items:
        raise HttpFault(400, "variable missing required Items object")
    check_namespace_of(body)
    lock_id, client = lock_of_write(body), client_of(call)
    try:
        revision = await client.put(path, items, cas=cas, lock_id=lock_id)
    except CommandInvalid as err:
        if isinstance(err, VariableFault) and err.code == "conflict":
            return await _conflict(call, client, path, cas)
        raise fault_of(err) from None
    answer = await put_answer(call, path, revision, items)
    return with_lock(call, answer, lock_id) if lock_id else answer


async def delete_variable(call: Call) -> object:
    """Erase a variable; one that does not exist is erased already. 409 as for a write; a locked one is not erased."""
    path, cas = call.path["path"], _cas(call)
    row = call.role.state.variables.find(path)
    client = client_of(call)
    try:
        await client.delete(path, cas=cas)
    except CommandInvalid as err:
        if isinstance(err, VariableFault) and err.code == "conflict":
            return await _conflict(call, client, path, cas)
        raise fault_of(err) from None
    if row is not None:
        await until(call, VARIABLES, lambda: _revision(call, path) != row.revision)
    return Response(status_code=204, headers={"X-Nomad-Index": str(_index_of(call, path))})


def _check_readable(call: Call, path: str) -> None:
    """Refuse a path that a task may not read. Raises HttpFault 403."""
    readable = readable_by(call)
    if readable is not None and (reason := path_refusal(path, readable)):
        raise permission_denied(reason)


def _cas(call: Call) -> int:
    """The index to compare with. Raises HttpFault 400."""
    if not call.text("cas"):
        return ANY_REVISION
    cas = call.number("cas")
    if cas < 0:
        raise HttpFault(400, f"can not parse cas: {cas} is negative")
    return cas


def _index_of(call: Call, path: str) -> int:
    """Seq of the last change of a path."""
    row = call.role.state.variables.by_path.get(path)
    return call.role.changes.of_table("variables") if row is None else row.modify_seq


def _revision(call: Call, path: str) -> int:
    row = call.role.state.variables.find(path)
    return 0 if row is None else row.revision


async def _conflict(call: Call, client: VariableClient, path: str, cas: int) -> Response:
    """409 with the present variable; one that does not exist has index 0. Nothing but a lock refuses without `cas`."""
    if cas == ANY_REVISION:
        return locked_conflict(call, path)
    try:
        found = whole(await client.get(path))
    except VariableFault as err:
        if err.code != "not_found":
            raise fault_of(err) from None
        found = {**shape(path), "Items": None}
    headers = {"X-Nomad-Index": str(found["ModifyIndex"] or max(call.role.seq, 1))}
    return Response(_ENCODER.encode(found), 409, headers, media_type="application/json")


ENDPOINTS = (
    Endpoint(
        pattern="/v1/vars",
        summary="List variables without their items: `prefix`, paging.",
        read=list_variables,
        for_tasks=True,
    ),
    Endpoint(
        pattern="/v1/var/{path:path}",
        summary="Read, store (`cas`, `lock-…`) or erase (`cas`) a variable.",
        read=read_variable,
        write=write_variable,
        delete=delete_variable,
        for_tasks=True,
        note="[Differences of locks](variables.md#locks-over-http).",
    ),
)
