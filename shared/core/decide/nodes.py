"""Nodes: registration, and the reports of agents. Silence and return: `liveness.py`."""

import msgspec
import numpy as np

from schemas.allocations import AllocationsReported, AllocDetail
from schemas.base import Event, JobId
from schemas.envelope import ENCODER
from schemas.nodes import (
    AllocReport,
    CapacityFreed,
    NodeRefused,
    NodeRegistered,
    NodeSpec,
    ReportNode,
)
from shared.core.decide.displacing import emptied
from shared.core.decide.everywhere import look_again, place_of
from shared.core.decide.freed import freed_on
from shared.core.decide.liveness import come_back, returned
from shared.core.decide.purge import forget
from shared.core.decide.reschedules import is_stopped, retry, retry_at
from shared.core.resources.offers import pools_fault, ports_fault
from shared.core.state import State
from shared.core.tables.allocations import (
    CLIENT_CODE,
    COMPLETE,
    FAILED,
    PENDING,
    RUN,
    RUNNING,
    TERMINAL,
    UNKNOWN,
)
from shared.core.tables.fleet import DISCONNECTED, DOWN, READY, class_key, laid_over

#: Above these a fingerprint is nonsense: 2 EHz and 2 PiB.
CAPACITY_MAX = 2**31 - 1
#: client status code -> those that may follow.
LEGAL = {
    PENDING: {RUNNING, COMPLETE, FAILED},
    # A task that ended is pending until it is started again in place.
    RUNNING: {PENDING, COMPLETE, FAILED},
    UNKNOWN: {PENDING, RUNNING, COMPLETE, FAILED},
}


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
    return [*events, *_states(state, report, row, now_ns)]


def _is_waited_for(state: State, report: ReportNode, row: int) -> bool:
    """Tell whether a node is away whose allocations may come back."""
    status, client = state.fleet.status[row], state.allocations.client
    if status != DOWN:
        return bool(status == DISCONNECTED)
    here = (one.row for one in report.states if 0 <= one.row < state.allocations.size)
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


def _states(state: State, report: ReportNode, row: int, now_ns: int) -> list[Event]:
    allocations = state.allocations
    rows: list[int] = []
    codes: list[int] = []
    details: list[AllocDetail] = []
    retries: dict[JobId, int] = {}
    ended: list[int] = []
    for entry in report.states:
        code = _legal_code(state, entry, row)
        if code is None:
            continue
        at = entry.row
        tasks = msgspec.Raw(ENCODER.encode(entry.tasks) if entry.tasks else b"{}")
        known = allocations.details.get(at, b"{}")
        if code == allocations.client[at] and bytes(tasks) == known:
            continue
        job_id = allocations.groups.job_ids[int(allocations.group[at])]
        retry_ns, chain = 0, tuple[int, ...]()
        if TERMINAL[code]:
            ended.append(at)
            if allocations.desired[at] == RUN:
                due, chain = retry_at(state, at, code, now_ns)
                retry_ns = due if code == FAILED else 0
                if due and not is_stopped(state, job_id):
                    retries[job_id] = min(due, retries.get(job_id, due))
        rows.append(at)
        codes.append(code)
        if bytes(tasks) != known or retry_ns:
            details.append(
                AllocDetail(row=at, tasks=tasks, reschedule_at_ns=retry_ns, reschedules=chain)
            )
    reported = AllocationsReported(
        nodes=(row,),
        numbers=(report.number,),
        rows=tuple(rows),
        statuses=tuple(codes),
        details=tuple(details),
    )
    events: list[Event] = [reported]
    if ended:
        events.append(freed_on(state, row, ended))
        events += emptied(state, row, ended)
    if retries:
        events.extend(retry(state, retries, now_ns))
    if state.jobs.purging:
        events.extend(_purge(state, rows, codes))
    return events


def _purge(state: State, rows: list[int], codes: list[int]) -> list[Event]:
    """Forget purged jobs of which the last allocation just ended."""
    groups, group = state.allocations.groups, state.allocations.group
    ending: dict[JobId, set[int]] = {}
    for row, code in zip(rows, codes, strict=True):
        job_id = groups.job_ids[int(group[row])]
        if TERMINAL[code] and job_id in state.jobs.purging:
            ending.setdefault(job_id, set()).add(row)
    return [event for job_id in sorted(ending) for event in forget(state, job_id, ending[job_id])]


def _legal_code(state: State, entry: AllocReport, node_row: int) -> int | None:
    """Code of a reported status, None when it is not this node's to say or can not follow."""
    allocations = state.allocations
    if not 0 <= entry.row < allocations.size or allocations.key[entry.row] != entry.key:
        return None
    if allocations.node[entry.row] != node_row:
        return None
    code = CLIENT_CODE.get(entry.status)
    before = int(allocations.client[entry.row])
    if code is None or (code != before and code not in LEGAL.get(before, ())):
        return None
    return code
