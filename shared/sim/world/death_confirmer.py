"""An operator who sees the machines, and confirms the death of nodes without power while the cluster misses them."""

from collections.abc import Sequence

import msgspec

from shared.protocol import subjects
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.oracle.reference_model import ReferenceModel
from shared.sim.virtual_time import MS

_LOOK_NS = 700 * MS


class DeathConfirmer:
    """Looks at the machines now and then. A request is not repeated by itself: the next look makes another one."""

    def __init__(
        self, context: SimulationContext, model: ReferenceModel, nodes: Sequence[SimulatedNode]
    ) -> None:
        self._context = context
        self._model = model
        self._nodes = nodes
        self._is_closing = False
        self._number = 0

    def begin(self, after_ns: int) -> None:
        """Look for the first time after a while."""
        self._context.loop.after(after_ns, self._look)

    def close(self) -> None:
        """Confirm nothing more."""
        self._is_closing = True

    def _look(self) -> None:
        if self._is_closing:
            return
        dead = {node.node_id for node in self._nodes if node.is_dead}
        for node in self._model.nodes.values():
            if node.id in dead and node.status != "ready" and not node.is_confirmed_dead:
                self._request(node.id)
        self._context.loop.after(_LOOK_NS, self._look)

    def _request(self, node_id: str) -> None:
        self._number += 1
        body = {
            "node_id": node_id,
            "request_id": f"dead-{self._number}",
            "seen_seq": self._model.seq,
        }
        data = msgspec.json.encode(body)
        for delay in self._context.message_faults.hop_delays():
            subject = subjects.api("node", "confirm_dead")
            self._context.loop.after(delay, self._context.bus.publish, subject, data, _ignore)


def _ignore(_answer: bytes) -> None:
    """The log shows what came of it."""
