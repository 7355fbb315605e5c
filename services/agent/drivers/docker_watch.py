"""Tells when to look at a container again: an engine's events, read by one stream for all of them.

Decides nothing: an event, and every new connection to the engine, only wakes who waits, and he asks the engine itself.
So nothing is lost while the engine is away. Must not know a task.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

from services.agent.drivers.docker_engine import Engine, EngineAway, EngineRefused, end_task

#: A container is looked at that often even when no event came.
LOOK_S = 60.0
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
_ACTIONS = ["die", "oom", "destroy", "health_status"]


class Watch:
    """Events of the containers that bear a label. `tell`: (container id, action) of each event."""

    def __init__(self, engine: Engine, label: str, tell: Callable[[str, str], None]) -> None:
        self._engine = engine
        self._tell = tell
        asked = {"type": ["container"], "label": [label], "event": _ACTIONS}
        self._path = f"/events?filters={quote(json.dumps(asked))}"
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._reader: asyncio.Task[None] | None = None
        #: False: no answer at the last try.
        self.is_connected = True

    @contextlib.asynccontextmanager
    async def waiting(self, container: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when something may have happened to a container since it was asked for."""
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
        end_task(self._reader)

    def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        reader = self._reader
        if reader is None or reader.done() or reader.get_loop() is not loop:
            self._reader = loop.create_task(self._read(), name="docker events")

    async def _read(self) -> None:
        pause_s = PAUSE_S
        while self._waiting:
            try:
                reader, writer = await self._engine.open("GET", self._path)
            except (EngineAway, EngineRefused):
                self.is_connected = False
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
                continue
            self.is_connected, pause_s = True, PAUSE_S
            for container in list(self._waiting):
                self._wake(container)
            try:
                while line := await reader.readline():
                    self._take(json.loads(line))
            except (OSError, ValueError):
                pass
            finally:
                writer.close()
            self.is_connected = False
            await asyncio.sleep(pause_s)

    def _take(self, event: dict[str, Any]) -> None:
        container, action = str(event.get("id", "")), str(event.get("Action", ""))
        if action.startswith(("health_status", "oom")):
            self._tell(container, action)
        self._wake(container)

    def _wake(self, container: str) -> None:
        for event in self._waiting.get(container, ()):
            event.set()
