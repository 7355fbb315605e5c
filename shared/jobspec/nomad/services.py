"""Services and their mesh options, with Nomad's names and defaults."""

from collections.abc import Mapping
from typing import ClassVar

from msgspec import field

from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.connect import Connect
from shared.jobspec.nomad.policies import CheckRestart


class WorkloadIdentity(JobBlock, frozen=True, kw_only=True):
    """A signed identity of a task or service."""

    HCL: ClassVar[Mapping[str, str]] = {"Audience": "aud", "TTL": "ttl"}

    name: str = field(name="Name", default="")
    audience: tuple[str, ...] = field(name="Audience", default=())
    #: noop, signal or restart.
    change_mode: str = field(name="ChangeMode", default="noop")
    change_signal: str = field(name="ChangeSignal", default="")
    env: bool = field(name="Env", default=False)
    file: bool = field(name="File", default=False)
    filepath: str = field(name="Filepath", default="")
    #: of the identity of a service: the service's own name.
    service_name: str = field(name="ServiceName", default="")
    #: 0: as long as the allocation lives.
    ttl_ns: int = field(name="TTL", default=0)
    #: texts with references such as `${job.id}`, in the token below the claim `extra_claims`. A list is no error in the
    #: text of a job that an earlier release accepted without it.
    extra_claims: dict[str, str] | tuple[str, ...] = field(name="ExtraClaims", default_factory=dict)


class Check(JobBlock, frozen=True, kw_only=True):
    """The health check of a service."""

    HCL: ClassVar[Mapping[str, str]] = {
        "PortLabel": "port",
        "TaskName": "task",
        "GRPCService": "grpc_service",
        "GRPCUseTLS": "grpc_use_tls",
        "TLSServerName": "tls_server_name",
        "TLSSkipVerify": "tls_skip_verify",
    }

    name: str = field(name="Name", default="")
    #: http, tcp, grpc or script.
    type: str = field(name="Type", default="")
    command: str = field(name="Command", default="")
    args: tuple[str, ...] = field(name="Args", default=())
    path: str = field(name="Path", default="")
    protocol: str = field(name="Protocol", default="")
    port_label: str = field(name="PortLabel", default="")
    expose: bool = field(name="Expose", default=False)
    address_mode: str = field(name="AddressMode", default="")
    advertise: str = field(name="Advertise", default="")
    interval_ns: int = field(name="Interval", default=0)
    timeout_ns: int = field(name="Timeout", default=0)
    initial_status: str = field(name="InitialStatus", default="")
    notes: str = field(name="Notes", default="")
    tls_server_name: str = field(name="TLSServerName", default="")
    tls_skip_verify: bool = field(name="TLSSkipVerify", default=False)
    header: dict[str, tuple[str, ...]] = field(name="Header", default_factory=dict)
    method: str = field(name="Method", default="")
    check_restart: CheckRestart | None = field(name="CheckRestart", default=None)
    grpc_service: str = field(name="GRPCService", default="")
    grpc_use_tls: bool = field(name="GRPCUseTLS", default=False)
    task_name: str = field(name="TaskName", default="")
    success_before_passing: int = field(name="SuccessBeforePassing", default=0)
    failures_before_critical: int = field(name="FailuresBeforeCritical", default=0)
    failures_before_warning: int = field(name="FailuresBeforeWarning", default=0)
    body: str = field(name="Body", default="")
    #: empty: the service's.
    on_update: str = field(name="OnUpdate", default="")


class Weights(JobBlock, frozen=True, kw_only=True):
    """The share of traffic of an instance."""

    passing: int = field(name="Passing", default=1)
    warning: int = field(name="Warning", default=1)


class Service(JobBlock, frozen=True, kw_only=True):
    """A name under which a task is registered."""

    HCL: ClassVar[Mapping[str, str]] = {
        "PortLabel": "port",
        "Checks": "check",
        "TaskName": "task",
    }

    #: empty: from job, group and task.
    name: str = field(name="Name", default="")
    tags: tuple[str, ...] = field(name="Tags", default=())
    canary_tags: tuple[str, ...] = field(name="CanaryTags", default=())
    #: of Consul's catalogue; ignored.
    enable_tag_override: bool = field(name="EnableTagOverride", default=False)
    port_label: str = field(name="PortLabel", default="")
    #: auto, host, driver, alloc.
    address_mode: str = field(name="AddressMode", default="auto")
    address: str = field(name="Address", default="")
    checks: tuple[Check, ...] = field(name="Checks", default=())
    check_restart: CheckRestart | None = field(name="CheckRestart", default=None)
    connect: Connect | None = field(name="Connect", default=None)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)
    canary_meta: dict[str, str] = field(name="CanaryMeta", default_factory=dict)
    #: of Consul's catalogue; ignored.
    tagged_addresses: dict[str, str] = field(name="TaggedAddresses", default_factory=dict)
    task_name: str = field(name="TaskName", default="")
    #: require_healthy, ignore_warnings or ignore.
    on_update: str = field(name="OnUpdate", default="require_healthy")
    identity: WorkloadIdentity | None = field(name="Identity", default=None)
    #: of Consul's catalogue; ignored.
    weights: Weights | None = field(name="Weights", default=None)
    #: consul or nomad.
    provider: str = field(name="Provider", default="consul")
    cluster: str = field(name="Cluster", default="default")
    kind: str = field(name="Kind", default="")
