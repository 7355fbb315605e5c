"""Rollouts: new versions of several jobs that are brought up together, and go back together.

A rollout starts in the transaction that registers its jobs. Its members are deployments: what follows from their ends
is decided with them. A job is in at most one active rollout.
"""

from schemas.base import Command, DeploymentKey, Event, JobId, RolloutKey, Wire
from schemas.jobs import RegisterJob

#: The last three are terminal.
ROLLOUT_STATUSES = ("running", "successful", "failed", "cancelled")
#: together: canaries of all members are promoted at once; in_order: a member begins when the one before is successful.
ROLLOUT_ORDERS = ("together", "in_order")
#: Jobs of one rollout: all of them go back in one transaction.
MEMBERS_MAX = 16


class RolloutMember(Wire, frozen=True, kw_only=True):
    """One job of a rollout."""

    job_id: JobId
    #: the version that the rollout brings up.
    version: int
    #: the version before the rollout, to which the job goes back; -1: the job is new, and is stopped then.
    before: int = -1
    #: 0: nothing of it is replaced, so that it is done at once.
    deployment: DeploymentKey = DeploymentKey(0)


class RolloutStarted(Event, frozen=True, kw_only=True, tag="rollout.started"):
    """Versions of several jobs are brought up together. They are registered in the same transaction."""

    key: RolloutKey
    submission_id: str
    #: hash of the submitted content: the same id with another digest is refused.
    digest: str
    name: str
    #: one of ROLLOUT_ORDERS.
    order: str = "together"
    #: in the order of the submission.
    members: tuple[RolloutMember, ...] = ()
    warnings: tuple[str, ...] = ()


class RolloutEnded(Event, frozen=True, kw_only=True, tag="rollout.ended"):
    """The one terminal fact of a rollout. After a failed one every member goes back to the version before it."""

    key: RolloutKey
    #: successful, failed or cancelled.
    status: str
    #: healthy, unhealthy, deadline, gate, operator, newer_version or stopped.
    cause: str
    #: the same for people.
    reason: str = ""
    #: members whose versions are stable from now on.
    stable: tuple[RolloutMember, ...] = ()
    request_id: str = ""


# ---- command (cmd.job) ----


class RegisterJobs(Command, frozen=True, kw_only=True, tag="register_jobs"):
    """Register jobs as one rollout: all of them, or none. Natural key: submission_id."""

    submission_id: str
    digest: str
    #: name of the rollout.
    rollout: str
    order: str = "together"
    #: without submission ids and digests of their own.
    jobs: tuple[RegisterJob, ...] = ()
    #: always 0: the drop box takes no rollouts.
    jobs_seq: int = 0
    jobs_prev: int = 0

    @property
    def job_id(self) -> JobId:
        """The job that a refusal is listed under: the first one."""
        return self.jobs[0].job_id if self.jobs else JobId("")


# ---- commands (cmd.operator) ----


class FailRollout(Command, frozen=True, kw_only=True, tag="fail_rollout"):
    """Declare a rollout failed: every member goes back. Natural key: the rollout, whether it ended."""

    request_id: str
    rollout_key: RolloutKey


class PromoteRollout(Command, frozen=True, kw_only=True, tag="promote_rollout"):
    """Promote the canaries of all members. Natural key: (deployment, group), whether it is promoted."""

    request_id: str
    rollout_key: RolloutKey
