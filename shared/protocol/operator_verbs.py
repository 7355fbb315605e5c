"""The operator verbs, one row each: request body, command, effect in the log, and the sentence of docs and help.

The subjects of the operator API, what the plan applier accepts on the operator's command subject, the contract in
docs/subjects.md and the request handler of the view derive from these rows. How a request becomes a command is in
services/view/operator_verbs.py, how a command becomes events in shared/core/decide.
"""

import msgspec

from schemas.allocations import AllocationsDisplaced, AllocationsHealthChanged
from schemas.base import Command, Event, Wire
from schemas.deployments import (
    DeploymentEnded,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentResumed,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
    SetAllocationHealth,
)
from schemas.host_volumes import RemoveVolume, RequestVolume, VolumeDeleting, VolumeRequested
from schemas.job_versions import SetStability, TagVersion
from schemas.jobs import JobStabilityChanged, JobVersionTagged
from schemas.launches import ForceLaunch, JobLaunched
from schemas.nodes import (
    NodeConfirmedDead,
    NodeDrainChanged,
    NodeEligibilityChanged,
    NodeMetaChanged,
    PoolDeclared,
)
from schemas.operator import (
    AcceptLossRequest,
    CollectRequest,
    ConfirmDeathRequest,
    CreateVolumeRequest,
    DeleteVolumeRequest,
    DrainRequest,
    EligibilityRequest,
    FailRequest,
    FailRolloutRequest,
    ForceLaunchRequest,
    HealthRequest,
    MetaRequest,
    PauseRequest,
    PolicyRequest,
    PoolRequest,
    PromoteRequest,
    PromoteRolloutRequest,
    ReleaseClaimRequest,
    ResumeRequest,
    RollRequest,
    StabilityRequest,
    StopRequest,
    TagRequest,
)
from schemas.policy import (
    AcceptLoss,
    CollectGarbage,
    ConfirmDeath,
    DeclarePool,
    DrainNode,
    LogRolled,
    LossAccepted,
    PolicyChanged,
    RollLog,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from schemas.rollouts import FailRollout, PromoteRollout, RolloutEnded
from schemas.volumes import ClaimReleased, ReleaseClaim


class OperatorVerb(msgspec.Struct, frozen=True):
    """One verb: `api.<noun>.<verb>`."""

    noun: str
    verb: str
    #: body of the request.
    request: type[Wire]
    #: what the view asks the plan applier for.
    command: type[Command]
    #: the event that shows it in the log; None: collecting garbage has several.
    effect: type[Event] | None
    summary: str

    @property
    def name(self) -> str:
        """Noun and verb, as in the subject."""
        return f"{self.noun}.{self.verb}"


VERBS = (
    OperatorVerb(
        "operator",
        "set_policy",
        PolicyRequest,
        SetPolicy,
        PolicyChanged,
        "Change the policy: scheduling, preemption, retention.",
    ),
    OperatorVerb(
        "operator",
        "declare",
        PoolRequest,
        DeclarePool,
        PoolDeclared,
        "Declare what a node or the cluster offers under a name.",
    ),
    OperatorVerb(
        "node",
        "set_eligibility",
        EligibilityRequest,
        SetEligibility,
        NodeEligibilityChanged,
        "Allow or forbid new allocations on a node.",
    ),
    OperatorVerb(
        "node",
        "drain",
        DrainRequest,
        DrainNode,
        NodeDrainChanged,
        "Drain a node, or cancel its drain.",
    ),
    OperatorVerb(
        "node",
        "set_meta",
        MetaRequest,
        SetNodeMeta,
        NodeMetaChanged,
        "Set metadata of a node, in addition to what its agent reports.",
    ),
    OperatorVerb(
        "node",
        "confirm_dead",
        ConfirmDeathRequest,
        ConfirmDeath,
        NodeConfirmedDead,
        "Confirm that nothing runs any more on a node that is out of reach.",
    ),
    OperatorVerb(
        "alloc",
        "stop",
        StopRequest,
        StopAllocation,
        AllocationsDisplaced,
        "Stop an allocation; its job replaces it if it still needs it.",
    ),
    OperatorVerb(
        "job",
        "force_launch",
        ForceLaunchRequest,
        ForceLaunch,
        JobLaunched,
        "Launch a child of a periodic job now.",
    ),
    OperatorVerb(
        "job",
        "tag",
        TagRequest,
        TagVersion,
        JobVersionTagged,
        "Tag a version of a job, or remove its tag.",
    ),
    OperatorVerb(
        "job",
        "set_stability",
        StabilityRequest,
        SetStability,
        JobStabilityChanged,
        "Mark a job version stable or unstable.",
    ),
    OperatorVerb(
        "deployment",
        "promote",
        PromoteRequest,
        PromoteDeployment,
        DeploymentPromoted,
        "Promote the canaries of a deployment: replace the old allocations.",
    ),
    OperatorVerb(
        "deployment",
        "fail",
        FailRequest,
        FailDeployment,
        DeploymentEnded,
        "End a deployment as failed; with auto_revert its job goes back to its stable version.",
    ),
    OperatorVerb(
        "deployment",
        "pause",
        PauseRequest,
        PauseDeployment,
        DeploymentPaused,
        "Pause a deployment: replace nothing more, stop its progress deadline.",
    ),
    OperatorVerb(
        "deployment",
        "resume",
        ResumeRequest,
        PauseDeployment,
        DeploymentResumed,
        "Resume a paused deployment; `ignore_gate` ignores its gates.",
    ),
    OperatorVerb(
        "deployment",
        "set_health",
        HealthRequest,
        SetAllocationHealth,
        AllocationsHealthChanged,
        "Set the health of allocations of a deployment.",
    ),
    OperatorVerb(
        "rollout",
        "promote",
        PromoteRolloutRequest,
        PromoteRollout,
        DeploymentPromoted,
        "Promote the canaries of all jobs of a rollout.",
    ),
    OperatorVerb(
        "rollout",
        "fail",
        FailRolloutRequest,
        FailRollout,
        RolloutEnded,
        "End a rollout as failed: every job of it returns to its previous version.",
    ),
    OperatorVerb(
        "volume",
        "release_claim",
        ReleaseClaimRequest,
        ReleaseClaim,
        ClaimReleased,
        "Release the claims of an index of a group on its sticky volumes.",
    ),
    OperatorVerb(
        "volume",
        "create",
        CreateVolumeRequest,
        RequestVolume,
        VolumeRequested,
        "Create a host volume on a node; a volume that failed is tried again.",
    ),
    OperatorVerb(
        "volume",
        "delete",
        DeleteVolumeRequest,
        RemoveVolume,
        VolumeDeleting,
        "Delete a host volume that nothing uses; `force` forgets one whose node is down or gone.",
    ),
    OperatorVerb(
        "system",
        "gc",
        CollectRequest,
        CollectGarbage,
        None,
        "Collect everything that has ended, regardless of its age.",
    ),
    OperatorVerb(
        "system",
        "roll",
        RollRequest,
        RollLog,
        LogRolled,
        "End a generation of the log and continue it in another stream.",
    ),
    OperatorVerb(
        "system",
        "accept_loss",
        AcceptLossRequest,
        AcceptLoss,
        LossAccepted,
        "Record that the beginning of the log is lost and that this was accepted.",
    ),
)
BY_NAME = {row.name: row for row in VERBS}
BY_REQUEST: dict[type[Wire], OperatorVerb] = {row.request: row for row in VERBS}
NOUNS = tuple(dict.fromkeys(row.noun for row in VERBS))
COMMANDS = tuple(dict.fromkeys(row.command for row in VERBS))
