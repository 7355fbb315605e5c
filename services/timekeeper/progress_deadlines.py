"""Progress deadlines: when a deployment fails unless one of its allocations becomes healthy before.

A source of the timekeeper's heap. Due times are in the table of deployments; the applier compares the instant that a
command names with the one in its own table.
"""

from collections.abc import Iterable

from schemas.allocations import AllocationsHealthChanged
from schemas.base import DeploymentKey, Event
from schemas.deployments import (
    DeploymentDue,
    DeploymentEnded,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentSized,
)
from schemas.envelope import AnyCommand
from schemas.plans import PlanCommitted
from services.timekeeper.due_heap import GRACE_NS, DueKey, DueTime
from shared.core.state.state import State


class ProgressDeadlines:
    """Clocks of deployments, by the key of each."""

    tables = frozenset({"deployments"})
    events: frozenset[type[Event]] = frozenset(
        {
            PlanCommitted,
            DeploymentSized,
            DeploymentPromoted,
            DeploymentPaused,
            DeploymentResumed,
            DeploymentHeld,
            DeploymentReleased,
            DeploymentEnded,
            AllocationsHealthChanged,
        }
    )
    is_told_again = True
    is_log_time = True
    needs_lease = True

    def keys(self, state: State) -> Iterable[DueKey]:
        """Return the deployments that did not end."""
        return list(state.deployments.active.values())

    def changed(self, state: State, event: Event) -> Iterable[DueKey]:
        """Return the deployments whose clocks an event may have moved."""
        if isinstance(event, PlanCommitted):
            # The first allocations that are placed start a clock.
            active = state.deployments.active.get(event.job_id)
            return () if active is None else (active,)
        if isinstance(event, AllocationsHealthChanged):
            return list(dict.fromkeys(one.deployment for one in event.counts))
        key: DeploymentKey = getattr(event, "key", DeploymentKey(0))
        return [key]

    def due_ns(self, state: State, key: DueKey, at: DueTime) -> int:
        """Return the earliest clock of a deployment that something is missing for; 0: none runs."""
        del at
        deployment = state.deployments.by_key.get(key)  # type: ignore[call-overload]
        return 0 if deployment is None else deployment.due_ns

    def grace_ns(self, state: State, key: DueKey) -> int:
        """Return the same for every deployment."""
        del state, key
        return GRACE_NS

    def command(self, state: State, key: DueKey, at: DueTime) -> AnyCommand | None:
        """Say that the clock of a deployment has run out; None: it has not."""
        due_ns = self.due_ns(state, key, at)
        if not due_ns or due_ns > at.log_ns:
            return None
        return DeploymentDue(key=key, due_ns=due_ns)  # type: ignore[arg-type]
