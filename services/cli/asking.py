"""Asking the bus: which one, as whom, and what it means when nobody answers.

Decides how long a person waits, and what is said about a bus that cannot be used; which bus it is: `contexts.py`. Must
not know what an answer means.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from schemas.answers import ErrorAnswer
from schemas.projections import Query
from services.cli import chosen, contexts, running_ups
from services.cli.output import CliError, clean
from shared.bus import subjects
from shared.bus.client import Client
from shared.bus.connect import without_login
from shared.errors import BusUnavailable

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
DEFAULT_URL = "nats://127.0.0.1:4222"
CONNECT_S = 1.5
ANSWER_S = 5.0


#: Older servers lack what streams here are made of.
SERVER_LEAST = (2, 15)
#: A cancelled command that goes on is cancelled again this much later.
_INSIST_S = 1.0


class _Probe(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"")


def bus() -> contexts.Context:
    """Find the bus that is meant, and as whom. Raises CliError for a context that cannot be read."""
    if chosen.context():
        return contexts.find(chosen.context())
    given = os.environ.get("CARAVAN_NATS_URL")
    if given:
        return contexts.Context(url=given)
    used = contexts.current()
    if used:
        return contexts.find(used)
    return contexts.Context(url=running_ups.newest_url() or DEFAULT_URL)


def bus_url() -> str:
    """URL of the bus that is meant."""
    return bus().url


def client_of(found: contexts.Context) -> Client:
    """Make a client, not connected yet."""
    return Client(found.url, user=found.user, password=found.password() if found.user else "")


async def connected(client: Client, found: contexts.Context) -> Client:
    """Connect within CONNECT_S. Raises CliError `unavailable` with one line that helps."""
    shown = without_login(found.url)
    where = f"{shown} (context {found.name})" if found.name else shown
    hint = "is `caravan up` running? CARAVAN_NATS_URL or --context names another bus"
    try:
        return await asyncio.wait_for(client.__aenter__(), CONNECT_S)
    except TimeoutError as err:
        raise CliError("unavailable", f"no bus at {where}; {hint}") from err
    except BusUnavailable as err:
        if "authorization" in str(err).lower():
            text = f"the bus at {where} refuses this login; CARAVAN_NATS_URL or --context names one"
            raise CliError("unavailable", text) from err
        away = isinstance(err.__cause__, OSError)
        said = f"no bus at {where}" if away else str(err)
        raise CliError("unavailable", f"{said}; {hint}") from err


async def why_silent(client: Client, what: str) -> str:
    """Say why nobody answers: an old server, or a service that is not there."""
    version = client.bus.connected_server_version
    if (version.major, version.minor) < SERVER_LEAST:
        least = ".".join(map(str, SERVER_LEAST))
        return f"the bus runs nats-server {version}, Caravan needs {least} or newer"
    return f"the bus is there, but no {what} answers"


def with_bus(work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, do the work, disconnect. Raises CliError."""

    async def run() -> T:
        if chosen.from_file():
            return await work(_archived())
        found = bus()
        client = await connected(client_of(found), found)
        try:
            return await work(client)
        finally:
            await client.__aexit__(None, None, None)

    return run_heeding(run())


def _archived() -> Client:
    """Open the export of --from-file, and tell what is damaged of it. Raises CliError."""
    # Imported here: it brings a database along.
    from services.cli.archived import Archived

    client = Archived(chosen.from_file())
    for problem in client.problems:
        print(clean(problem), file=sys.stderr)
    return client


def run_heeding(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; Ctrl-C ends it even where a library swallows the first cancellation (wait_for of 3.11 may).

    Raises KeyboardInterrupt.
    """

    async def insist(task: asyncio.Task[T]) -> None:
        while not task.done():
            await asyncio.sleep(_INSIST_S)
            if task.cancelling():
                task.cancel()

    async def heeding() -> T:
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(insist(task))
        try:
            return await work
        finally:
            watch.cancel()

    try:
        return asyncio.run(heeding())
    except asyncio.CancelledError:
        # Cancelled more than once: the runner no longer takes it for Ctrl-C.
        raise KeyboardInterrupt from None


async def ask(client: Client, noun: str, answer: type[S], query: Query) -> S:
    """Ask the view. Raises CliError with the view's own code, or `unavailable` where nobody answers."""
    return await ask_bytes(client, noun, answer, msgspec.json.encode(query))


async def ask_bytes(client: Client, noun: str, answer: type[S], body: bytes) -> S:
    """Ask the view with an encoded question; as `ask`."""
    if chosen.at() or chosen.from_file():
        # Imported here: who asks of now needs no replay.
        from services.cli.moments import chosen_past

        return msgspec.json.decode((await chosen_past(client)).answer(noun, body), type=answer)
    try:
        raw = await client.request_bytes(subjects.query(noun), body, timeout_s=ANSWER_S)
    except BusUnavailable as err:
        raise CliError("unavailable", f"{await why_silent(client, 'view')}: {err}") from err
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
