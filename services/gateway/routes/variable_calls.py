"""What the routes of variables share: the caller's client, Nomad's shapes, and waiting for the replica."""

import asyncio
from collections.abc import Callable, Mapping

from services.gateway.change_index import Topic, table
from services.gateway.edge.call import PROMISED_S, VERDICT_S, Call
from services.gateway.edge.faults import HttpFault, of_refusal
from services.gateway.edge.task_logins import TaskCaller
from services.gateway.nomad.source import Object
from services.gateway.routes.job_writes import field
from shared.errors import BusUnavailable, CommandInvalid
from shared.variable_client import OpenedVariable, VariableClient

NAMESPACE = "default"
VARIABLES, LOCKS = table("variables"), table("variable_locks")


def client_of(call: Call) -> VariableClient:
    """A client with the caller's login."""

    async def ask(subject: str, body: bytes, timeout_s: float) -> bytes:
        try:
            return await call.request_raw(subject, body, timeout_s)
        except HttpFault as err:
            if err.status != 503:
                raise
            raise BusUnavailable(err.text) from err

    return VariableClient(ask)


def readable_by(call: Call) -> tuple[str, ...] | None:
    """The paths that the caller may read; None: the bus decides. Raises HttpFault 403: a task that ended meanwhile."""
    return call.caller.readable() if isinstance(call.caller, TaskCaller) else None


def fault_of(err: CommandInvalid) -> HttpFault:
    """The fault for a refusal of the keeper, or for none that answers."""
    return of_refusal({"code": err.code, "message": err.message})


def items_of(body: Object) -> Mapping[str, str]:
    """The items of a body; empty: it has none. Raises HttpFault 400."""
    items = field(body, "Items", {})
    if not isinstance(items, dict):
        raise HttpFault(400, "variable missing required Items object")
    return items


def check_namespace_of(body: Object) -> None:
    """Raise HttpFault 400 where a body has another namespace."""
    if field(body, "Namespace", "") not in ("", None, NAMESPACE):
        raise HttpFault(400, "nonexistent namespace in the body: namespaces are not built")


async def until(call: Call, topic: Topic, holds: Callable[[], bool]) -> None:
    """Wait until the replica shows a change that was answered, so that the caller's next read has it."""
    woken = asyncio.Event()
    forget = call.role.changes.wait([topic], woken.set)
    try:
        async with asyncio.timeout(PROMISED_S):
            while not holds():
                woken.clear()
                await woken.wait()
    except TimeoutError:
        pass
    finally:
        forget()


async def put_answer(call: Call, path: str, revision: int, items: Mapping[str, str]) -> Object:
    """What was stored, at the revision that it has; another one may be newer by now. Raises HttpFault 503."""
    call.server.promise(revision)
    await call.wait_for_seq(revision, VERDICT_S)
    call.index = revision
    modify_ns = call.role.times.at(revision)
    create = (revision, modify_ns)
    row = call.role.state.variables.find(path)
    if row is not None and row.create_seq < revision:
        create = (row.create_seq, row.create_ns)
    return {**shape(path, create=create, modify=(revision, modify_ns)), "Items": items}


def known(call: Call, path: str) -> Object:
    """What the replica has of a path, without items; of one that does not exist the path alone."""
    row = call.role.state.variables.find(path)
    if row is None:
        return shape(path)
    create, modify = (row.create_seq, row.create_ns), (row.revision, row.modify_ns)
    return shape(path, create=create, modify=modify)


def whole(found: OpenedVariable) -> Object:
    """A variable with its items."""
    create, modify = (found.create_seq, found.create_ns), (found.revision, found.modify_ns)
    return {**shape(found.path, create=create, modify=modify), "Items": found.items}


def shape(
    path: str, *, create: tuple[int, int] = (0, 0), modify: tuple[int, int] = (0, 0)
) -> Object:
    """Nomad's shape without items; `create`, `modify`: index and time."""
    return {
        "Namespace": NAMESPACE,
        "Path": path,
        "CreateIndex": create[0],
        "CreateTime": create[1],
        "ModifyIndex": modify[0],
        "ModifyTime": modify[1],
    }
