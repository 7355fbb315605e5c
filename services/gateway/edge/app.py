"""The ASGI application: routing, checks that all requests pass, and the form of answers.

Order of the checks: Host (rebinding of names), Origin (other pages of the same browser), method, login, seq. Bodies of
faults are plain text, as Nomad's clients expect.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from services.gateway.edge.call import Call, Handler, check_namespace_exists, check_region
from services.gateway.edge.callers import Caller
from services.gateway.edge.context import ServerContext
from services.gateway.edge.encoded import EncodedAnswer
from services.gateway.edge.faults import HttpFault, permission_denied
from services.gateway.edge.route import Endpoint
from services.gateway.edge.task_logins import task_caller
from services.gateway.routes.table import ENDPOINTS
from shared.errors import BusUnavailable, CommandInvalid

log = structlog.get_logger()
#: Names of this machine under which any browser may ask.
LOOPBACK = frozenset(("127.0.0.1", "localhost", "[::1]"))
#: Answers above this many bytes are compressed where the client takes that.
GZIP_BYTES = 2_048
#: What every answer says to a browser.
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ENCODER = msgspec.json.Encoder()
_POLICY_VIOLATION, _INTERNAL_ERROR = 1008, 1011
_STATUS = {"invalid": 400, "not_found": 404, "ambiguous": 500}


def make_app(server: ServerContext) -> Starlette:
    """Make the application from the table."""
    routes: list[BaseRoute] = []
    for one in ENDPOINTS:
        if one.is_socket:
            routes.append(WebSocketRoute(one.pattern, _socket_of(server, one)))
        else:
            routes.append(Route(one.pattern, _endpoint_of(server, one), methods=None))
    routes.append(Mount("/bus", _guarded(server)))
    app = Starlette(
        routes=routes,
        exception_handlers={404: _unknown_path},
        lifespan=server.bus_edge.lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _guarded(server: ServerContext) -> "_Asgi":
    """The routes of FastStream: public, since they hold no data, but of this gateway's names alone."""

    async def answer(request: Request) -> Response:
        try:
            _check_host(server, request)
        except HttpFault as err:
            return Response(err.text, err.status, HEADERS, media_type="text/plain")
        return _Passed(server.bus_edge)

    return _Asgi(answer)


class _Passed(Response):
    """An answer that another application writes."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let it answer."""
        await self._app(scope, receive, send)


async def _unknown_path(_request: Request, _err: Exception) -> Response:
    return Response(status_code=404, headers=HEADERS)


def _endpoint_of(server: ServerContext, one: Endpoint) -> "_Asgi":
    handlers: dict[str, Handler | None] = {
        "GET": one.read,
        "HEAD": one.read,
        "PUT": one.write,
        "POST": one.write,
        "DELETE": one.delete,
    }

    async def answer(request: Request) -> Response:
        server.role.counts["requests"] += 1
        try:
            _check_host(server, request)
            handler = handlers.get(request.method)
            if handler is None:
                return Response("Invalid method", 405, HEADERS, media_type="text/plain")
            if request.method not in ("GET", "HEAD"):
                _check_origin(server, request)
            return await _answered(server, request, one, handler)
        except HttpFault as err:
            server.role.counts["refused"] += 1
            headers = {**HEADERS, **err.headers, "X-Caravan-Seq": str(server.role.seq)}
            return Response(err.text, err.status, headers, media_type="text/plain")

    return _Asgi(answer)


class _Asgi:
    """An endpoint that takes every method itself: Starlette's own answer to a wrong one is not Nomad's."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request; a websocket is refused: endpoints of this kind have none."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        request = Request(scope, receive, send)
        await (await self._answer(request))(scope, receive, send)


async def _answered(
    server: ServerContext, request: Request, one: Endpoint, handler: Handler
) -> Response:
    caller = await _caller_of(server, request, one)
    call = Call(server, request, caller)
    check_region(call)
    check_namespace_exists(call, one.pattern)
    if not one.is_public and not one.is_stateless:
        await call.wait_for_seq(server.promised_seq)
    caller.users += 1
    try:
        value = await handler(call)
    except CommandInvalid as err:
        raise HttpFault(_STATUS.get(err.code, 500), err.message) from err
    except BusUnavailable as err:
        raise HttpFault(503, str(err), {"Retry-After": "1"}) from err
    except HttpFault:
        raise
    except Exception as err:
        # A fault of ours in one request ends that request alone.
        log.exception("gateway.request_failed", pattern=one.pattern)
        raise HttpFault(500, f"internal error: {type(err).__name__}") from err
    finally:
        caller.users -= 1
    if isinstance(value, Response):
        for name, text in {**HEADERS, **call.headers}.items():
            value.headers.setdefault(name, text)
        return value
    return _json(call, request, value)


async def _caller_of(server: ServerContext, request: Request, one: Endpoint) -> Caller:
    """Who asks. Raises HttpFault 403: no login, a refused one, or a task that may not ask this."""
    if one.is_public:
        return _ANONYMOUS
    task = task_caller(server, request.headers)
    if task is None:
        return await server.callers.caller(request.headers)
    if not one.for_tasks or request.method not in ("GET", "HEAD"):
        raise permission_denied("a task may only read the variables that are named after it")
    return task


def _json(call: Call, request: Request, value: object) -> Response:
    """A JSON answer with Nomad's headers."""
    answer = value if isinstance(value, EncodedAnswer) else EncodedAnswer(_encoded(value))
    if call.text("pretty", "0") != "0" or (
        "pretty" in call.connection.query_params and not call.text("pretty")
    ):
        answer = EncodedAnswer(msgspec.json.format(answer.body, indent=4) + b"\n")
    body = answer.body
    headers = {
        **HEADERS,
        "X-Nomad-Index": str(call.index or max(call.role.seq, 1)),
        "X-Nomad-LastContact": "0",
        "X-Nomad-KnownLeader": "true",
        "X-Caravan-Seq": str(call.role.seq),
        **call.headers,
    }
    if len(body) > GZIP_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body = answer.zipped()
        headers["Content-Encoding"] = "gzip"
        headers["Vary"] = "Accept-Encoding"
    return Response(body, 200, headers, media_type="application/json")


def _encoded(value: object) -> bytes:
    return value if isinstance(value, bytes) else _ENCODER.encode(value)


class _NoCaller(Caller):
    """The caller of a public endpoint: without login and connection."""

    def __init__(self) -> None:
        self.name = ""
        self.users = 0


_ANONYMOUS = _NoCaller()


def _socket_of(server: ServerContext, one: Endpoint) -> Callable[[WebSocket], Awaitable[None]]:
    assert one.read is not None
    handler = one.read

    async def run(socket: WebSocket) -> None:
        server.role.counts["requests"] += 1
        try:
            _check_host(server, socket)
            _check_origin(server, socket)
            # A browser cannot send headers: its login is in the first message, which the handler reads.
            caller: Caller = _ANONYMOUS
            if not Call(server, socket, caller).flag("ws_handshake"):
                caller = await server.callers.caller(socket.headers)
            await socket.accept()
        except HttpFault as err:
            server.role.counts["refused"] += 1
            await socket.close(_POLICY_VIOLATION, err.text[:120])
            return
        caller.users += 1
        try:
            call = Call(server, socket, caller)
            check_region(call)
            await handler(call)
        except HttpFault as err:
            code = _INTERNAL_ERROR if err.status == 500 else _POLICY_VIOLATION
            await socket.close(code, err.text[:120])
        except Exception:
            # A fault of ours ends this socket alone.
            log.exception("gateway.socket_failed", pattern=one.pattern)
            with contextlib.suppress(RuntimeError):
                await socket.close(_INTERNAL_ERROR, "internal error")
        finally:
            caller.users -= 1

    return run


def _check_host(server: ServerContext, request: HTTPConnection) -> None:
    """Refuse a Host that is not ours: a page elsewhere may have its name resolved to this address."""
    host = request.headers.get("host", "").lower()
    if _name(host) not in _names(server):
        raise HttpFault(403, f"the host {host[:200]!r} is not one of this gateway's names")


def _check_origin(server: ServerContext, request: HTTPConnection) -> None:
    """Refuse what a page of another origin sends. Clients that are not browsers send no Origin."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HttpFault(403, "requests of other sites are refused")
    origin = request.headers.get("origin")
    if origin is None:
        return
    try:
        netloc = urlsplit(origin).netloc.lower()
    except ValueError:
        netloc = ""
    host = request.headers.get("host", "").lower()
    if netloc != host or _name(netloc) not in _names(server):
        raise HttpFault(403, f"the origin {origin[:200]!r} is not this gateway")


def _names(server: ServerContext) -> frozenset[str]:
    own = server.settings.names
    return LOOPBACK | {one.strip().lower() for one in own.split(",") if one.strip()}


def _name(host: str) -> str:
    """A host without its port."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() and port.isascii() else host
