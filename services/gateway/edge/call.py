"""One request with Nomad's conventions decoded, and what an endpoint may use to answer it."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from services.gateway.change_index import Topic
from services.gateway.edge.callers import Caller
from services.gateway.edge.context import ServerContext
from services.gateway.edge.faults import HttpFault, of_refusal, unavailable
from shared.durations import InvalidDuration, parse_duration
from shared.errors import BusUnavailable
from shared.protocol.trace_context import parent_span

#: The only region.
REGION = "global"
BODY_BYTES_MAX = 1 << 20
#: Without a login.
PUBLIC_BODY_BYTES_MAX = 4_096
#: Default and longest wait of a blocking query, seconds; plus up to a sixteenth.
WAIT_S = 300.0
#: How long a read waits for a seq that was promised to a writer.
PROMISED_S = 2.0
#: How long a write is repeated while its verdict is pending.
PENDING_S, VERDICT_S, RETRY_S = 30.0, 8.0, 0.3
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_JSON = msgspec.json.Decoder(dict[str, Any])


class Call:
    """One request. `caller`: its login; `path`: decoded parameters of the path."""

    def __init__(self, server: ServerContext, connection: HTTPConnection, caller: Caller) -> None:
        self.server = server
        self.role = server.role
        self.caller = caller
        self.connection = connection
        self.path: Mapping[str, str] = connection.path_params
        #: what X-Nomad-Index says; 0: the seq of the replica.
        self.index = 0
        #: further headers of the answer.
        self.headers: dict[str, str] = {}

    # ---- parameters ----

    def text(self, name: str, default: str = "") -> str:
        """A query parameter."""
        return self.connection.query_params.get(name, default)

    def texts(self, name: str) -> list[str]:
        """All values of a query parameter."""
        return self.connection.query_params.getlist(name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A yes or no, as Go reads it; a name without a value is yes. Raises HttpFault 400."""
        value = self.connection.query_params.get(name)
        if value is None:
            return default
        if value == "" or value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise HttpFault(400, f"invalid value for {name!r}: {value!r} is not a boolean")

    def number(self, name: str, default: int = 0) -> int:
        """A number of at most 18 digits. Raises HttpFault 400."""
        value = self.text(name)
        if not value:
            return default
        digits = value.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            raise HttpFault(400, f"invalid value for {name!r}: {value!r} is not a number")
        return int(value)

    @property
    def namespace(self) -> str:
        """`default`, or `*` for lists of all. Raises HttpFault 404 for one that there is not."""
        return self.text("namespace", "default") or "default"

    async def body(self) -> dict[str, Any]:
        """The JSON object of the request. Raises HttpFault 400, 413."""
        raw = await self.raw_body()
        if not raw:
            raise HttpFault(400, "a JSON object is required in the body")
        try:
            return _JSON.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise HttpFault(400, f"the body is not a JSON object: {err}") from err

    async def raw_body(self) -> bytes:
        """The bytes of the request's body. Raises HttpFault 413, 408: the rest will not arrive."""
        assert isinstance(self.connection, Request)
        most = BODY_BYTES_MAX if self.caller.name else PUBLIC_BODY_BYTES_MAX
        parts, size = [], 0
        try:
            async for part in self.connection.stream():
                size += len(part)
                if size > most:
                    raise HttpFault(413, f"the body exceeds {most} bytes")
                parts.append(part)
        except ClientDisconnect as err:
            raise HttpFault(408, "the connection ended before the body did") from err
        return b"".join(parts)

    # ---- reading ----

    async def wait_for_seq(self, seq: int, timeout_s: float = PROMISED_S) -> None:
        """Wait until the replica has applied a seq. Raises HttpFault 503."""
        if not self.server.is_ready:
            raise unavailable(self.server.why_not_ready())
        if seq <= self.role.seq:
            return
        reached = asyncio.Event()
        self.role.when_at(seq, reached.set)
        try:
            await asyncio.wait_for(reached.wait(), timeout_s)
        except TimeoutError:
            raise unavailable(f"the state is at seq {self.role.seq}, not yet at {seq}") from None

    async def block(self, topics: Iterable[Topic], index: Callable[[], int]) -> None:
        """Hold a blocking query until its index is above the one it names, or its wait is over.

        `index` reads the present index of the object or table from the state; the answer carries it.
        """
        after = self.number("index")
        if after > 0 and index() <= after:
            wait = self.text("wait")
            wait_s = min((_duration_s("wait", wait) if wait else 0.0) or WAIT_S, WAIT_S)
            # A sixteenth by chance, so that queries that began together do not end together.
            await self._changed(
                topics, index, after, wait_s * (1 + secrets.randbelow(1000) / 16_000)
            )
        self.index = max(index(), 1)

    async def _changed(
        self, topics: Iterable[Topic], index: Callable[[], int], after: int, wait_s: float
    ) -> None:
        woken = asyncio.Event()
        forget = self.role.changes.wait(topics, woken.set)
        try:
            async with asyncio.timeout(wait_s):
                while index() <= after:
                    woken.clear()
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            forget()

    # ---- writing ----

    async def request(
        self, subject: str, body: Mapping[str, Any] | msgspec.Struct, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """Ask with the caller's login. Raises HttpFault: refused, no right (403), no answer (503)."""
        answer = await self._ask(subject, msgspec.json.encode(body), timeout_s)
        if isinstance(error := answer.get("error"), dict) and not answer.get("status"):
            raise of_refusal(error)
        return answer

    async def write(self, subject: str, body: Mapping[str, Any] | msgspec.Struct) -> dict[str, Any]:
        """Request a change with the caller's login until it is decided; the replica is at the verdict's seq then.

        Raises HttpFault: refused, no right (403), not decided in time (504), no answer (503).
        """
        deadline = asyncio.get_running_loop().time() + PENDING_S
        raw = msgspec.json.encode(body)
        while True:
            verdict = await self._ask(subject, raw, VERDICT_S)
            match verdict.get("status"):
                case "accepted":
                    seq = int(verdict.get("seq", 0))
                    self.server.promise(seq)
                    await self.wait_for_seq(seq, VERDICT_S)
                    self.index = seq
                    return verdict
                case "refused":
                    raise of_refusal(verdict.get("error") or {}, verdict.get("errors") or ())
                case None if isinstance(verdict.get("error"), dict):
                    raise of_refusal(verdict["error"])
                case _:
                    if asyncio.get_running_loop().time() > deadline:
                        text = "the request is not decided yet and may still take effect"
                        raise HttpFault(504, text, {"Retry-After": "1"})
                    await asyncio.sleep(RETRY_S)

    async def request_raw(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """Ask with the caller's login; the answer as it is. Raises HttpFault: no right (403), no answer (503)."""
        client = self.caller.client
        refusals = client.denied
        try:
            return await client.request_bytes(
                subject, body, timeout_s=timeout_s, traceparent=self._traceparent
            )
        except BusUnavailable as err:
            if client.denied > refusals:
                raise HttpFault(403, "Permission denied") from err
            raise unavailable(str(err)) from err

    @property
    def _traceparent(self) -> str:
        """The span of the caller that this request belongs to; empty: it names none."""
        text = self.connection.headers.get("traceparent", "")
        return text if parent_span(text) is not None else ""

    async def _ask(self, subject: str, body: bytes, timeout_s: float) -> dict[str, Any]:
        answer = await self.request_raw(subject, body, timeout_s)
        try:
            return _JSON.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise HttpFault(502, f"the answer on {subject} is not a JSON object: {err}") from err


def check_region(call: Call) -> None:
    """Refuse another region than the only one. Raises HttpFault 500, as Nomad does."""
    if call.text("region", REGION) not in ("", REGION):
        raise HttpFault(500, "No path to region")


#: What a client hears of one object in a namespace that there is not, by the first part of the path.
_NOT_FOUND = {
    "job": "job not found",
    "allocation": "alloc not found",
    "evaluation": "eval not found",
    "deployment": "deployment not found",
    "var": "variable not found",
}


def check_namespace_exists(call: Call, pattern: str) -> None:
    """Refuse an object in, or a write to, another namespace than the only one. Raises HttpFault 400, 404."""
    if call.namespace in ("default", "*"):
        return
    noun = pattern.removeprefix("/v1/").partition("/")[0]
    if call.connection.scope.get("method", "GET") not in ("GET", "HEAD"):
        if noun in _NOT_FOUND or noun == "jobs":
            raise HttpFault(400, f"nonexistent namespace {call.namespace[:128]!r}")
    elif noun in _NOT_FOUND:
        raise HttpFault(404, _NOT_FOUND[noun])


def _duration_s(name: str, text: str) -> float:
    """Seconds of a duration, or of a number of seconds. Raises HttpFault 400."""
    try:
        found_ns = parse_duration(text if text[-1:].isalpha() else f"{text}s")
    except InvalidDuration:
        found_ns = -1
    if found_ns < 0:
        raise HttpFault(400, f"invalid value for {name!r}: {text!r} is not a duration")
    return found_ns / 1e9


#: Answers a request: a JSON-able value, bytes of JSON, or a Starlette response.
Handler = Callable[[Call], Awaitable[object]]
