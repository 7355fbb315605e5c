"""Requests to a node's agent over the bus, as the command line sends them. Messages: schemas/node_rpc.py."""

from typing import TypeVar

import msgspec

from schemas.jobs import ErrorDetail
from schemas.node_answers import AllocAnswer
from schemas.projections import AllocSummary, Query
from services.cli.runtime.bus_client import query_view, waiting_for
from services.cli.runtime.output import CliError, short_id
from shared.bus.connection.node_stream import (
    NODE_ANSWER_TIMEOUT_S,
    NodeStream,
    node_unreachable,
)
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable
from shared.protocol import subjects

T = TypeVar("T", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)
#: `--json` holds at most the last bytes of an output or file.
JSON_BYTES_MAX = 1 << 20


async def find_alloc(client: Client, alloc_id: str) -> AllocAnswer:
    """Find an allocation and where it is. Raises CliError."""
    return await query_view(client, "alloc", AllocAnswer, Query(id=alloc_id))


def select_task(answer: AllocAnswer, task: str) -> str:
    """Select a task. Raises CliError if it is ambiguous or unknown."""
    known = sorted(answer.tasks)
    shown = short_id(answer.allocation.id)
    if task and (task in known or not known):
        return task
    if task:
        text = f"allocation {shown} has no task {task!r}, only {', '.join(known)}"
        raise CliError("not_found", text)
    if len(known) == 1:
        return known[0]
    if not known:
        raise CliError("not_found", f"no task of allocation {shown} has been reported yet")
    raise CliError(
        "usage", f"allocation {shown} has several tasks; expected one of: {', '.join(known)}"
    )


async def request_node(
    client: Client, node: str, verb: str, body: msgspec.Struct, *, answer: type[T]
) -> T:
    """Send a request to a node's agent. Raises CliError with the agent's code, or `unavailable` without an answer."""
    subject = subjects.node_rpc(node, verb)
    try:
        with waiting_for(f"node {node}", subject):
            raw = await client.request_bytes(
                subject, msgspec.json.encode(body), timeout_s=NODE_ANSWER_TIMEOUT_S
            )
    except BusUnavailable as err:
        raise CliError("unavailable", node_unreachable(node)) from err
    result = msgspec.json.decode(raw, type=answer)
    error: ErrorDetail | None = getattr(result, "error", None)
    if error is not None:
        raise CliError(error.code, error.message, path=error.path)
    return result


async def request_alloc(
    client: Client, alloc_id: str, verb: str, body: A, *, answer: type[T]
) -> tuple[AllocSummary, T]:
    """Find an allocation and send a request about it to its node's agent. Raises CliError."""
    one = (await find_alloc(client, alloc_id)).allocation
    ask = msgspec.structs.replace(body, alloc_id=one.id)
    return one, await request_node(client, one.node, verb, ask, answer=answer)


class CliNodeStream(NodeStream):
    """A stream of a node's agent. Raises CliError."""

    def fault(self, code: str, message: str, path: str = "") -> Exception:
        """The error of the command line."""
        return CliError(code, message, path=path)


def asked_lines(tail: int | None) -> int:
    """Lines from the end, as a request for logs says it. None: all that is kept."""
    return 0 if tail is None else tail or -1
