"""`/v1/vars` and `/v1/var/<path>`: variables in Nomad's shape.

Lists and times are read from the state; items are sealed here for the keeper, or opened here, on the connection of the
caller's own login. Nothing of them is kept or logged, and no error shows a piece of them.
"""

import asyncio
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from services.gateway.change_index import table
from services.gateway.edge.call import PROMISED_S, VERDICT_S, Call
from services.gateway.edge.faults import HttpFault, of_refusal
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.nomad.source import Object
from services.gateway.routes.job_writes import field
from services.gateway.routes.lookup import check_namespace
from shared.errors import BusUnavailable, CommandInvalid
from shared.variable_client import ANY_REVISION, OpenedVariable, VariableClient, VariableFault

_NAMESPACE = "default"
#: Clients of Nomad compare this text.
_NOT_FOUND = "variable not found"
_TOPIC = table("variables")
_ENCODER = msgspec.json.Encoder()


async def list_variables(call: Call) -> object:
    """Variables by path, without their items."""
    await call.block([_TOPIC], lambda: call.role.changes.of_table("variables"))
    if not check_namespace(call):
        return []
    found = call.role.state.variables
    paths = found.paths(call.text("prefix"))

    def meta(path: str) -> Object:
        row = found.by_path[path]
        create, modify = (row.create_seq, row.create_ns), (row.revision, row.modify_ns)
        return _shape(path, create=create, modify=modify)

    return page(call, paths, order=lambda one: (0, one), whole=meta, compile_filter=compile_filter)


async def read_variable(call: Call) -> object:
    """A variable with its items. Raises HttpFault 404."""
    path = call.path["path"]
    await call.block([_TOPIC], lambda: _index_of(call, path))
    try:
        found = await _client(call).get(path)
    except CommandInvalid as err:
        if err.code == "not_found":
            raise HttpFault(404, _NOT_FOUND) from None
        raise _fault(err) from None
    call.index = max(call.index, found.revision)
    return _whole(found)


async def write_variable(call: Call) -> object:
    """Store a variable in place of what the path had; 409 with the present one where `cas` is not its index."""
    _check_write(call)
    path, cas = call.path["path"], _cas(call)
    body = await call.body()
    items = field(body, "Items")
    if not isinstance(items, dict) or not items:
        raise HttpFault(400, "variable missing required Items object")
    if field(body, "Namespace", "") not in ("", None, _NAMESPACE):
        raise HttpFault(400, "nonexistent namespace in the body: namespaces are not built")
    if field(body, "Lock"):
        raise HttpFault(501, "locks of variables are not built")
    client = _client(call)
    try:
        revision = await client.put(path, items, cas=cas)
    except CommandInvalid as err:
        if isinstance(err, VariableFault) and err.code == "conflict" and cas != ANY_REVISION:
            return await _conflict(call, client, path)
        raise _fault(err) from None
    call.server.promise(revision)
    await call.wait_for_seq(revision, VERDICT_S)
    call.index = revision
    return _put_answer(call, path, revision, items)


async def delete_variable(call: Call) -> object:
    """Erase a variable; one that does not exist is erased already. 409 as for a write."""
    _check_write(call)
    path, cas = call.path["path"], _cas(call)
    row = call.role.state.variables.find(path)
    client = _client(call)
    try:
        await client.delete(path, cas=cas)
    except CommandInvalid as err:
        if isinstance(err, VariableFault) and err.code == "conflict" and cas != ANY_REVISION:
            return await _conflict(call, client, path)
        raise _fault(err) from None
    if row is not None:
        await _until_changed(call, path, row.revision)
    return Response(status_code=204, headers={"X-Nomad-Index": str(_index_of(call, path))})


def _client(call: Call) -> VariableClient:
    """A client with the caller's login."""

    async def ask(subject: str, body: bytes, timeout_s: float) -> bytes:
        try:
            return await call.request_raw(subject, body, timeout_s)
        except HttpFault as err:
            if err.status != 503:
                raise
            raise BusUnavailable(err.text) from err

    return VariableClient(ask)


def _check_write(call: Call) -> None:
    """Refuse what is not built. Raises HttpFault 501."""
    if any(name.startswith("lock-") for name in call.connection.query_params):
        raise HttpFault(501, "locks of variables are not built")


def _cas(call: Call) -> int:
    """The index to compare with. Raises HttpFault 400."""
    if not call.text("cas"):
        return ANY_REVISION
    cas = call.number("cas")
    if cas < 0:
        raise HttpFault(400, f"can not parse cas: {cas} is negative")
    return cas


def _fault(err: CommandInvalid) -> HttpFault:
    return of_refusal({"code": err.code, "message": err.message})


def _index_of(call: Call, path: str) -> int:
    """Seq of the last change of a path."""
    row = call.role.state.variables.by_path.get(path)
    return call.role.changes.of_table("variables") if row is None else row.modify_seq


async def _until_changed(call: Call, path: str, revision: int) -> None:
    """Wait until the replica no longer has a revision, so that the caller's next list does not have it."""
    woken = asyncio.Event()
    forget = call.role.changes.wait([_TOPIC], woken.set)
    try:
        async with asyncio.timeout(PROMISED_S):
            while (row := call.role.state.variables.find(path)) and row.revision == revision:
                woken.clear()
                await woken.wait()
    except TimeoutError:
        pass
    finally:
        forget()


async def _conflict(call: Call, client: VariableClient, path: str) -> Response:
    """409 with the present variable; one that does not exist has index 0."""
    try:
        found = _whole(await client.get(path))
    except VariableFault as err:
        if err.code != "not_found":
            raise _fault(err) from None
        found = {**_shape(path), "Items": None}
    headers = {"X-Nomad-Index": str(found["ModifyIndex"] or max(call.role.seq, 1))}
    return Response(_ENCODER.encode(found), 409, headers, media_type="application/json")


def _put_answer(call: Call, path: str, revision: int, items: Mapping[str, str]) -> Object:
    """What was stored, at the revision that it has; another one may be newer by now."""
    modify_ns = call.role.times.at(revision)
    create = (revision, modify_ns)
    row = call.role.state.variables.find(path)
    if row is not None and row.create_seq < revision:
        create = (row.create_seq, row.create_ns)
    return {**_shape(path, create=create, modify=(revision, modify_ns)), "Items": items}


def _whole(found: OpenedVariable) -> Object:
    create, modify = (found.create_seq, found.create_ns), (found.revision, found.modify_ns)
    return {**_shape(found.path, create=create, modify=modify), "Items": found.items}


def _shape(
    path: str, *, create: tuple[int, int] = (0, 0), modify: tuple[int, int] = (0, 0)
) -> Object:
    """Nomad's shape without items; `create`, `modify`: index and time."""
    return {
        "Namespace": _NAMESPACE,
        "Path": path,
        "CreateIndex": create[0],
        "CreateTime": create[1],
        "ModifyIndex": modify[0],
        "ModifyTime": modify[1],
    }


ENDPOINTS = (
    Endpoint(
        pattern="/v1/vars",
        summary="List variables without their items: `prefix`, paging.",
        read=list_variables,
    ),
    Endpoint(
        pattern="/v1/var/{path:path}",
        summary="Read, store (`cas`) or erase (`cas`) a variable.",
        read=read_variable,
        write=write_variable,
        delete=delete_variable,
        note="Locks are not built: `lock-…` is 501.",
    ),
)
