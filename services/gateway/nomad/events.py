"""Events as Nomad streams them, made from a record of the log and the state behind it."""

from typing import NamedTuple

from schemas.allocations import AllocationsDisplaced, AllocationsReported
from schemas.base import Event, JobId, NodeId
from schemas.deployments import DeploymentPromoted
from schemas.envelope import LogRecord
from schemas.jobs import JobRegistered, JobsCollected, JobStopped
from schemas.nodes import (
    NodeDrainChanged,
    NodeDrained,
    NodeEligibilityChanged,
    NodeRegistered,
    NodesCollected,
)
from schemas.plans import PlanCommitted
from services.gateway.nomad.allocations import nomad_alloc
from services.gateway.nomad.deployments import nomad_deployment
from services.gateway.nomad.evaluations import nomad_eval
from services.gateway.nomad.jobs import nomad_job
from services.gateway.nomad.nodes import nomad_node
from services.gateway.nomad.source import Object, ShapeSource
from shared.core.state.state import State
from shared.protocol.node_uuids import node_uuid
from shared.query.event_scope import EventScope, event_scope

#: Type of a node's event by fact; the first that the record holds.
_NODE_TYPES: tuple[tuple[type[Event], str], ...] = (
    (NodeRegistered, "NodeRegistration"),
    (NodesCollected, "NodeDeregistration"),
    (NodeDrainChanged, "NodeDrain"),
    (NodeDrained, "NodeDrain"),
    (NodeEligibilityChanged, "NodeEligibility"),
)
_ALLOC_TYPES: tuple[tuple[type[Event], str], ...] = (
    (PlanCommitted, "PlanResult"),
    (AllocationsDisplaced, "AllocationUpdateDesiredStatus"),
    (AllocationsReported, "AllocationUpdated"),
)


class Touched(NamedTuple):
    """Jobs and nodes that a record is about, as far as the state before it tells."""

    jobs: tuple[str, ...]
    nodes: tuple[str, ...]


def touched(before: State, record: LogRecord) -> Touched:
    """Name what a record is about, sorted."""
    found: list[EventScope] = [event_scope(before, event) for event in record.events]
    jobs = sorted({job for one in found for job in one.jobs})
    return Touched(tuple(jobs), tuple(sorted({node for one in found for node in one.nodes})))


def nomad_events(source: ShapeSource, record: LogRecord, seq: int, about: Touched) -> list[Object]:
    """The events of a record that was applied at `seq`: each object as it is now."""
    kinds: set[type[Event]] = {type(event) for event in record.events}
    found: list[Object] = []
    for event in record.events:
        if isinstance(event, JobRegistered | JobStopped):
            found += _job_event(source, event.job_id, seq, is_stop=isinstance(event, JobStopped))
        elif isinstance(event, JobsCollected):
            for gone in event.job_ids:
                payload = {"Job": {"ID": str(gone), "Namespace": "default", "Stop": True}}
                found.append(_event("JobDeregistered", str(gone), seq, payload))
    for name in about.jobs:
        found += _events_of_job(source, JobId(name), seq, kinds)
    for node_id in about.nodes:
        found += _node_event(source, node_id, seq, kinds)
    return found


def _events_of_job(
    source: ShapeSource, job_id: JobId, seq: int, kinds: set[type[Event]]
) -> list[Object]:
    """What of a job changed with the record: evaluations, allocations, deployments."""
    state, found = source.state, []
    for key in source.histories.of_job(job_id):
        one = state.evaluations.by_key[key]
        if one.modify_seq == seq:
            shown = nomad_eval(source, one)
            keys = (str(job_id), shown["DeploymentID"])
            found.append(
                _event("EvaluationUpdated", shown["ID"], seq, {"Evaluation": shown}, keys=keys)
            )
    rows = state.allocations.rows_of(job_id)
    kind = next((word for event, word in _ALLOC_TYPES if event in kinds), "AllocationUpdated")
    for row in rows[state.allocations.modify_seq[rows] == seq].tolist():
        shown = nomad_alloc(source, row)
        shown["Job"] = None
        keys = (str(job_id), shown["DeploymentID"])
        found.append(_event(kind, shown["ID"], seq, {"Allocation": shown}, keys=keys))
    kind = "DeploymentPromotion" if DeploymentPromoted in kinds else "DeploymentStatusUpdate"
    for deployment in state.deployments.of_job(job_id):
        if deployment.modify_seq == seq:
            shown = nomad_deployment(source, deployment)
            payload = {"Deployment": shown}
            found.append(_event(kind, shown["ID"], seq, payload, keys=(str(job_id),)))
    return found


def _job_event(source: ShapeSource, job_id: JobId, seq: int, *, is_stop: bool) -> list[Object]:
    job = source.state.jobs.by_id.get(job_id)
    shown = nomad_job(source, job) if job is not None else None
    kind = "JobDeregistered" if is_stop else "JobRegistered"
    payload = {"Job": shown or {"ID": str(job_id), "Namespace": "default"}}
    return [_event(kind, str(job_id), seq, payload)]


def _node_event(
    source: ShapeSource, node_id: str, seq: int, kinds: set[type[Event]]
) -> list[Object]:
    fleet = source.state.fleet
    row = fleet.row_of.get(NodeId(node_id))
    kind = next((word for event, word in _NODE_TYPES if event in kinds), "NodeEvent")
    if row is None:
        gone = {"Node": {"ID": node_uuid(node_id), "Name": node_id, "Status": "down"}}
        return [_event("NodeDeregistration", node_uuid(node_id), seq, gone)]
    if int(fleet.modify_seq[row]) != seq:
        return []
    payload = {"Node": nomad_node(source, row)}
    return [_event(kind, node_uuid(node_id), seq, payload)]


def _event(kind: str, key: str, seq: int, payload: Object, *, keys: tuple[str, ...] = ()) -> Object:
    """An event about the only object of its payload."""
    topic = next(iter(payload))
    return {
        "Topic": topic,
        "Type": kind,
        "Key": key,
        "Namespace": "" if topic == "Node" else "default",
        "FilterKeys": [one for one in keys if one],
        "Index": seq,
        "Payload": payload,
    }
