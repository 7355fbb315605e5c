"""Our own answers over HTTP: what `query.<noun>` answers on the bus, now or at a past seq."""

from typing import Any

import msgspec

from schemas import queries
from schemas.bounds import bounded_decoder
from schemas.envelope import ENCODER
from schemas.projections import PlanQuery, Query
from services.gateway.change_index import Topic, job, node, table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.routes.console_state import at_moment

_PLAN = bounded_decoder(PlanQuery)
_QUERY = bounded_decoder(Query)
#: What an answer to each noun waits for, where a query blocks; by id of job or node where one is asked for.
_TABLES = ("jobs", "fleet", "allocations", "evaluations", "deployments", "policy")


async def answer_query(call: Call) -> object:
    """Answer a query as the view does; its fields are query parameters. Raises CommandInvalid, HttpFault 400."""
    noun = call.path["noun"]
    query = query_of(call, noun)
    if call.text("at"):
        return await at_moment(
            call,
            past=lambda one: one.answer(noun, ENCODER.encode(query)),
            now=lambda: ENCODER.encode(call.role.answers.answer(noun, query)),
        )
    tables = [table(name) for name in _TABLES]
    await call.block(_topics(noun, query) or tables, lambda: call.role.changes.newest(_TABLES))
    return ENCODER.encode(call.role.answers.answer(noun, query))


async def answer_plan(call: Call) -> object:
    """Describe what registering a job would do."""
    try:
        query = _PLAN.decode(await call.raw_body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise HttpFault(400, f"the body is not a PlanQuery: {err}") from err
    return ENCODER.encode(call.role.answers.plan(query))


def query_of(call: Call, noun: str) -> Query:
    """The Query in the parameters of a request. Raises HttpFault 400."""
    params = call.connection.query_params.multi_items()
    given: dict[str, Any] = {
        name: value for name, value in params if name in Query.__struct_fields__
    }
    try:
        query = msgspec.convert(given, Query, strict=False)
        # Bounds are checked where the wire is read.
        query = _QUERY.decode(ENCODER.encode(query))
    except msgspec.MsgspecError as err:
        raise HttpFault(400, str(err)) from err
    text, path = queries.fault(
        noun, {name: msgspec.Raw(msgspec.json.encode(one)) for name, one in given.items()}
    )
    if text:
        raise HttpFault(400, f"{path}: {text}" if path else text)
    return query


def _topics(noun: str, query: Query) -> list[Topic]:
    named = getattr(query, "id", "")
    if named and noun in ("job", "job_versions"):
        return [job(named)]
    if named and noun == "node":
        return [node(named)]
    return []


ENDPOINTS = (
    Endpoint(
        pattern="/v1/caravan/query/plan",
        summary="What registering a job would do.",
        write=answer_plan,
    ),
    Endpoint(
        pattern="/v1/caravan/query/{noun}",
        summary="The answer of `query.<noun>`.",
        read=answer_query,
    ),
)
