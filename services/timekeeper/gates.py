"""Gates and windows of deployments, as a source of the timekeeper: every second each gated deployment is checked.

Receives gauges; the plan applier decides. A check that would change nothing sends no command, unless a gate reads a
gauge of the cluster itself: the plan applier has the tables for it. A command that is lost is not sent again, for the
next check sends what is true then. Values stay in memory; after a takeover a gauge has three of its intervals to be
heard.
"""

from collections.abc import Iterable

import msgspec

from schemas.base import Event
from schemas.deployments import (
    DeploymentEnded,
    DeploymentPaused,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentStarted,
)
from schemas.gates import (
    EVERY_MS_MAX,
    GAUGE_CHARS_MAX,
    GAUGE_MAX,
    DeploymentGated,
    GateChanged,
    GateDue,
    GateReading,
    Gauge,
    WindowChanged,
)
from services.timekeeper.due_heap import GRACE_NS, DueKey, DueTime
from shared.core.decide.deployments.gates import look_at_gates
from shared.core.runtime.messages import Message
from shared.core.state.gates import GateState
from shared.core.state.state import State
from shared.core.state.tables.deployments import Deployment
from shared.cron.windows import new_window
from shared.protocol import subjects

LOOK_NS = 1_000_000_000
#: Intervals without a message after which a gauge is silent.
SILENT_AFTER = 3
#: Gauges that are remembered; the one that was heard longest ago leaves first.
GAUGES_MAX = 10_000
_MS_NS = 1_000_000
_PREFIX = subjects.gauge("")
_PARTS = 1_000
_GAUGE = msgspec.json.Decoder(Gauge)


class HeardGauge(msgspec.Struct, frozen=True):
    """The last value of a gauge."""

    value: int
    every_ns: int
    at_ns: int


class GaugeInvalidError(ValueError):
    """An invalid gauge message; the text says why."""


def read_gauge(message: Message) -> Gauge:
    """Read a message on `gauge.NAME`. Raises GaugeInvalidError."""
    if message.fault:
        raise GaugeInvalidError(message.fault)
    if len(message.subject.removeprefix(_PREFIX)) > GAUGE_CHARS_MAX:
        raise GaugeInvalidError(f"a gauge's name has at most {GAUGE_CHARS_MAX} characters")
    try:
        found = _GAUGE.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise GaugeInvalidError(str(fault)) from None
    # Not a number is not within.
    if not -GAUGE_MAX <= found.value <= GAUGE_MAX:
        raise GaugeInvalidError(f"value must be -{GAUGE_MAX} to {GAUGE_MAX}")
    if not 1 <= found.every_ms <= EVERY_MS_MAX:
        raise GaugeInvalidError(f"every_ms must be 1 to {EVERY_MS_MAX}")
    return found


class HeardGauges:
    """The last values of gauges, by this process's own clock."""

    def __init__(self) -> None:
        self.by_name: dict[str, HeardGauge] = {}
        #: the steady time now.
        self.now_ns = 0
        #: when this instance began to lead, or was connected again.
        self._began_ns = 0

    def begin(self) -> None:
        """Give every gauge time to be heard."""
        self._began_ns = self.now_ns

    def record(self, message: Message) -> None:
        """Take a message. Raises GaugeInvalidError."""
        said = read_gauge(message)
        name = message.subject.removeprefix(_PREFIX)
        self.by_name.pop(name, None)
        if len(self.by_name) >= GAUGES_MAX:
            del self.by_name[next(iter(self.by_name))]
        value = round(said.value * _PARTS)
        self.by_name[name] = HeardGauge(value, said.every_ms * _MS_NS, self.now_ns)

    def reading(self, one: GateState) -> GateReading | None:
        """Return what is known of a gate's gauge; None: it may still be heard."""
        now_ns = self.now_ns
        heard = self.by_name.get(one.gate.gauge)
        name, since_ns = one.gate.name, one.since_ns
        if heard is not None and now_ns - heard.at_ns <= SILENT_AFTER * heard.every_ns:
            return GateReading(
                gate=name, since_ns=since_ns, value=heard.value, every_ns=heard.every_ns
            )
        every_ns = one.every_ns if heard is None else heard.every_ns
        wait_ns = SILENT_AFTER * every_ns if every_ns else GRACE_NS
        if now_ns - self._began_ns <= wait_ns:
            return None
        return GateReading(gate=name, since_ns=since_ns)


class UpdateGates:
    """The source of the role. Its keys are those of deployments."""

    tables = frozenset({"deployments"})
    events: frozenset[type[Event]] = frozenset(
        {
            DeploymentStarted,
            DeploymentGated,
            GateChanged,
            WindowChanged,
            DeploymentReleased,
            DeploymentPaused,
            DeploymentResumed,
            DeploymentEnded,
        }
    )
    is_told_again = False
    is_log_time = False
    needs_lease = True

    def __init__(self, gauges: HeardGauges) -> None:
        self._gauges = gauges

    def keys(self, state: State) -> Iterable[DueKey]:
        """Return the deployments that did not end."""
        return list(state.deployments.active.values())

    def changed(self, state: State, event: Event) -> Iterable[DueKey]:
        """Return the deployment that an event is about."""
        del state
        return (getattr(event, "key", 0),)

    def due_ns(self, state: State, key: DueKey, at: DueTime) -> int:
        """Return when a gated deployment is looked at; 0: it is not."""
        return at.wall_ns + LOOK_NS if self._gated(state, key) is not None else 0

    def grace_ns(self, state: State, key: DueKey) -> int:
        """Return nothing: a gauge has its own time to be heard."""
        del state, key
        return 0

    def command(self, state: State, key: DueKey, at: DueTime) -> GateDue | None:
        """Say what was heard for a deployment; None: it changes nothing."""
        one = self._gated(state, key)
        if one is None:
            return None
        # A gate counts in log time; a window is a time of the day.
        window = None if one.window is None else new_window(one.window, at.wall_ns)
        return look_at_gates(one, self._gauges.reading, window, at.log_ns)

    def _gated(self, state: State, key: DueKey) -> Deployment | None:
        one = state.deployments.by_key.get(key)  # type: ignore[call-overload]
        return one if one is not None and one.is_active and one.is_gated else None
