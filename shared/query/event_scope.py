"""The jobs and nodes of an event, for filters by job or node; rows are looked up in the state before the event."""

from collections.abc import Iterable

import msgspec
import numpy as np

from schemas.allocations import AllocationsHealthChanged, AllocationsReported
from schemas.base import DeploymentKey, Event
from schemas.deployments import (
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentSized,
)
from schemas.evaluations import (
    EvaluationEnded,
    EvaluationsCollected,
    EvaluationsCreated,
    EvaluationsWoken,
)
from schemas.gates import DeploymentGated, GateChanged, WindowChanged
from schemas.launches import JobLaunched, LaunchSkipped
from schemas.nodes import NodeRegistered
from schemas.plans import PlanCommitted, PlanRefused
from schemas.rollouts import RolloutEnded, RolloutStarted
from shared.core.state.state import State


class EventScope(msgspec.Struct, frozen=True):
    """Ids of jobs and nodes."""

    jobs: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


def event_scope(before: State, event: Event) -> EventScope:
    """Name what an event is about. `before`: the state before its transaction."""
    jobs: set[str] = set()
    nodes: set[str] = set()
    match event:
        case PlanCommitted():
            jobs.add(event.job_id)
            jobs.update(one.job_id for one in event.evictions)
            nodes |= _ids(before, [row for one in event.placements for row in one.rows])
            rows = [row for stop in event.stops for row in stop.rows]
            rows += [row for one in event.updates for row in one.rows]
            rows += [row for one in event.evictions for row in one.rows]
            nodes |= _of_alloc_rows(before, rows)[1]
        case PlanRefused():
            jobs.add(event.job_id)
            nodes |= _ids(before, [row for one in event.placements for row in one.rows])
        case AllocationsReported():
            jobs |= _of_alloc_rows(before, event.rows)[0]
            nodes |= _ids(before, event.nodes)
        case AllocationsHealthChanged():
            jobs, nodes = _of_alloc_rows(before, event.rows)
        case (
            DeploymentSized()
            | DeploymentPromoted()
            | DeploymentPaused()
            | DeploymentResumed()
            | DeploymentHeld()
            | DeploymentReleased()
            | DeploymentGated()
            | GateChanged()
            | WindowChanged()
        ):
            jobs |= _deployed(before, event.key)
        case RolloutStarted():
            jobs.update(one.job_id for one in event.members)
        case RolloutEnded():
            ended = before.rollouts.by_key.get(event.key)
            jobs.update(one.job_id for one in (ended.members if ended is not None else ()))
        case EvaluationsCreated():
            jobs.update(one.job_id for one in event.evaluations)
        case EvaluationEnded():
            jobs |= _evaluated(before, (event.key,))
        case EvaluationsWoken() | EvaluationsCollected():
            jobs |= _evaluated(before, event.keys)
        case JobLaunched():
            jobs |= {event.parent, event.child_id}
        case LaunchSkipped():
            jobs.add(event.parent)
        case NodeRegistered():
            nodes.add(event.spec.node_id)
        case _:
            jobs, nodes = _by_fields(before, event)
    return EventScope(frozenset(jobs), frozenset(nodes))


def _by_fields(before: State, event: Event) -> tuple[set[str], set[str]]:
    """Values of the fields with the usual names."""
    fields = msgspec.structs.asdict(event)
    jobs = {str(fields["job_id"])} if fields.get("job_id") else set()
    jobs |= {str(one) for one in fields.get("job_ids", ())}
    nodes = {str(fields["node_id"])} if fields.get("node_id") else set()
    # Rows of such an event are nodes, except where allocations left the state.
    rows = fields.get("rows", ())
    rows = (fields["row"],) if "row" in fields else rows
    if event.__struct_config__.tag == "allocations.collected":
        held = _of_alloc_rows(before, rows)
        return jobs | held[0], nodes | held[1]
    return jobs, nodes | _ids(before, rows)


def _deployed(before: State, key: DeploymentKey) -> set[str]:
    one = before.deployments.by_key.get(key)
    return set() if one is None else {str(one.job_id)}


def _ids(before: State, rows: Iterable[int]) -> set[str]:
    ids = before.fleet.ids
    return {str(ids[row]) for row in set(rows) if row < len(ids)}


def _of_alloc_rows(before: State, rows: Iterable[int]) -> tuple[set[str], set[str]]:
    """Jobs and nodes of allocation rows; those that the transaction itself makes are not there yet."""
    table = before.allocations
    at = np.array([row for row in rows if row < table.size], dtype=np.int64)
    if not len(at):
        return set(), set()
    refs = np.unique(table.group[at]).tolist()
    return {str(table.groups.job_ids[ref]) for ref in refs}, _ids(before, table.node[at].tolist())


def _evaluated(before: State, keys: Iterable[int]) -> set[str]:
    by_key = before.evaluations.by_key
    return {str(by_key[key].job_id) for key in keys if key in by_key}  # type: ignore[index, unused-ignore]
