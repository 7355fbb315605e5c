"""What an operator does to a node or an allocation that runs: drain, meta, stop.

Decides the facts and who looks again because of them. What is stopped is replaced by the plan of its job, so that
each of these is a mark and an evaluation, no more. Must not know where replacements go.
"""

import re
from collections.abc import Iterable

import numpy as np

from schemas.allocations import AllocationsDisplaced
from schemas.base import Event, JobId, NodeId
from schemas.evaluations import EvaluationsCreated
from schemas.nodes import CapacityFreed, NodeDrainChanged, NodeMetaChanged
from schemas.policy import DrainNode, OperatorRefused, SetNodeMeta, StopAllocation
from shared.core.columns import Rows
from shared.core.decide.everywhere import look_again, node_update, place_of
from shared.core.decide.reschedules import has_delayed
from shared.core.decide.reservations import let_go
from shared.core.displaced import LAST, due_nodes, holds_others
from shared.core.state import State
from shared.core.tables.allocations import RUN, TERMINAL
from shared.core.tables.fleet import class_key, laid_over

#: Evaluations that one command creates; a record is bounded, and no node has so many jobs.
EVALUATIONS_MAX = 1_500
#: What an operator may say of one node.
META_MAX = 100
VALUE_CHARS_MAX = 500
_KEY = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_BY_DRAIN = "node-drain"


def decide_drain(state: State, command: DrainNode) -> list[Event]:
    """Empty a node, or stop doing so."""
    fleet = state.fleet
    row = fleet.row_of.get(NodeId(command.node_id))
    if row is None:
        return [_no_node(command.request_id, command.node_id)]
    if command.deadline_ns < 0:
        reason = f"deadline {command.deadline_ns} is no time"
        return [OperatorRefused(request_id=command.request_id, code="invalid", reason=reason)]
    before = fleet.drains.get(row)
    if not command.draining:
        if before is None:
            return []
        freed = CapacityFreed(classes=(int(fleet.class_of[row]),))
        changed = NodeDrainChanged(row=row, draining=False)
        return [changed, freed, *look_again(state, (place_of(state, row),))]
    if before == command.deadline_ns:
        return []
    drained = NodeDrainChanged(row=row, draining=True, deadline_ns=command.deadline_ns)
    held = let_go(state, (row,)) if before is None else []
    return [drained, *held, *_looks(state, row, command.deadline_ns)]


def _looks(state: State, row: int, deadline_ns: int) -> list[Event]:
    """Have the jobs of a node looked at when its drain is due: now, then, or never."""
    if not deadline_ns:
        return []
    wait_ns = deadline_ns if deadline_ns > state.t_ns else 0
    table = state.allocations
    rows = table.on_nodes(np.asarray([row], dtype=np.int32))
    new = [
        node_update(state.jobs.by_id[job_id], _BY_DRAIN, wait_ns)
        for job_id in _jobs_of(state, rows[table.is_wanted(rows)])
        if not wait_ns or not has_delayed(state, job_id, wait_ns)
    ]
    return [EvaluationsCreated(evaluations=tuple(new[:EVALUATIONS_MAX]))] if new else []


def emptied(state: State, row: int, ended: Iterable[int]) -> list[Event]:
    """Have the jobs that leave a drained node last looked at, once the last of the others ended there."""
    if row not in state.fleet.drains or row not in due_nodes(state):
        return []
    if holds_others(state, row, frozenset(ended)):
        return []
    table = state.allocations
    rows = table.on_nodes(np.asarray([row], dtype=np.int32))
    job_ids = _jobs_of(state, rows[table.is_wanted(rows)])
    jobs = [state.jobs.by_id[job_id] for job_id in job_ids]
    new = [node_update(job, _BY_DRAIN) for job in jobs if job.job_type == LAST]
    return [EvaluationsCreated(evaluations=tuple(new[:EVALUATIONS_MAX]))] if new else []


def _jobs_of(state: State, rows: Rows) -> list[JobId]:
    """Ids of the jobs of these rows that are still known, sorted."""
    table = state.allocations
    refs = np.unique(table.group[rows]).tolist()
    found = {table.groups.job_ids[ref] for ref in refs}
    return sorted(one for one in found if one in state.jobs.by_id)


def decide_stop(state: State, command: StopAllocation) -> list[Event]:
    """Mark an allocation, and have its job looked at; nothing where it ends anyhow."""
    table = state.allocations
    found = np.flatnonzero(table.key[: table.size] == command.alloc_key).tolist()
    if command.alloc_key <= 0 or not found:
        reason = "there is no such allocation (any more)"
        return [OperatorRefused(request_id=command.request_id, code="not_found", reason=reason)]
    row = int(found[0])
    job = state.jobs.by_id.get(table.groups.job_ids[int(table.group[row])])
    is_over = TERMINAL[table.client[row]] or table.desired[row] != RUN
    if is_over or row in table.displaced or job is None or job.stopped:
        # It is so already, or will be; a command that comes twice finds it so.
        return []
    new = node_update(job, "alloc-stop")
    return [AllocationsDisplaced(rows=(row,)), EvaluationsCreated(evaluations=(new,))]


def decide_meta(state: State, command: SetNodeMeta) -> list[Event]:
    """Change what an operator says of a node; whoever waits for such a node looks again."""
    fleet = state.fleet
    node_id = NodeId(command.node_id)
    row = fleet.row_of.get(node_id)
    if row is None:
        return [_no_node(command.request_id, command.node_id)]
    if reason := _meta_fault(command.change):
        return [OperatorRefused(request_id=command.request_id, code="invalid", reason=reason)]
    spec = fleet.specs[row]
    before = fleet.operator_meta.get(node_id, {})
    after = changed_meta(before, command.change, spec.meta)
    if after == before:
        return []
    if len(after) > META_MAX:
        reason = f"{len(after)} keys, an operator may say {META_MAX} of a node"
        return [OperatorRefused(request_id=command.request_id, code="invalid", reason=reason)]
    key = class_key(laid_over(spec, after))
    computed_class = fleet.classes.get(key, len(fleet.classes))
    return [
        NodeMetaChanged(node_id=node_id, meta=after),
        CapacityFreed(classes=(computed_class,), grown=True),
        *look_again(state, (place_of(state, row),)),
    ]


def changed_meta(
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


def _no_node(request_id: str, node_id: str) -> OperatorRefused:
    reason = f"there is no node {node_id[:80]!r}"
    return OperatorRefused(request_id=request_id, code="not_found", reason=reason)
