"""The service mesh of a service: sidecar, upstreams, gateways, with Nomad's names and defaults. Not supported yet."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import field

from schemas.base import SECOND_NS
from shared.jobspec.nomad.base import EMPTY_OBJECT, JobBlock
from shared.jobspec.nomad.placement import Resources, VolumeMount


class MeshGateway(JobBlock, frozen=True, kw_only=True):
    """The gateway to an upstream."""

    mode: str = field(name="Mode", default="")


class Upstream(JobBlock, frozen=True, kw_only=True):
    """A service that the sidecar makes reachable."""

    destination_name: str = field(name="DestinationName", default="")
    destination_namespace: str = field(name="DestinationNamespace", default="")
    destination_peer: str = field(name="DestinationPeer", default="")
    destination_partition: str = field(name="DestinationPartition", default="")
    destination_type: str = field(name="DestinationType", default="")
    local_bind_port: int = field(name="LocalBindPort", default=0)
    datacenter: str = field(name="Datacenter", default="")
    local_bind_address: str = field(name="LocalBindAddress", default="")
    local_bind_socket_path: str = field(name="LocalBindSocketPath", default="")
    local_bind_socket_mode: str = field(name="LocalBindSocketMode", default="")
    mesh_gateway: MeshGateway | None = field(name="MeshGateway", default=None)
    config: msgspec.Raw = field(name="Config", default=EMPTY_OBJECT)


class TransparentProxy(JobBlock, frozen=True, kw_only=True):
    """Redirects all traffic of the namespace through the sidecar."""

    HCL: ClassVar[Mapping[str, str]] = {
        "UID": "uid",
        "NoDNS": "no_dns",
        "ExcludeUIDs": "exclude_uids",
        "ExcludeOutboundCIDRs": "exclude_outbound_cidrs",
    }

    uid: str = field(name="UID", default="")
    outbound_port: int = field(name="OutboundPort", default=0)
    exclude_inbound_ports: tuple[str, ...] = field(name="ExcludeInboundPorts", default=())
    exclude_outbound_ports: tuple[int, ...] = field(name="ExcludeOutboundPorts", default=())
    exclude_outbound_cidrs: tuple[str, ...] = field(name="ExcludeOutboundCIDRs", default=())
    exclude_uids: tuple[str, ...] = field(name="ExcludeUIDs", default=())
    no_dns: bool = field(name="NoDNS", default=False)


class ExposePath(JobBlock, frozen=True, kw_only=True):
    """A path that is reachable without the mesh."""

    path: str = field(name="Path", default="")
    protocol: str = field(name="Protocol", default="")
    local_path_port: int = field(name="LocalPathPort", default=0)
    listener_port: str = field(name="ListenerPort", default="")


class Expose(JobBlock, frozen=True, kw_only=True):
    """Paths that are reachable without the mesh."""

    HCL: ClassVar[Mapping[str, str]] = {"Paths": "path"}

    paths: tuple[ExposePath, ...] = field(name="Paths", default=())


class Proxy(JobBlock, frozen=True, kw_only=True):
    """The sidecar's own settings."""

    HCL: ClassVar[Mapping[str, str]] = {"Upstreams": "upstreams"}

    local_service_address: str = field(name="LocalServiceAddress", default="")
    local_service_port: int = field(name="LocalServicePort", default=0)
    expose: Expose | None = field(name="Expose", default=None)
    upstreams: tuple[Upstream, ...] = field(name="Upstreams", default=())
    transparent_proxy: TransparentProxy | None = field(name="TransparentProxy", default=None)
    config: msgspec.Raw = field(name="Config", default=EMPTY_OBJECT)


class SidecarService(JobBlock, frozen=True, kw_only=True):
    """The service of a sidecar."""

    HCL: ClassVar[Mapping[str, str]] = {"DisableDefaultTCPCheck": "disable_default_tcp_check"}

    tags: tuple[str, ...] = field(name="Tags", default=())
    port: str = field(name="Port", default="")
    proxy: Proxy | None = field(name="Proxy", default=None)
    disable_default_tcp_check: bool = field(name="DisableDefaultTCPCheck", default=False)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)


class SidecarTask(JobBlock, frozen=True, kw_only=True):
    """Overrides of the default sidecar task."""

    HCL: ClassVar[Mapping[str, str]] = {"LogConfig": "logs", "VolumeMounts": "volume_mount"}

    name: str = field(name="Name", default="")
    driver: str = field(name="Driver", default="")
    user: str = field(name="User", default="")
    config: msgspec.Raw = field(name="Config", default=EMPTY_OBJECT)
    env: dict[str, str] = field(name="Env", default_factory=dict)
    resources: Resources | None = field(name="Resources", default=None)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)
    kill_timeout_ns: int = field(name="KillTimeout", default=5 * SECOND_NS)
    log_config: msgspec.Raw = field(name="LogConfig", default=EMPTY_OBJECT)
    shutdown_delay_ns: int = field(name="ShutdownDelay", default=0)
    kill_signal: str = field(name="KillSignal", default="")
    volume_mounts: tuple[VolumeMount, ...] = field(name="VolumeMounts", default=())


class BindAddress(JobBlock, frozen=True, kw_only=True):
    """An address that a gateway listens on."""

    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    address: str = field(name="Address", default="")
    port: int = field(name="Port", default=0)


class GatewayProxy(JobBlock, frozen=True, kw_only=True):
    """The proxy of a gateway."""

    HCL: ClassVar[Mapping[str, str]] = {"EnvoyDNSDiscoveryType": "envoy_dns_discovery_type"}

    connect_timeout_ns: int | None = field(name="ConnectTimeout", default=None)
    envoy_gateway_bind_tagged_addresses: bool = field(
        name="EnvoyGatewayBindTaggedAddresses", default=False
    )
    envoy_gateway_bind_addresses: dict[str, BindAddress] = field(
        name="EnvoyGatewayBindAddresses", default_factory=dict
    )
    envoy_gateway_no_default_bind: bool = field(name="EnvoyGatewayNoDefaultBind", default=False)
    envoy_dns_discovery_type: str = field(name="EnvoyDNSDiscoveryType", default="")
    config: msgspec.Raw = field(name="Config", default=EMPTY_OBJECT)


class Sds(JobBlock, frozen=True, kw_only=True):
    """The source of a gateway's certificates."""

    cluster_name: str = field(name="ClusterName", default="")
    cert_resource: str = field(name="CertResource", default="")


class GatewayTls(JobBlock, frozen=True, kw_only=True):
    """TLS of a gateway."""

    HCL: ClassVar[Mapping[str, str]] = {
        "TLSMinVersion": "tls_min_version",
        "TLSMaxVersion": "tls_max_version",
    }

    enabled: bool = field(name="Enabled", default=False)
    min_version: str = field(name="TLSMinVersion", default="")
    max_version: str = field(name="TLSMaxVersion", default="")
    cipher_suites: tuple[str, ...] = field(name="CipherSuites", default=())
    sds: Sds | None = field(name="SDS", default=None)


class Headers(JobBlock, frozen=True, kw_only=True):
    """Headers that a gateway adds, sets or removes."""

    add: dict[str, str] = field(name="Add", default_factory=dict)
    set: dict[str, str] = field(name="Set", default_factory=dict)
    remove: tuple[str, ...] = field(name="Remove", default=())


class IngressService(JobBlock, frozen=True, kw_only=True):
    """A service behind an ingress gateway."""

    name: str = field(name="Name", default="")
    hosts: tuple[str, ...] = field(name="Hosts", default=())
    tls: GatewayTls | None = field(name="TLS", default=None)
    request_headers: Headers | None = field(name="RequestHeaders", default=None)
    response_headers: Headers | None = field(name="ResponseHeaders", default=None)
    max_connections: int | None = field(name="MaxConnections", default=None)
    max_pending_requests: int | None = field(name="MaxPendingRequests", default=None)
    max_concurrent_requests: int | None = field(name="MaxConcurrentRequests", default=None)


class IngressListener(JobBlock, frozen=True, kw_only=True):
    """A port of an ingress gateway."""

    HCL: ClassVar[Mapping[str, str]] = {"Services": "service"}

    port: int = field(name="Port", default=0)
    protocol: str = field(name="Protocol", default="")
    services: tuple[IngressService, ...] = field(name="Services", default=())


class Ingress(JobBlock, frozen=True, kw_only=True):
    """A gateway from outside into the mesh."""

    HCL: ClassVar[Mapping[str, str]] = {"Listeners": "listener"}

    tls: GatewayTls | None = field(name="TLS", default=None)
    listeners: tuple[IngressListener, ...] = field(name="Listeners", default=())


class LinkedService(JobBlock, frozen=True, kw_only=True):
    """A service outside the mesh."""

    HCL: ClassVar[Mapping[str, str]] = {"CAFile": "ca_file", "SNI": "sni"}

    name: str = field(name="Name", default="")
    ca_file: str = field(name="CAFile", default="")
    cert_file: str = field(name="CertFile", default="")
    key_file: str = field(name="KeyFile", default="")
    sni: str = field(name="SNI", default="")


class Terminating(JobBlock, frozen=True, kw_only=True):
    """A gateway from the mesh to services outside."""

    HCL: ClassVar[Mapping[str, str]] = {"Services": "service"}

    services: tuple[LinkedService, ...] = field(name="Services", default=())


class ConnectGateway(JobBlock, frozen=True, kw_only=True):
    """A gateway of the mesh."""

    proxy: GatewayProxy | None = field(name="Proxy", default=None)
    ingress: Ingress | None = field(name="Ingress", default=None)
    terminating: Terminating | None = field(name="Terminating", default=None)
    mesh: msgspec.Raw | None = field(name="Mesh", default=None)


class Connect(JobBlock, frozen=True, kw_only=True):
    """The service mesh options of a service."""

    native: bool = field(name="Native", default=False)
    gateway: ConnectGateway | None = field(name="Gateway", default=None)
    sidecar_service: SidecarService | None = field(name="SidecarService", default=None)
    sidecar_task: SidecarTask | None = field(name="SidecarTask", default=None)
