"""Events of the engine, read by one stream for all containers: they trigger another inspection of a container.

An event, and every new connection to the engine, only wakes the waiting tasks, which inspect their container. So
nothing is lost while the engine is away.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

from services.agent.backoff import Backoff
from services.agent.drivers.docker.engine import (
    DockerEngine,
    EngineRefused,
    EngineUnavailable,
    cancel_task,
)

#: Interval of inspections without an event.
INSPECT_INTERVAL_S = 60.0
RETRY_S, RETRY_MAX_S = 0.1, 5.0
_ACTIONS = ["die", "oom", "destroy", "health_status", "kill"]


class EngineEvents:
    """Events of the containers that bear a label. `tell`: (container id, action) of each event."""

    def __init__(self, engine: DockerEngine, label: str, tell: Callable[[str, str], None]) -> None:
        self._engine = engine
        self._tell = tell
        asked = {"type": ["container"], "label": [label], "event": _ACTIONS}
        self._path = f"/events?filters={quote(json.dumps(asked))}"
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._reader: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def waiting(self, container: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when something may have happened to a container since it was requested."""
        self._follow()
        event = asyncio.Event()
        self._waiting.setdefault(container, set()).add(event)
        try:
            yield event
        finally:
            others = self._waiting.get(container, set())
            others.discard(event)
            if not others:
                self._waiting.pop(container, None)

    def close(self) -> None:
        """Stop reading."""
        cancel_task(self._reader)

    def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        reader = self._reader
        if reader is None or reader.done() or reader.get_loop() is not loop:
            self._reader = loop.create_task(self._read(), name="docker events")

    async def _read(self) -> None:
        pause = Backoff(RETRY_S, RETRY_MAX_S)
        while self._waiting:
            try:
                reader, writer = await self._engine.open("GET", self._path)
            except (EngineUnavailable, EngineRefused):
                await asyncio.sleep(pause.take())
                continue
            pause.reset()
            for container in list(self._waiting):
                self._wake(container)
            try:
                while line := await reader.readline():
                    self._take(json.loads(line))
            except (OSError, ValueError):
                pass
            finally:
                writer.close()
            await asyncio.sleep(RETRY_S)

    def _take(self, event: dict[str, Any]) -> None:
        container, action = str(event.get("id", "")), str(event.get("Action", ""))
        if action.startswith(("health_status", "oom")):
            self._tell(container, action)
        if action == "kill":
            # Its end follows, and has an event of its own.
            said = event.get("Actor", {}).get("Attributes", {}).get("signal", "")
            self._tell(container, f"kill: {said}")
            return
        self._wake(container)

    def _wake(self, container: str) -> None:
        for event in self._waiting.get(container, ()):
            event.set()
