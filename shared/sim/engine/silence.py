"""Heartbeats that need not be sent: the monitor watches only while somebody is silent.

Decides when the heartbeat role scans, and lets every healthy node beat often enough meanwhile. A monitor whose timer
fires late (it may) forgives everybody, so it judges nobody by the time that it slept; from then on it is the real
role with real heartbeats, one a second, until whoever is silent is down in the log.
A day of healthy nodes would be a billion messages that change nothing.
"""

from collections.abc import Callable

from schemas.base import NodeId
from schemas.envelope import ENCODER
from schemas.nodes import Heartbeat
from shared.bus import subjects
from shared.core import role
from shared.core.state import State
from shared.core.tables.fleet import DISCONNECTED, DOWN
from shared.sim.engine.actor import Actor
from shared.sim.loop import SECOND, Loop

#: As agents do: a policy may let one missed heartbeat count.
BEAT_NS = SECOND
#: Disconnected nodes alone are asked about so often.
LINGER_NS = 60 * SECOND


class Watch:
    """Drives the heartbeat role. Rows are the fleet's."""

    def __init__(self, loop: Loop, actor: Actor, state: Callable[[], State]) -> None:
        self._loop = loop
        self._actor = actor
        self._state = state
        self.is_on = False
        #: silent rows.
        self.silent: dict[int, None] = {}
        self._beats: dict[int, role.Message] = {}
        self._boots: dict[int, str] = {}
        self._looks = 0

    def fell_silent(self, row: int) -> None:
        """Look for a node that is not heard any more."""
        self.silent[row] = None
        self.begin()

    def came_back(self, row: int) -> None:
        """Hear a node again, at once."""
        self.silent.pop(row, None)
        self._actor.take(self._beat(row))

    def begin(self) -> None:
        """Scan from now on, if it does not."""
        if not self.is_on:
            self.is_on = True
            self._actor.take(role.Timer("scan", 0))
            self._loop.after(BEAT_NS, self._go_on)

    def _go_on(self) -> None:
        """Let all who are well beat, and see whether anybody is still looked for."""
        state = self._state()
        fleet = state.fleet
        status = fleet.status[: fleet.size]
        looked_for = any(
            row < fleet.size and fleet.live[row] and status[row] not in (DOWN, DISCONNECTED)
            for row in self.silent
        )
        away = bool((fleet.live[: fleet.size] & (status == DISCONNECTED)).any())
        if not looked_for and not away:
            self._end()
            return
        live = fleet.live[: fleet.size].nonzero()[0].tolist()
        self._actor.inbox += [self._beat(row) for row in live if row not in self.silent]
        self._actor.wake()
        if looked_for or self._lingering():
            self._loop.after(BEAT_NS, self._go_on)
        else:
            self._end()
            self._loop.after(LINGER_NS, self.begin)

    def _lingering(self) -> bool:
        """Tell whether a look at the disconnected was not long enough to say that they are still silent."""
        self._looks += 1
        return self._looks % 8 != 0

    def _end(self) -> None:
        self.is_on = False
        self._actor.timers.pop("scan", None)

    def _beat(self, row: int) -> role.Message:
        fleet = self._state().fleet
        boot_id = fleet.boot_ids[row]
        if self._boots.get(row) != boot_id:
            node_id = NodeId(fleet.ids[row])
            data = ENCODER.encode(Heartbeat(node_id=node_id, boot_id=boot_id))
            self._boots[row] = boot_id
            self._beats[row] = role.Message("heartbeats", subjects.heartbeat(node_id), data, 0)
        return self._beats[row]
