"""Events in one line each, as `caravan log tail` prints them.

An event type without a text of its own is printed by its fields, so that no event is hidden. Rows of the state are
printed by the names of allocations and nodes where the state is known; rows that do not exist are printed as numbers.
"""

from collections.abc import Sequence

import msgspec

from schemas.allocations import (
    CLIENT_STATUSES,
    HEALTHS,
    AllocationsDisplaced,
    AllocationsHealthChanged,
    AllocationsReported,
)
from schemas.base import SECOND_NS, DeploymentKey, Event
from schemas.deployments import (
    DeploymentEnded,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentSized,
    DeploymentStarted,
)
from schemas.envelope import RECORD_DECODER, LogRecord
from schemas.evaluations import (
    EvaluationEnded,
    EvaluationsCreated,
    EvaluationsWoken,
    ReservationsChanged,
)
from schemas.gates import DeploymentGated, GateChanged, WindowChanged
from schemas.host_volumes import (
    VolumeDeleted,
    VolumeDeleting,
    VolumeFailed,
    VolumeReady,
    VolumeRequested,
)
from schemas.identities import SigningKeyCreated, SigningKeyRemoved
from schemas.jobs import (
    JobRegistered,
    JobStabilityChanged,
    JobStopped,
    JobVersionTagged,
    SubmissionRefused,
)
from schemas.launches import JobLaunched, JobPayload, LaunchSkipped
from schemas.nodes import (
    CapacityFreed,
    NodeConfirmedDead,
    NodeDrainChanged,
    NodeDrained,
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
from schemas.remotes import RemoteMoved, RemotesReported
from schemas.rollouts import RolloutEnded, RolloutStarted
from schemas.variables import (
    KeyCreated,
    VariableDeleted,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
    VariablePut,
    VariableRefused,
    VariablesShredded,
)
from schemas.volumes import ClaimMade, ClaimReleased
from shared.core.runtime.messages import Record
from shared.core.state.gates import thousandths_text, utc_text
from shared.core.state.ids import alloc_id, deployment_id, eval_id, rollout_id
from shared.core.state.state import State
from shared.display.formats import count_noun, first_of, format_clock, format_mib, format_size
from shared.durations import write_in_one_unit
from shared.jobspec.amounts import format_amount

_TEXT_CHARS_MAX = 160
#: Names in one line.
_NAMED_MAX = 3


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event, or one record without events. `type` is the event's tag, or the record's kind."""

    seq: int
    t_ns: int
    type: str
    text: str = ""


def describe_record(record: Record, state: State | None = None) -> list[EventLine]:
    """Describe a record without checking it. `state`: the state before it, for names."""
    try:
        decoded = RECORD_DECODER.decode(record.data)
    except msgspec.DecodeError as err:
        text = f"{format_size(len(record.data))} on {record.subject}: {err}"
        return [EventLine(seq=record.seq, t_ns=0, type="foreign", text=text[:_TEXT_CHARS_MAX])]
    return describe_decoded(decoded, record.seq, state)


def describe_decoded(record: LogRecord, seq: int, state: State | None = None) -> list[EventLine]:
    """Describe a decoded record, one line for each event. `state`: the state before it, for names."""
    if not record.events:
        return [EventLine(seq=seq, t_ns=record.t_ns, type=record.kind, text=_kind(record))]
    return [
        EventLine(
            seq=seq,
            t_ns=record.t_ns,
            type=str(event.__struct_config__.tag),
            text=describe_event(event, state)[:_TEXT_CHARS_MAX],
        )
        for event in record.events
    ]


def _kind(record: LogRecord) -> str:
    if record.lease is not None:
        fsync = "fsync on" if record.lease.fsync else "no fsync"
        return f"{record.lease.holder} holds the write lease, {fsync}, {count_noun(record.lease.replicas, 'replica')}"
    tables = record.tables or {}
    return f"{len(tables)} tables" if tables else ""


def describe_event(event: Event, state: State | None = None) -> str:
    """Describe an event in one line; with the state before it, by names instead of rows."""
    for words in _WORDS_OF:
        text = words(event, state)
        if text:
            return text
    fields = msgspec.structs.asdict(event).items()
    return ", ".join(f"{name} {value}" for name, value in fields)


def _of_jobs(event: Event, _state: State | None) -> str:
    match event:
        case JobRegistered():
            groups = ", ".join(f"{one.name} {one.count}" for one in event.groups)
            back = f", a revert of {event.reverted_from}" if event.reverted_from >= 0 else ""
            by = f", deployment {_short(event.evaluation)}" if event.deploys else ""
            return f"{event.job_id} version {event.version}{back}: {groups}{by}"
        case JobStabilityChanged():
            word = "stable" if event.stable else "not stable"
            return f"{event.job_id} version {event.version} is {word}"
        case JobVersionTagged():
            name = f"is named {event.name}" if event.name else "no longer has a name"
            return f"{event.job_id} version {event.version} {name}"
        case JobStopped():
            return f"{event.job_id}{', purge' if event.purge else ''}"
        case SubmissionRefused():
            return f"{event.verb} {event.job_id}: {event.code}: {event.reason}"
        case JobLaunched():
            how = "by an operator" if event.forced else f"for {format_clock(event.at_ns)}"
            return f"{event.child_id} {how}"
        case LaunchSkipped():
            return f"{event.parent} at {format_clock(event.at_ns)}: {_skipped(event)}"
        case JobPayload():
            return f"{event.job_id}: {format_size(len(event.data))}"
        case ClusterCreated():
            return event.cluster_id
        case _:
            return ""


def _skipped(event: LaunchSkipped) -> str:
    """Why an instant made no child."""
    if event.why == "missed":
        return f"{count_noun(event.missed, 'earlier instant')} missed"
    known = {"overlap": "a child still runs", "exists": "the child is there already"}
    return known.get(event.why, event.why)


def _standing(event: NodeEligibilityChanged | NodeConfirmedDead) -> str:
    if isinstance(event, NodeConfirmedDead):
        return "confirmed dead: nothing runs there any more"
    return "eligible" if event.eligible else "not eligible"


def _of_nodes(event: Event, state: State | None) -> str:
    match event:
        case NodeRegistered():
            spec = event.spec
            return f"{spec.node_id}: {spec.cpu_mhz} MHz, {format_mib(spec.memory_mib)}, {spec.datacenter}"
        case NodeRefused():
            return f"{event.node_id} from host {event.host_id}: {event.code}: {event.reason}"
        case NodesStatusChanged():
            reason = f" ({event.reason})" if event.reason else ""
            return f"{_nodes(state, event.rows)} {event.status}{reason}"
        case NodeDrainChanged():
            return f"{_node(state, event.row)} {_drain(event)}"
        case NodeDrained():
            late = " at its deadline" if event.deadline_reached else ""
            return f"{_node(state, event.row)} drained{late}, not eligible"
        case NodeEligibilityChanged() | NodeConfirmedDead():
            return f"{_node(state, event.row)} {_standing(event)}"
        case PoolDeclared():
            return f"{event.node_id or 'the cluster'}: {event.pool.name} {_offered(event.pool)}"
        case NodeMetaChanged():
            pairs = ", ".join(f"{key}={value}" for key, value in sorted(event.meta.items()))
            return f"{event.node_id}: {pairs or 'no metadata'}"
        case CapacityFreed():
            return f"on nodes of class {', '.join(str(one) for one in event.classes)}"
        case _:
            return ""


def _offered(pool: Pool) -> str:
    """The instances or the amount of a resource."""
    if pool.instances:
        return count_noun(len(pool.instances), "instance")
    return format_amount(pool.amount) if pool.amount else "removed"


def _of_evaluations(event: Event, _state: State | None) -> str:
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
            return f"{count_noun(len(event.keys), 'evaluation')}: {event.reason}"
        case ReservationsChanged():
            return ", ".join(
                f"{count_noun(sum(len(hold.rows) for hold in one.holds), 'node')} for {one.job_id}"
                for one in event.reservations
            )
        case _:
            return ""


def _of_plans(event: Event, state: State | None) -> str:
    match event:
        case PlanCommitted():
            parts = [_placed(one) for one in event.placements]
            stops = sum(len(one.rows) for one in event.stops)
            updates = sum(len(one.rows) for one in event.updates)
            cut = sum(sum(one.counts) for one in event.cut)
            parts += [f"stops {stops}"] if stops else []
            parts += [f"updates {updates}"] if updates else []
            parts += [f"cut {cut}"] if cut else []
            return f"{event.job_id}: {', '.join(parts) or 'no changes'}; by {event.origin.worker}"
        case PlanRefused():
            return f"{event.job_id}: {event.code}: {event.reason}"
        case AllocationsReported():
            return _reported(event, state)
        case AllocationsDisplaced():
            return f"{_allocations(state, event.rows)} stopped by an operator"
        case _:
            return ""


def _of_deployments(event: Event, state: State | None) -> str:
    match event:
        case DeploymentStarted():
            groups = ", ".join(
                f"{one.name} {one.desired_total}"
                + (f" with {one.desired_canaries} canaries" if one.desired_canaries else "")
                for one in event.groups
            )
            why = {"revert": ", a revert", "rollout": ", of a rollout"}.get(event.cause, "")
            return f"{_short(event.key)} of {event.job_id} version {event.version}{why}: {groups}"
        case DeploymentEnded():
            back = f", back to version {event.reverted_to}" if event.reverted_to >= 0 else ""
            said = f"{event.job_id} version {event.version} {event.status}{back}: {event.reason}"
            return f"{_short(event.key)} of {said}"
        case DeploymentSized():
            return f"{_deployment(event.key, state)}: {event.group} {event.desired_total}"
        case DeploymentPromoted():
            canaries = f", {_allocations(state, event.rows)}" if event.rows else ""
            groups = ", ".join(event.groups)
            return f"{_deployment(event.key, state)}: {groups} by {event.by}{canaries}"
        case DeploymentPaused() | DeploymentResumed():
            return _deployment(event.key, state)
        case DeploymentHeld() | DeploymentReleased():
            return f"{_deployment(event.key, state)}: {event.cause}, {event.reason}"
        case DeploymentGated() | GateChanged() | WindowChanged():
            return f"{_deployment(event.key, state)}: {_gates(event)}"
        case AllocationsHealthChanged():
            return _health(event, state)
        case _:
            return ""


def _of_variables(event: Event, _state: State | None) -> str:
    """A variable without its ciphertext and digest, which say nothing to people."""
    match event:
        case VariablePut():
            held = f"{count_noun(event.items, 'item')}, {format_size(event.size)}"
            return f"{event.path} incarnation {event.incarnation}: {held}"
        case VariableDeleted():
            return f"{event.path} incarnation {event.incarnation}"
        case VariablesShredded():
            named = [f"{one.path} incarnation {one.incarnation}" for one in event.lives]
            return first_of(named, _NAMED_MAX)
        case VariableRefused():
            return f"{event.path}: {event.code}: {event.reason}"
        case VariableLocked():
            return f"{event.path}: expires {event.ttl_ns / SECOND_NS:g} s after its last renewal"
        case VariableLockReleased() | VariableLockExpired():
            return event.path
        case KeyCreated() | SigningKeyCreated() | SigningKeyRemoved():
            return event.key_id
        case _:
            return ""


def _of_volumes(event: Event, _state: State | None) -> str:
    match event:
        case ClaimMade():
            return f"{event.job_id}.{event.group}[{event.index}]: {event.volume} of node {event.node_id}"
        case ClaimReleased():
            return f"{event.job_id}.{event.group}[{event.index}]"
        case VolumeRequested():
            spec = event.spec
            return f"{spec.name} on node {event.node_id}, by plugin {spec.plugin} ({spec.id})"
        case VolumeFailed():
            return f"{event.volume_id}: {event.reason}"
        case VolumeReady() | VolumeDeleting() | VolumeDeleted():
            return event.volume_id
        case _:
            return ""


def _of_remotes(event: Event, _state: State | None) -> str:
    match event:
        case RemotesReported():
            named = [f"{one.job_id}.{one.group}[{one.index}]" for one in event.slots]
            return first_of(named, _NAMED_MAX)
        case RemoteMoved():
            where = event.node_id or (alloc_id(event.tracker)[:8] if event.tracker else "")
            return f"{alloc_id(event.generation)[:8]}: {event.status} {where}".rstrip()
        case _:
            return ""


def _of_rollouts(event: Event, _state: State | None) -> str:
    match event:
        case RolloutStarted():
            members = ", ".join(
                f"{one.job_id} version {one.version}" for one in event.members[:_NAMED_MAX]
            )
            more = len(event.members) - _NAMED_MAX
            others = f" and {more} more" if more > 0 else ""
            return f"{_rollout(event.key)} {event.name!r}, {event.order}: {members}{others}"
        case RolloutEnded():
            return f"{_rollout(event.key)} {event.status}: {event.reason}"
        case _:
            return ""


def _rollout(key: int) -> str:
    return rollout_id(key)[:8]


def _short(key: int) -> str:
    return deployment_id(key)[:8]


def _deployment(key: DeploymentKey, state: State | None) -> str:
    one = None if state is None else state.deployments.by_key.get(key)
    return _short(key) + (f" of {one.job_id} version {one.version}" if one is not None else "")


def _gates(event: DeploymentGated | GateChanged | WindowChanged) -> str:
    """Gates by name, or what became of one."""
    match event:
        case DeploymentGated():
            windows = [
                f"{one.cron} for {write_in_one_unit(one.duration_ns)}" for one in event.windows
            ]
            return ", ".join([*(f"{one.name} {one.gauge}" for one in event.gates), *windows])
        case GateChanged():
            reading = "silent" if event.value is None else thousandths_text(event.value)
            return f"gate {event.gate} {event.status}, {reading}"
        case WindowChanged():
            until = f" until {utc_text(event.until_ns)}" if event.until_ns else ""
            return f"window {'open' if event.is_open else 'closed'}{until}"


def _health(event: AllocationsHealthChanged, state: State | None) -> str:
    """Allocations by health, with the reason where there is one."""
    parts = []
    reasons = event.reasons or ("",) * len(event.rows)
    for code in sorted(set(event.healths)):
        rows = [row for row, one in zip(event.rows, event.healths, strict=False) if one == code]
        said = [
            why for why, one in zip(reasons, event.healths, strict=False) if one == code and why
        ]
        parts.append(
            f"{_allocations(state, rows)} {HEALTHS[code]}" + (f" ({said[0]})" if said else "")
        )
    by = ", by an operator" if event.source == "operator" else ""
    return "; ".join(parts) + by


def _placed(one: GroupPlacement) -> str:
    kind = " as canaries" if one.canaries else ""
    return f"{one.group} {sum(one.counts)}{kind} on {count_noun(len(set(one.rows)), 'node')}"


# ---- names of rows ----


def _drain(event: NodeDrainChanged) -> str:
    if not event.draining:
        return "drain ended"
    deadline = event.deadline_ns
    return f"draining until {format_clock(deadline)}" if deadline else "draining, no deadline"


def _reported(event: AllocationsReported, state: State | None) -> str:
    """Allocations by status, and with names the node if there is only one."""
    parts = []
    for code in sorted(set(event.statuses)):
        rows = [row for row, one in zip(event.rows, event.statuses, strict=False) if one == code]
        shown = len(rows) if state is None else _allocations(state, rows)
        parts.append(f"{shown} {CLIENT_STATUSES[code]}")
    if not parts:
        return f"{count_noun(len(event.nodes), 'report')} received"
    nodes = sorted(set(event.nodes))
    where = f" on {_node(state, nodes[0])}" if state is not None and len(nodes) == 1 else ""
    return ("; " if state is not None else ", ").join(parts) + where


def _allocations(state: State | None, rows: Sequence[int]) -> str:
    if state is None:
        return count_noun(len(rows), "allocation")
    return first_of((_allocation(state, row) for row in rows), _NAMED_MAX)


def _allocation(state: State, row: int) -> str:
    table = state.allocations
    if not 0 <= row < len(table.key) or not table.key[row]:
        return f"allocation in row {row}"
    groups, ref = table.groups, int(table.group[row])
    return f"{groups.job_ids[ref]}.{groups.names[ref]}[{int(table.index[row])}]"


def _nodes(state: State | None, rows: Sequence[int]) -> str:
    if state is None:
        return count_noun(len(rows), "node")
    return first_of((_node(state, row) for row in rows), _NAMED_MAX)


def _node(state: State | None, row: int) -> str:
    ids = () if state is None else state.fleet.ids
    return str(ids[row]) if 0 <= row < len(ids) and ids[row] else f"node in row {row}"


_WORDS_OF = (
    *(_of_jobs, _of_nodes, _of_evaluations),
    *(_of_plans, _of_deployments, _of_rollouts, _of_variables, _of_volumes, _of_remotes),
)
