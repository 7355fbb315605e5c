"""Connects to the selected bus and queries the view; explains a bus or service that does not answer.

Which bus is selected: `contexts.py`.
"""

import asyncio
import contextlib
import contextvars
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from schemas.answers import ErrorAnswer
from schemas.base import JobId
from schemas.bounds import QUERY_LIMIT_MAX
from schemas.identities import KeyringVerdict
from schemas.job_answers import JobAnswer, JobsAnswer
from schemas.jobs import ErrorDetail, Verdict
from schemas.operator import OperatorVerdict
from schemas.projections import Query
from services.cli import global_options
from services.cli.runtime import contexts, hints
from services.cli.runtime.bus_notices import BusNotices, which_answer
from services.cli.runtime.output import CliError, strip_control_chars
from shared.bus.connection.nats_client import redacted_url
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: Of the connection of the running command; None where it takes the terminal.
_notices: contextvars.ContextVar[BusNotices | None] = contextvars.ContextVar(
    "notices", default=None
)
#: Why the bus of this URL did not answer when the running command announced its target; taken by its own connection.
_absent: dict[str, CliError] = {}
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
V = TypeVar("V", Verdict, OperatorVerdict, KeyringVerdict)
CONNECT_TIMEOUT_S = 1.5
ANSWER_TIMEOUT_S = 5.0


#: Older servers lack features of our streams.
SERVER_VERSION_MIN = (2, 15)
#: A service that was restarted answers again within this time.
_RESTART_S = 3.0
_RESTART_POLL_S = 0.1
#: A command that ignores its cancellation is cancelled again after this time.
_CANCEL_AGAIN_S = 1.0
#: Candidates named for an ambiguous prefix.
CANDIDATES_MAX = 10


class _Probe(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"")
    cluster_id: str = ""


def selected_context() -> contexts.Context:
    """Find the selected bus and user. Raises CliError for an unreadable context."""
    return contexts.select().context


def selected_bus_url() -> str:
    """URL of the selected bus."""
    return selected_context().url


def new_client(found: contexts.Context) -> Client:
    """Create a client, not connected yet."""
    user, password = found.login()
    return Client(found.url, user=user, password=password)


async def connect_client(client: Client, found: contexts.Context) -> Client:
    """Connect within CONNECT_TIMEOUT_S. Raises CliError `unavailable` with a hint."""
    if (known := _absent.pop(found.url, None)) is not None:
        # Asked a moment ago: a second wait would tell the same.
        raise known
    shown = redacted_url(found.url)
    where = f"{shown} (context {found.name})" if found.name else shown
    hint = hints.absent_bus()
    began = time.monotonic()
    try:
        return await asyncio.wait_for(client.__aenter__(), CONNECT_TIMEOUT_S)
    except TimeoutError as err:
        text = f"no bus at {where}: no answer"
        raise _unavailable(text, f" within {CONNECT_TIMEOUT_S} s", hint) from err
    except BusUnavailable as err:
        if "authorization" in str(err).lower():
            raise CliError("unavailable", _refused(where, any(found.login()))) from err
        away = isinstance(err.__cause__, OSError)
        asked = f" (asked for {time.monotonic() - began:.1f} s)" if away else ""
        raise _unavailable(f"no bus at {where}" if away else str(err), asked, hint) from err


def _unavailable(text: str, how_long: str, hint: str) -> CliError:
    """The error of a missing answer. `how_long`: for how long it was asked, which a caller may leave out."""
    return CliError("unavailable", f"{text}{how_long}; {hint}", untimed=f"{text}; {hint}")


def _refused(where: str, had_login: bool) -> str:  # noqa: FBT001 - one of two texts.
    if had_login:
        text = f"the bus at {where} refuses this login"
        return f"{text}; CARAVAN_NATS_URL or --context selects another"
    text = f"the bus at {where} needs a user and a password, and no context has this address"
    return f"{text}; its owner sees both with `caravan context env`"


def announce_target(note: Callable[[str], None]) -> None:
    """Name the cluster and bus that a command is about to change. Raises CliError: several, none chosen."""
    found = contexts.require_choice().context
    cluster_id = found.cluster_id or _asked_cluster_id(found)
    if not cluster_id:
        # The command itself reports the problem with this bus.
        return
    where = redacted_url(found.url) + (f", context {found.name}" if found.name else "")
    note(f"cluster {cluster_id} ({where})")


def _asked_cluster_id(found: contexts.Context) -> str:
    is_there = False

    async def ask(client: Client) -> str:
        nonlocal is_there
        is_there = True
        body = msgspec.json.encode(Query())
        subject = subjects.query("cluster")
        with waiting_for("view", subject):
            raw = await client.request_bytes(subject, body, CONNECT_TIMEOUT_S)
        return msgspec.json.decode(raw, type=_Probe).cluster_id

    _absent.clear()
    try:
        return with_bus(ask)
    except CliError as err:
        if not is_there:
            _absent[found.url] = err
    except (BusUnavailable, msgspec.MsgspecError):
        pass
    return ""


async def explain_no_answer(client: Client, what: str) -> str:
    """The reason of a missing answer: an old server, or a missing service."""
    version = client.bus.connected_server_version
    if (version.major, version.minor) < SERVER_VERSION_MIN:
        least = ".".join(map(str, SERVER_VERSION_MIN))
        return f"the bus runs nats-server {version}, Caravan needs {least} or newer"
    return f"the bus is running, but no {what} answers"


def with_bus(
    work: Callable[[Client], Awaitable[T]], *, is_quiet: bool = False, within_s: float | None = None
) -> T:
    """Connect, do the work, disconnect. `is_quiet`: say nothing of what it waits for.

    Raises CliError, `unavailable` where it took longer than `within_s`.
    """
    is_there = False

    async def bounded() -> T:
        try:
            async with asyncio.timeout(within_s):
                return await run()
        except TimeoutError as err:
            text = f"no answer at {redacted_url(selected_bus_url())}"
            hint = hints.silent_service("view") if is_there else hints.absent_bus()
            raise _unavailable(text, f" within {within_s:.1f} s", hint) from err

    async def run() -> T:
        nonlocal is_there
        if global_options.export_dir():
            return await work(_export_client())
        found = selected_context()
        client = await connect_client(new_client(found), found)
        is_there = True
        notices = BusNotices(
            client, redacted_url(found.url), follows_commits=global_options.follows_commits()
        )
        _notices.set(None if is_quiet else notices)
        watch = None if is_quiet else asyncio.create_task(notices.run())
        try:
            return await work(client)
        finally:
            if watch is not None:
                watch.cancel()
            await client.__aexit__(None, None, None)

    return run_interruptible(bounded())


def waiting_for(service: str, subject: str) -> contextlib.AbstractContextManager[None]:
    """Between a request and its answer: what takes long is said."""
    notices = _notices.get()
    return notices.request(service, subject) if notices is not None else contextlib.nullcontext()


def _export_client() -> Client:
    """Open the export of --from-file and print its problems. Raises CliError."""
    # Imported here: it brings a database along.
    from services.cli.runtime.export_client import ExportClient

    client = ExportClient(global_options.export_dir())
    for problem in client.problems:
        print(strip_control_chars(problem), file=sys.stderr)
    return client


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; Ctrl-C ends it even if a library swallows the first cancellation (wait_for of 3.11 may).

    Raises KeyboardInterrupt.
    """

    async def insist(task: asyncio.Task[T]) -> None:
        while not task.done():
            await asyncio.sleep(_CANCEL_AGAIN_S)
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
        # Cancelled more than once: the runner does not recognise it as Ctrl-C.
        raise KeyboardInterrupt from None


async def query_view(client: Client, noun: str, answer: type[S], query: Query) -> S:
    """Query the view. Raises CliError with the view's code, or `unavailable` without an answer."""
    return await query_view_bytes(client, noun, answer, msgspec.json.encode(query))


async def _request(
    client: Client, subject: str, body: bytes, *, service: str, timeout_s: float
) -> bytes:
    """Send one request. Raises CliError `unavailable` without an answer."""
    began = time.monotonic()
    with waiting_for(service, subject):
        while True:
            try:
                return await client.request_bytes(subject, body, timeout_s=timeout_s)
            except BusUnavailable as err:
                # The server delivered it to nothing, so it may be sent again.
                if "no responder" not in str(err) or time.monotonic() > began + _RESTART_S:
                    raise await _silent(client, err, service, began) from err
            await asyncio.sleep(_RESTART_POLL_S)


async def _silent(client: Client, err: BusUnavailable, service: str, began: float) -> CliError:
    """Say what was asked of whom, for how long, and what to try."""
    spent_s = time.monotonic() - began
    url = selected_bus_url()
    # How long all attempts took says more than the bound of one.
    what = str(err).partition(" within ")[0]
    text = f"{await explain_no_answer(client, service)}: {what} at {redacted_url(url)}"
    hint = await which_answer(url) or hints.silent_service(service)
    return _unavailable(text, f" (asked for {spent_s:.1f} s)", hint)


async def request_until_decided(
    client: Client,
    subject: str,
    body: bytes,
    answer: type[V],
    *,
    service: str,
    wait_s: float,
    verdict_s: float,
) -> list[V]:
    """Repeat a request until it is accepted; returns all verdicts. Raises CliError: refused, or pending too long."""
    deadline = time.monotonic() + wait_s
    verdicts: list[V] = []
    while True:
        raw = await _request(client, subject, body, service=service, timeout_s=verdict_s)
        verdict = msgspec.json.decode(raw, type=answer)
        verdicts.append(verdict)
        if verdict.status == "accepted":
            return verdicts
        if verdict.status == "refused":
            error = verdict.error or ErrorDetail(code="refused", message="refused without a reason")
            raise CliError(error.code, error.message, path=error.path)
        reason = verdict.error.message if verdict.error is not None else ""
        if time.monotonic() > deadline:
            text = f"not in the log after {wait_s:.0f} s; the request may still take effect"
            notices = _notices.get()
            reason = (notices.reason if notices is not None else "") or reason
            raise CliError("pending", f"{text}: {reason}" if reason else text)
        if reason and len(verdicts) == 1:
            print(f"waiting: {reason}", file=sys.stderr, flush=True)


async def query_view_bytes(client: Client, noun: str, answer: type[S], body: bytes) -> S:
    """Query the view with an encoded query."""
    if global_options.at_position() or global_options.export_dir():
        # Imported here: current state needs no replay.
        from services.cli.runtime.log_position import replay_to_at_option

        return msgspec.json.decode(
            (await replay_to_at_option(client)).answer(noun, body), type=answer
        )
    raw = await _request(
        client, subjects.query(noun), body, service="view", timeout_s=ANSWER_TIMEOUT_S
    )
    if msgspec.json.decode(raw, type=_Probe).error:
        detail = msgspec.json.decode(raw, type=ErrorAnswer).error
        raise CliError(detail.code, detail.message, path=detail.path)
    return msgspec.json.decode(raw, type=answer)


def query_pages(noun: str, answer: type[S], query: Query, field: str, *, job: str = "") -> S:
    """Query a list page by page, up to `limit`; with `job` only of the job with this id or unique prefix."""

    async def work(client: Client) -> S:
        whole = query
        if job:
            whole = msgspec.structs.replace(query, job_id=await resolve_job(client, job))
        # Larger limits are reached page by page.
        page_max = min(whole.limit, QUERY_LIMIT_MAX)
        first = await query_view(
            client, noun, answer, msgspec.structs.replace(whole, limit=page_max)
        )
        items = list(getattr(first, field))
        wanted = min(whole.limit, first.total)  # type: ignore[attr-defined]
        while len(items) < wanted:
            left = min(wanted - len(items), QUERY_LIMIT_MAX)
            rest = msgspec.structs.replace(whole, offset=len(items), limit=left)
            page = getattr(await query_view(client, noun, answer, rest), field)
            if not page:
                break
            items += page
        return msgspec.structs.replace(first, **{field: tuple(items)})

    return with_bus(work)


def query_once(noun: str, answer: type[S], query: Query, *, within_s: float | None = None) -> S:
    """Connect and send one query. Raises CliError."""
    return with_bus(lambda client: query_view(client, noun, answer, query), within_s=within_s)


async def resolve_job(client: Client, text: str) -> JobId:
    """Find the job with this id or unique prefix. Raises CliError, naming the candidates; an empty text names none.

    An id without a job in the state is returned unchanged: the command reports the error.
    """
    near = await query_view(client, "jobs", JobsAnswer, Query(id=text, limit=CANDIDATES_MAX))
    # Sorted, so that the id itself comes before longer ones.
    return unique_job(text, [job.id for job in near.jobs])


def unique_job(text: str, found: Sequence[str]) -> JobId:
    """Which of the ids that begin with `text` it names: itself, else the only one; without any, it is returned.

    Raises CliError `ambiguous` with the first CANDIDATES_MAX of them, `usage` for an empty text.
    """
    if not text:
        raise CliError("usage", "the id of a job is empty")
    if text in found or not found:
        return JobId(text)
    if len(found) == 1:
        return JobId(found[0])
    shown = ", ".join(found[:CANDIDATES_MAX])
    raise CliError("ambiguous", f"{text!r} is not a unique prefix of a job id: {shown}")


async def query_job(client: Client, text: str, *, limit: int) -> JobAnswer:
    """Query a job by its id or a unique prefix. Raises CliError."""
    name = await resolve_job(client, text)
    return await query_view(client, "job", JobAnswer, Query(id=name, limit=limit))
