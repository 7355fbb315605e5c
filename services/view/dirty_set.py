"""The nodes, jobs and submissions that changed since they were published, marked by the type of each event.

During replay only objects that left the state are marked; all others are marked once, at its end. When and how values
are published is decided in `publisher.py`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsHealthChanged, AllocationsReported
from schemas.base import Event, JobId, NodeId
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
from schemas.envelope import ENCODER, LogRecord
from schemas.evaluations import EvaluationsWoken
from schemas.gates import DeploymentGated, GateChanged, WindowChanged
from schemas.host_volumes import VolumeDeleted, VolumeDeleting, VolumeRequested
from schemas.jobs import JobEvaluated, JobRegistered, JobsCollected, JobStopped, SubmissionRefused
from schemas.nodes import (
    NodeConfirmedDead,
    NodeDrainChanged,
    NodeDrained,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRefused,
    NodeRegistered,
    NodesCollected,
    NodeSpec,
    NodesStatusChanged,
    PoolDeclared,
)
from schemas.plans import Evictions, InPlace, PlanCommitted, Stops
from schemas.policy import IncarnationBegan
from schemas.projections import JobProjection, NodeProjection, NodeSummary, Rollout
from schemas.remotes import RemoteMoved
from schemas.rollouts import RolloutStarted
from schemas.variables import VariableDeleted, VariablePut
from shared.core.columns import grown
from shared.core.state.state import State
from shared.protocol import subjects
from shared.protocol.id_tokens import token_id
from shared.query.service_catalog import ServiceCatalog, node_addresses

#: A row of the fleet.
Row = int


class DirtyNodeRows:
    """Marked rows of the fleet: added as lists of rows, read as a mask."""

    def __init__(self) -> None:
        self._mask = np.zeros(0, dtype=np.bool_)
        #: not in the mask yet, so that the mask is written once per read instead of once per event.
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


class DirtySet:
    """What is to be published: nodes by row, the rest in the order of the changes."""

    def __init__(self) -> None:
        self.desired = DirtyNodeRows()
        #: nodes whose report is to be acknowledged: not urgent, and a desired set acknowledges it too.
        self.heard = DirtyNodeRows()
        self.summary = DirtyNodeRows()
        self.jobs: dict[JobId, None] = {}
        self.submissions: dict[str, None] = {}
        #: paths.
        self.variables: dict[str, None] = {}
        #: services of jobs that left the state.
        self.departed_services: dict[str, None] = {}
        #: all services are to be published, whatever was published before.
        self.all_services = False
        #: subject -> last value of an object that left the state.
        self.tombstones: dict[str, bytes] = {}
        #: placements came since the last tick.
        self.has_new_placements = False

    def everything(self, state: State) -> None:
        """Mark everything in the state."""
        fleet = state.fleet
        live = np.flatnonzero(fleet.live[: fleet.size]).tolist()
        self.desired.add(live)
        self.summary.add(live)
        self.jobs.update(dict.fromkeys(state.jobs.by_id))
        self.all_services = True
        self.submissions.update(dict.fromkeys(state.jobs.submissions))
        # Deleted ones, too: the value that stands may be of before.
        self.variables.update(dict.fromkeys(state.variables.by_path))
        if self.tombstones:
            for row in live:
                self.drop_node_tombstones(fleet.ids[row])
            for job_id in state.jobs.by_id:
                self.drop_job_tombstone(job_id)

    def acknowledgements(self, state: State) -> None:
        """Mark the report numbers of all nodes as changed."""
        self.heard.add(np.flatnonzero(state.fleet.live[: state.fleet.size]).tolist())

    def drop_node_tombstones(self, node_id: NodeId) -> None:
        """Drop the tombstones of a node that registered again."""
        if self.tombstones:
            self.tombstones.pop(subjects.node(node_id), None)
            self.tombstones.pop(subjects.view_node(node_id), None)

    def drop_job_tombstone(self, job_id: JobId) -> None:
        """Drop the tombstone of a job that was registered again."""
        if self.tombstones:
            self.tombstones.pop(subjects.view_job(job_id), None)

    def pending(self) -> bool:
        """Whether anything urgent is marked."""
        some = bool(self.jobs or self.submissions or self.tombstones or self.departed_services)
        some = some or bool(self.variables)
        return self.all_services or some or self.desired.any() or self.summary.any()


#: Marks the effects of an event, given the seq of its transaction.
_MarkFunction = Callable[[Any, int], None]


class DirtyTracker:
    """Marks the effects of events, from the state before and after each transaction."""

    def __init__(self, state: State, marks: DirtySet) -> None:
        self._state = state
        self._marks = marks
        self._is_following = False
        self._leaving: dict[type[Event], _MarkFunction] = {
            NodesCollected: self._nodes_leave,
            JobsCollected: self._jobs_leave,
        }
        #: rows may be reused after the event.
        self._before: dict[type[Event], _MarkFunction] = {
            **self._leaving,
            PlanCommitted: self._plan_ends,
            AllocationsReported: self._reported,
            NodeRegistered: self._moved,
            VolumeDeleted: self._volume_leaves,
            RemoteMoved: self._slot_leaves,
        }
        self._after: dict[type[Event], _MarkFunction] = {
            PlanCommitted: self._planned,
            AllocationsReported: self._heard,
            NodeRegistered: self._registered,
            NodeRefused: self._refused,
            NodesStatusChanged: self._nodes_changed,
            NodeEligibilityChanged: self._node_changed,
            NodeDrainChanged: self._node_changed,
            NodeDrained: self._node_changed,
            NodeMetaChanged: self._meta_changed,
            NodeConfirmedDead: self._node_changed,
            PoolDeclared: self._declared,
            EvaluationsWoken: self._woken,
            JobRegistered: self._accepted,
            JobStopped: self._accepted,
            JobEvaluated: self._accepted,
            SubmissionRefused: self._judged,
            IncarnationBegan: self._incarnation_began,
            AllocationsHealthChanged: self._health_changed,
            RolloutStarted: self._rollout_started,
            DeploymentStarted: self._deployed,
            DeploymentEnded: self._deployed,
            DeploymentSized: self._deployment_changed,
            DeploymentPromoted: self._deployment_changed,
            DeploymentPaused: self._deployment_changed,
            DeploymentResumed: self._deployment_changed,
            DeploymentHeld: self._deployment_changed,
            DeploymentReleased: self._deployment_changed,
            DeploymentGated: self._deployment_changed,
            GateChanged: self._deployment_changed,
            WindowChanged: self._deployment_changed,
            VariablePut: self._variable_changed,
            VariableDeleted: self._variable_changed,
            VolumeRequested: self._volume_requested,
            VolumeDeleting: self._volume_changed,
            RemoteMoved: self._slot_moved,
        }

    def follow(self) -> None:
        """The past went by: mark all there is, and from now on what changes."""
        self._is_following = True
        self._marks.everything(self._state)

    def before(self, record: LogRecord, seq: int) -> None:
        """Mark by what the state holds before a transaction is applied."""
        marking = self._before if self._is_following else self._leaving
        for event in record.events:
            mark = marking.get(type(event))
            if mark is not None:
                mark(event, seq)

    def after(self, record: LogRecord, seq: int, jobs: Iterable[JobId]) -> None:
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
            self._marks.tombstones.update(node_tombstones(self._state, row, seq))

    def _jobs_leave(self, event: JobsCollected, seq: int) -> None:
        for job_id in event.job_ids:
            self._marks.tombstones.update(job_tombstone(self._state, job_id, seq))
            services = ServiceCatalog().declared(self._state, job_id)
            self._marks.departed_services.update(dict.fromkeys(sorted(services)))

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

    def _moved(self, event: NodeRegistered, _seq: int) -> None:
        """Mark what runs on a node that is about to have other addresses or another datacenter: services have them."""
        row = self._state.fleet.row_of.get(event.spec.node_id)
        if row is None:
            return
        before = self._state.fleet.specs[row]
        if _place(before) != _place(event.spec):
            table = self._state.allocations
            rows = table.on_nodes(np.asarray([row], dtype=np.int32))
            for ref in np.unique(table.group[rows]).tolist():
                self._marks.jobs[table.groups.job_ids[ref]] = None

    def _slot_leaves(self, event: RemoteMoved, _seq: int) -> None:
        slot = self._state.remotes.by_key.get(event.generation)
        if slot is not None:
            self._node_named(slot.node_id)

    def _node_named(self, node_id: str) -> None:
        row = self._state.fleet.row_of.get(NodeId(node_id))
        if row is not None:
            self._marks.desired.add((row,))

    # ---- after ----

    def _slot_moved(self, event: RemoteMoved, _seq: int) -> None:
        self._node_named(event.node_id)

    def _planned(self, event: PlanCommitted, _seq: int) -> None:
        marks = self._marks
        marks.has_new_placements = True
        for placement in event.placements:
            marks.desired.add(placement.rows)
            marks.summary.add(placement.rows)
        marks.jobs[event.job_id] = None

    def _heard(self, event: AllocationsReported, _seq: int) -> None:
        self._marks.heard.add(event.nodes)

    def _health_changed(self, event: AllocationsHealthChanged, _seq: int) -> None:
        table = self._state.allocations
        for ref in np.unique(table.group[np.asarray(event.rows, dtype=np.int32)]).tolist():
            self._marks.jobs[table.groups.job_ids[ref]] = None

    def _deployed(self, event: DeploymentStarted | DeploymentEnded, _seq: int) -> None:
        self._marks.jobs[event.job_id] = None

    def _deployment_changed(
        self,
        event: DeploymentSized
        | DeploymentPromoted
        | DeploymentPaused
        | DeploymentResumed
        | DeploymentHeld
        | DeploymentReleased
        | DeploymentGated
        | GateChanged
        | WindowChanged,
        _seq: int,
    ) -> None:
        one = self._state.deployments.by_key.get(event.key)
        if one is not None:
            self._marks.jobs[one.job_id] = None

    def _variable_changed(self, event: VariablePut | VariableDeleted, _seq: int) -> None:
        self._marks.variables[event.path] = None

    def _volume_requested(self, event: VolumeRequested, _seq: int) -> None:
        self._volume_order(event.node_id)

    def _volume_changed(self, event: VolumeDeleting, _seq: int) -> None:
        # One that was deleted in the same transaction is marked by that.
        row = self._state.volumes.by_id.get(event.volume_id)
        if row is not None:
            self._volume_order(row.node_id)

    def _volume_leaves(self, event: VolumeDeleted, _seq: int) -> None:
        row = self._state.volumes.by_id.get(event.volume_id)
        if row is not None:
            self._volume_order(row.node_id)

    def _volume_order(self, node_id: NodeId) -> None:
        row = self._state.fleet.row_of.get(node_id)
        if row is not None:
            self._marks.desired.add((row,))

    def _rollout_started(self, event: RolloutStarted, _seq: int) -> None:
        self._marks.submissions[event.submission_id] = None

    def _incarnation_began(self, _event: IncarnationBegan, _seq: int) -> None:
        # Values on the bus may be of a history that was lost, with higher seqs.
        self._marks.everything(self._state)

    def _registered(self, event: NodeRegistered, _seq: int) -> None:
        node_id = event.spec.node_id
        self._marks.drop_node_tombstones(node_id)
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

    def _node_changed(
        self,
        event: NodeEligibilityChanged | NodeDrainChanged | NodeDrained | NodeConfirmedDead,
        _seq: int,
    ) -> None:
        self._marks.summary.add((event.row,))

    def _meta_changed(self, event: NodeMetaChanged, _seq: int) -> None:
        self._node(self._state.fleet.row_of[event.node_id])

    def _declared(self, event: PoolDeclared, _seq: int) -> None:
        if event.node_id:
            self._marks.summary.add((self._state.fleet.row_of[NodeId(event.node_id)],))

    def _woken(self, event: EvaluationsWoken, _seq: int) -> None:
        by_key = self._state.evaluations.by_key
        for key in event.keys:
            # One that the same record ended and collected is marked by its end.
            if key in by_key:
                self._marks.jobs[by_key[key].job_id] = None

    def _accepted(self, event: JobRegistered | JobStopped | JobEvaluated, seq: int) -> None:
        self._marks.drop_job_tombstone(event.job_id)
        self._judged(event, seq)

    def _judged(
        self, event: JobRegistered | JobStopped | JobEvaluated | SubmissionRefused, _seq: int
    ) -> None:
        if event.submission_id:
            self._marks.submissions[event.submission_id] = None
        if isinstance(event, SubmissionRefused) and event.reused_id:
            self._marks.submissions[event.reused_id] = None
        self._marks.jobs[event.job_id] = None


def is_departed(state: State, subject: str) -> bool:
    """Whether a published subject of a job or node is of none in the state."""
    kind = subject.rpartition(".")[0]
    try:
        identifier = token_id(subjects.last_token(subject))
    except ValueError:
        return False
    if f"{kind}.*" == subjects.VIEW_JOBS:
        return JobId(identifier) not in state.jobs.by_id
    return NodeId(identifier) not in state.fleet.row_of


def _place(spec: NodeSpec) -> tuple[dict[str, str], str]:
    return node_addresses(spec.attributes), spec.datacenter


def node_tombstones(state: State, row: int, seq: int) -> dict[str, bytes]:
    """Values that close the subjects of a node that leaves the state: an empty desired set, status down."""
    fleet = state.fleet
    node_id, cluster_id = fleet.ids[row], state.policy.cluster_id
    begun = state.policy.incarnations
    empty = NodeProjection(
        cluster_id=cluster_id,
        seq=seq,
        node_id=node_id,
        host_id=fleet.host_ids[row],
        boot_id=fleet.boot_ids[row],
        reports_seen=int(fleet.reports_seen[row]),
        incarnation=begun.newest,
        first_seq=begun.first_seq,
    )
    gone = NodeSummary(
        cluster_id=cluster_id,
        seq=seq,
        id=node_id,
        status="down",
        incarnation=begun.newest or msgspec.UNSET,
    )
    return {
        subjects.node(node_id): ENCODER.encode(empty),
        subjects.view_node(node_id): ENCODER.encode(gone),
    }


def job_tombstone(state: State, job_id: JobId, seq: int) -> dict[str, bytes]:
    """The value that closes a job's subject."""
    job = state.jobs.by_id[job_id]
    gone = JobProjection(
        cluster_id=state.policy.cluster_id,
        seq=seq,
        job_id=job_id,
        version=job.version,
        status="dead",
        stopped=True,
        modify_index=job.modify_seq,
        incarnation=state.policy.incarnations.newest,
        rollout=Rollout(status="stopped", reason="the job was purged"),
        purged=True,
    )
    return {subjects.view_job(job_id): ENCODER.encode(gone)}
