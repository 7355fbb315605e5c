"""Events in one line each: what `caravan log tail` shows of a record.

Decides the words only. An event without words of its own is shown by its fields, so that a new one is never hidden.
"""

from datetime import UTC, datetime

import msgspec

from schemas.allocations import CLIENT_STATUSES, AllocationsDisplaced, AllocationsReported
from schemas.base import Event
from schemas.envelope import RECORD_DECODER
from schemas.envelope import Record as LogRecord
from schemas.evaluations import (
    EvaluationEnded,
    EvaluationsCreated,
    EvaluationsWoken,
    ReservationsChanged,
)
from schemas.jobs import JobRegistered, JobStopped, SubmissionRefused
from schemas.nodes import (
    CapacityFreed,
    NodeDrainChanged,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRefused,
    NodeRegistered,
    NodesStatusChanged,
    Pool,
    PoolDeclared,
)
from schemas.plans import GroupPlacement, PlanCommitted, PlanRefused
from schemas.policy import ClusterCreated
from services.cli.event_names import drained, named
from shared.core.ids import eval_id
from shared.core.role import Record
from shared.core.state import State
from shared.jobspec.amounts import shown_amount

_TEXT_CHARS_MAX = 160


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event, or one record without events. `type` is the event's tag, or the record's kind."""

    seq: int
    t_ns: int
    type: str
    text: str = ""


def of_record(record: Record, state: State | None = None) -> list[EventLine]:
    """Describe a record as it stands in the log; nothing is checked here. `state`: before it, for names."""
    try:
        decoded = RECORD_DECODER.decode(record.data)
    except msgspec.DecodeError as err:
        text = f"{len(record.data)} bytes on {record.subject}: {err}"
        return [EventLine(seq=record.seq, t_ns=0, type="foreign", text=text[:_TEXT_CHARS_MAX])]
    if not decoded.events:
        line = EventLine(seq=record.seq, t_ns=decoded.t_ns, type=decoded.kind, text=_kind(decoded))
        return [line]
    return [
        EventLine(
            seq=record.seq,
            t_ns=decoded.t_ns,
            type=str(event.__struct_config__.tag),
            text=describe(event, state)[:_TEXT_CHARS_MAX],
        )
        for event in decoded.events
    ]


def _kind(record: LogRecord) -> str:
    if record.lease is not None:
        fsync = "fsync on" if record.lease.fsync else "no fsync"
        return f"{record.lease.holder} holds the pen, {fsync}, {record.lease.replicas} replica(s)"
    tables = record.tables or {}
    return f"{len(tables)} tables" if tables else ""


def describe(event: Event, state: State | None = None) -> str:
    """Say in one line what an event tells; with the state before it, by names instead of rows."""
    if state is not None and (text := named(state, event)):
        return text
    for words in (_of_jobs, _of_nodes, _of_evaluations, _of_plans):
        text = words(event)
        if text:
            return text
    fields = msgspec.structs.asdict(event).items()
    return ", ".join(f"{name} {value}" for name, value in fields)


def _of_jobs(event: Event) -> str:
    match event:
        case JobRegistered():
            groups = ", ".join(f"{one.name} {one.count}" for one in event.groups)
            return f"{event.job_id} version {event.version}: {groups}"
        case JobStopped():
            return f"{event.job_id}{', purge' if event.purge else ''}"
        case SubmissionRefused():
            return f"{event.verb} {event.job_id}: {event.code}: {event.reason}"
        case ClusterCreated():
            return event.cluster_id
        case _:
            return ""


def _of_nodes(event: Event) -> str:
    match event:
        case NodeRegistered():
            spec = event.spec
            return f"{spec.node_id}: {spec.cpu_mhz} MHz, {spec.memory_mib} MiB, {spec.datacenter}"
        case NodeRefused():
            return f"{event.node_id} from host {event.host_id}: {event.code}: {event.reason}"
        case NodesStatusChanged():
            reason = f" ({event.reason})" if event.reason else ""
            return f"{_some(len(event.rows), 'node')} {event.status}{reason}"
        case NodeDrainChanged():
            return f"node in row {event.row}: {drained(event)}"
        case NodeEligibilityChanged():
            return f"node in row {event.row} {'' if event.eligible else 'not '}eligible"
        case PoolDeclared():
            return f"{event.node_id or 'the cluster'}: {event.pool.name} {_offered(event.pool)}"
        case NodeMetaChanged():
            said = ", ".join(f"{key}={value}" for key, value in sorted(event.meta.items()))
            return f"{event.node_id}: {said or 'nothing'}"
        case CapacityFreed():
            return f"on nodes of class {', '.join(str(one) for one in event.classes)}"
        case _:
            return ""


def _offered(pool: Pool) -> str:
    """What there is under a name: instances, or an amount."""
    if pool.instances:
        return _some(len(pool.instances), "instance")
    return shown_amount(pool.amount) if pool.amount else "no more"


def _of_evaluations(event: Event) -> str:
    match event:
        case EvaluationsCreated():
            return ", ".join(
                f"{one.job_id} by {one.triggered_by}{', blocked' if one.blocked else ''}"
                for one in event.evaluations
            )
        case EvaluationEnded():
            reason = f": {event.reason}" if event.reason else ""
            return f"{eval_id(event.key)[:8]} {event.status}{reason}"
        case EvaluationsWoken():
            return f"{_some(len(event.keys), 'evaluation')}: {event.reason}"
        case ReservationsChanged():
            return ", ".join(
                f"{_some(sum(len(hold.rows) for hold in one.holds), 'node')} for {one.job_id}"
                for one in event.reservations
            )
        case _:
            return ""


def _of_plans(event: Event) -> str:
    match event:
        case PlanCommitted():
            parts = [_placed(one) for one in event.placements]
            stops = sum(len(one.rows) for one in event.stops)
            updates = sum(len(one.rows) for one in event.updates)
            cut = sum(sum(one.counts) for one in event.cut)
            parts += [f"stops {stops}"] if stops else []
            parts += [f"updates {updates}"] if updates else []
            parts += [f"cut {cut}"] if cut else []
            return (
                f"{event.job_id}: {', '.join(parts) or 'changes nothing'}; by {event.origin.worker}"
            )
        case PlanRefused():
            return f"{event.job_id}: {event.code}: {event.reason}"
        case AllocationsReported():
            codes = sorted(set(event.statuses))
            counts = ", ".join(f"{event.statuses.count(c)} {CLIENT_STATUSES[c]}" for c in codes)
            return counts or f"{_some(len(event.nodes), 'report')} seen"
        case AllocationsDisplaced():
            return f"{_some(len(event.rows), 'allocation')} stopped by an operator"
        case _:
            return ""


def _placed(one: GroupPlacement) -> str:
    return f"{one.group} {sum(one.counts)} on {_some(len(set(one.rows)), 'node')}"


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def iso(t_ns: int) -> str:
    """A moment in UTC; empty for 0."""
    if not t_ns:
        return ""
    moment = datetime.fromtimestamp(t_ns // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{t_ns % 1_000_000_000 // 1000:06d}Z"
