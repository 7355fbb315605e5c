"""What a driver is given to start a task: the values of a launch, with all references resolved."""

import msgspec


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each output of a task is kept: so many files of that size, the one written to among them."""

    files: int = 10
    file_bytes: int = 10 * 1024 * 1024
    #: nothing is kept at all.
    disabled: bool = False
    #: each line is sent to the bus, too, where the node's operator allows it.
    ship: bool = False


class TaskNames(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a task is. `alloc`: `job.group[index]`."""

    job: str = ""
    group: str = ""
    task: str = ""
    alloc: str = ""
    node_id: str = ""
    node_name: str = ""


class TaskNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """What a group says of its network; a task's own options win. `mode`: host, bridge or none."""

    mode: str = "host"
    hostname: str = ""
    dns_servers: tuple[str, ...] = ()
    dns_searches: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()
    #: label -> address of the node where that port is, for ports of a network by name; else it is at all.
    addresses: dict[str, str] = {}
    #: of the group in its network namespace, in mode bridge; empty: there is none.
    address: str = ""


class VolumeBind(msgspec.Struct, frozen=True, kw_only=True):
    """A host volume in a task. `path` on the node is filled in at the start, from the operator's settings."""

    source: str
    #: from the root of the task.
    target: str
    read_only: bool = False
    path: str = ""
    #: host-to-task or bidirectional: what is mounted in it later is seen, or made, inside too; empty: private.
    propagation: str = ""
    #: z or Z: SELinux label of a container's content, shared or its own.
    label: str = ""


class TaskLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """All that a driver needs to start a task, already interpolated. Units: MHz and MiB reserved for it."""

    #: the driver's own options, JSON (Nomad's `config` block).
    config: msgspec.Raw = msgspec.Raw(b"{}")
    #: complete but for directories: those the driver adds (NOMAD_ALLOC_DIR, NOMAD_TASK_DIR, NOMAD_SECRETS_DIR).
    env: dict[str, str] = {}
    user: str = ""
    cpu_mhz: int = 0
    memory_mib: int = 0
    #: how much it may take beyond `memory_mib` while the node has room; 0: none, -1: no limit.
    memory_max_mib: int = 0
    #: cores that are its own, by the kernel's numbers; empty: it shares the others.
    cores: tuple[int, ...] = ()
    #: label -> (port of the node, port in the task's own network where it has one).
    ports: dict[str, tuple[int, int]] = {}
    #: labels of ports that others may hold too.
    shared_ports: tuple[str, ...] = ()
    #: pool (`device.<type>` or a custom name) -> ids of the instances that are its own.
    devices: dict[str, tuple[str, ...]] = {}
    #: device files of the node that belong to them.
    device_paths: tuple[str, ...] = ()
    network: TaskNetwork = TaskNetwork()
    #: what it is called: for labels of containers and for people.
    names: TaskNames = TaskNames()
    #: MiB of memory that hold its `secrets/`; 0: the usual 1 MiB.
    secrets_mib: int = 0
    logs: LogLimits = LogLimits()
    volumes: tuple[VolumeBind, ...] = ()
