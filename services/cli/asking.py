"""Asking the bus: which one, as whom, and what it means when nobody answers.

Decides the URL (CARAVAN_NATS_URL, else the running `caravan up`, else port 4222 here) and how long a person waits. Must
not know what an answer means.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from schemas.answers import ErrorAnswer
from schemas.projections import Query
from services.cli import running_ups
from services.cli.output import CliError
from shared.bus import subjects
from shared.bus.client import Client
from shared.bus.connect import without_login
from shared.errors import BusUnavailable

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
DEFAULT_URL = "nats://127.0.0.1:4222"
CONNECT_S = 1.5
ANSWER_S = 5.0


class _Probe(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"")


def bus_url() -> str:
    """Find the bus that is meant."""
    return os.environ.get("CARAVAN_NATS_URL") or running_ups.newest_url() or DEFAULT_URL


async def connected(client: Client) -> Client:
    """Connect within CONNECT_S. Raises CliError `unavailable` with one line that helps."""
    url = without_login(bus_url())
    hint = "is `caravan up` running? CARAVAN_NATS_URL names another bus"
    try:
        return await asyncio.wait_for(client.__aenter__(), CONNECT_S)
    except TimeoutError as err:
        raise CliError("unavailable", f"no bus at {url} ({hint})") from err
    except BusUnavailable as err:
        away = isinstance(err.__cause__, OSError)
        raise CliError("unavailable", f"{f'no bus at {url}' if away else err} ({hint})") from err


def with_bus(work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, do the work, disconnect. Raises CliError."""

    async def run() -> T:
        client = await connected(Client(bus_url()))
        try:
            return await work(client)
        finally:
            await client.__aexit__(None, None, None)

    return asyncio.run(run())


async def ask(client: Client, noun: str, answer: type[S], query: Query) -> S:
    """Ask the view. Raises CliError with the view's own code, or `unavailable` where nobody answers."""
    try:
        raw = await client.request_bytes(
            subjects.query(noun), msgspec.json.encode(query), timeout_s=ANSWER_S
        )
    except BusUnavailable as err:
        raise CliError("unavailable", f"the bus is there, but no view answers: {err}") from err
    if msgspec.json.decode(raw, type=_Probe).error:
        detail = msgspec.json.decode(raw, type=ErrorAnswer).error
        raise CliError(detail.code, detail.message, path=detail.path)
    return msgspec.json.decode(raw, type=answer)


def ask_pages(noun: str, answer: type[S], query: Query, field: str) -> S:
    """Ask for a list, again from where the last answer was cut, until `limit` or everything is there."""

    async def work(client: Client) -> S:
        first = await ask(client, noun, answer, query)
        items = list(getattr(first, field))
        wanted = min(query.limit, first.total)  # type: ignore[attr-defined]
        while len(items) < wanted:
            rest = msgspec.structs.replace(query, offset=len(items), limit=wanted - len(items))
            page = getattr(await ask(client, noun, answer, rest), field)
            if not page:
                break
            items += page
        return msgspec.structs.replace(first, **{field: tuple(items)})

    return with_bus(work)


def ask_once(noun: str, answer: type[S], query: Query) -> S:
    """Connect and ask one question. Raises CliError."""
    return with_bus(lambda client: ask(client, noun, answer, query))
