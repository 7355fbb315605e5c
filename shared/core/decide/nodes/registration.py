"""Nodes: registration, and whose reports count. Reports about allocations: `reports.py`; silence: `liveness.py`."""

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
from shared.core.decide.deciders import TimedDeciders
from shared.core.decide.host_volumes import reported_volumes
from shared.core.decide.incarnation import is_credible
from shared.core.decide.nodes.liveness import recover_nodes, recovery_events
from shared.core.decide.nodes.reports import reported_events
from shared.core.decide.system_jobs import evaluate_system_jobs, node_location
from shared.core.resources.offers import invalid_pools, invalid_ports
from shared.core.scheduling.reconcile.stateful_allocs import holds_stateful
from shared.core.state.state import State
from shared.core.state.tables.allocations import UNKNOWN
from shared.core.state.tables.fleet import (
    DISCONNECTED,
    DOWN,
    READY,
    computed_class_key,
    with_operator_meta,
)

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
        lost = _first_lost(state, report)
        if row is None or not known or fleet.specs[row] != report.spec or lost:
            events = _register(state, report, report.spec, row, lost=lost)
    elif not known:
        # Another boot, or a node that left: its agent sees that in the projection and registers again.
        return []
    if row is None:
        return events
    if not events and _is_waited_for(state, report, row):
        # A node that reports is up; otherwise its report on allocations would be about a node that is down.
        events = recover_nodes(state, np.array([row], dtype=np.int32), "ready", "it reports again")
    volumes = reported_volumes(state, report) if report.volumes else []
    return [*events, *reported_events(state, [report], [row], now_ns), *volumes]


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
        and not report.volumes
        and _is_current(state, report, row)
        and report.number > int(fleet.reports_seen[row])
        and fleet.status[row] == READY
    )


def _is_waited_for(state: State, report: ReportNode, row: int) -> bool:
    """Tell whether a node is away whose allocations may come back, or of which an operator said that it is dead."""
    status, client = state.fleet.status[row], state.allocations.client
    if row in state.fleet.confirmed_dead:
        return True
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
    if row is not None and fleet.host_ids[row] != report.host_id and holds_stateful(state, row):
        text = "has stateful allocations that may still run on its earlier host: confirm that it is dead"
        return ("conflict", f"node {report.node_id!r} {text}")
    pools = (*spec.pools, *fleet.declared_of(spec.node_id))
    reason = fleet.offers.conflict(-1 if row is None else row, pools)
    return ("conflict", reason) if reason else None


def _first_lost(state: State, report: ReportNode) -> int:
    """First record of the history that a node followed and this log lacks: it was restored from an older copy."""
    incarnation, seq = report.followed_incarnation, report.followed_seq
    if not seq or not is_credible(incarnation, seq):
        return 0
    return state.policy.incarnations.first_lost(incarnation, seq)


def _register(
    state: State, report: ReportNode, spec: NodeSpec, row: int | None, *, lost: int
) -> list[Event]:
    fleet = state.fleet
    registered = NodeRegistered(
        spec=spec,
        host_id=report.host_id,
        boot_id=report.boot_id,
        number=report.number,
        lost_first_seq=lost,
        lost_seq=report.followed_seq if lost else 0,
    )
    shown = with_operator_meta(spec, fleet.operator_meta.get(spec.node_id, {}))
    computed_class = fleet.classes.get(computed_class_key(shown), len(fleet.classes))
    events: list[Event] = [registered, CapacityFreed(classes=(computed_class,), grown=True)]
    places = {(spec.datacenter, spec.node_pool)}
    if row is None:
        return [*events, *evaluate_system_jobs(state, places)]
    if fleet.status[row] == READY and fleet.specs[row] == spec:
        return events
    places.add(node_location(state, row))
    return [*events, *recovery_events(state, np.array([row], dtype=np.int32), sorted(places))]


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
    reason = invalid_pools(spec.pools) or invalid_ports(spec)
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


TIMED_DECIDERS: TimedDeciders = {ReportNode: decide_report}
