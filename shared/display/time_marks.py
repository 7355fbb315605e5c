"""Marks of the time bar: the few moments in a log that an operator looks for. Follows the records of a replica.

Decides what is marked; the bar itself is drawn from log times. Bounded: the oldest marks leave.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from schemas.base import Event
from schemas.deployments import DeploymentEnded, DeploymentStarted
from schemas.envelope import LogRecord
from schemas.jobs import JobRegistered, JobStopped
from schemas.nodes import NodeDrainChanged, NodeRegistered, NodesStatusChanged
from schemas.plans import PlanCommitted
from shared.core.state.state import State

MARKS_MAX = 5_000
#: Records with a plan that are known; at twice as many the older half leaves.
PLANS_KEPT = 500_000
_BAD = frozenset(("down", "disconnected"))


class Mark(NamedTuple):
    """One moment. `kind`: job, stop, node, node_lost, drain or deployment."""

    seq: int
    t_ns: int
    kind: str
    text: str


class TimeMarks:
    """The newest marks, oldest first."""

    def __init__(self) -> None:
        self.marks: deque[Mark] = deque(maxlen=MARKS_MAX)
        #: records before it left no marks: the replay began behind them.
        self.first_seq = 1
        #: seqs of records with a plan: what the bar steps by.
        self._plans = array("q")
        self._of: dict[type[Event], Callable[[State, Any], tuple[str, str] | None]] = {
            JobRegistered: lambda _, one: ("job", f"{one.job_id} version {one.version}"),
            JobStopped: lambda _, one: ("stop", f"{one.job_id} stopped"),
            NodeRegistered: _registered,
            NodesStatusChanged: _turned,
            NodeDrainChanged: _drained,
            DeploymentStarted: lambda _, one: ("deployment", f"{one.job_id} deployment started"),
            DeploymentEnded: lambda _, one: (
                "deployment",
                f"{one.job_id} deployment {one.status}",
            ),
        }

    def begin(self, state: State, seq: int) -> None:
        """Begin at a state: what led to it is not known."""
        del state
        self.marks.clear()
        self.first_seq = seq + 1
        self._plans = array("q")

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """Note what is a mark; rows are those of the state before."""
        for event in record.events:
            if type(event) is PlanCommitted and (not self._plans or self._plans[-1] < seq):
                self._plans.append(seq)
            describe = self._of.get(type(event))
            found = describe(state, event) if describe is not None else None
            if found is not None:
                self.marks.append(Mark(seq, record.t_ns, *found))

    def after(self, state: State, record: LogRecord, seq: int) -> None:
        """Bound what is kept: marks are about what changes."""
        del state, record, seq
        if len(self._plans) >= 2 * PLANS_KEPT:
            self._plans = self._plans[-PLANS_KEPT:]

    def plan_seq(self, seq: int, steps: int) -> int:
        """The record with a plan so many steps behind a seq, or before it where negative; 0: there is none."""
        if steps > 0:
            place = bisect_right(self._plans, seq) + steps - 1
        else:
            place = bisect_left(self._plans, seq) + steps
        return self._plans[place] if 0 <= place < len(self._plans) else 0


def _registered(state: State, event: NodeRegistered) -> tuple[str, str] | None:
    """Mark a new node; a node that registers again is not marked."""
    node_id = event.spec.node_id
    return None if node_id in state.fleet.row_of else ("node", f"{node_id} joined")


def _turned(state: State, event: NodesStatusChanged) -> tuple[str, str] | None:
    names = ", ".join(str(state.fleet.ids[row]) for row in event.rows[:3])
    rest = f" and {len(event.rows) - 3} more" if len(event.rows) > 3 else ""
    kind = "node_lost" if event.status in _BAD else "node"
    return kind, f"{names}{rest} {event.status}"


def _drained(state: State, event: NodeDrainChanged) -> tuple[str, str] | None:
    if not event.draining:
        return None
    return "drain", f"{state.fleet.ids[event.row]} drain started"
