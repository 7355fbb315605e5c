"""What both fleet roles share: their nodes, the outages of the profile, timers, and refused nodes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from schemas.nodes import NodeSpec
from shared.core.runtime.messages import Effect, Listen, SetTimer, Source
from shared.core.runtime.role import Input
from shared.fleet.outages import Outages
from shared.fleet.profile import NodeProfile
from shared.protocol import subjects


class SimulatedFleet(ABC):
    """The role of a fleet. `boots(node, nth)` names the boot of a node: new with every process and outage."""

    name = "fleet"
    leader_key = ""
    next_seq = 0

    def __init__(
        self,
        specs: Sequence[NodeSpec],
        node_profile: NodeProfile,
        *,
        instance: str,
        boots: Callable[[int, int], str],
        seed: int = 0,
    ) -> None:
        self.instance = instance
        #: node id -> reason.
        self.refused: dict[str, str] = {}
        self._specs = specs
        self._node_profile = node_profile
        self._boots = boots
        self._outages = Outages(node_profile, seed, len(specs))
        #: number of a node by the subject of its projection.
        self._number_of = {subjects.node(one.node_id): at for at, one in enumerate(specs)}
        self._is_begun = False
        self._timers: dict[str, int] = {}
        self._set_up(seed)

    @abstractmethod
    def _set_up(self, seed: int) -> None:
        """Create the nodes and their tasks."""

    @abstractmethod
    def step(self, inputs: Sequence[Input], now_ns: int) -> list[Effect]:
        """Take inputs, and return effects."""

    def sources(self) -> tuple[Source, ...]:
        """The projections of its nodes; the shell delivers the last value of each first."""
        return tuple(Listen("projection", subject) for subject in self._number_of)

    def metrics(self) -> dict[str, float]:
        """Gauges and counters."""
        return {
            "caravan_fleet_nodes": float(len(self._specs)),
            "caravan_fleet_refused": float(len(self.refused)),
            "caravan_fleet_away": float(len(self._outages)),
        }

    def _is_silent(self, number: int) -> bool:
        """Return whether a node is away, or refused."""
        return self._outages.is_away(number) or self._specs[number].node_id in self.refused

    def _set(self, name: str, at_ns: int, out: list[Effect]) -> None:
        """Set a timer, unless it is set to that time already."""
        if self._timers.get(name, 0) != at_ns:
            self._timers[name] = at_ns
            out.append(SetTimer(name, at_ns))
