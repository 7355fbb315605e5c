"""The HTTP server beside the shell: its socket and its limits."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import structlog
import uvicorn

from services.gateway.edge.app import make_app
from services.gateway.edge.connection_limits import bounded_protocol
from services.gateway.edge.context import ServerContext
from shared.errors import ConfigInvalid

log = structlog.get_logger()
#: Open files that are not connections of clients.
_OWN_FILES = 256
_GRACE_S = 3


class HttpServer:
    """Serves until it is cancelled. `on_listening` gets the address."""

    def __init__(
        self, context: ServerContext, on_listening: Callable[[str], None] = lambda _url: None
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._on_listening = on_listening

    async def serve(self) -> None:
        """Listen and answer. Raises ConfigInvalid: the address cannot be used."""
        connections_max = min(self._settings.connections, _allow_connections())
        app = make_app(self._context)
        config = uvicorn.Config(
            app,
            host=self._settings.host,
            port=self._settings.port,
            http=bounded_protocol(connections_max, self._settings.request_s),
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_S,
            ws_max_size=1 << 20,
        )
        server = _Server(config)
        sock = self._listen()
        url = f"http://{self._settings.host}:{sock.getsockname()[1]}"
        self._on_listening(url)
        if self._settings.url_file:
            await asyncio.to_thread(Path(self._settings.url_file).write_text, f"{url}\n")
        log.info("gateway.listening", url=url)
        try:
            # Entered here and not by uvicorn, which leaves it open where serving is cancelled.
            async with app.router.lifespan_context(app):
                await server.serve(sockets=[sock])
        finally:
            server.should_exit = True
            await self._context.callers.end()
            sock.close()

    def _listen(self) -> socket.socket:
        """Open the socket. Raises ConfigInvalid: the address cannot be used."""
        reason = ""
        for port in self._ports():
            try:
                family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
                sock = socket.create_server(
                    (self._settings.host, port), family=family, backlog=2048
                )
            except OSError as err:
                reason = (
                    f"the gateway cannot listen on {self._settings.host}:{port}: {err.strerror}"
                )
            else:
                sock.setblocking(False)
                return sock
        raise ConfigInvalid(reason)

    def _ports(self) -> tuple[int, ...]:
        """Ports to try in turn. Pages and clients know the last one, so it comes first."""
        own = self._settings.port
        if not self._settings.any_port:
            return (own,)
        try:
            last = urlsplit(Path(self._settings.url_file).read_text(encoding="utf-8").strip()).port
        except (OSError, ValueError):
            last = None
        return tuple(dict.fromkeys((*((last,) if last else ()), own, 0)))


def _allow_connections() -> int:
    """Take as many open files as the system permits: each connection is one. Returns how many there may be."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(hard - _OWN_FILES, 1)


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
