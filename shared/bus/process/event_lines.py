"""INFO lines for operators: what the acting instance of a role did or saw in the log, with ids and seq bound.

One line for each record and name, at most LINES_PER_S of a name a second: of several events the fields are those of
the first, and `count` says how many there are. docs/operations.md lists the names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from schemas.allocations import AllocationsDisplaced
from schemas.base import SECOND_NS, DeploymentKey, EvalKey
from schemas.deployments import (
    DeploymentEnded,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentStarted,
)
from schemas.envelope import LogRecord
from schemas.evaluations import EvaluationEnded
from schemas.gates import GateChanged, WindowChanged
from schemas.host_volumes import (
    VolumeDeleted,
    VolumeDeleting,
    VolumeFailed,
    VolumeReady,
    VolumeRequested,
)
from schemas.identities import SigningKeyCreated, SigningKeyRemoved
from schemas.jobs import JobRegistered, JobStopped, SubmissionRefused
from schemas.launches import JobLaunched, LaunchSkipped
from schemas.nodes import (
    NodeConfirmedDead,
    NodeDrainChanged,
    NodeDrained,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRefused,
    NodeRegistered,
    NodesStatusChanged,
    PoolDeclared,
)
from schemas.plans import PlanCommitted, PlanRefused
from schemas.policy import IncarnationBegan, LogRolled, LossAccepted, OperatorRefused, PolicyChanged
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
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.state.ids import alloc_id, deployment_id, eval_id, rollout_id
from shared.core.state.state import State

log = structlog.get_logger()

#: Of one name; the next line counts those without a line, too.
LINES_PER_S = 20
Fields = dict[str, object]


@dataclass(frozen=True)
class _Line:
    """How a kind of event is written. `name`: the same for each, or by event and state; empty: no line."""

    name: str | Callable[[Any, State], str]
    fields: Callable[[Any, State], Fields]

    def name_of(self, event: object, state: State) -> str:
        """Name of the line of an event; empty: it has none."""
        return self.name if isinstance(self.name, str) else self.name(event, state)


def _registered_name(event: JobRegistered, state: State) -> str:
    if event.reverted_from >= 0:
        return "job.reverted"
    return "job.scaled" if _is_scaled(event, state) else "job.accepted"


def _is_scaled(event: JobRegistered, state: State) -> bool:
    """Whether a version differs from the one before it in the counts of its groups, and in nothing else."""
    kept = state.jobs.versions.get(event.job_id, ())
    if len(kept) < 2 or kept[-1].version != event.version or kept[-2].job is None:
        return False
    counts = {group.name: group.count for group in kept[-2].job.groups}
    if counts == {group.name: group.count for group in event.groups}:
        # Most versions end here, without a look at their texts.
        return False
    return _without_counts(kept[-1].spec) == _without_counts(kept[-2].spec)


def _without_counts(text: bytes) -> dict[str, Any]:
    job: dict[str, Any] = msgspec.json.decode(text)
    for group in job.get("TaskGroups") or ():
        group.pop("Count", None)
        # The first scaling of a group stores the count of its file as the lower bound.
        (group.get("Scaling") or {}).pop("Min", None)
    return job


def _claim(event: ClaimMade | ClaimReleased, _state: State) -> Fields:
    return {"job": event.job_id, "group": event.group, "index": event.index}


def _volume_request(event: VolumeRequested, _state: State) -> Fields:
    spec = event.spec
    return {"volume": spec.id, "name": spec.name, "node": event.node_id, "attempt": event.attempt}


def _volume(
    event: VolumeReady | VolumeFailed | VolumeDeleting | VolumeDeleted, _state: State
) -> Fields:
    reason = event.reason if isinstance(event, VolumeFailed) else ""
    return {"volume": event.volume_id, "reason": reason}


def _job(event: JobRegistered | JobStopped, _state: State) -> Fields:
    return {
        "job": event.job_id,
        "evaluation": eval_id(event.evaluation) if event.evaluation else "",
    }


def _registered(event: JobRegistered, state: State) -> Fields:
    fields = {**_job(event, state), "version": event.version}
    if event.deploys:
        fields["deployment"] = deployment_id(DeploymentKey(event.evaluation))
    return fields


def _job_of_evaluation(key: EvalKey, state: State) -> str:
    known = state.evaluations.by_key.get(key)
    return known.job_id if known is not None else ""


def _nodes_status(event: NodesStatusChanged, state: State) -> Fields:
    ids = state.fleet.ids
    first = [ids[row] for row in event.rows[:1]]
    return {
        "status": event.status,
        "node": "".join(first),
        "nodes": len(event.rows),
        "reason": event.reason,
    }


def _evaluation(event: EvaluationEnded, state: State) -> Fields:
    job = _job_of_evaluation(event.key, state)
    return {"evaluation": eval_id(event.key), "job": job, "reason": event.reason}


def _first_allocation(rows: tuple[int, ...], state: State) -> str:
    return "".join(alloc_id(int(state.allocations.key[row])) for row in rows[:1])


def _displaced(event: AllocationsDisplaced, state: State) -> Fields:
    return {
        "allocation": _first_allocation(event.rows, state),
        "allocations": len(event.rows),
    }


def _evicted(event: PlanCommitted, state: State) -> Fields:
    """Of the first job that lost allocations; `allocations` counts those of all."""
    first = event.evictions[0]
    return {
        "job": first.job_id,
        "allocation": _first_allocation(first.rows, state),
        "allocations": sum(len(one.rows) for one in event.evictions),
        "by": event.job_id,
        "evaluation": eval_id(event.key),
    }


def _deployment(key: DeploymentKey, state: State) -> Fields:
    one = state.deployments.by_key.get(key)
    known: Fields = {} if one is None else {"job": one.job_id, "version": one.version}
    return {"deployment": deployment_id(key), **known}


def _deployment_ended(event: DeploymentEnded, _state: State) -> Fields:
    fields: Fields = {
        "deployment": deployment_id(event.key),
        "job": event.job_id,
        "version": event.version,
        "status": event.status,
        "cause": event.cause,
        "reason": event.reason,
    }
    return {**fields, "reverted_to": event.reverted_to} if event.reverted_to >= 0 else fields


def _with_deployment(*names: str) -> Callable[[Any, State], Fields]:
    """Fields of an event about a deployment: which it is, and the event's own fields `names`."""

    def fields(event: Any, state: State) -> Fields:
        return {**_deployment(event.key, state), **{name: getattr(event, name) for name in names}}

    return fields


def _rollout_ended(event: RolloutEnded, state: State) -> Fields:
    one = state.rollouts.by_key.get(event.key)
    return {
        "rollout": rollout_id(event.key),
        "name": one.name if one is not None else "",
        "status": event.status,
        "cause": event.cause,
        "reason": event.reason,
    }


_LINES: dict[str, dict[type, _Line]] = {
    "intake": {
        JobRegistered: _Line(_registered_name, _registered),
        JobStopped: _Line("job.stopped", _job),
        SubmissionRefused: _Line(
            "job.refused",
            lambda event, _: {"job": event.job_id, "code": event.code, "reason": event.reason},
        ),
        RolloutStarted: _Line(
            "rollout.started",
            lambda event, _: {
                "rollout": rollout_id(event.key),
                "name": event.name,
                "order": event.order,
                "jobs": len(event.members),
            },
        ),
    },
    "heartbeat": {
        NodeRegistered: _Line("node.registered", lambda event, _: {"node": event.spec.node_id}),
        NodeRefused: _Line(
            "node.refused",
            lambda event, _: {"node": event.node_id, "code": event.code, "reason": event.reason},
        ),
        NodesStatusChanged: _Line("node.status_changed", _nodes_status),
    },
    "timekeeper": {
        JobLaunched: _Line(
            "job.launched",
            lambda event, _: {
                "job": event.parent,
                "child": event.child_id,
                "forced": event.forced,
            },
        ),
        LaunchSkipped: _Line(
            "launch.skipped",
            lambda event, _: {"job": event.parent, "why": event.why, "missed": event.missed},
        ),
        GateChanged: _Line("deployment.gate_changed", _with_deployment("gate", "status", "value")),
        WindowChanged: _Line("deployment.window_changed", _with_deployment("is_open", "until_ns")),
    },
    "eval_broker": {
        EvaluationEnded: _Line(
            lambda event, _: "evaluation.failed" if event.status == "failed" else "", _evaluation
        )
    },
    "plan_applier": {
        PlanCommitted: _Line(lambda event, _: "alloc.evicted" if event.evictions else "", _evicted),
        PlanRefused: _Line(
            "plan.refused",
            lambda event, _: {
                "job": event.job_id,
                "evaluation": eval_id(event.key),
                "worker": event.origin.worker,
                "plan": event.origin.number,
                "code": event.code,
            },
        ),
        DeploymentStarted: _Line(
            "deployment.started",
            lambda event, _: {
                "deployment": deployment_id(event.key),
                "job": event.job_id,
                "version": event.version,
                "cause": event.cause,
            },
        ),
        DeploymentPromoted: _Line("deployment.promoted", _with_deployment("groups", "by")),
        DeploymentPaused: _Line("deployment.paused", _with_deployment("reason")),
        DeploymentResumed: _Line("deployment.resumed", _with_deployment()),
        DeploymentHeld: _Line("deployment.held", _with_deployment("cause", "reason")),
        DeploymentReleased: _Line(
            "deployment.released", _with_deployment("cause", "reason", "for_good")
        ),
        DeploymentEnded: _Line("deployment.ended", _deployment_ended),
        RolloutEnded: _Line("rollout.ended", _rollout_ended),
        OperatorRefused: _Line(
            "operator.refused",
            lambda event, _: {
                "request": event.request_id,
                "code": event.code,
                "reason": event.reason,
            },
        ),
        VariablePut: _Line(
            "variable.put",
            lambda event, _: {
                "path": event.path,
                "incarnation": event.incarnation,
                "items": event.items,
                "size": event.size,
            },
        ),
        VariableDeleted: _Line(
            "variable.deleted",
            lambda event, _: {"path": event.path, "incarnation": event.incarnation},
        ),
        VariablesShredded: _Line("variable.shredded", lambda event, _: {"lives": len(event.lives)}),
        VariableRefused: _Line(
            "variable.refused",
            lambda event, _: {
                "request": event.request_id,
                "path": event.path,
                "code": event.code,
                "reason": event.reason,
            },
        ),
        VariableLocked: _Line("variable.locked", lambda event, _: {"path": event.path}),
        VariableLockReleased: _Line(
            "variable.lock_released", lambda event, _: {"path": event.path}
        ),
        VariableLockExpired: _Line("variable.lock_expired", lambda event, _: {"path": event.path}),
        KeyCreated: _Line("key.created", lambda event, _: {"key": event.key_id}),
        SigningKeyCreated: _Line("signing_key.created", lambda event, _: {"key": event.key_id}),
        SigningKeyRemoved: _Line("signing_key.removed", lambda event, _: {"key": event.key_id}),
        ClaimMade: _Line("claim.made", _claim),
        ClaimReleased: _Line("claim.released", _claim),
        VolumeRequested: _Line("volume.requested", _volume_request),
        VolumeReady: _Line("volume.ready", _volume),
        VolumeFailed: _Line("volume.failed", _volume),
        VolumeDeleting: _Line("volume.deleting", _volume),
        VolumeDeleted: _Line("volume.deleted", _volume),
        RemotesReported: _Line("remotes.reported", lambda event, _: {"slots": len(event.slots)}),
        RemoteMoved: _Line(
            "remote.moved",
            lambda event, _: {"slot": alloc_id(event.generation), "status": event.status},
        ),
        PolicyChanged: _Line("operator.policy_changed", lambda _event, _state: {}),
        NodeEligibilityChanged: _Line(
            "operator.eligibility_changed",
            lambda event, state: {"node": state.fleet.ids[event.row], "eligible": event.eligible},
        ),
        NodeDrainChanged: _Line(
            "operator.drain_changed",
            lambda event, state: {"node": state.fleet.ids[event.row], "draining": event.draining},
        ),
        NodeDrained: _Line(
            "node.drained",
            lambda event, state: {
                "node": state.fleet.ids[event.row],
                "deadline_reached": event.deadline_reached,
            },
        ),
        NodeConfirmedDead: _Line(
            "operator.node_confirmed_dead",
            lambda event, state: {"node": state.fleet.ids[event.row]},
        ),
        NodeMetaChanged: _Line("operator.meta_changed", lambda event, _: {"node": event.node_id}),
        PoolDeclared: _Line(
            "operator.pool_declared",
            lambda event, _: {"node": event.node_id, "pool": event.pool.name},
        ),
        AllocationsDisplaced: _Line("alloc.stop_accepted", _displaced),
        LogRolled: _Line("log.rolled", lambda event, _: {"generation": event.generation}),
        LossAccepted: _Line(
            "log.loss_accepted",
            lambda event, _: {"first_seq": event.first_seq, "reason": event.reason},
        ),
        IncarnationBegan: _Line(
            "log.incarnation_began",
            lambda event, _: {
                "incarnation": event.incarnation,
                "reason": event.reason,
                "lost_seq": event.lost_seq,
            },
        ),
    },
}


class _RoleLogger:
    """Writes the lines of one role, at most LINES_PER_S of a name in a second of log time."""

    def __init__(self, lines: dict[type, _Line]) -> None:
        self._lines = lines
        self._second = 0
        #: name -> lines written in this second, and events counted since the last line.
        self._written: dict[str, int] = {}
        self._skipped: dict[str, int] = {}

    def __call__(self, state: State, record: LogRecord, seq: int) -> None:
        """Inspect one record."""
        found: dict[str, list[object]] = {}
        for event in record.events:
            line = self._lines.get(type(event))
            if line is not None and (name := line.name_of(event, state)):
                found.setdefault(name, []).append(event)
        if not found:
            return
        second = record.t_ns // SECOND_NS
        if second != self._second:
            self._second = second
            self._written.clear()
        for name, events in found.items():
            self._write(name, events, state, seq)

    def _write(self, name: str, events: list[object], state: State, seq: int) -> None:
        count = self._skipped.pop(name, 0) + len(events)
        if self._written.get(name, 0) >= LINES_PER_S:
            # Jobs may come in by thousands a second: to write a line costs more than to accept one of them.
            self._skipped[name] = count
            return
        self._written[name] = self._written.get(name, 0) + 1
        fields = self._lines[type(events[0])].fields(events[0], state)
        log.info(name, seq=seq, **fields, **({"count": count} if count > 1 else {}))


def write_event_lines(role: object) -> None:
    """Let a role that has lines write them from now on."""
    if isinstance(role, ReplicatedRole) and role.name in _LINES:
        role.observe = _RoleLogger(_LINES[role.name])
