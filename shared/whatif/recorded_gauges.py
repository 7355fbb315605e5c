"""Gauges of clients in a fork: what the recorded gates read, from the moment at which the log has it.

A log keeps crossings alone: between two of them a gauge counts as where the former one saw it. A gauge that no gate
read has no value, and a gate that names it stays closed.
"""

from collections.abc import Iterator

import msgspec

from schemas.gates import GateChanged, GateReading
from shared.core.decide.deployments.gates import is_built_in
from shared.core.state.gates import OPENING, GateState
from shared.core.state.state import State
from shared.core.state.tables.deployments import PAUSED, Deployment


class RecordedValue(msgspec.Struct, frozen=True):
    """One reading of a gauge."""

    t_ns: int
    gauge: str
    value: int | None
    every_ns: int


def values_there(state: State) -> list[RecordedValue]:
    """Return the last values that the gates of a state know."""
    found = [
        RecordedValue(gate.since_ns, gate.gate.gauge, gate.value, gate.every_ns)
        for one in state.deployments.by_key.values()
        for gate in one.gates
        if gate.value is not None and not is_built_in(gate.gate.gauge)
    ]
    return sorted(found, key=lambda one: one.t_ns)


def value_of(state: State, event: GateChanged) -> RecordedValue | None:
    """Return the reading of an event; None: the gauge is the cluster's own. `state`: before it."""
    deployment = state.deployments.by_key.get(event.key)
    gates = () if deployment is None else deployment.gates
    for one in gates:
        if one.gate.name == event.gate and not is_built_in(one.gate.gauge):
            return RecordedValue(state.t_ns, one.gate.gauge, event.value, event.every_ns)
    return None


class RecordedGauges:
    """The values by gauge, oldest first."""

    def __init__(self, values: list[RecordedValue]) -> None:
        self._of: dict[str, list[RecordedValue]] = {}
        for one in values:
            self._of.setdefault(one.gauge, []).append(one)
        self.now_ns = 0

    def reading(self, gate: GateState) -> GateReading | None:
        """Return what a gate reads now; None: its gauge has no value yet."""
        past = [one for one in self._of.get(gate.gate.gauge, ()) if one.t_ns <= self.now_ns]
        if not past:
            return None
        last = past[-1]
        return GateReading(
            gate=gate.gate.name,
            since_ns=gate.since_ns,
            value=last.value,
            every_ns=last.every_ns,
        )

    def due_times(self, state: State) -> Iterator[int]:
        """Instants at which a gate or window of an active deployment may change."""
        for one in gated(state):
            for gate in one.gates:
                if gate.status == OPENING:
                    yield gate.since_ns + gate.gate.for_ns
                yield gate.timeout_ns
                yield from (value.t_ns for value in self._of.get(gate.gate.gauge, ()))
            if one.window is not None:
                yield one.window.until_ns


def gated(state: State) -> list[Deployment]:
    """Return the deployments with gates or windows that did not end and are not paused."""
    table = state.deployments
    active = [table.by_key[key] for key in sorted(table.active.values())]
    return [one for one in active if one.is_gated and one.status != PAUSED]
