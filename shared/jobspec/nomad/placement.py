"""Placement and resources of a task: constraints, affinities, spreads, resources, networks, volumes.

Nomad's names and defaults.
"""

from collections.abc import Mapping
from typing import ClassVar

from msgspec import field

from shared.jobspec.nomad.base import JobBlock

_TARGETS = {"LTarget": "attribute", "RTarget": "value", "Operand": "operator"}
_RULES = {"Constraints": "constraint", "Affinities": "affinity"}


class ConstraintBlock(JobBlock, frozen=True, kw_only=True):
    """`left operator right`; both sides may hold `${…}` references."""

    HCL: ClassVar[Mapping[str, str]] = _TARGETS

    left: str = field(name="LTarget", default="")
    operator: str = field(name="Operand", default="=")
    right: str = field(name="RTarget", default="")


class AffinityBlock(JobBlock, frozen=True, kw_only=True):
    """Nodes that satisfy it score higher, with a negative weight lower."""

    HCL: ClassVar[Mapping[str, str]] = _TARGETS

    left: str = field(name="LTarget", default="")
    operator: str = field(name="Operand", default="=")
    right: str = field(name="RTarget", default="")
    #: -100 to 100, not 0.
    weight: int = field(name="Weight", default=50)


class SpreadTargetBlock(JobBlock, frozen=True, kw_only=True):
    """The share of the allocations for nodes with this value."""

    LABEL: ClassVar[str] = "Value"

    value: str = field(name="Value", default="")
    percent: int = field(name="Percent", default=0)


class SpreadBlock(JobBlock, frozen=True, kw_only=True):
    """Spread allocations over the values of an attribute; without targets evenly."""

    HCL: ClassVar[Mapping[str, str]] = {"SpreadTarget": "target"}

    attribute: str = field(name="Attribute", default="")
    #: 1 to 100.
    weight: int = field(name="Weight", default=50)
    targets: tuple[SpreadTargetBlock, ...] = field(name="SpreadTarget", default=())


class DeviceOption(JobBlock, frozen=True, kw_only=True):
    """An alternative of a device block. Ours, as proposed for Nomad (#27402)."""

    HCL: ClassVar[Mapping[str, str]] = _RULES

    #: empty: the block's own.
    name: str = field(name="Name", default="")
    #: as of the block.
    count: int | float = field(name="Count", default=1)
    #: beside those of the block.
    constraints: tuple[ConstraintBlock, ...] = field(name="Constraints", default=())
    affinities: tuple[AffinityBlock, ...] = field(name="Affinities", default=())


class Device(JobBlock, frozen=True, kw_only=True):
    """Device instances: `type`, `vendor/type` or `vendor/type/model`."""

    HCL: ClassVar[Mapping[str, str]] = _RULES
    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    #: instances; ours: up to 4 decimals, a part is one of one instance. None: 1.
    count: int | float | None = field(name="Count", default=None)
    constraints: tuple[ConstraintBlock, ...] = field(name="Constraints", default=())
    affinities: tuple[AffinityBlock, ...] = field(name="Affinities", default=())
    #: ours: alternatives in order, instead of a count: the first that fits any node.
    first_available: tuple[DeviceOption, ...] = field(name="FirstAvailable", default=())
    #: ours, of several instances: compact, scatter or strict (all of one socket or switch).
    grouping: str = field(name="Grouping", default="")


class CustomResource(JobBlock, frozen=True, kw_only=True):
    """Ours: a resource that nodes or operators declare under a name of their own."""

    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    #: up to 4 decimals.
    amount: int | float = field(name="Amount", default=1)
    #: of several instances: compact, scatter or strict.
    grouping: str = field(name="Grouping", default="")


class Numa(JobBlock, frozen=True, kw_only=True):
    """The NUMA placement of reserved cores."""

    #: none, prefer or require (one socket).
    affinity: str = field(name="Affinity", default="none")
    devices: tuple[str, ...] = field(name="Devices", default=())


class Port(JobBlock, frozen=True, kw_only=True):
    """A port by its label. `static` 0: any free one."""

    HCL: ClassVar[Mapping[str, str]] = {"Value": "static"}
    LABEL: ClassVar[str] = "Label"

    label: str = field(name="Label", default="")
    static: int = field(name="Value", default=0)
    #: port inside the network namespace; 0: the same, -1: the one it got.
    to: int = field(name="To", default=0)
    #: a network of the node by name (`CARAVAN_AGENT_HOST_NETWORKS`): only nodes that have it are feasible.
    host_network: str = field(name="HostNetwork", default="")
    #: a static port that other allocations may use, too; not in mode bridge.
    ignore_collision: bool = field(name="IgnoreCollision", default=False)


class Dns(JobBlock, frozen=True, kw_only=True):
    """The resolver of a network namespace."""

    servers: tuple[str, ...] = field(name="Servers", default=())
    searches: tuple[str, ...] = field(name="Searches", default=())
    options: tuple[str, ...] = field(name="Options", default=())


class Cni(JobBlock, frozen=True, kw_only=True):
    """Arguments for a CNI plugin."""

    args: dict[str, str] = field(name="Args", default_factory=dict)


class Network(JobBlock, frozen=True, kw_only=True):
    """A network of a group, or of a task in old files."""

    HCL: ClassVar[Mapping[str, str]] = {
        "DynamicPorts": "port",
        "ReservedPorts": "reserved_ports",
        "MBits": "mbits",
    }

    #: host, bridge or none; docs/network.md describes bridge, docs/drivers.md the modes of each driver.
    mode: str = field(name="Mode", default="host")
    device: str = field(name="Device", default="")
    cidr: str = field(name="CIDR", default="")
    ip: str = field(name="IP", default="")
    #: a DNS name, of containers and isolated tasks.
    hostname: str = field(name="Hostname", default="")
    #: ignored, as by Nomad.
    bandwidth_mbits: int = field(name="MBits", default=0)
    #: of containers, and of all tasks with a view in mode bridge.
    dns: Dns | None = field(name="DNS", default=None)
    reserved_ports: tuple[Port, ...] = field(name="ReservedPorts", default=())
    dynamic_ports: tuple[Port, ...] = field(name="DynamicPorts", default=())
    cni: Cni | None = field(name="CNI", default=None)


class Resources(JobBlock, frozen=True, kw_only=True):
    """The resources of a task."""

    HCL: ClassVar[Mapping[str, str]] = {
        "MemoryMB": "memory",
        "MemoryMaxMB": "memory_max",
        "DiskMB": "disk",
        "SecretsMB": "secrets",
        "Networks": "network",
        "Devices": "device",
        "IOPS": "iops",
        "Custom": "custom",
    }

    cpu_mhz: int = field(name="CPU", default=100)
    #: whole cores instead of a share; 0: none.
    cores: int = field(name="Cores", default=0)
    memory_mib: int = field(name="MemoryMB", default=300)
    #: 0: no limit above `memory_mib`; -1: unlimited.
    memory_max_mib: int = field(name="MemoryMaxMB", default=0)
    #: of old files; replaced by `ephemeral_disk` of the group.
    disk_mib: int = field(name="DiskMB", default=0)
    iops: int = field(name="IOPS", default=0)
    secrets_mib: int = field(name="SecretsMB", default=0)
    networks: tuple[Network, ...] = field(name="Networks", default=())
    devices: tuple[Device, ...] = field(name="Devices", default=())
    numa: Numa | None = field(name="NUMA", default=None)
    custom: tuple[CustomResource, ...] = field(name="Custom", default=())


class EphemeralDisk(JobBlock, frozen=True, kw_only=True):
    """Disk of one allocation: scheduled, not enforced."""

    HCL: ClassVar[Mapping[str, str]] = {"SizeMB": "size"}

    size_mib: int = field(name="SizeMB", default=300)
    #: prefer the node that has the data of the replaced allocation.
    sticky: bool = field(name="Sticky", default=False)
    #: copy the data when the node changes.
    migrate: bool = field(name="Migrate", default=False)


class MountOptions(JobBlock, frozen=True, kw_only=True):
    """How a CSI volume is mounted."""

    HCL: ClassVar[Mapping[str, str]] = {"FSType": "fs_type"}

    fs_type: str = field(name="FSType", default="")
    mount_flags: tuple[str, ...] = field(name="MountFlags", default=())


class VolumeRequest(JobBlock, frozen=True, kw_only=True):
    """A volume that a group requests."""

    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    #: host or csi.
    type: str = field(name="Type", default="host")
    source: str = field(name="Source", default="")
    read_only: bool = field(name="ReadOnly", default=False)
    sticky: bool = field(name="Sticky", default=False)
    access_mode: str = field(name="AccessMode", default="")
    attachment_mode: str = field(name="AttachmentMode", default="")
    mount_options: MountOptions | None = field(name="MountOptions", default=None)
    #: each allocation has its own: the source with its index.
    per_alloc: bool = field(name="PerAlloc", default=False)


class VolumeMount(JobBlock, frozen=True, kw_only=True):
    """The mount of a volume in a task."""

    HCL: ClassVar[Mapping[str, str]] = {"SELinuxLabel": "selinux_label"}

    volume: str = field(name="Volume", default="")
    destination: str = field(name="Destination", default="")
    read_only: bool = field(name="ReadOnly", default=False)
    propagation_mode: str = field(name="PropagationMode", default="private")
    selinux_label: str = field(name="SELinuxLabel", default="")
