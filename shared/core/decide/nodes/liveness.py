"""Liveness: state changes of nodes that fall silent or come back, and of their allocations.

Decides between down and disconnected: a silent node is only disconnected for as long as it holds something that its
group lets wait (`lost_after`). What ran and may wait becomes unknown; the rest is lost by the plan that replaces it
(service_jobs.py). When the node comes back, what is unknown runs again, and an evaluation decides which allocation
stays. The heartbeat monitor watches heartbeats; it repeats its command as long as a node is silent.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsReported
from schemas.base import Event, JobId
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.nodes import CapacityFreed, ChangeLiveness, NodesStatusChanged
from shared.core.columns import Rows
from shared.core.decide.deciders import Deciders
from shared.core.decide.reschedules import has_delayed
from shared.core.decide.reservations import release_nodes
from shared.core.decide.system_jobs import (
    NodeLocation,
    evaluate_system_jobs,
    job_ids_of,
    node_evaluation,
    node_location,
)
from shared.core.scheduling.reconcile.lost_allocs import (
    awaits_reconnect,
    delays_node_down,
    disconnect_of,
    is_irreplaceable,
)
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUNNING, TERMINAL, UNKNOWN
from shared.core.state.tables.fleet import DISCONNECTED, DOWN, STATUS_CODE

#: Evaluations that one command creates; at 200 bytes each (ids have 128 at most) well below a transaction's 512 KiB.
EVALUATIONS_MAX = 1_500
#: Allocations that become unknown, or are known again, by one command; at 10 bytes each.
ROWS_MAX = 10_000


def decide_liveness(state: State, command: ChangeLiveness) -> list[Event]:
    """Decide what the heartbeat monitor saw. Natural key: each node's status now."""
    fleet = state.fleet
    code = STATUS_CODE.get(command.status)
    if code is None or code == DISCONNECTED:
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
    at = np.asarray(sorted(set(rows)), dtype=np.int32)
    if code == DOWN:
        return _mark_silent(state, at, command.reason)
    return recover_nodes(state, _bounded_by_record(state, at), command.status, command.reason)


def recover_nodes(state: State, nodes: Rows, status: str, reason: str) -> list[Event]:
    """Mark nodes as reachable again."""
    changed = NodesStatusChanged(rows=tuple(nodes.tolist()), status=status, reason=reason)
    classes = np.unique(state.fleet.class_of[nodes]).tolist()
    places = {node_location(state, row) for row in nodes.tolist()}
    return [changed, CapacityFreed(classes=tuple(classes)), *recovery_events(state, nodes, places)]


def recovery_events(state: State, nodes: Rows, places: Collection[NodeLocation]) -> list[Event]:
    """What follows when nodes are ready again: what was unknown runs, and everybody concerned looks again.

    `places` are the nodes'. What ended meanwhile is in the next report of its node.
    """
    table = state.allocations
    events: list[Event] = []
    job_ids: list[JobId] = []
    if state.fleet.silent_ns or _has_unknown(state):
        rows = table.on_nodes(nodes)
        rows = rows[table.client[rows] == UNKNOWN]
        if len(rows):
            statuses = (RUNNING,) * len(rows)
            events.append(AllocationsReported(rows=tuple(rows.tolist()), statuses=statuses))
            job_ids = job_ids_of(state, rows[table.is_wanted(rows)])
            new = tuple(node_evaluation(state.jobs.by_id[one], "reconnect") for one in job_ids)
            events.append(EvaluationsCreated(evaluations=new))
    return [*events, *evaluate_system_jobs(state, sorted(places), frozenset(job_ids))]


def _has_unknown(state: State) -> bool:
    table = state.allocations
    return bool((table.client[: table.size] == UNKNOWN).any())


def _mark_silent(state: State, nodes: Rows, reason: str) -> list[Event]:
    """Nodes are silent: those that hold what may wait are disconnected, and the others down."""
    fleet, table = state.fleet, state.allocations
    rows = table.on_nodes(nodes)
    rows = rows[~TERMINAL[table.client[rows]]]
    held = np.zeros(fleet.size, dtype=bool)
    held[table.node[rows[delays_node_down(state, rows, _since(state)[table.node[rows]])]]] = True
    # A disconnected node with allocations stays disconnected; it must not block the others.
    nodes = nodes[(fleet.status[nodes] != DISCONNECTED) | ~held[nodes]]
    if not len(nodes):
        return []
    nodes = _bounded_by_record(state, nodes)
    away, down = nodes[held[nodes]], nodes[~held[nodes]]
    gone = rows[np.isin(table.node[rows], np.concatenate((away, down)))]
    events: list[Event] = []
    if len(down):
        at = tuple(down.tolist())
        events.append(NodesStatusChanged(rows=at, status="down", reason=reason))
    if len(away):
        at = tuple(away.tolist())
        changed = NodesStatusChanged(
            rows=at, status="disconnected", reason=reason, since_ns=state.t_ns
        )
        events.append(changed)
    waiting = gone[awaits_reconnect(state, gone)]
    on_away = np.isin(table.node[waiting], away)
    # On a node that is down, only allocations without a replacement stay.
    unknown = waiting[on_away | is_irreplaceable(state, waiting)]
    fresh = unknown[table.client[unknown] != UNKNOWN]
    if len(fresh):
        statuses = (UNKNOWN,) * len(fresh)
        events.append(AllocationsReported(rows=tuple(fresh.tolist()), statuses=statuses))
    new = [node_evaluation(state.jobs.by_id[one]) for one in job_ids_of(state, gone)]
    new += _timeouts(state, waiting[on_away])
    if new:
        events.append(EvaluationsCreated(evaluations=tuple(new)))
    return [*events, *release_nodes(state, (*away.tolist(), *down.tolist()))]


def _since(state: State) -> NDArray[np.int64]:
    """Log time since when each node is silent: since now, unless it is disconnected already. Shape: (N,)."""
    fleet = state.fleet
    since = np.full(fleet.size, state.t_ns, dtype=np.int64)
    for row, at_ns in fleet.silent_ns.items():
        since[row] = at_ns
    return since


def _timeouts(state: State, rows: Rows) -> list[NewEvaluation]:
    """One delayed evaluation for each job and the time at which its unknown allocations will be lost."""
    groups = state.allocations.groups
    due: set[tuple[JobId, int]] = set()
    for ref in np.unique(state.allocations.group[rows]).tolist():
        block = disconnect_of(state, ref)
        if block.replace and block.lost_after_ns:
            due.add((groups.job_ids[ref], state.t_ns + block.lost_after_ns))
    return [
        node_evaluation(state.jobs.by_id[job_id], "max-disconnect-timeout", at_ns)
        for job_id, at_ns in sorted(due)
        if not has_delayed(state, job_id, at_ns)
    ]


def _bounded_by_record(state: State, nodes: Rows) -> Rows:
    """Take nodes from the front until their jobs fill a transaction, one at least; the rest is asked for again.

    Without this bound a rack of many small jobs would make a record that no bus takes, again and again.
    """
    allocations = state.allocations
    rows = allocations.on_nodes(nodes)
    rows = rows[~TERMINAL[allocations.client[rows]]]
    where = np.searchsorted(nodes, allocations.node[rows])
    order = np.argsort(where, kind="stable")
    refs, firsts = np.unique(allocations.group[rows][order], return_index=True)
    most = len(nodes)
    may_wait = awaits_reconnect(state, rows)
    evaluations = EVALUATIONS_MAX
    if may_wait.any():
        # A job whose allocations wait is evaluated now, and when those of each group are lost.
        evaluations = EVALUATIONS_MAX // 2
    else:
        firsts = _by_job(state, refs, firsts)
    if len(firsts) > evaluations:
        most = int(where[order][np.sort(firsts)[evaluations]])
    if int(may_wait.sum()) > ROWS_MAX:
        most = min(most, int(np.sort(where[may_wait])[ROWS_MAX]))
    return nodes[: max(1, most)]


def _by_job(state: State, refs: NDArray[np.int32], firsts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where each job stands first, by where each of these groups does. Shapes: refs, firsts (G,); result (J,)."""
    job_ids = state.allocations.groups.job_ids
    places: dict[JobId, int] = {}
    for ref, first in zip(refs.tolist(), firsts.tolist(), strict=True):
        job_id = job_ids[ref]
        places[job_id] = min(first, places.get(job_id, first))
    return np.asarray(list(places.values()), dtype=np.intp)


DECIDERS: Deciders = {ChangeLiveness: decide_liveness}
