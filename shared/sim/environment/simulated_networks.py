"""Networks of groups on a simulated node: made after a while, sometimes not at all, and sometimes lost.

A network outlives the agent, and a power loss ends it. While no agent runs none is lost: the next life would find it.
"""

from collections.abc import Callable

from shared.core.runtime.agent_messages import CloseAlloc
from shared.core.runtime.network_messages import (
    NetworkFailed,
    NetworkLost,
    NetworkReady,
    PrepareNetwork,
)
from shared.sim.virtual_time import MS, SECOND, RandomDraws, VirtualLoop

_LOST_WITHIN_NS = 8 * SECOND


class SimulatedNetworks:
    """Of one node. `inject` gives a message to the agent, which may be dead by then; `fails` draws a fault."""

    def __init__(
        self,
        loop: VirtualLoop,
        draws: RandomDraws,
        inject: Callable[[object], None],
        fails: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._draws = draws
        self._inject = inject
        self._fails = fails
        #: allocation -> its address, of networks that are there.
        self.addresses: dict[int, str] = {}
        #: allocations whose network was lost, or could not be made, once: their tasks may be ended.
        self.broken: set[int] = set()
        self._life = 0
        #: allocations that are over.
        self._closed: set[int] = set()

    def prepare(self, effect: PrepareNetwork) -> None:
        """Make or take over a network."""
        delay_ns = self._draws.between(MS, 400 * MS)
        self._loop.after(delay_ns, self._prepared, effect, self._life)

    def close(self, effect: CloseAlloc) -> None:
        """Remove the network of an allocation."""
        self._closed.add(effect.key)
        self.addresses.pop(effect.key, None)

    def forget_agent(self) -> None:
        """End what an agent had begun."""
        self._life += 1
        # The next life closes again what is over.
        self._closed.clear()

    def lose_power(self) -> None:
        """Nothing of a network survives."""
        self.addresses.clear()

    def _prepared(self, effect: PrepareNetwork, life: int) -> None:
        if life != self._life or effect.key in self._closed:
            return
        if effect.adopt and effect.key not in self.addresses:
            self._break(NetworkLost(key=effect.key, reason="simulated"))
        elif not effect.adopt and self._fails():
            self._break(NetworkFailed(key=effect.key, reason="simulated"))
        else:
            self.addresses[effect.key] = effect.address
            self._inject(NetworkReady(key=effect.key))
            if self._fails():
                delay_ns = self._draws.between(SECOND, _LOST_WITHIN_NS)
                self._loop.after(delay_ns, self._lose, effect, life)

    def _lose(self, effect: PrepareNetwork, life: int) -> None:
        if life == self._life and self.addresses.pop(effect.key, None) is not None:
            self._break(NetworkLost(key=effect.key, reason="simulated"))

    def _break(self, event: NetworkLost | NetworkFailed) -> None:
        self.broken.add(event.key)
        self._inject(event)
