"""Nomad's JSON job, typed: job, group and task under Nomad's names, with Nomad's units and defaults.

Inner blocks are in the modules beside this one. Supported fields are listed in `checks/supported_fields.py`; the others
are stored in the spec and named in a warning. Durations are whole nanoseconds, as in Nomad's JSON; defaults that depend
on the job's type are None here and resolved in `defaults.py`. Roles and agents decode stored specs with `JOB_DECODER`.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import field

from schemas.base import SECOND_NS
from shared.jobspec.nomad.base import EMPTY_OBJECT, JobBlock
from shared.jobspec.nomad.placement import (
    AffinityBlock,
    ConstraintBlock,
    EphemeralDisk,
    Network,
    Resources,
    SpreadBlock,
    VolumeMount,
    VolumeRequest,
)
from shared.jobspec.nomad.policies import (
    DisconnectBlock,
    MigrateStrategy,
    Multiregion,
    Parameterized,
    Periodic,
    RescheduleBlock,
    RestartBlock,
    Scaling,
    Schedule,
    Ui,
    UpdateStrategy,
)
from shared.jobspec.nomad.services import Service, WorkloadIdentity
from shared.jobspec.nomad.tasks import (
    Action,
    Artifact,
    Consul,
    CsiPlugin,
    DispatchPayload,
    Lifecycle,
    LogConfig,
    Secret,
    TemplateBlock,
    Vault,
)


class TaskSpec(JobBlock, frozen=True, kw_only=True):
    """One process or container."""

    HCL: ClassVar[Mapping[str, str]] = {
        "Constraints": "constraint",
        "Affinities": "affinity",
        "RestartPolicy": "restart",
        "LogConfig": "logs",
        "Services": "service",
        "Templates": "template",
        "Artifacts": "artifact",
        "VolumeMounts": "volume_mount",
        "Secrets": "secret",
        "CSIPluginConfig": "csi_plugin",
        "ScalingPolicies": "scaling",
        "Actions": "action",
        "Identities": "identity",
        "Identity": "default_identity",
    }
    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    driver: str = field(name="Driver", default="")
    #: options of the driver, as JSON.
    config: msgspec.Raw = field(name="Config", default=EMPTY_OBJECT)
    env: dict[str, str] = field(name="Env", default_factory=dict)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)
    resources: Resources = field(name="Resources", default=Resources())
    constraints: tuple[ConstraintBlock, ...] = field(name="Constraints", default=())
    affinities: tuple[AffinityBlock, ...] = field(name="Affinities", default=())
    restart: RestartBlock | None = field(name="RestartPolicy", default=None)
    kill_timeout_ns: int = field(name="KillTimeout", default=5 * SECOND_NS)
    #: empty: the agent's own user.
    user: str = field(name="User", default="")
    #: when it ends, the other tasks of the group are stopped.
    leader: bool = field(name="Leader", default=False)
    #: empty: the driver's default (SIGINT; SIGTERM in containers).
    kill_signal: str = field(name="KillSignal", default="")
    #: pause between leaving the services and the kill signal.
    shutdown_delay_ns: int = field(name="ShutdownDelay", default=0)
    lifecycle: Lifecycle | None = field(name="Lifecycle", default=None)
    logs: LogConfig = field(name="LogConfig", default=LogConfig())
    services: tuple[Service, ...] = field(name="Services", default=())
    templates: tuple[TemplateBlock, ...] = field(name="Templates", default=())
    artifacts: tuple[Artifact, ...] = field(name="Artifacts", default=())
    volume_mounts: tuple[VolumeMount, ...] = field(name="VolumeMounts", default=())
    dispatch_payload: DispatchPayload | None = field(name="DispatchPayload", default=None)
    vault: Vault | None = field(name="Vault", default=None)
    consul: Consul | None = field(name="Consul", default=None)
    secrets: tuple[Secret, ...] = field(name="Secrets", default=())
    identity: WorkloadIdentity | None = field(name="Identity", default=None)
    identities: tuple[WorkloadIdentity, ...] = field(name="Identities", default=())
    actions: tuple[Action, ...] = field(name="Actions", default=())
    scaling: tuple[Scaling, ...] = field(name="ScalingPolicies", default=())
    schedule: Schedule | None = field(name="Schedule", default=None)
    csi_plugin: CsiPlugin | None = field(name="CSIPluginConfig", default=None)
    kind: str = field(name="Kind", default="")


class TaskGroup(JobBlock, frozen=True, kw_only=True):
    """Tasks that run together on one node, `count` times."""

    HCL: ClassVar[Mapping[str, str]] = {
        "Tasks": "task",
        "Constraints": "constraint",
        "Affinities": "affinity",
        "Spreads": "spread",
        "Volumes": "volume",
        "RestartPolicy": "restart",
        "ReschedulePolicy": "reschedule",
        "Networks": "network",
        "Services": "service",
    }
    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    count: int = field(name="Count", default=1)
    tasks: tuple[TaskSpec, ...] = field(name="Tasks", default=())
    constraints: tuple[ConstraintBlock, ...] = field(name="Constraints", default=())
    affinities: tuple[AffinityBlock, ...] = field(name="Affinities", default=())
    spreads: tuple[SpreadBlock, ...] = field(name="Spreads", default=())
    ephemeral_disk: EphemeralDisk = field(name="EphemeralDisk", default=EphemeralDisk())
    networks: tuple[Network, ...] = field(name="Networks", default=())
    volumes: dict[str, VolumeRequest] = field(name="Volumes", default_factory=dict)
    restart: RestartBlock | None = field(name="RestartPolicy", default=None)
    reschedule: RescheduleBlock | None = field(name="ReschedulePolicy", default=None)
    update: UpdateStrategy | None = field(name="Update", default=None)
    migrate: MigrateStrategy | None = field(name="Migrate", default=None)
    disconnect: DisconnectBlock | None = field(name="Disconnect", default=None)
    scaling: Scaling | None = field(name="Scaling", default=None)
    services: tuple[Service, ...] = field(name="Services", default=())
    shutdown_delay_ns: int = field(name="ShutdownDelay", default=0)
    #: batch and sysbatch: how long an allocation may run; unset: no limit.
    max_run_duration_ns: int | None = field(name="MaxRunDuration", default=None)
    #: ours: prestart tasks run one after another; first or failed: the task at which they restart when one fails.
    restart_from: str = field(name="RestartFrom", default="")
    #: ours: start in the order of the indexes, update and stop in the reverse order, one at a time; and an index is one
    #: instance at the most, also when its node is out of reach.
    stateful: bool = field(name="Stateful", default=False)
    consul: Consul | None = field(name="Consul", default=None)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)
    #: of old files; replaced by `disconnect`.
    stop_after_client_disconnect_ns: int | None = field(
        name="StopAfterClientDisconnect", default=None
    )
    max_client_disconnect_ns: int | None = field(name="MaxClientDisconnect", default=None)
    prevent_reschedule_on_lost: bool = field(name="PreventRescheduleOnLost", default=False)


class JobSpec(JobBlock, frozen=True, kw_only=True):
    """A job: groups of tasks, and how to place and run them."""

    HCL: ClassVar[Mapping[str, str]] = {
        "TaskGroups": "group",
        "Constraints": "constraint",
        "Affinities": "affinity",
        "Spreads": "spread",
        "ParameterizedJob": "parameterized",
    }
    LABEL: ClassVar[str] = "ID"

    id: str = field(name="ID", default="")
    #: for people; empty: the id.
    name: str = field(name="Name", default="")
    type: str = field(name="Type", default="service")
    #: 0: the default, 50.
    priority: int = field(name="Priority", default=50)
    region: str = field(name="Region", default="global")
    namespace: str = field(name="Namespace", default="default")
    #: globs allowed.
    datacenters: tuple[str, ...] = field(name="Datacenters", default=("*",))
    node_pool: str = field(name="NodePool", default="default")
    all_at_once: bool = field(name="AllAtOnce", default=False)
    constraints: tuple[ConstraintBlock, ...] = field(name="Constraints", default=())
    affinities: tuple[AffinityBlock, ...] = field(name="Affinities", default=())
    spreads: tuple[SpreadBlock, ...] = field(name="Spreads", default=())
    groups: tuple[TaskGroup, ...] = field(name="TaskGroups", default=())
    update: UpdateStrategy | None = field(name="Update", default=None)
    migrate: MigrateStrategy | None = field(name="Migrate", default=None)
    reschedule: RescheduleBlock | None = field(name="Reschedule", default=None)
    periodic: Periodic | None = field(name="Periodic", default=None)
    parameterized: Parameterized | None = field(name="ParameterizedJob", default=None)
    multiregion: Multiregion | None = field(name="Multiregion", default=None)
    ui: Ui | None = field(name="UI", default=None)
    #: ours: binpack, spread or fragmentation; empty: the algorithm of the node pool or the cluster.
    scheduler_algorithm: str = field(name="SchedulerAlgorithm", default="")
    meta: dict[str, str] = field(name="Meta", default_factory=dict)


JOB_DECODER: msgspec.json.Decoder[JobSpec] = msgspec.json.Decoder(JobSpec)


def merged_meta(job: JobSpec, group: TaskGroup, task: TaskSpec) -> dict[str, str]:
    """Merge meta from job to group to task: the inner one wins."""
    return {**job.meta, **group.meta, **task.meta}
