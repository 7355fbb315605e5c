"""Heartbeats for nodes whose agent is being restarted, sent by the supervisor that restarts it.

An agent that was killed is back in one to three seconds, longer on a busy machine; without a word the monitor would
declare its node down meanwhile, and running tasks would be replaced.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

from schemas.base import SECOND_NS, NodeId
from schemas.envelope import ENCODER
from schemas.nodes import HEARTBEAT_NS, Heartbeat
from shared.bus.connection.nats_client import Login, connect
from shared.errors import CaravanError
from shared.protocol import subjects

#: How long after the end of an agent that had run for a while: one that fails again and again is down in the end.
RESTART_S = 10.0
_EVERY_S = HEARTBEAT_NS / SECOND_NS


class RestartBeats:
    """Sends them from a thread of its own, which runs while there is a node to speak for."""

    def __init__(self, login_of: Callable[[str], Login]) -> None:
        self._login_of = login_of
        self._lock = threading.Lock()
        #: node -> end of its time, monotonic.
        self._until_s: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def send_until(self, node_id: str, until_s: float) -> None:
        """Send heartbeats for a node from now on, until that time."""
        with self._lock:
            self._until_s[node_id] = until_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="restarts", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._ending.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while nodes := self._due():
            for node_id in nodes:
                # Where the bus is gone the monitor is deaf, and gives every node time when it is back.
                with contextlib.suppress(CaravanError):
                    asyncio.run(self._send(node_id))
            if self._ending.wait(_EVERY_S):
                return

    def _due(self) -> list[str]:
        now_s = time.monotonic()
        with self._lock:
            self._until_s = {one: until for one, until in self._until_s.items() if now_s < until}
            if not self._until_s:
                self._thread = None
            return list(self._until_s)

    async def _send(self, node_id: str) -> None:
        client = await connect(self._login_of(node_id))
        try:
            beat = Heartbeat(node_id=NodeId(node_id), boot_id="", restarting=True)
            client.send(subjects.heartbeat(node_id), ENCODER.encode(beat))
        finally:
            await client.end()
