"""Runs a fork and says, as the timekeeper does, which deadlines of deployments have passed and what gates read."""

from schemas.base import DeploymentKey
from schemas.deployments import DeploymentDue
from shared.core.decide.deployments.gates import look_at_gates
from shared.core.state.state import State
from shared.cron.windows import new_window
from shared.sim.engine.engine import SimulationEngine
from shared.sim.virtual_time import SECOND
from shared.whatif.recorded_gauges import RecordedGauges, gated

#: Time between two looks at all deployments: a deadline is at most so much late, and never early.
_LOOK_NS = 10 * SECOND
#: The same where jobs have gates or windows, as in a cluster.
_GATE_LOOK_NS = SECOND


class DeploymentClock:
    """Advances an engine. Reports each deadline once. `has_gates`: deployments may have gates or windows."""

    def __init__(
        self, engine: SimulationEngine, gauges: RecordedGauges, *, has_gates: bool
    ) -> None:
        self._engine = engine
        self._gauges = gauges
        self._look_ns = _GATE_LOOK_NS if has_gates else _LOOK_NS
        self._told: set[tuple[DeploymentKey, int]] = set()

    def run(self, until_ns: int) -> None:
        """Run up to `until_ns`. Raises EngineStopped."""
        engine = self._engine
        while engine.now_ns < until_ns:
            next_ns = min(until_ns, engine.now_ns + self._look_ns)
            due = [one for one in self.due_times() if one > engine.now_ns]
            engine.run(min(next_ns, *due) if due else next_ns)
            self._tell()
        engine.run(until_ns)

    def due_times(self) -> list[int]:
        """Instants at which a deployment may fail, or a gate or window change."""
        state = self._engine.state
        return [*_deadlines(state), *self._gauges.due_times(state)]

    def _tell(self) -> None:
        state, now_ns = self._engine.state, self._engine.now_ns
        for key in sorted(state.deployments.active.values()):
            due_ns = state.deployments.by_key[key].due_ns
            if due_ns and due_ns <= now_ns and (key, due_ns) not in self._told:
                self._told.add((key, due_ns))
                self._engine.at(now_ns, DeploymentDue(key=key, due_ns=due_ns))
        self._gauges.now_ns = now_ns
        for one in gated(state):
            window = None if one.window is None else new_window(one.window, now_ns)
            command = look_at_gates(one, self._gauges.reading, window, now_ns)
            if command is not None:
                self._engine.at(now_ns, command)


def _deadlines(state: State) -> list[int]:
    table = state.deployments
    return [one for one in (table.by_key[key].due_ns for key in table.active.values()) if one]
