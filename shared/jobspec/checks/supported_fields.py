"""The fields of a job that have an effect today. A new feature adds its fields here; docs/jobs.md follows.

Other fields are refused as not built yet, unless the submission accepts them. Blocks inside a field are looked up by
their own Struct: a field whose block has no entry is supported as a whole. Next: `unsupported_fields.py`.
"""

from collections.abc import Mapping
from typing import Any

from schemas.base import SECOND_NS
from schemas.jobs import JOB_TYPES
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.placement import (
    ConstraintBlock,
    EphemeralDisk,
    Network,
    Numa,
    Port,
    Resources,
    VolumeMount,
    VolumeRequest,
)
from shared.jobspec.nomad.policies import (
    CheckRestart,
    DisconnectBlock,
    MigrateStrategy,
    RescheduleBlock,
    RestartBlock,
    Scaling,
    UpdateStrategy,
)
from shared.jobspec.nomad.services import Check, Service, WorkloadIdentity
from shared.jobspec.nomad.tasks import TemplateBlock, Vault

#: Struct -> JSON names of the fields that are acted on.
SUPPORTED_FIELDS: dict[type[JobBlock], frozenset[str]] = {
    JobSpec: frozenset(
        (
            *("ID", "Name", "Type", "Priority", "Datacenters", "NodePool", "AllAtOnce"),
            *("Constraints", "Affinities", "Spreads", "TaskGroups", "Reschedule", "Meta"),
            *("Update", "Migrate", "SchedulerAlgorithm", "Periodic", "ParameterizedJob", "UI"),
        )
    ),
    TaskGroup: frozenset(
        (
            *("Name", "Count", "Tasks", "Constraints", "EphemeralDisk", "RestartPolicy"),
            *("ReschedulePolicy", "Affinities", "Spreads", "Meta", "Networks", "Disconnect"),
            *("MaxClientDisconnect", "PreventRescheduleOnLost", "StopAfterClientDisconnect"),
            *("ShutdownDelay", "MaxRunDuration", "RestartFrom", "Update", "Migrate", "Services"),
            *("Volumes", "Stateful", "Scaling"),
        )
    ),
    TaskSpec: frozenset(
        (
            *("Name", "Driver", "Config", "Env", "Meta", "Resources", "Constraints", "Services"),
            *("RestartPolicy", "KillTimeout", "User", "Leader", "KillSignal", "Affinities"),
            *("LogConfig", "Lifecycle", "ShutdownDelay", "DispatchPayload"),
            *("Artifacts", "VolumeMounts", "Templates", "Identity", "Identities", "Secrets"),
            "Actions",
            *("Vault", "ScalingPolicies"),
        )
    ),
    VolumeRequest: frozenset(
        ("Name", "Type", "Source", "ReadOnly", "AccessMode", "AttachmentMode", "PerAlloc", "Sticky")
    ),
    VolumeMount: frozenset(
        ("Volume", "Destination", "ReadOnly", "PropagationMode", "SELinuxLabel")
    ),
    ConstraintBlock: frozenset(("LTarget", "Operand", "RTarget")),
    EphemeralDisk: frozenset(("SizeMB", "Sticky", "Migrate")),
    Resources: frozenset(
        (
            *("CPU", "Cores", "MemoryMB", "MemoryMaxMB", "Networks", "Devices", "NUMA", "Custom"),
            "SecretsMB",
        )
    ),
    Network: frozenset(("ReservedPorts", "DynamicPorts", "Mode", "Hostname", "DNS")),
    Port: frozenset(("Label", "Value", "To", "IgnoreCollision", "HostNetwork")),
    Numa: frozenset(("Affinity",)),
    DisconnectBlock: frozenset(("LostAfter", "StopOnClientAfter", "Replace", "Reconcile")),
    UpdateStrategy: frozenset(
        (
            *("MaxParallel", "HealthCheck", "MinHealthyTime", "HealthyDeadline"),
            *("ProgressDeadline", "Canary", "AutoRevert", "AutoPromote", "Gates", "Windows"),
        )
    ),
    MigrateStrategy: frozenset(("MaxParallel", "HealthCheck", "MinHealthyTime", "HealthyDeadline")),
    Service: frozenset(
        (
            *("Name", "Tags", "CanaryTags", "PortLabel", "AddressMode", "Address", "Checks"),
            *("CheckRestart", "Meta", "CanaryMeta", "TaskName", "OnUpdate", "Provider", "Identity"),
        )
    ),
    Check: frozenset(
        (
            *("Name", "Type", "Command", "Args", "Path", "Protocol", "PortLabel", "AddressMode"),
            *("Interval", "Timeout", "InitialStatus", "Notes", "TLSSkipVerify", "Header"),
            *(
                "Method",
                "CheckRestart",
                "TaskName",
                "Body",
                "OnUpdate",
                "GRPCService",
                "GRPCUseTLS",
            ),
        )
    ),
    CheckRestart: frozenset(("Limit", "Grace", "IgnoreWarnings")),
    TemplateBlock: frozenset(
        (
            *("SourcePath", "DestPath", "EmbeddedTmpl", "ChangeMode", "ChangeSignal"),
            *("ChangeScript", "Once", "Splay", "Perms", "Uid", "Gid", "LeftDelim", "RightDelim"),
            *("Envvars", "Wait", "ErrMissingKey"),
        )
    ),
    Vault: frozenset(
        (
            *("Role", "Namespace", "Cluster", "Env", "DisableFile", "ChangeMode"),
            *("ChangeSignal", "AllowTokenExpiration"),
        )
    ),
    WorkloadIdentity: frozenset(
        (
            *("Name", "Audience", "ChangeMode", "ChangeSignal", "Env", "File", "Filepath"),
            *("TTL", "ServiceName", "ExtraClaims"),
        )
    ),
    RestartBlock: frozenset(("Attempts", "Interval", "Delay", "Mode", "RenderTemplates")),
    RescheduleBlock: frozenset(
        ("Attempts", "Interval", "Delay", "DelayFunction", "MaxDelay", "Unlimited")
    ),
}

#: Job types whose whole meaning is built.
SUPPORTED_JOB_TYPES = frozenset(JOB_TYPES)

#: Struct -> fields that Nomad reads and does not act on either, and what its server notes of a job and prints
#: (`nomad job inspect`): accepted, named in a warning unless empty.
FIELDS_WITHOUT_EFFECT: dict[type[JobBlock], frozenset[str]] = {
    Network: frozenset(("MBits", "Device", "CIDR", "IP")),
    Resources: frozenset(("IOPS", "DiskMB")),
    JobSpec: frozenset(
        (
            *("VaultToken", "ConsulToken", "Status", "StatusDescription", "Stable", "Version"),
            *("SubmitTime", "CreateIndex", "ModifyIndex", "JobModifyIndex", "NomadTokenID"),
            "VersionTag",
        )
    ),
    Scaling: frozenset(("ID", "Namespace", "Target", "CreateIndex", "ModifyIndex")),
    TemplateBlock: frozenset(("VaultGrace",)),
    # The role of a login decides them, as in Nomad since tasks log in with their identities.
    Vault: frozenset(("Policies",)),
    # Of Consul's catalogue alone.
    Service: frozenset(("Id", "EnableTagOverride", "TaggedAddresses", "Weights")),
    Check: frozenset(("Id",)),
    UpdateStrategy: frozenset(("Stagger",)),
}
#: Keys of a job that Nomad's server writes into a launched child and acts on: not built, unless empty.
KEYS_OF_THE_SERVER = frozenset(
    (
        *("ParentID", "Dispatched", "Payload", "DispatchIdempotencyToken"),
        *("ConsulNamespace", "VaultNamespace"),
    )
)

#: What Nomad's server writes into a job without these blocks (`nomad job inspect`): they ask for nothing.
_IDENTITY = {"Name": "default", "Audience": ["nomadproject.io"]}
#: JSON name of a block -> values beside its Struct's defaults.
DEFAULT_BLOCKS: dict[str, Mapping[str, Any]] = {
    "Update": {"Stagger": 30 * SECOND_NS},
    "Identity": _IDENTITY,
}
#: Blocks that request something although they are empty.
MEANINGFUL_WHEN_EMPTY = frozenset(("ParameterizedJob", "Periodic", "Vault"))
