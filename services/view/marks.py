"""What changed since it was published: which nodes, jobs and submissions a transaction is news about.

Decides which fact is news to whom, by its type. Must not know when anything is published, nor how it looks. While the
past goes by nothing is marked but what has left: all that is there is marked once, when the log was replayed. Next:
`publishing.py`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsReported
from schemas.base import Event, JobId, NodeId
from schemas.envelope import Record
from schemas.evaluations import EvaluationsWoken
from schemas.jobs import JobEvaluated, JobRegistered, JobsCollected, JobStopped, SubmissionRefused
from schemas.nodes import (
    NodeDrainChanged,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRefused,
    NodeRegistered,
    NodesCollected,
    NodesStatusChanged,
    PoolDeclared,
)
from schemas.plans import Evictions, InPlace, PlanCommitted, Stops
from services.view.last_words import last_words_of_job, last_words_of_node
from shared.bus import subjects
from shared.core.columns import grown
from shared.core.state import State

#: A row of the fleet.
Row = int


class RowMarks:
    """Marked rows of the fleet: added as they stand in events, looked at as a mask."""

    def __init__(self) -> None:
        self._mask = np.zeros(0, dtype=np.bool_)
        #: not in the mask yet: a few array writes a look instead of a few an event.
        self._added: list[Row] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Mark rows."""
        self._added.extend(rows)

    def mask(self, size: int = 0) -> NDArray[np.bool_]:
        """Every row, marked or not. Shape: (R,), at least `size`. To unmark, write to it."""
        if self._added:
            rows = np.asarray(self._added, dtype=np.int32)
            self._added = []
            size = max(size, int(rows.max()) + 1)
            self._mask = grown(self._mask, size)
            self._mask[rows] = True
        elif size > len(self._mask):
            self._mask = grown(self._mask, size)
        return self._mask

    def any(self) -> bool:
        """Tell whether a row is marked."""
        return bool(self._added) or bool(self._mask.any())


class Marks:
    """What is to be published. Nodes by row, the rest in order of the change."""

    def __init__(self) -> None:
        self.desired = RowMarks()
        #: what a node reported was seen: not urgent, a word about what it shall do says that, too.
        self.heard = RowMarks()
        self.summary = RowMarks()
        self.jobs: dict[JobId, None] = {}
        self.submissions: dict[str, None] = {}
        #: subject -> value of what has left the state, published once more.
        self.last_words: dict[str, bytes] = {}
        #: placements came since the last tick.
        self.is_planning = False

    def everything(self, state: State) -> None:
        """Mark all there is."""
        fleet = state.fleet
        live = np.flatnonzero(fleet.live[: fleet.size]).tolist()
        self.desired.add(live)
        self.summary.add(live)
        self.jobs.update(dict.fromkeys(state.jobs.by_id))
        self.submissions.update(dict.fromkeys(state.jobs.submissions))
        if self.last_words:
            for row in live:
                self.node_appeared(fleet.ids[row])
            for job_id in state.jobs.by_id:
                self.job_appeared(job_id)

    def node_appeared(self, node_id: NodeId) -> None:
        """Drop the last words of a node that is there again."""
        if self.last_words:
            self.last_words.pop(subjects.node(node_id), None)
            self.last_words.pop(subjects.view_node(node_id), None)

    def job_appeared(self, job_id: JobId) -> None:
        """Drop the last words of a job that is there again."""
        if self.last_words:
            self.last_words.pop(subjects.view_job(job_id), None)

    def pending(self) -> bool:
        """Tell whether something is marked that need not wait."""
        some = bool(self.jobs or self.submissions or self.last_words)
        return some or self.desired.any() or self.summary.any()


#: What marks for an event of one type, and the seq of its transaction.
_Marking = Callable[[Any, int], None]


class Marker:
    """Marks by events: by what the state held before a transaction, and by what it brought."""

    def __init__(self, state: State, marks: Marks) -> None:
        self._state = state
        self._marks = marks
        self._is_following = False
        self._leaving: dict[type[Event], _Marking] = {
            NodesCollected: self._nodes_leave,
            JobsCollected: self._jobs_leave,
        }
        #: rows may be reused after the event.
        self._before: dict[type[Event], _Marking] = {
            **self._leaving,
            PlanCommitted: self._plan_ends,
            AllocationsReported: self._reported,
        }
        self._after: dict[type[Event], _Marking] = {
            PlanCommitted: self._planned,
            AllocationsReported: self._heard,
            NodeRegistered: self._registered,
            NodeRefused: self._refused,
            NodesStatusChanged: self._nodes_changed,
            NodeEligibilityChanged: self._node_changed,
            NodeDrainChanged: self._node_changed,
            NodeMetaChanged: self._meta_changed,
            PoolDeclared: self._declared,
            EvaluationsWoken: self._woken,
            JobRegistered: self._accepted,
            JobStopped: self._accepted,
            JobEvaluated: self._accepted,
            SubmissionRefused: self._judged,
        }

    def follow(self) -> None:
        """The past went by: mark all there is, and from now on what changes."""
        self._is_following = True
        self._marks.everything(self._state)

    def before(self, record: Record, seq: int) -> None:
        """Mark by what the state holds before a transaction is applied."""
        marking = self._before if self._is_following else self._leaving
        for event in record.events:
            mark = marking.get(type(event))
            if mark is not None:
                mark(event, seq)

    def after(self, record: Record, seq: int, jobs: Iterable[JobId]) -> None:
        """Mark by what an applied transaction brought. `jobs`: whose evaluations came or ended."""
        if not self._is_following:
            return
        self._marks.jobs.update(dict.fromkeys(jobs))
        marking = self._after
        for event in record.events:
            mark = marking.get(type(event))
            if mark is not None:
                mark(event, seq)

    # ---- before ----

    def _nodes_leave(self, event: NodesCollected, seq: int) -> None:
        for row in event.rows:
            self._marks.last_words.update(last_words_of_node(self._state, row, seq))

    def _jobs_leave(self, event: JobsCollected, seq: int) -> None:
        for job_id in event.job_ids:
            self._marks.last_words.update(last_words_of_job(self._state, job_id, seq))

    def _plan_ends(self, event: PlanCommitted, _seq: int) -> None:
        parts: tuple[Stops | InPlace | Evictions, ...]
        parts = (*event.stops, *event.updates, *event.evictions)
        for part in parts:
            self._allocations(part.rows, is_order=True)

    def _reported(self, event: AllocationsReported, _seq: int) -> None:
        # Who reports knows what became of them: only that it was heard is news to it.
        self._allocations(event.rows, is_order=not event.nodes)

    def _allocations(self, rows: tuple[Row, ...], *, is_order: bool) -> None:
        if not rows:
            return
        table, marks = self._state.allocations, self._marks
        at = np.asarray(rows, dtype=np.int32)
        nodes = np.unique(table.node[at]).tolist()
        marks.heard.add(nodes)
        marks.summary.add(nodes)
        if is_order:
            marks.desired.add(nodes)
        for ref in np.unique(table.group[at]).tolist():
            marks.jobs[table.groups.job_ids[ref]] = None

    # ---- after ----

    def _planned(self, event: PlanCommitted, _seq: int) -> None:
        marks = self._marks
        marks.is_planning = True
        for placement in event.placements:
            marks.desired.add(placement.rows)
            marks.summary.add(placement.rows)
        marks.jobs[event.job_id] = None

    def _heard(self, event: AllocationsReported, _seq: int) -> None:
        self._marks.heard.add(event.nodes)

    def _registered(self, event: NodeRegistered, _seq: int) -> None:
        node_id = event.spec.node_id
        self._marks.node_appeared(node_id)
        self._node(self._state.fleet.row_of[node_id])

    def _node(self, row: Row) -> None:
        self._marks.desired.add((row,))
        self._marks.summary.add((row,))

    def _refused(self, event: NodeRefused, _seq: int) -> None:
        row = self._state.fleet.row_of.get(event.node_id)
        if row is not None:
            self._marks.desired.add((row,))

    def _nodes_changed(self, event: NodesStatusChanged, _seq: int) -> None:
        self._marks.summary.add(event.rows)

    def _node_changed(self, event: NodeEligibilityChanged | NodeDrainChanged, _seq: int) -> None:
        self._marks.summary.add((event.row,))

    def _meta_changed(self, event: NodeMetaChanged, _seq: int) -> None:
        self._node(self._state.fleet.row_of[event.node_id])

    def _declared(self, event: PoolDeclared, _seq: int) -> None:
        if event.node_id:
            self._marks.summary.add((self._state.fleet.row_of[NodeId(event.node_id)],))

    def _woken(self, event: EvaluationsWoken, _seq: int) -> None:
        for key in event.keys:
            self._marks.jobs[self._state.evaluations.by_key[key].job_id] = None

    def _accepted(self, event: JobRegistered | JobStopped | JobEvaluated, seq: int) -> None:
        self._marks.job_appeared(event.job_id)
        self._judged(event, seq)

    def _judged(
        self, event: JobRegistered | JobStopped | JobEvaluated | SubmissionRefused, _seq: int
    ) -> None:
        self._marks.submissions[event.submission_id] = None
        self._marks.jobs[event.job_id] = None
