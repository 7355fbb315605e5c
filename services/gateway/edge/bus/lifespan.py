"""FastStream inside the gateway's lifespan: loaded after the start, restarted when it fails, mounted below `/bus`."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog
from starlette.responses import Response

from services.gateway.edge.bus.workers import PresentServices
from shared.bus.connection.nats_client import Login

log = structlog.get_logger()
#: Until then the log is replayed, and the processor is free.
LOADED_AFTER_S = 2.0
_RETRY_S = 5.0
#: The page of subjects has a style and nothing else.
_CONTENT_POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class BusEdge:
    """What the gateway hears on the bus beside the log; nothing without a login: an archive has no bus."""

    def __init__(self, login: Login | None) -> None:
        self._login = login
        self.present = PresentServices()
        #: for /metrics; empty until FastStream is loaded.
        self.counts: Any = None
        self._app: Any = None

    @property
    def is_running(self) -> bool:
        """Whether the broker is connected."""
        return self._app is not None

    def metrics(self) -> dict[str, float]:
        """Counts of the broker's middleware."""
        return self.counts.metrics() if self.counts is not None else {}

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Run the application while the server runs; the server does not wait for it."""
        if self._login is None:
            yield
            return
        running = asyncio.create_task(self._run(self._login))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run(self, login: Login) -> None:
        await asyncio.sleep(LOADED_AFTER_S)
        stream = await asyncio.to_thread(_load)
        self.counts = self.counts or stream.BusCounts()
        while True:
            app = stream.make_stream(login, self.present, self.counts, time.monotonic)
            try:
                async with app.start_lifespan_context():
                    self._app = app
                    await asyncio.Event().wait()
            except Exception as err:  # noqa: BLE001 - any library of the edge may fail; answers do not need it.
                log.warning("bus.edge_failed", problem=f"{type(err).__name__}: {err}"[:300])
            finally:
                self._app = None
            await asyncio.sleep(_RETRY_S)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer below `/bus`: FastStream compares whole paths and knows plain HTTP alone."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if self._app is None:
            text = "the gateway is still starting, or the bus is unreachable"
            answer = Response(text, 503, {"Retry-After": "2"}, media_type="text/plain")
            await answer(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", _CONTENT_POLICY.encode())
                more = (b"x-content-type-options", b"nosniff")
                message = {**message, "headers": [*message.get("headers", ()), policy, more]}
            await send(message)

        await self._app(scope, receive, with_headers)


def _load() -> Any:
    from services.gateway.edge.bus import stream  # noqa: PLC0415 - see LOADED_AFTER_S.

    return stream
