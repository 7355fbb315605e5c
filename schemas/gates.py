"""Gates and windows: what holds the deployments of a job back while a gauge is out of bounds, or at other times.

Values and bounds of gauges are whole thousandths. A gate is closed, then opening (its gauge is within the bound, not
yet for long enough), then open; facts are written for these crossings alone. Passed: its timeout let the deployment
continue. Windows are instants computed by the timekeeper with its time zone data; the plan applier compares them with
the log.
"""

from schemas.base import Command, DeploymentKey, Event, Wire

GATE_STATUSES = ("closed", "opening", "open", "passed")
#: What becomes of a deployment when a gate was shut for its timeout.
ON_TIMEOUTS = ("fail", "proceed", "wait")
#: Of bounds and readings: their thousandths stay far below int64.
GAUGE_MAX = 10**12
GAUGE_CHARS_MAX = 128
EVERY_MS_MAX = 3_600_000


class UpdateGate(Wire, frozen=True, kw_only=True):
    """One `gate` block of a job's `update`."""

    name: str
    gauge: str
    #: in thousandths; the gauge has to be below it, or above it.
    bound: int
    is_above: bool = False
    #: how long it has to be so.
    for_ns: int = 0
    #: how long the gate may be shut; 0: forever.
    timeout_ns: int = 0
    #: fail, proceed or wait.
    on_timeout: str = "wait"


class UpdateWindow(Wire, frozen=True, kw_only=True):
    """One `window` block of a job's `update`; it is open for a time after each instant."""

    cron: str
    duration_ns: int
    time_zone: str = "UTC"


class DeploymentGated(Event, frozen=True, kw_only=True, tag="deployment.gated"):
    """A deployment begins with gates or windows, all of them shut."""

    key: DeploymentKey
    gates: tuple[UpdateGate, ...] = ()
    windows: tuple[UpdateWindow, ...] = ()
    since_ns: int = 0


class GateChanged(Event, frozen=True, kw_only=True, tag="deployment.gate_changed"):
    """A gauge crossed the bound of a gate, was within it for long enough, fell silent, or the gate timed out."""

    key: DeploymentKey
    gate: str
    #: closed, opening, open or passed.
    status: str
    #: the reading, in thousandths; null: there was none.
    value: int | None = None
    since_ns: int = 0
    #: how often the gauge is published; 0: by the cluster itself.
    every_ns: int = 0


class WindowChanged(Event, frozen=True, kw_only=True, tag="deployment.window_changed"):
    """The windows of a deployment opened, closed, or are known for the first time."""

    key: DeploymentKey
    is_open: bool
    #: when that ends; 0: never.
    until_ns: int = 0
    since_ns: int = 0


class GateReading(Wire, frozen=True, kw_only=True):
    """What the timekeeper heard for one gate."""

    gate: str
    #: `since_ns` of the gate as the sender knows it: nothing happens where it changed since.
    since_ns: int
    #: null: the gauge is silent.
    value: int | None = None
    every_ns: int = 0


class WindowReading(Wire, frozen=True, kw_only=True):
    """State of the windows of a deployment."""

    is_open: bool
    #: open: the instant at which it did.
    from_ns: int = 0
    #: when it closes, or opens; 0: never.
    until_ns: int = 0


class GateDue(Command, frozen=True, kw_only=True, tag="gate_due"):
    """Look at the gates of a deployment (cmd.timer). Natural key: the deployment, and each gate as it was seen."""

    key: DeploymentKey
    #: of gauges that clients publish; the plan applier reads those of the cluster itself.
    readings: tuple[GateReading, ...] = ()
    window: WindowReading | None = None


class Gauge(Wire, frozen=True, kw_only=True):
    """The last value of a gauge, published on `gauge.NAME` again and again, and never stored."""

    value: int | float
    #: how often it is published; silent for three times as long, it counts as out of bounds.
    every_ms: int
