"""Gates and windows of deployments: how a reading changes them, and how they hold or release the deployment.

Gauges of the cluster itself are read from the tables; those of clients come with the command. Only crossings become
facts: a reading that changes nothing leaves none.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.base import DeploymentKey, Event
from schemas.deployments import DeploymentStarted
from schemas.gates import (
    DeploymentGated,
    GateChanged,
    GateDue,
    GateReading,
    WindowChanged,
    WindowReading,
)
from shared.core.decide.deployments.progress import (
    Failure,
    fail_deployment,
    hold_deployment,
    release_deployment,
)
from shared.core.resources.offers import column_of_size
from shared.core.state.gates import (
    OPEN,
    PASSED,
    GateState,
    gate_text,
    is_crossing,
    is_new_window,
    next_status,
    window_text,
)
from shared.core.state.state import State
from shared.core.state.tables.deployments import PAUSED, Deployment

CAUSE = "gate"
OPENED = "all gates are open"
_COLUMNS = ("cpu_held", "memory_held", "disk_held")
_PARTS, _PERCENT = 1_000, 100_000


def begin_gates(state: State, event: DeploymentStarted, now_ns: int) -> list[Event]:
    """Hold a new deployment whose job has gates or windows. A way back is not held."""
    job = state.jobs.by_id.get(event.job_id)
    if job is None or event.cause == "revert" or not (job.gates or job.windows):
        return []
    gated = DeploymentGated(key=event.key, gates=job.gates, windows=job.windows, since_ns=now_ns)
    return [gated]


def follow_gates(state: State, key: DeploymentKey, now_ns: int) -> list[Event]:
    """Hold a deployment of which a gate or window is shut now, release it where none is."""
    deployment = state.deployments.by_key[key]
    if not deployment.is_active or not deployment.is_gated:
        return []
    if reason := shut_text(deployment):
        return list(hold_deployment(deployment, CAUSE, reason, now_ns))
    return list(release_deployment(deployment, CAUSE, OPENED, now_ns))


def shut_text(deployment: Deployment) -> str:
    """Say which gates and windows hold a deployment; empty: none does."""
    shut = [gate_text(one) for one in deployment.gates if not one.lets_through]
    window = deployment.window
    if window is not None and not window.is_open:
        shut.append(window_text(window))
    return "; ".join(shut)


def look_at_gates(
    deployment: Deployment,
    reading_of: Callable[[GateState], GateReading | None],
    window: WindowReading | None,
    now_ns: int,
) -> GateDue | None:
    """Return the command to send for a gated deployment; None: it would change nothing.

    `reading_of` knows the gauges that clients publish; `window` is where the windows stand, if that is new.
    """
    outer = [one for one in deployment.gates if not is_built_in(one.gate.gauge)]
    found = [(one, reading_of(one)) for one in outer]
    readings = [
        reading
        for one, reading in found
        if reading is not None and is_crossing(one, reading.value, now_ns)
    ]
    is_late = any(0 < one.timeout_ns <= now_ns for one in deployment.gates)
    if not readings and window is None and not is_late and len(outer) == len(deployment.gates):
        return None
    return GateDue(key=deployment.key, readings=tuple(readings), window=window)


def decide_gates(state: State, command: GateDue, now_ns: int) -> list[Event]:
    """Decide what has become of the gates and windows of a deployment."""
    deployment = state.deployments.by_key.get(command.key)
    if deployment is None or not deployment.is_active or not deployment.is_gated:
        return []
    heard = {one.gate: one for one in command.readings}
    changes: list[Event] = []
    late: list[GateState] = []
    for one in deployment.gates:
        status = one.status
        reading = _reading(state, one, heard.get(one.gate.name))
        if reading is not None and is_crossing(one, reading.value, now_ns):
            status = next_status(one, reading.value, now_ns)
            every_ns = reading.every_ns or one.every_ns
            said = {"status": status, "value": reading.value, "every_ns": every_ns}
            changes.append(_changed(deployment, one, now_ns, **said))
        # A paused deployment does not fail.
        if status != OPEN and 0 < one.timeout_ns <= now_ns and deployment.status != PAUSED:
            late.append(one)
    changes += _window(deployment, command.window, now_ns)
    return changes + _timed_out(state, deployment, late, now_ns)


def _reading(state: State, one: GateState, heard: GateReading | None) -> GateReading | None:
    """Return the reading of a gate; None: it changed since the sender looked at it, or nothing was said of it."""
    gate = one.gate
    if is_built_in(gate.gauge):
        value = built_in_gauge(state, gate.gauge)
        return GateReading(gate=gate.name, since_ns=one.since_ns, value=value)
    return heard if heard is not None and heard.since_ns == one.since_ns else None


def _changed(deployment: Deployment, one: GateState, now_ns: int, **turned: Any) -> GateChanged:
    fields: dict[str, Any] = {
        "status": one.status,
        "value": one.value,
        "every_ns": one.every_ns,
    }
    fields |= turned
    return GateChanged(key=deployment.key, gate=one.gate.name, since_ns=now_ns, **fields)


def _timed_out(
    state: State, deployment: Deployment, late: list[GateState], now_ns: int
) -> list[Event]:
    """Fail a deployment of which a gate timed out, or pass those gates."""
    failing = [one for one in late if one.gate.on_timeout == "fail"]
    if failing:
        reason = f"Failed due to {gate_text(failing[0])}"
        return fail_deployment(state, deployment, Failure(CAUSE, reason, deployment.groups))
    return [_changed(deployment, one, now_ns, status=PASSED) for one in late]


def _window(deployment: Deployment, said: WindowReading | None, now_ns: int) -> list[Event]:
    """Take windows that opened or closed, as far as log time has come to these instants."""
    window = deployment.window
    if window is None or said is None:
        return []
    if not is_new_window(window, said, now_ns):
        return []
    changed = WindowChanged(
        key=deployment.key, is_open=said.is_open, until_ns=said.until_ns, since_ns=now_ns
    )
    return [changed]


# ---- gauges of the cluster itself ----


def is_built_in(gauge: str) -> bool:
    """Tell whether the cluster itself knows a gauge."""
    return gauge.split(".", 1)[0] in {"cluster", "pool", "queue"}


def built_in_gauge(state: State, gauge: str) -> int | None:
    """Read a gauge of the cluster itself, in thousandths; None: nothing is offered of it."""
    kind, _, rest = gauge.partition(".")
    if kind == "queue":
        table = state.evaluations
        blocked = len(table.blocked_of)
        return _PARTS * (blocked if rest == "blocked" else len(table.open) - blocked)
    rows = np.flatnonzero(state.fleet.ready())
    pool, _, what = rest.rpartition(".")
    if kind == "pool":
        specs = state.fleet.specs
        mine = [specs[row].node_pool == pool for row in rows.tolist()]
        rows = rows[np.array(mine, dtype=bool)]
    return _held_percent(state, rows, _COLUMNS.index(what))


def _held_percent(state: State, rows: NDArray[np.int64], column: int) -> int | None:
    """Percent of what nodes offer that allocations hold, in thousandths. Shape: (N,)."""
    fleet, held = state.fleet, state.allocations.held
    used = int(held.columns(fleet.size)[rows, column].sum())
    if column == 0 and held.has_cores:
        mhz = column_of_size(fleet.offers.core_mhz, fleet.size)
        used += int((held.cores(fleet.size)[rows] * mhz[rows]).sum())
    offered = int(fleet.capacity[rows, column].sum())
    return used * _PERCENT // offered if offered else None
