"""Nomad's JSON job, typed: every block and parameter under Nomad's names, with Nomad's defaults.

Decides names, types, units and defaults of job, group and task; the blocks in them stand in nomad_*.py by family. What
of it is acted on is in `built.py`; the rest is kept in the spec and named in a warning (`unbuilt.py`). Durations are
whole nanoseconds, as in Nomad's JSON; defaults that depend on the job's type are None here and resolved in
`defaults.py`. Roles and agents read stored specs with `JOB_DECODER`. Next: `validate.py`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import field

from shared.jobspec.nomad_base import EMPTY, HOUR_NS, MINUTE_NS, SECOND_NS, Json
from shared.jobspec.nomad_placement import (
    Affinity,
    Constraint,
    EphemeralDisk,
    Network,
    Resources,
    Spread,
    VolumeMount,
    VolumeRequest,
)
from shared.jobspec.nomad_policies import (
    Disconnect,
    MigrateStrategy,
    Multiregion,
    Parameterized,
    Periodic,
    ReschedulePolicy,
    RestartPolicy,
    Scaling,
    Schedule,
    Ui,
    UpdateStrategy,
)
from shared.jobspec.nomad_services import Identity, Service
from shared.jobspec.nomad_tasks import (
    Action,
    Artifact,
    Consul,
    CsiPlugin,
    DispatchPayload,
    Lifecycle,
    LogConfig,
    Secret,
    Template,
    Vault,
)

__all__ = [
    "HOUR_NS",
    "JOB_DECODER",
    "MINUTE_NS",
    "SECOND_NS",
    "Affinity",
    "Constraint",
    "EphemeralDisk",
    "Job",
    "Json",
    "LogConfig",
    "MigrateStrategy",
    "ReschedulePolicy",
    "Resources",
    "RestartPolicy",
    "Spread",
    "Task",
    "TaskGroup",
    "UpdateStrategy",
    "config_of",
    "meta_of",
]


class Task(Json, frozen=True, kw_only=True):
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
    #: the driver's own matter, as JSON.
    config: msgspec.Raw = field(name="Config", default=EMPTY)
    env: dict[str, str] = field(name="Env", default_factory=dict)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)
    resources: Resources = field(name="Resources", default=Resources())
    constraints: tuple[Constraint, ...] = field(name="Constraints", default=())
    affinities: tuple[Affinity, ...] = field(name="Affinities", default=())
    restart: RestartPolicy | None = field(name="RestartPolicy", default=None)
    kill_timeout_ns: int = field(name="KillTimeout", default=5 * SECOND_NS)
    #: empty: the agent's own user.
    user: str = field(name="User", default="")
    #: its end ends the others of the group.
    leader: bool = field(name="Leader", default=False)
    #: empty: the driver's default (SIGINT; SIGTERM in containers).
    kill_signal: str = field(name="KillSignal", default="")
    #: pause between leaving the services and the kill signal.
    shutdown_delay_ns: int = field(name="ShutdownDelay", default=0)
    lifecycle: Lifecycle | None = field(name="Lifecycle", default=None)
    logs: LogConfig = field(name="LogConfig", default=LogConfig())
    services: tuple[Service, ...] = field(name="Services", default=())
    templates: tuple[Template, ...] = field(name="Templates", default=())
    artifacts: tuple[Artifact, ...] = field(name="Artifacts", default=())
    volume_mounts: tuple[VolumeMount, ...] = field(name="VolumeMounts", default=())
    dispatch_payload: DispatchPayload | None = field(name="DispatchPayload", default=None)
    vault: Vault | None = field(name="Vault", default=None)
    consul: Consul | None = field(name="Consul", default=None)
    secrets: tuple[Secret, ...] = field(name="Secrets", default=())
    identity: Identity | None = field(name="Identity", default=None)
    identities: tuple[Identity, ...] = field(name="Identities", default=())
    actions: tuple[Action, ...] = field(name="Actions", default=())
    scaling: tuple[Scaling, ...] = field(name="ScalingPolicies", default=())
    schedule: Schedule | None = field(name="Schedule", default=None)
    csi_plugin: CsiPlugin | None = field(name="CSIPluginConfig", default=None)
    kind: str = field(name="Kind", default="")


class TaskGroup(Json, frozen=True, kw_only=True):
    """Tasks that share one node; `count` of them are wanted."""

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
    tasks: tuple[Task, ...] = field(name="Tasks", default=())
    constraints: tuple[Constraint, ...] = field(name="Constraints", default=())
    affinities: tuple[Affinity, ...] = field(name="Affinities", default=())
    spreads: tuple[Spread, ...] = field(name="Spreads", default=())
    ephemeral_disk: EphemeralDisk = field(name="EphemeralDisk", default=EphemeralDisk())
    networks: tuple[Network, ...] = field(name="Networks", default=())
    volumes: dict[str, VolumeRequest] = field(name="Volumes", default_factory=dict)
    restart: RestartPolicy | None = field(name="RestartPolicy", default=None)
    reschedule: ReschedulePolicy | None = field(name="ReschedulePolicy", default=None)
    update: UpdateStrategy | None = field(name="Update", default=None)
    migrate: MigrateStrategy | None = field(name="Migrate", default=None)
    disconnect: Disconnect | None = field(name="Disconnect", default=None)
    scaling: Scaling | None = field(name="Scaling", default=None)
    services: tuple[Service, ...] = field(name="Services", default=())
    shutdown_delay_ns: int = field(name="ShutdownDelay", default=0)
    #: batch and sysbatch: how long an allocation may run; None: for ever.
    max_run_duration_ns: int | None = field(name="MaxRunDuration", default=None)
    #: ours: prestart tasks run one after another; first or failed: where they begin again when one fails.
    restart_from: str = field(name="RestartFrom", default="")
    consul: Consul | None = field(name="Consul", default=None)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)
    #: of old files; `disconnect` has these now.
    stop_after_client_disconnect_ns: int | None = field(
        name="StopAfterClientDisconnect", default=None
    )
    max_client_disconnect_ns: int | None = field(name="MaxClientDisconnect", default=None)
    prevent_reschedule_on_lost: bool = field(name="PreventRescheduleOnLost", default=False)


class Job(Json, frozen=True, kw_only=True):
    """What a submitter wants to run."""

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
    constraints: tuple[Constraint, ...] = field(name="Constraints", default=())
    affinities: tuple[Affinity, ...] = field(name="Affinities", default=())
    spreads: tuple[Spread, ...] = field(name="Spreads", default=())
    groups: tuple[TaskGroup, ...] = field(name="TaskGroups", default=())
    update: UpdateStrategy | None = field(name="Update", default=None)
    migrate: MigrateStrategy | None = field(name="Migrate", default=None)
    reschedule: ReschedulePolicy | None = field(name="Reschedule", default=None)
    periodic: Periodic | None = field(name="Periodic", default=None)
    parameterized: Parameterized | None = field(name="ParameterizedJob", default=None)
    multiregion: Multiregion | None = field(name="Multiregion", default=None)
    ui: Ui | None = field(name="UI", default=None)
    #: ours: binpack, spread or fragmentation; empty: as the node pool or the cluster has it.
    scheduler_algorithm: str = field(name="SchedulerAlgorithm", default="")
    meta: dict[str, str] = field(name="Meta", default_factory=dict)


JOB_DECODER: msgspec.json.Decoder[Job] = msgspec.json.Decoder(Job)


def meta_of(job: Job, group: TaskGroup, task: Task) -> dict[str, str]:
    """Merge meta from job to group to task: the inner one wins."""
    return {**job.meta, **group.meta, **task.meta}


def config_of(task: Task) -> dict[str, Any]:
    """Decode the driver's config. Raises msgspec.DecodeError when it is no object."""
    return msgspec.json.decode(task.config, type=dict[str, Any])
