"""Deployments: how a new version of a job replaces the old one, and what an operator may say to it.

A deployment begins with `job.registered`; its allocations are placed by `plan.committed` and become healthy by
`allocations.health_changed`. All instants are log time; a group's clock is the instant until which it must make
progress: it starts with the first allocation placed, at the time of that transaction plus the group's deadline.
"""

from schemas.base import Command, DeploymentKey, Event, JobId, RolloutKey, Wire

#: The last three are terminal.
DEPLOYMENT_STATUSES = ("running", "paused", "successful", "failed", "cancelled")


class DeploymentGroup(Wire, frozen=True, kw_only=True):
    """One group of a deployment as it begins."""

    name: str
    #: allocations to bring up.
    desired_total: int
    #: canaries to bring up, and to promote, before anything old is replaced; 0: none are needed.
    desired_canaries: int = 0
    max_parallel: int = 1
    #: 0: the first unhealthy allocation fails the deployment.
    progress_deadline_ns: int = 600_000_000_000
    auto_revert: bool = False
    auto_promote: bool = False
    #: 0: the clock has not started.
    require_by_ns: int = 0


class DeploymentStarted(Event, frozen=True, kw_only=True, tag="deployment.started"):
    """A version of a job is brought up group by group: with canaries, or on every node.

    Any other deployment begins with `job.registered` itself. A version has at most one deployment.
    """

    #: that of the evaluation created beside it.
    key: DeploymentKey
    job_id: JobId
    version: int
    #: submit, revert or rollout.
    cause: str = "submit"
    groups: tuple[DeploymentGroup, ...] = ()


class DeploymentSized(Event, frozen=True, kw_only=True, tag="deployment.sized"):
    """A plan found that a group of a deployment is of another size."""

    key: DeploymentKey
    group: str
    desired_total: int
    desired_canaries: int = 0


class DeploymentPromoted(Event, frozen=True, kw_only=True, tag="deployment.promoted"):
    """The canaries of groups are good: they are ordinary allocations now, and the old ones are replaced.

    Shapes: groups, require_by_ns (G,).
    """

    key: DeploymentKey
    groups: tuple[str, ...]
    #: the former canaries.
    rows: tuple[int, ...] = ()
    #: operator or auto.
    by: str = "operator"
    #: 0: as before.
    require_by_ns: tuple[int, ...] = ()
    request_id: str = ""


class DeploymentPaused(Event, frozen=True, kw_only=True, tag="deployment.paused"):
    """Nothing more is replaced, and no clock runs. `since_ns`: log time; 0: written before core 0.5.0."""

    key: DeploymentKey
    reason: str = ""
    request_id: str = ""
    since_ns: int = 0


class DeploymentResumed(Event, frozen=True, kw_only=True, tag="deployment.resumed"):
    """A paused deployment continues, with new clocks. Shapes: groups, require_by_ns (G,)."""

    key: DeploymentKey
    groups: tuple[str, ...] = ()
    require_by_ns: tuple[int, ...] = ()
    request_id: str = ""


class DeploymentHeld(Event, frozen=True, kw_only=True, tag="deployment.held"):
    """A deployment waits for a cause beside itself: nothing more is replaced, and no clock runs."""

    key: DeploymentKey
    #: gate or rollout; each holds by itself, whether or not the deployment is paused.
    cause: str
    reason: str
    since_ns: int


class DeploymentReleased(Event, frozen=True, kw_only=True, tag="deployment.released"):
    """One cause holds a deployment no longer; its clocks begin anew. Shapes: groups, require_by_ns (G,)."""

    key: DeploymentKey
    #: gate or rollout.
    cause: str
    reason: str
    groups: tuple[str, ...] = ()
    require_by_ns: tuple[int, ...] = ()
    #: an operator's word: gates and windows do not count for it any more.
    for_good: bool = False
    request_id: str = ""


class DeploymentEnded(Event, frozen=True, kw_only=True, tag="deployment.ended"):
    """The one terminal fact of a deployment. A successful one makes its version stable, of a rollout at its end."""

    key: DeploymentKey
    job_id: JobId
    version: int
    #: successful, failed or cancelled.
    status: str
    #: healthy, unhealthy, deadline, gate, operator, rollout, newer_version or stopped.
    cause: str
    #: the same for people.
    reason: str = ""
    #: the version whose text is registered again; -1: none.
    reverted_to: int = -1
    #: the active rollout that it is of, which decides whether the version is stable; 0: none.
    rollout: RolloutKey = RolloutKey(0)
    request_id: str = ""


# ---- commands (cmd.operator) ----


class PromoteDeployment(Command, frozen=True, kw_only=True, tag="promote_deployment"):
    """Promote the canaries of groups. Natural key: (deployment, group), whether it is promoted."""

    request_id: str
    deployment_key: DeploymentKey
    #: empty: all that have canaries.
    groups: tuple[str, ...] = ()


class FailDeployment(Command, frozen=True, kw_only=True, tag="fail_deployment"):
    """Declare a deployment failed. Natural key: the deployment, whether it ended."""

    request_id: str
    deployment_key: DeploymentKey


class PauseDeployment(Command, frozen=True, kw_only=True, tag="pause_deployment"):
    """Pause a deployment, or resume it. Natural key: the deployment, its status now."""

    request_id: str
    deployment_key: DeploymentKey
    pause: bool
    #: resume: its gates and windows hold it no more.
    ignore_gate: bool = False


class SetAllocationHealth(Command, frozen=True, kw_only=True, tag="set_allocation_health"):
    """Say which allocations of a deployment are healthy. Natural key: each allocation, its health now."""

    request_id: str
    deployment_key: DeploymentKey
    #: keys of allocations.
    healthy: tuple[int, ...] = ()
    unhealthy: tuple[int, ...] = ()


# ---- command (cmd.timer) ----


class DeploymentDue(Command, frozen=True, kw_only=True, tag="deployment_due"):
    """The clock of a deployment has run out. Natural key: (key, due_ns), unless the deployment moved on."""

    key: DeploymentKey
    #: the instant that the sender believes in: nothing happens where the deployment has another.
    due_ns: int
