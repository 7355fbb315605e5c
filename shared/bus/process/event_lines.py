"""INFO lines for operators: what the acting instance of a role did or saw in the log, with ids and seq bound.

One line for each record and kind of event, at most LINES_PER_S of a kind a second: of several events the fields are
those of the first, and `count` says how many there are.
"""

from collections.abc import Callable
from typing import Any

import structlog

from schemas.allocations import AllocationsDisplaced
from schemas.base import SECOND_NS
from schemas.envelope import LogRecord
from schemas.evaluations import EvaluationEnded
from schemas.jobs import JobRegistered, JobStopped, SubmissionRefused
from schemas.launches import JobLaunched, LaunchSkipped
from schemas.nodes import (
    NodeDrainChanged,
    NodeDrained,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRefused,
    NodeRegistered,
    NodesStatusChanged,
    PoolDeclared,
)
from schemas.plans import PlanRefused
from schemas.policy import IncarnationBegan, LogRolled, LossAccepted, OperatorRefused, PolicyChanged
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.state.ids import alloc_id, eval_id
from shared.core.state.state import State

log = structlog.get_logger()

#: Of one kind of event; the next line counts those without a line, too.
LINES_PER_S = 20
#: Makes the name of a line and its fields.
_Line = Callable[[Any, State], tuple[str, dict[str, object]]]


def _job(name: str) -> _Line:
    def line(event: JobRegistered | JobStopped, _state: State) -> tuple[str, dict[str, object]]:
        evaluation = eval_id(event.evaluation) if event.evaluation else ""
        return name, {"job": event.job_id, "evaluation": evaluation}

    return line


def _nodes_status(event: NodesStatusChanged, state: State) -> tuple[str, dict[str, object]]:
    ids = state.fleet.ids
    first = [ids[row] for row in event.rows[:1]]
    return "node.status_changed", {
        "status": event.status,
        "node": "".join(first),
        "nodes": len(event.rows),
        "reason": event.reason,
    }


def _evaluation(event: EvaluationEnded, _state: State) -> tuple[str, dict[str, object]]:
    return "evaluation.failed", {"evaluation": eval_id(event.key), "reason": event.reason}


def _displaced(event: AllocationsDisplaced, state: State) -> tuple[str, dict[str, object]]:
    keys = [int(state.allocations.key[row]) for row in event.rows[:1]]
    shown = "".join(alloc_id(key) for key in keys)
    return "alloc.stop_accepted", {"allocation": shown, "allocations": len(event.rows)}


def _incarnation(event: IncarnationBegan, _state: State) -> tuple[str, dict[str, object]]:
    fields = {"incarnation": event.incarnation, "reason": event.reason}
    return "log.incarnation_began", {**fields, "lost_seq": event.lost_seq}


_LINES: dict[str, dict[type, _Line]] = {
    "intake": {
        JobRegistered: _job("job.accepted"),
        JobStopped: _job("job.stopped"),
        SubmissionRefused: lambda event, _: (
            "job.refused",
            {"job": event.job_id, "code": event.code, "reason": event.reason},
        ),
    },
    "heartbeat": {
        NodeRegistered: lambda event, _: ("node.registered", {"node": event.spec.node_id}),
        NodeRefused: lambda event, _: (
            "node.refused",
            {"node": event.node_id, "code": event.code, "reason": event.reason},
        ),
        NodesStatusChanged: _nodes_status,
    },
    "timekeeper": {
        JobLaunched: lambda event, _: (
            "job.launched",
            {"job": event.parent, "child": event.child_id, "forced": event.forced},
        ),
        LaunchSkipped: lambda event, _: (
            "launch.skipped",
            {"job": event.parent, "why": event.why, "missed": event.missed},
        ),
    },
    "eval_broker": {EvaluationEnded: _evaluation},
    "plan_applier": {
        PlanRefused: lambda event, _: (
            "plan.refused",
            {
                "job": event.job_id,
                "evaluation": eval_id(event.key),
                "worker": event.origin.worker,
                "plan": event.origin.number,
                "code": event.code,
            },
        ),
        OperatorRefused: lambda event, _: (
            "operator.refused",
            {"request": event.request_id, "code": event.code, "reason": event.reason},
        ),
        PolicyChanged: lambda _event, _state: ("operator.policy_changed", {}),
        NodeEligibilityChanged: lambda event, state: (
            "operator.eligibility_changed",
            {"node": state.fleet.ids[event.row], "eligible": event.eligible},
        ),
        NodeDrainChanged: lambda event, state: (
            "operator.drain_changed",
            {"node": state.fleet.ids[event.row], "draining": event.draining},
        ),
        NodeDrained: lambda event, state: (
            "node.drained",
            {"node": state.fleet.ids[event.row], "deadline_reached": event.deadline_reached},
        ),
        NodeMetaChanged: lambda event, _: ("operator.meta_changed", {"node": event.node_id}),
        PoolDeclared: lambda event, _: (
            "operator.pool_declared",
            {"node": event.node_id, "pool": event.pool.name},
        ),
        AllocationsDisplaced: _displaced,
        LogRolled: lambda event, _: ("log.rolled", {"generation": event.generation}),
        LossAccepted: lambda event, _: (
            "log.loss_accepted",
            {"first_seq": event.first_seq, "reason": event.reason},
        ),
        IncarnationBegan: _incarnation,
    },
}


class _EventLines:
    """Writes the lines of one role, at most LINES_PER_S of a kind in a second of log time."""

    def __init__(self, lines: dict[type, _Line]) -> None:
        self._lines = lines
        self._second = 0
        #: kind of event -> lines written in this second, and events counted since the last line.
        self._written: dict[type, int] = {}
        self._skipped: dict[type, int] = {}

    def __call__(self, state: State, record: LogRecord, seq: int) -> None:
        """Inspect one record."""
        found: dict[type, list[object]] = {}
        for event in record.events:
            if type(event) in self._lines and _has_line(event):
                found.setdefault(type(event), []).append(event)
        if not found:
            return
        second = record.t_ns // SECOND_NS
        if second != self._second:
            self._second = second
            self._written.clear()
        for kind, events in found.items():
            self._write(kind, events, state, seq)

    def _write(self, kind: type, events: list[object], state: State, seq: int) -> None:
        count = self._skipped.pop(kind, 0) + len(events)
        if self._written.get(kind, 0) >= LINES_PER_S:
            # Jobs may come in by thousands a second: to write a line costs more than to accept one of them.
            self._skipped[kind] = count
            return
        self._written[kind] = self._written.get(kind, 0) + 1
        name, fields = self._lines[kind](events[0], state)
        log.info(name, seq=seq, **fields, **({"count": count} if count > 1 else {}))


def _has_line(event: object) -> bool:
    return not isinstance(event, EvaluationEnded) or event.status == "failed"


def write_event_lines(role: object) -> None:
    """Let a role that has lines write them from now on."""
    if isinstance(role, ReplicatedRole) and role.name in _LINES:
        role.observe = _EventLines(_LINES[role.name])
