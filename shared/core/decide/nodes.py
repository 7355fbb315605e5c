"""Nodes: registration, liveness, and the reports of agents."""

import msgspec
import numpy as np

from schemas.allocations import AllocationsReported, AllocDetail
from schemas.base import Event, JobId
from schemas.envelope import ENCODER
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import ReschedulePolicy
from schemas.nodes import (
    AllocReport,
    CapacityFreed,
    ChangeLiveness,
    NodeRefused,
    NodeRegistered,
    NodeSpec,
    NodesStatusChanged,
    ReportNode,
)
from shared.core.columns import Rows
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
from shared.core.tables.fleet import DOWN, STATUS_CODE, class_key

#: Above these a fingerprint is nonsense: 2 EHz and 2 PiB.
CAPACITY_MAX = 2**31 - 1
#: Evaluations that one command creates; at 200 bytes each (ids have 128 at most) well below a transaction's 512 KiB.
EVALUATIONS_MAX = 1_500
#: Reschedule delays within this window share one evaluation, as in Nomad.
RESCHEDULE_WINDOW_NS = 5_000_000_000
#: Reschedules of one chain that are remembered at the most.
RESCHEDULES_KEPT = 100
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
            events = _register(state, report, report.spec)
    elif not known:
        # Another boot, or a node that left: its agent sees that in the projection and registers again.
        return []
    return events if row is None else [*events, *_states(state, report, row, now_ns)]


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


def _register(state: State, report: ReportNode, spec: NodeSpec) -> list[Event]:
    fleet = state.fleet
    registered = NodeRegistered(
        spec=spec, host_id=report.host_id, boot_id=report.boot_id, number=report.number
    )
    computed_class = fleet.classes.get(class_key(spec), len(fleet.classes))
    return [registered, CapacityFreed(classes=(computed_class,))]


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
    frees = False
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
            frees = True
            if allocations.desired[at] == RUN:
                due, chain = _retry_at(state, at, code, now_ns)
                retry_ns = due if code == FAILED else 0
                if due and not _is_stopped(state, job_id):
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
    if frees:
        events.append(CapacityFreed(classes=(int(state.fleet.class_of[row]),)))
    if retries:
        events.extend(_retry(state, retries, now_ns))
    return events


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


def _retry_at(state: State, row: int, code: int, now_ns: int) -> tuple[int, tuple[int, ...]]:
    """Log time from which an ended allocation may be replaced (0: never), and the reschedules of its chain then."""
    allocations = state.allocations
    groups = allocations.groups
    ref = int(allocations.group[row])
    job = state.jobs.by_id.get(groups.job_ids[ref])
    if job is None:
        return 0, ()
    if job.stopped:
        # No one waits for it now. Should the job come back before its stop was planned, it is due at once.
        return now_ns, ()
    if code == COMPLETE:
        return now_ns if job.job_type == "service" else 0, ()
    for group in job.groups:
        if group.name == groups.names[ref]:
            chain = allocations.chains.get(int(allocations.key[row]), ())
            delay = reschedule_delay_ns(group.reschedule, chain, now_ns)
            if delay is None:
                return 0, ()
            kept = (*_recent(group.reschedule, chain, now_ns), now_ns + delay, delay)
            return now_ns + delay, kept[-2 * RESCHEDULES_KEPT :]
    return 0, ()


def _is_stopped(state: State, job_id: JobId) -> bool:
    job = state.jobs.by_id.get(job_id)
    return job is None or job.stopped


def reschedule_delay_ns(
    policy: ReschedulePolicy, chain: tuple[int, ...], now_ns: int
) -> int | None:
    """Delay before the next replacement; None: no more are allowed within the policy's interval.

    `chain` holds due time and delay of the reschedules so far. Source: Nomad structs.go, RescheduleEligible and
    NextDelay: an allocation that outlived the capped delay begins again with the first one.
    """
    if not policy.unlimited:
        if len(_recent(policy, chain, now_ns)) >= 2 * policy.attempts:
            return None
        return _next_delay(policy, chain)
    delay = _next_delay(policy, chain)
    if policy.max_delay_ns and delay > policy.max_delay_ns:
        lived_ns = now_ns - chain[-2] if chain else 0
        return policy.delay_ns if lived_ns > policy.max_delay_ns else policy.max_delay_ns
    return delay


def _next_delay(policy: ReschedulePolicy, chain: tuple[int, ...]) -> int:
    """The delay behind those of `chain`, without the cap."""
    delays = chain[1::2]
    if not delays or policy.delay_function == "constant":
        return policy.delay_ns
    if policy.delay_function == "exponential":
        return delays[-1] * 2
    if len(delays) == 1:
        return policy.delay_ns
    if delays[-2] == policy.max_delay_ns and delays[-1] == policy.delay_ns:
        # It began again: the sum would jump to the cap at once.
        return delays[-1]
    return delays[-1] + delays[-2]


def _recent(policy: ReschedulePolicy, chain: tuple[int, ...], now_ns: int) -> tuple[int, ...]:
    """Those reschedules of a chain that count: of a limited policy what lies in its interval, else the last five."""
    if policy.unlimited:
        return chain[-10:]
    since = now_ns - policy.interval_ns
    recent = [at for at in range(0, len(chain), 2) if chain[at] > since]
    return chain[recent[0] :] if recent else ()


def _retry(state: State, retries: dict[JobId, int], now_ns: int) -> list[Event]:
    new = []
    for job_id, due in sorted(retries.items()):
        job = state.jobs.by_id[job_id]
        wait = due if due > now_ns else 0
        if wait and _has_delayed(state, job_id, due):
            continue
        evaluation = NewEvaluation(
            job_id=job_id,
            priority=job.priority,
            job_type=job.job_type,
            triggered_by="alloc-failure",
            wait_until_ns=wait,
        )
        new.append(evaluation)
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []


def _has_delayed(state: State, job_id: JobId, due_ns: int) -> bool:
    """Tell whether a delayed evaluation of the job comes at or soon after `due_ns`."""
    table = state.evaluations
    waits = (table.by_key[key].wait_until_ns for key in table.open_of.get(job_id, ()))
    return any(due_ns <= wait <= due_ns + RESCHEDULE_WINDOW_NS for wait in waits)


def decide_liveness(state: State, command: ChangeLiveness) -> list[Event]:
    """Decide what the heartbeat monitor saw. Natural key: each node's status now."""
    fleet = state.fleet
    code = STATUS_CODE.get(command.status)
    if code is None:
        return []
    rows = []
    for node_id in command.node_ids:
        row = fleet.row_of.get(node_id)
        if row is None or int(fleet.status[row]) == code:
            continue
        if code == DOWN and int(fleet.modify_seq[row]) > command.seen_seq:
            continue
        rows.append(row)
    if not rows:
        return []
    rows.sort()
    at = np.asarray(rows, dtype=np.int32)
    if code == DOWN:
        at = _as_many_as_fit(state, at)
    lost = tuple(at.tolist())
    changed = NodesStatusChanged(rows=lost, status=command.status, reason=command.reason)
    if code == DOWN:
        return [changed, *_evaluate_jobs_on(state, at)]
    classes = np.unique(fleet.class_of[at]).tolist()
    return [changed, CapacityFreed(classes=tuple(classes))]


def _as_many_as_fit(state: State, nodes: Rows) -> Rows:
    """Take nodes from the front until their jobs fill a transaction, one at least; the rest is asked for again.

    Without this bound a rack of many small jobs would make a record that no bus takes, again and again.
    """
    allocations = state.allocations
    rows = allocations.on_nodes(nodes)
    rows = rows[~TERMINAL[allocations.client[rows]]]
    where = np.searchsorted(nodes, allocations.node[rows])
    order = np.argsort(where, kind="stable")
    # Groups, of which a job has one or more, by the first node that holds any of it.
    _, firsts = np.unique(allocations.group[rows][order], return_index=True)
    if len(firsts) <= EVALUATIONS_MAX:
        return nodes
    beyond = where[order][np.sort(firsts)[EVALUATIONS_MAX]]
    return nodes[: max(1, int(beyond))]


def _evaluate_jobs_on(state: State, nodes: Rows) -> list[Event]:
    """One evaluation for every job that has something alive on these nodes."""
    allocations = state.allocations
    rows = allocations.on_nodes(nodes)
    rows = rows[~TERMINAL[allocations.client[rows]]]
    refs = np.unique(allocations.group[rows]).tolist()
    job_ids = sorted({allocations.groups.job_ids[ref] for ref in refs})
    new = [_evaluation_of(state, job_id) for job_id in job_ids]
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []


def _evaluation_of(state: State, job_id: JobId) -> NewEvaluation:
    job = state.jobs.by_id[job_id]
    return NewEvaluation(
        job_id=job_id, priority=job.priority, job_type=job.job_type, triggered_by="node-update"
    )
