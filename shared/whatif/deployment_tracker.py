"""Deployments of a timeline: how long each took, how it ended, and the fewest healthy allocations meanwhile."""

import msgspec
import numpy as np

from schemas.allocations import HEALTHS, AllocationsHealthChanged, AllocationsReported
from schemas.base import DeploymentKey, Event, JobId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentPaused,
    DeploymentResumed,
    DeploymentStarted,
)
from schemas.jobs import JobRegistered
from schemas.plans import PlanCommitted
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, RUNNING

_HEALTHY = HEALTHS.index("healthy")


class DeploymentRun(msgspec.Struct, kw_only=True):
    """One deployment. `ended_ns` 0: it is still active."""

    job_id: JobId
    version: int
    #: of a deployment that was active at the beginning: that moment.
    began_ns: int
    ended_ns: int = 0
    status: str = "running"
    #: fewest allocations of the job, of all versions, that should run, do, and are healthy.
    lowest_healthy: int


class DeploymentTracker:
    """Follows the deployments of a state."""

    def __init__(self, state: State, t_ns: int) -> None:
        self._state: State | None = state
        self.runs: dict[DeploymentKey, DeploymentRun] = {}
        self._touched: dict[JobId, None] = {}
        for key in state.deployments.active.values():
            self._begin(key, t_ns)

    def follow_state(self, state: State) -> None:
        """Read another state from now on."""
        self._state = state

    def take(self, event: Event, t_ns: int) -> None:
        """Follow one event that the state has applied."""
        match event:
            case JobRegistered(deploys=True):
                self._begin(DeploymentKey(event.evaluation), t_ns)
            case DeploymentStarted():
                self._begin(event.key, t_ns)
            case DeploymentEnded() if event.key in self.runs:
                run = self.runs[event.key]
                run.status, run.ended_ns = event.status, t_ns
            case DeploymentPaused() | DeploymentResumed() if event.key in self.runs:
                is_paused = isinstance(event, DeploymentPaused)
                self.runs[event.key].status = "paused" if is_paused else "running"
            case PlanCommitted():
                self._touched[event.job_id] = None
            case AllocationsReported() | AllocationsHealthChanged() if event.rows:
                self._touch(event.rows)
            case _:
                pass

    def settle(self) -> None:
        """Count what is healthy, at the end of a transaction."""
        state = self._known_state()
        for job_id in self._touched:
            key = state.deployments.active.get(job_id)
            if key is not None and key in self.runs:
                run = self.runs[key]
                run.lowest_healthy = min(run.lowest_healthy, _healthy(state, job_id))
        self._touched.clear()

    def detach(self) -> None:
        """Drop the state."""
        self._state = None

    def _known_state(self) -> State:
        assert self._state is not None, "detached"
        return self._state

    def _begin(self, key: DeploymentKey, t_ns: int) -> None:
        state = self._known_state()
        one = state.deployments.by_key.get(key)
        if one is not None:
            self.runs[key] = DeploymentRun(
                job_id=one.job_id,
                version=one.version,
                status=one.status,
                began_ns=t_ns,
                lowest_healthy=_healthy(state, one.job_id),
            )

    def _touch(self, rows: tuple[int, ...]) -> None:
        table = self._known_state().allocations
        if self._known_state().deployments.active:
            for ref in np.unique(table.group[np.asarray(rows, dtype=np.int32)]).tolist():
                self._touched[table.groups.job_ids[ref]] = None


def _healthy(state: State, job_id: JobId) -> int:
    """How many allocations of a job should run, do, and are healthy."""
    table = state.allocations
    rows = table.rows_of(job_id)
    runs = (table.desired[rows] == RUN) & (table.client[rows] == RUNNING)
    return int(np.count_nonzero(runs & (table.health[rows] == _HEALTHY)))
