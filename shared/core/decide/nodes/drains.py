"""What an operator does to a node or an allocation that runs: drain, meta, stop.

Decides the facts and the evaluations that follow from them. What is stopped is replaced by the plan of its job, so that
each of these is a mark and an evaluation, no more. The scheduler decides where replacements go.
"""

import re
from collections.abc import Iterable

import numpy as np

from schemas.allocations import AllocationsDisplaced
from schemas.base import Event, NodeId
from schemas.evaluations import EvaluationsCreated
from schemas.nodes import CapacityFreed, NodeDrainChanged, NodeDrained, NodeMetaChanged
from schemas.policy import DrainNode, SetNodeMeta, StopAllocation
from shared.core.decide.deciders import Deciders
from shared.core.decide.operator import SPAN_NS_MAX, is_late, refuse, refuse_unknown_node
from shared.core.decide.reschedules import has_delayed
from shared.core.decide.reservations import release_nodes
from shared.core.decide.system_jobs import (
    evaluate_system_jobs,
    job_ids_of,
    node_evaluation,
    node_location,
)
from shared.core.scheduling.reconcile.drained_allocs import (
    DRAINED_LAST,
    has_other_allocs,
)
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.core.state.tables.fleet import computed_class_key, with_operator_meta
from shared.core.state.tables.jobs import Job

#: Evaluations that one command creates; a record is bounded, and no node has so many jobs.
EVALUATIONS_MAX = 1_500
#: What an operator may say of one node.
META_MAX = 100
VALUE_CHARS_MAX = 500
MESSAGE_CHARS_MAX = 500
_KEY = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_CLOCK_OFF_NS = 86_400 * 1_000_000_000
_BY_DRAIN = "node-drain"


def decide_drain(state: State, command: DrainNode) -> list[Event]:
    """Empty a node, or stop doing so."""
    fleet = state.fleet
    row = fleet.row_of.get(NodeId(command.node_id))
    if row is None:
        return refuse_unknown_node(command.request_id, command.node_id[:80])
    # The view adds the duration to its own clock, which may be ahead.
    if not 0 <= command.deadline_ns <= state.t_ns + SPAN_NS_MAX + _CLOCK_OFF_NS:
        reason = f"deadline {command.deadline_ns} is not within a hundred years"
        return refuse(command.request_id, "invalid", reason)
    if is_late(command.seen_seq, int(fleet.modify_seq[row])):
        return []
    if len(command.message) > MESSAGE_CHARS_MAX:
        reason = f"message has {len(command.message)} characters, at most {MESSAGE_CHARS_MAX}"
        return refuse(command.request_id, "invalid", reason)
    before = fleet.drains.get(row)
    if not command.draining:
        return _end_drain(state, row, keep_ineligible=command.keep_ineligible)
    terms = fleet.terms_of(row)
    same = (before, terms.ignore_system, terms.message)
    if before is not None and same == (
        command.deadline_ns,
        command.ignore_system,
        command.message,
    ):
        return []
    drained = NodeDrainChanged(
        row=row,
        draining=True,
        deadline_ns=command.deadline_ns,
        ignore_system=command.ignore_system,
        started_ns=state.t_ns if before is None else terms.started_ns,
        message=command.message,
        closed=_is_closed(state, row),
    )
    held = release_nodes(state, (row,)) if before is None else []
    return [drained, *held, *_drain_evaluations(state, row, command)]


def _is_closed(state: State, row: int) -> bool:
    """Tell whether a node takes nothing new for another reason than a drain."""
    fleet = state.fleet
    if row in fleet.drains:
        return fleet.terms_of(row).closed
    if row in fleet.drained:
        return fleet.drained[row].closed
    return not fleet.eligible[row]


def _end_drain(state: State, row: int, *, keep_ineligible: bool) -> list[Event]:
    """End a drain, running or complete; the node takes new allocations again, if it did before."""
    fleet = state.fleet
    keep_ineligible |= _is_closed(state, row)
    if row not in fleet.drains and (row not in fleet.drained or keep_ineligible):
        return []
    changed = NodeDrainChanged(row=row, draining=False, keep_ineligible=keep_ineligible)
    if keep_ineligible:
        return [changed]
    freed = CapacityFreed(classes=(int(fleet.class_of[row]),))
    return [changed, freed, *evaluate_system_jobs(state, (node_location(state, row),))]


def _drain_evaluations(state: State, row: int, command: DrainNode) -> list[Event]:
    """Have the jobs of a node looked at: now those that may leave it, at the deadline all."""
    table = state.allocations
    rows = table.on_nodes(np.asarray([row], dtype=np.int32))
    jobs = [state.jobs.by_id[one] for one in job_ids_of(state, rows[table.is_wanted(rows)])]
    wait_ns = command.deadline_ns if command.deadline_ns > state.t_ns else 0
    is_now = bool(command.deadline_ns) and not wait_ns
    is_last = not command.ignore_system and not has_other_allocs(state, row)
    new = [
        node_evaluation(job, _BY_DRAIN)
        for job in jobs
        if is_now or _moves_early(job) or (is_last and job.job_type == DRAINED_LAST)
    ]
    new += [
        node_evaluation(job, _BY_DRAIN, wait_ns)
        for job in jobs
        if wait_ns and not has_delayed(state, job.id, wait_ns)
    ]
    return [EvaluationsCreated(evaluations=tuple(new[:EVALUATIONS_MAX]))] if new else []


def _moves_early(job: Job) -> bool:
    """Tell whether a group of a job leaves draining nodes before the deadline."""
    return any(group.migrate is not None and group.migrate.max_parallel for group in job.groups)


def drain_last_jobs(state: State, row: int, ended: Iterable[int]) -> list[Event]:
    """Have the jobs that leave a drained node last looked at, once the last of the others ended there."""
    if row not in state.fleet.drains or state.fleet.ignores_system(row):
        return []
    if has_other_allocs(state, row, frozenset(ended)):
        return []
    table = state.allocations
    rows = table.on_nodes(np.asarray([row], dtype=np.int32))
    job_ids = job_ids_of(state, rows[table.is_wanted(rows)])
    jobs = [state.jobs.by_id[job_id] for job_id in job_ids]
    new = [node_evaluation(job, _BY_DRAIN) for job in jobs if job.job_type == DRAINED_LAST]
    return [EvaluationsCreated(evaluations=tuple(new[:EVALUATIONS_MAX]))] if new else []


def finished_drains(state: State) -> list[Event]:
    """End the drains of nodes on which nothing runs any more, on a state that holds the facts which ended it."""
    drains = state.fleet.drains
    if not drains:
        return []
    busy = _busy_nodes(state)
    return [
        NodeDrained(row=row, deadline_reached=0 < deadline_ns <= state.t_ns)
        for row, deadline_ns in sorted(drains.items())
        if row not in busy
    ]


def _busy_nodes(state: State) -> frozenset[int]:
    """Draining nodes with an allocation that the drain waits for: one pass over the table for all of them."""
    fleet, table = state.fleet, state.allocations
    rows = table.on_nodes(np.asarray(sorted(fleet.drains), dtype=np.int32))
    alive: list[int] = np.unique(table.node[rows[~TERMINAL[table.client[rows]]]]).tolist()
    # A drain that ignores system jobs waits for the others alone.
    return frozenset(
        row for row in alive if not fleet.ignores_system(row) or has_other_allocs(state, row)
    )


def decide_alloc_stop(state: State, command: StopAllocation) -> list[Event]:
    """Mark an allocation, and have its job looked at; nothing where it has ended or a plan has stopped it."""
    table = state.allocations
    found = np.flatnonzero(table.key[: table.size] == command.alloc_key).tolist()
    if command.alloc_key <= 0 or not found:
        reason = "allocation does not exist"
        return refuse(command.request_id, "not_found", reason)
    row = int(found[0])
    job = state.jobs.by_id.get(table.groups.job_ids[int(table.group[row])])
    is_over = TERMINAL[table.client[row]] or table.desired[row] != RUN
    if is_over or row in table.displaced or job is None:
        # It is so already; a command that comes twice finds it so.
        return []
    marked = AllocationsDisplaced(rows=(row,))
    if job.stopped:
        # Its stop ends it, unless the job is registered again first: then the mark does.
        return [marked]
    new = node_evaluation(job, "alloc-stop")
    return [marked, EvaluationsCreated(evaluations=(new,))]


def decide_meta(state: State, command: SetNodeMeta) -> list[Event]:
    """Set metadata of a node; evaluations that wait for such a node are woken."""
    fleet = state.fleet
    node_id = NodeId(command.node_id)
    row = fleet.row_of.get(node_id)
    if row is None:
        return refuse_unknown_node(command.request_id, command.node_id[:80])
    if reason := _meta_fault(command.change):
        return refuse(command.request_id, "invalid", reason)
    spec = fleet.specs[row]
    before = fleet.operator_meta.get(node_id, {})
    after = apply_meta_change(before, command.change, spec.meta)
    if after == before or is_late(command.seen_seq, int(fleet.modify_seq[row])):
        return []
    if len(after) > META_MAX:
        reason = f"{len(after)} keys, at most {META_MAX} are kept for a node"
        return refuse(command.request_id, "invalid", reason)
    key = computed_class_key(with_operator_meta(spec, after))
    computed_class = fleet.classes.get(key, len(fleet.classes))
    return [
        NodeMetaChanged(node_id=node_id, meta=after),
        CapacityFreed(classes=(computed_class,), grown=True),
        *evaluate_system_jobs(state, (node_location(state, row),)),
    ]


def apply_meta_change(
    before: dict[str, str | None], change: dict[str, str | None], own: dict[str, str]
) -> dict[str, str | None]:
    """Say what an operator says after a change. `own` is the agent's: only what is in there need be masked."""
    after = dict(before)
    for key, value in sorted(change.items()):
        if value is not None or key in own:
            after[key] = value
        else:
            after.pop(key, None)
    return dict(sorted(after.items()))


def _meta_fault(change: dict[str, str | None]) -> str:
    for key, value in sorted(change.items()):
        if not _KEY.fullmatch(key):
            return f"{key[:80]!r} cannot be a key of meta"
        if value is not None and len(value) > VALUE_CHARS_MAX:
            return f"{key}: {len(value)} characters, at most {VALUE_CHARS_MAX} are kept"
    return ""


DECIDERS: Deciders = {
    DrainNode: decide_drain,
    SetNodeMeta: decide_meta,
    StopAllocation: decide_alloc_stop,
}
