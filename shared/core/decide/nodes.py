"""Nodes: registration, and whose word counts. What they say of allocations: `reports.py`; silence: `liveness.py`."""

from collections.abc import Sequence

import numpy as np

from schemas.base import Event
from schemas.nodes import (
    CapacityFreed,
    NodeRefused,
    NodeRegistered,
    NodeSpec,
    ReportNode,
)
from shared.core.decide.everywhere import look_again, place_of
from shared.core.decide.liveness import come_back, returned
from shared.core.decide.reports import reported_events
from shared.core.resources.offers import pools_fault, ports_fault
from shared.core.state import State
from shared.core.tables.allocations import UNKNOWN
from shared.core.tables.fleet import DISCONNECTED, DOWN, READY, class_key, laid_over

#: Above these a fingerprint is nonsense: 2 EHz and 2 PiB.
CAPACITY_MAX = 2**31 - 1


def decide_report(state: State, report: ReportNode, now_ns: int) -> list[Event]:
    """Decide one message of a node. Natural key: (node, boot, number)."""
    fleet = state.fleet
    row = fleet.row_of.get(report.node_id)
    known = row is not None and _is_current(state, report, row)
    if row is not None and known and report.number <= int(fleet.reports_seen[row]):
        return []
    events: list[Event] = []
    if report.spec is not None:
        problem = _problem(report, report.spec) or _conflict(state, report, row, report.spec)
        if problem:
            return _refuse(state, report, *problem)
        if row is None or not known or fleet.specs[row] != report.spec:
            events = _register(state, report, report.spec, row)
    elif not known:
        # Another boot, or a node that left: its agent sees that in the projection and registers again.
        return []
    if row is None:
        return events
    if not events and _is_waited_for(state, report, row):
        # Who reports is there; else what it says of its allocations would be of a node that is away.
        events = come_back(state, np.array([row], dtype=np.int32), "ready", "it reports again")
    return [*events, *reported_events(state, [report], [row], now_ns)]


def decide_reports(state: State, reports: Sequence[ReportNode], now_ns: int) -> list[Event]:
    """Decide messages of different nodes that `is_plain` holds for, as one: the same facts in fewer events."""
    rows = [state.fleet.row_of[report.node_id] for report in reports]
    return reported_events(state, reports, rows, now_ns)


def is_plain(state: State, report: ReportNode) -> bool:
    """Tell whether a message is new, of a known boot of a node that is here, and says nothing of the node itself."""
    fleet = state.fleet
    row = fleet.row_of.get(report.node_id)
    return (
        row is not None
        and report.spec is None
        and _is_current(state, report, row)
        and report.number > int(fleet.reports_seen[row])
        and fleet.status[row] == READY
    )


def _is_waited_for(state: State, report: ReportNode, row: int) -> bool:
    """Tell whether a node is away whose allocations may come back."""
    status, client = state.fleet.status[row], state.allocations.client
    if status != DOWN:
        return bool(status == DISCONNECTED)
    rows = (*(one.row for one in report.states), *report.brief.rows)
    here = (row for row in rows if 0 <= row < state.allocations.size)
    return any(client[at] == UNKNOWN for at in here)


def _is_current(state: State, report: ReportNode, row: int) -> bool:
    fleet = state.fleet
    return (fleet.host_ids[row], fleet.boot_ids[row]) == (report.host_id, report.boot_id)


def _conflict(
    state: State, report: ReportNode, row: int | None, spec: NodeSpec
) -> tuple[str, str] | None:
    """Another host may take a node's id over only when the node is down; a pool is of one kind on all nodes."""
    fleet = state.fleet
    if row is not None and fleet.host_ids[row] != report.host_id and fleet.status[row] != DOWN:
        return ("conflict", f"node {report.node_id!r} is up on another host")
    pools = (*spec.pools, *fleet.declared_of(spec.node_id))
    reason = fleet.offers.conflict(-1 if row is None else row, pools)
    return ("conflict", reason) if reason else None


def _register(state: State, report: ReportNode, spec: NodeSpec, row: int | None) -> list[Event]:
    fleet = state.fleet
    registered = NodeRegistered(
        spec=spec, host_id=report.host_id, boot_id=report.boot_id, number=report.number
    )
    shown = laid_over(spec, fleet.operator_meta.get(spec.node_id, {}))
    computed_class = fleet.classes.get(class_key(shown), len(fleet.classes))
    events: list[Event] = [registered, CapacityFreed(classes=(computed_class,), grown=True)]
    places = {(spec.datacenter, spec.node_pool)}
    if row is None:
        return [*events, *look_again(state, places)]
    if fleet.status[row] == READY and fleet.specs[row] == spec:
        return events
    places.add(place_of(state, row))
    return [*events, *returned(state, np.array([row], dtype=np.int32), sorted(places))]


def _problem(report: ReportNode, spec: NodeSpec) -> tuple[str, str] | None:
    if spec.node_id != report.node_id:
        return ("invalid", f"reports for node {report.node_id!r}, registers {spec.node_id!r}")
    for name, value, least in (
        ("cpu", spec.cpu_mhz, 1),
        ("memory", spec.memory_mib, 1),
        ("disk", spec.disk_mib, 0),
    ):
        if not least <= value <= CAPACITY_MAX:
            return ("invalid", f"{name} is {value}, it must be {least} to {CAPACITY_MAX}")
    reason = pools_fault(spec.pools) or ports_fault(spec)
    return ("invalid", reason) if reason else None


def _refuse(state: State, report: ReportNode, code: str, reason: str) -> list[Event]:
    refusal = NodeRefused(
        node_id=report.node_id,
        host_id=report.host_id,
        boot_id=report.boot_id,
        code=code,
        reason=reason[:500],
    )
    if state.fleet.refused.get(report.node_id) == refusal:
        return []
    return [refusal]
