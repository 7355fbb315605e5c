"""Stateful groups: whose turn comes when an instance ends, becomes healthy, or surely runs no more.

Decides which jobs are looked at again, stopped ones too, since these stop in order; and the word of an operator that a
node is dead. What then starts or stops the scheduler decides (scheduling/reconcile/stateful_groups.py).
"""

from collections.abc import Sequence

import numpy as np

from schemas.allocations import AllocationsHealthChanged, AllocationsReported
from schemas.base import Event, JobId, NodeId
from schemas.evaluations import EvaluationsCreated
from schemas.nodes import NodeConfirmedDead
from schemas.plans import PlanCommitted
from schemas.policy import ConfirmDeath
from shared.core.columns import Rows
from shared.core.decide.deciders import Deciders
from shared.core.decide.operator import is_late, refuse, refuse_unknown_node
from shared.core.decide.system_jobs import job_ids_of, node_evaluation
from shared.core.scheduling.reconcile.stateful_allocs import is_stateful
from shared.core.state.state import State
from shared.core.state.tables.allocations import HEALTHY, RUN, TERMINAL
from shared.core.state.tables.fleet import READY

_TURN = "stateful-turn"


def turns_of_reports(state: State, event: AllocationsReported) -> list[Event]:
    """Have the jobs looked at of which an instance ended."""
    if not event.rows or not state.allocations.groups.stateful:
        return []
    rows = np.asarray(event.rows, dtype=np.int32)
    return _turns(state, rows[TERMINAL[np.asarray(event.statuses, dtype=np.int8)]])


def turns_of_health(state: State, event: AllocationsHealthChanged) -> list[Event]:
    """Have the jobs looked at of which an instance became healthy."""
    if not state.allocations.groups.stateful:
        return []
    rows = np.asarray(event.rows, dtype=np.int32)
    return _turns(state, rows[np.asarray(event.healths, dtype=np.int8) == HEALTHY])


def turns_of_plan(state: State, event: PlanCommitted) -> list[Event]:
    """Have a stopped job looked at of which a plan declared an instance lost: no report tells of its end."""
    if not state.allocations.groups.stateful:
        return []
    rows = [row for stop in event.stops if stop.client_status for row in stop.rows]
    return _turns(state, np.asarray(rows, dtype=np.int32))


def turns_of_nodes(state: State, nodes: Sequence[int]) -> list[Event]:
    """Have the jobs looked at that waited for nodes (fleet rows) which are there again."""
    if not nodes or not state.allocations.groups.stateful:
        return []
    table = state.allocations
    rows = table.on_nodes(np.asarray(nodes, dtype=np.int32))
    return _turns(state, rows[~TERMINAL[table.client[rows]]])


def _turns(state: State, rows: Rows) -> list[Event]:
    if not len(rows):
        return []
    job_ids = job_ids_of(state, rows[is_stateful(state, rows)])
    new = [
        node_evaluation(state.jobs.by_id[one], _TURN) for one in job_ids if _has_turn(state, one)
    ]
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []


def _has_turn(state: State, job_id: JobId) -> bool:
    """Tell whether a job has anything to start or to stop, and no evaluation that sees all that is now."""
    table, evaluations = state.allocations, state.evaluations
    rows = table.rows_of(job_id)
    live = (table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]
    if state.jobs.by_id[job_id].runs_nothing and not live.any():
        return False
    open_ = [evaluations.by_key[key] for key in evaluations.open_of.get(job_id, ())]
    return not any(
        one.status == "pending" and not one.wait_until_ns and one.min_seq == state.seq
        for one in open_
    )


def decide_death(state: State, command: ConfirmDeath) -> list[Event]:
    """Take an operator's word that nothing runs on a node any more. Natural key: the node, until it is heard of."""
    fleet = state.fleet
    row = fleet.row_of.get(NodeId(command.node_id))
    if row is None:
        return refuse_unknown_node(command.request_id, command.node_id[:80])
    if row in fleet.confirmed_dead or is_late(command.seen_seq, int(fleet.modify_seq[row])):
        return []
    if fleet.status[row] == READY:
        reason = f"node {command.node_id!r} is up: only a node that is out of reach can be confirmed dead"
        return refuse(command.request_id, "conflict", reason)
    return [NodeConfirmedDead(row=row), *_deaths(state, (row,))]


def _deaths(state: State, nodes: Sequence[int]) -> list[Event]:
    """Have the jobs looked at that may have something on these nodes."""
    table = state.allocations
    rows = table.on_nodes(np.asarray(nodes, dtype=np.int32))
    job_ids = job_ids_of(state, rows[~TERMINAL[table.client[rows]]])
    new = [node_evaluation(state.jobs.by_id[one]) for one in job_ids]
    return [EvaluationsCreated(evaluations=tuple(new))] if new else []


DECIDERS: Deciders = {ConfirmDeath: decide_death}
