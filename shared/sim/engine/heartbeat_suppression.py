"""Suppressed heartbeats: the heartbeat monitor scans only while a node is silent.

A monitor whose timer fires late grants a grace to all nodes, so it declares none down for the time that it slept. Then
it is the real role with real heartbeats, one per second and healthy node, until the silent nodes are down in the log.
A day of healthy nodes would otherwise be a billion messages without effect.
"""

from collections.abc import Callable

from schemas.base import NodeId
from schemas.envelope import ENCODER
from schemas.nodes import HEARTBEAT_NS, Heartbeat
from shared.core.runtime import messages
from shared.core.state.state import State
from shared.core.state.tables.fleet import DISCONNECTED, DOWN
from shared.protocol import subjects
from shared.sim.engine.engine_role import EngineRole
from shared.sim.virtual_time import SECOND, VirtualLoop

#: Interval of scans for disconnected nodes alone.
DISCONNECTED_RESCAN_NS = 60 * SECOND


class HeartbeatSuppressor:
    """Drives the heartbeat role. Rows are the fleet's."""

    def __init__(self, loop: VirtualLoop, actor: EngineRole, state: Callable[[], State]) -> None:
        self._loop = loop
        self._actor = actor
        self._state = state
        self.is_scanning = False
        #: silent rows.
        self.silent: dict[int, None] = {}
        self._beats: dict[int, messages.Message] = {}
        self._boots: dict[int, str] = {}
        self._looks = 0

    def node_silenced(self, row: int) -> None:
        """Mark a node as silent, and scan."""
        self.silent[row] = None
        self.begin()

    def node_returned(self, row: int) -> None:
        """Mark a node as live, and send its heartbeat."""
        self.silent.pop(row, None)
        self._actor.accept(self._beat(row))

    def begin(self) -> None:
        """Start to scan, unless scanning."""
        if not self.is_scanning:
            self.is_scanning = True
            self._actor.accept(messages.Timer("scan", 0))
            self._loop.after(HEARTBEAT_NS, self._go_on)

    def _go_on(self) -> None:
        """Send the heartbeats of healthy nodes, and stop once no silent node is left to declare."""
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
            self._loop.after(HEARTBEAT_NS, self._go_on)
        else:
            self._end()
            self._loop.after(DISCONNECTED_RESCAN_NS, self.begin)

    def _lingering(self) -> bool:
        """Whether a scan for disconnected nodes must continue: eight heartbeats show that they are still silent."""
        self._looks += 1
        return self._looks % 8 != 0

    def _end(self) -> None:
        self.is_scanning = False
        self._actor.timers.pop("scan", None)

    def _beat(self, row: int) -> messages.Message:
        fleet = self._state().fleet
        boot_id = fleet.boot_ids[row]
        if self._boots.get(row) != boot_id:
            node_id = NodeId(fleet.ids[row])
            data = ENCODER.encode(Heartbeat(node_id=node_id, boot_id=boot_id))
            self._boots[row] = boot_id
            self._beats[row] = messages.Message("heartbeats", subjects.heartbeat(node_id), data, 0)
        return self._beats[row]
