"""One record of the log: a transaction, a lease, a checkpoint or a roll, in one envelope.

The last field of every record is its checksum, so that it can be checked on the bytes as they are
(shared/core/runtime/chain.py adds and verifies it; `prev` inside the body makes the checksums a chain).
"""

import msgspec

from schemas import (
    allocations,
    deployments,
    evaluations,
    gates,
    host_volumes,
    identities,
    job_versions,
    jobs,
    launches,
    nodes,
    plans,
    policy,
    remotes,
    rollouts,
    variables,
    volumes,
)
from schemas.base import Command, Event, Wire
from schemas.bounds import bounded_decoder

#: Version of the envelope's shape.
SCHEMA_VERSION = 1
#: Version of the deciding code, named by plans and transactions.
CORE_VERSION = "0.12.0"

AnyEvent = (
    policy.ClusterCreated
    | policy.PolicyChanged
    | policy.OperatorRefused
    | policy.LogRolled
    | policy.IncarnationBegan
    | policy.LossAccepted
    | jobs.JobRegistered
    | jobs.JobStopped
    | jobs.JobEvaluated
    | jobs.SubmissionRefused
    | jobs.IntakeAdvanced
    | jobs.SubmissionsCollected
    | jobs.JobsCollected
    | launches.JobLaunched
    | launches.LaunchSkipped
    | launches.JobPayload
    | nodes.NodeRegistered
    | nodes.NodeRefused
    | nodes.NodesStatusChanged
    | nodes.NodeEligibilityChanged
    | nodes.NodesCollected
    | nodes.PoolDeclared
    | nodes.NodeDrainChanged
    | nodes.NodeDrained
    | nodes.NodeMetaChanged
    | nodes.NodeConfirmedDead
    | nodes.CapacityFreed
    | evaluations.EvaluationsCreated
    | evaluations.EvaluationsWoken
    | evaluations.EvaluationEnded
    | evaluations.EvaluationsCollected
    | evaluations.ReservationsChanged
    | plans.PlanCommitted
    | plans.PlanRefused
    | allocations.AllocationsReported
    | allocations.AllocationsCollected
    | allocations.AllocationsDisplaced
    | allocations.AllocationsHealthChanged
    | deployments.DeploymentStarted
    | deployments.DeploymentSized
    | deployments.DeploymentPromoted
    | deployments.DeploymentPaused
    | deployments.DeploymentResumed
    | deployments.DeploymentHeld
    | deployments.DeploymentReleased
    | gates.DeploymentGated
    | gates.GateChanged
    | gates.WindowChanged
    | deployments.DeploymentEnded
    | rollouts.RolloutStarted
    | rollouts.RolloutEnded
    | jobs.JobStabilityChanged
    | jobs.JobVersionTagged
    | variables.KeyCreated
    | variables.VariablePut
    | variables.VariableDeleted
    | variables.VariablesShredded
    | variables.VariableRefused
    | variables.VariableLocked
    | variables.VariableLockReleased
    | variables.VariableLockExpired
    | identities.SigningKeyCreated
    | identities.SigningKeyRemoved
    | volumes.ClaimMade
    | volumes.ClaimReleased
    | host_volumes.VolumeRequested
    | host_volumes.VolumeReady
    | host_volumes.VolumeFailed
    | host_volumes.VolumeDeleting
    | host_volumes.VolumeDeleted
    | remotes.RemotesReported
    | remotes.RemoteMoved
)

AnyCommand = (
    jobs.RegisterJob
    | jobs.StopJob
    | jobs.EvaluateJob
    | jobs.SkipSubmission
    | launches.LaunchDue
    | gates.GateDue
    | launches.DispatchJob
    | job_versions.RevertJob
    | job_versions.ScaleJob
    | job_versions.StartJob
    | job_versions.TagVersion
    | job_versions.SetStability
    | launches.ForceLaunch
    | nodes.ChangeLiveness
    | nodes.ReportNode
    | evaluations.WakeEvaluations
    | evaluations.EndEvaluations
    | plans.SubmitPlan
    | policy.SetPolicy
    | policy.SetEligibility
    | policy.CollectGarbage
    | policy.RollLog
    | policy.AcceptLoss
    | policy.BeginIncarnation
    | policy.DeclarePool
    | policy.StopAllocation
    | policy.DrainNode
    | policy.SetNodeMeta
    | policy.ConfirmDeath
    | rollouts.RegisterJobs
    | rollouts.FailRollout
    | rollouts.PromoteRollout
    | deployments.PromoteDeployment
    | deployments.FailDeployment
    | deployments.PauseDeployment
    | deployments.SetAllocationHealth
    | deployments.DeploymentDue
    | variables.PutVariable
    | variables.DeleteVariable
    | variables.ShredVariables
    | variables.CreateKey
    | variables.LockVariable
    | variables.ReleaseLock
    | variables.ExpireLock
    | identities.CreateSigningKey
    | identities.RemoveSigningKey
    | volumes.ReleaseClaim
    | host_volumes.RequestVolume
    | host_volumes.RemoveVolume
    | remotes.ReportRemoteEnded
)


class LogRecord(Wire, frozen=True, kw_only=True):
    """Envelope of a log record, the same for all kinds; shared/core/runtime/chain.py appends `sum` on the bytes."""

    #: tx, lease, checkpoint or roll: the last token of its subject.
    kind: str
    #: SCHEMA_VERSION and CORE_VERSION of the writer; no defaults, else they would not be on the wire.
    schema: int
    core: str
    #: seq of the lease record under which it was written; of a lease: its own seq.
    epoch: int
    #: checksum of the last accepted record; empty for the first.
    prev: str
    #: log time: the applier's clock; where that is behind the log, half of what passed since.
    t_ns: int
    #: what made it: worker and plan number, submission ids …, for people and traces; may be cut short.
    causes: tuple[str, ...] = ()
    events: tuple[AnyEvent, ...] = ()
    #: lease only.
    lease: "LeaseHeld | None" = None
    #: checkpoint only: table -> hash.
    tables: dict[str, str] | None = None
    sum: str = ""


class LeaseHeld(Wire, frozen=True, kw_only=True):
    """Which applier holds the write lease, on which bus."""

    holder: str
    cluster_id: str
    #: the server's own answer: does it fsync every write, and on how many replicas.
    fsync: bool = False
    replicas: int = 1


class CommandBatch(Wire, frozen=True, kw_only=True):
    """A message on `cmd.<kind>`: what one turn of the sender's loop collected, below 512 KiB."""

    sender: str
    commands: tuple[AnyCommand, ...]


RECORD_DECODER = msgspec.json.Decoder(LogRecord)
#: commands of other processes: integers outside their bounds are refused. Records are read as they are.
COMMANDS_DECODER = bounded_decoder(CommandBatch)
#: dicts are encoded in sorted order, so that equal values are equal bytes.
ENCODER = msgspec.json.Encoder(order="deterministic")

__all__ = [
    "COMMANDS_DECODER",
    "CORE_VERSION",
    "ENCODER",
    "RECORD_DECODER",
    "SCHEMA_VERSION",
    "AnyCommand",
    "AnyEvent",
    "Command",
    "CommandBatch",
    "Event",
    "LeaseHeld",
    "LogRecord",
]
