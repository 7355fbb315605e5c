"""A client that publishes the gauge which gated jobs name: in and out of bounds, and silent for a while."""

import msgspec

from shared.protocol import subjects
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.virtual_time import MS, SECOND, RandomDraws

GAUGE = "load"
BOUND = 100
EVERY_MS = 400
_SILENT_PER_MILLE = 60
_CHANGE_PER_MILLE = 200


class GaugePublisher:
    """Publishes until the world ends; after the storm the gauge is within its bound."""

    def __init__(self, context: SimulationContext, draws: RandomDraws) -> None:
        self._context = context
        self._draws = draws
        self._value = 0
        self._is_calm = False

    def begin(self) -> None:
        """Publish for the first time."""
        self._context.loop.after(EVERY_MS * MS, self._publish)

    def close(self) -> None:
        """Stay within the bound from now on."""
        self._is_calm = True

    def _publish(self) -> None:
        draws, context = self._draws, self._context
        if draws.hit(_CHANGE_PER_MILLE):
            self._value = draws.below(2 * BOUND)
        pause = EVERY_MS * MS
        if draws.hit(_SILENT_PER_MILLE) and not self._is_calm:
            pause += draws.between(SECOND, 4 * SECOND)
        value = 0 if self._is_calm else self._value
        body = msgspec.json.encode({"value": value, "every_ms": EVERY_MS})
        for delay in context.message_faults.hop_delays():
            context.loop.after(delay, context.bus.publish, subjects.gauge(GAUGE), body)
        context.loop.after(pause, self._publish)
