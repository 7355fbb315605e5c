"""The options of driver docker: an allow-list, used where a job is submitted and again on its node.

Options that need the operator's permission (networks, named volumes, more capabilities, paths of the node) pass
here and are decided on the node. The driver (services/agent/drivers/docker/) turns them into a request to the engine.
"""

import posixpath
import re
from typing import Any

import msgspec

from shared.jobspec.drivers.options import (
    PORT_BOUNDS,
    Option,
    OptionDiagnostic,
    OptionValues,
    option_table,
    read_options,
)
from shared.signal_names import signal_error

TASK_DIRECTORY_TEXT = (
    "the task's directory itself cannot be mounted; "
    "mount local, secrets or a directory of your own in it"
)
_CREDENTIALS: tuple[str, ...] = ("username", "password", "email")
_NAMESPACE_OPTIONS = ("cgroupns", "ipc_mode", "pid_mode", "userns_mode", "uts_mode")
_HOST_WHERE_ALLOWED = "`private`; `host` where the operator allows"
LOG_DRIVER_DEFAULT = "json-file"
#: Log drivers of the engine that an operator can allow.
LOG_DRIVERS = (
    *("awslogs", "fluentd", "gcplogs", "gelf", "journald", "json-file", "local", "logentries"),
    *("loki", "splunk", "syslog"),
)
_CREDENTIALS_TEXT = (
    "would be stored in the log; the operator configures credentials on the node "
    "(CARAVAN_DOCKER_AUTH_FILE); set only server_address"
)

#: Every option that is acted on.
OPTIONS = option_table(
    Option("image", "text", "the image; `name:tag` or `name@sha256:…`"),
    Option("command", "text", "replaces the image's program"),
    Option("args", "list", "its arguments"),
    Option("entrypoint", "list", "replaces the image's entrypoint"),
    Option("work_dir", "text", "working directory inside"),
    Option("hostname", "text", "the container's host name"),
    Option("labels", "map", "labels of the container; `com.caravan.*` is reserved"),
    Option("ports", "list", "labels of the group's ports to publish"),
    Option("port_map", "numbers", "label = port inside; the older form of `ports`", bounds=PORT_BOUNDS),
    Option("network_mode", "text", "bridge (default), none; host or a network by name where the operator allows"),
    Option("network_aliases", "list", "further names in a network by name"),
    Option("dns_servers", "list", "name servers"),
    Option("dns_search_domains", "list", "search domains"),
    Option("dns_options", "list", "resolver options"),
    Option("extra_hosts", "list", "`name:address` lines of /etc/hosts"),
    Option("volumes", "list",
           "`source:target[:ro]`; source relative to the task's directory, a path, or a volume's name"),
    Option("mount", "blocks", "type bind, tmpfs or volume; source, target, readonly, propagation"),
    Option("mounts", "blocks", "the same as a list"),
    Option("readonly_rootfs", "flag", "mount the image's file system read-only"),
    Option("shm_size", "number", "bytes of /dev/shm", bounds=(0, 2**50)),
    Option("cpu_hard_limit", "flag", "never use more CPU than reserved"),
    Option("cpu_cfs_period", "number", "period of that limit in µs", bounds=(1_000, 1_000_000)),
    Option("memory_hard_limit", "number", "MiB; the older form of memory_max", bounds=(0, 2**31 - 1)),
    Option("pids_limit", "number", "processes and threads at most; not more than the operator's limit",
           bounds=(0, 4_194_304)),
    Option("ulimit", "map", "`name = soft[:hard]`"),
    Option("sysctl", "map", "settings of the container's own network (`net.*`)"),
    Option("cap_add", "list", "additional capabilities, from those the operator allows"),
    Option("cap_drop", "list", "capabilities to remove"),
    Option("group_add", "list", "further groups of the process"),
    Option("init", "flag", "a small init as process 1, which reaps zombies"),
    Option("tty", "flag", "a terminal; stdout and stderr become one"),
    Option("interactive", "flag", "keep stdin open"),
    Option("stop_signal", "text", "kill signal where the task names none; else the image's, else SIGTERM"),
    Option("healthchecks", "blocks", "`disable = true`: the image's health check is not run"),
    Option("force_pull", "flag", "pull even when the image is present"),
    Option("image_pull_timeout", "duration", "timeout of the pull (5m)",
           bounds=(1_000_000_000, 86_400_000_000_000)),
    Option("auth", "blocks",
           "`server_address`: pull with the credentials that the operator of the node has configured for it"),
    Option("auth_soft_fail", "flag", "pull without the operator's credentials when they are refused"),
    Option("logging", "blocks", "`type` and `config`: json-file (default), others where the operator allows; "
           "the agent keeps the logs too"),
    Option("privileged", "flag", "all capabilities and devices of the node, where the operator allows"),
    Option("devices", "blocks", "`host_path`, `container_path`, `cgroup_permissions`, where the operator allows"),
    Option("pid_mode", "text", _HOST_WHERE_ALLOWED),
    Option("ipc_mode", "text", "`private` or `none`; `host` where the operator allows"),
    Option("uts_mode", "text", _HOST_WHERE_ALLOWED),
    Option("userns_mode", "text", _HOST_WHERE_ALLOWED),
    Option("cgroupns", "text", _HOST_WHERE_ALLOWED),
    Option("runtime", "text", "a runtime the operator allows"),
)  # fmt: skip

#: Options of Nomad that are refused, with the reason.
REFUSED_OPTIONS = {
    "security_opt": "seccomp and no-new-privileges cannot be changed",
    "load": "loading an image from an archive is not supported; load it on the node or push it to a registry",
    "isolation": "is supported on Windows only",
    "cpuset_cpus": "cores are reserved through resources.cores",
    "storage_opt": "is not supported",
    "volume_driver": "is not supported; use a volume that the operator allows",
    "mac_address": "is not supported",
    "ipv4_address": "is not supported",
    "ipv6_address": "is not supported",
    "advertise_ipv6_address": "is not supported",
}

#: Capabilities of every container; others only by cap_add.
CAPS_DEFAULT = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
#: Capabilities that an operator can allow; any other would let a process leave its container.
CAPS_GRANTABLE = frozenset(
    (
        *CAPS_DEFAULT,
        *("AUDIT_WRITE", "MKNOD", "SETFCAP", "NET_RAW", "NET_ADMIN", "NET_BROADCAST"),
        *("IPC_LOCK", "IPC_OWNER", "LEASE", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME"),
    )
)
MOUNT_TYPES = ("bind", "tmpfs", "volume")
#: Directories of the container itself: no mount over or above them.
RESERVED_TARGETS = ("/", "/proc", "/sys", "/dev", "/alloc", "/local", "/secrets")
ULIMITS = frozenset(
    (
        *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile"),
        *("nproc", "rss", "rtprio", "rttime", "sigpending", "stack"),
    )
)
_MOUNT = option_table(
    Option("type", "text", "bind, tmpfs or volume (default)", MOUNT_TYPES),
    Option("source", "text", "path or volume's name"),
    Option("target", "text", "path inside"),
    Option("readonly", "flag", "mount read-only"),
    Option("bind_options", "blocks", "propagation: private, slave or shared, with or without r"),
    Option("tmpfs_options", "blocks", "size in bytes, mode"),
    Option("volume_options", "blocks", "no_copy"),
)
_TMPFS = option_table(Option("size", "number", "bytes"), Option("mode", "number", "permissions"))
_VOLUME = option_table(Option("no_copy", "flag", "starts empty"))
_NO_DRIVER = "is not supported; the operator creates the volume"
_LOGGING = option_table(
    Option("type", "text", "the engine's log driver", LOG_DRIVERS),
    Option("driver", "text", "the same", LOG_DRIVERS),
    Option("config", "map", "its options"),
)
_AUTH = option_table(Option("server_address", "text", "the registry"))
_DEVICE = option_table(
    Option("host_path", "text", "path below /dev of the node"),
    Option("container_path", "text", "path inside; default: the same"),
    Option("cgroup_permissions", "text", "of r, w and m; default: all"),
)
_ENGINE_SOCKETS = ("docker.sock", "containerd.sock", "podman.sock", "crio.sock")


#: How mounts below a bind are shared between node and container.
_PRIVATE, _SHARING = ("private", "rprivate"), ("slave", "rslave", "shared", "rshared")


class DockerMount(msgspec.Struct, frozen=True, kw_only=True):
    """One mount. `kind`: bind, tmpfs or volume. Units: bytes."""

    path: str
    kind: str
    source: str
    target: str
    readonly: bool = False
    size_bytes: int = 0
    mode: int = 0
    no_copy: bool = False
    #: from `volumes`: a source that is not there is made as a directory.
    makes_source: bool = False
    #: of a bind: rslave, rshared, slave or shared; empty: private.
    propagation: str = ""

    @property
    def is_engine_socket(self) -> bool:
        """Whether the source is the socket of a container engine."""
        return (
            self.kind == "bind" and posixpath.basename(self.source.rstrip("/")) in _ENGINE_SOCKETS
        )

    @property
    def is_device(self) -> bool:
        """Whether the source is the node's /dev or below it."""
        return self.kind == "bind" and f"{posixpath.normpath(self.source)}/".startswith("/dev/")


class DockerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the node by path. `permissions`: of r, w and m."""

    host_path: str
    container_path: str
    permissions: str = "rwm"


class DockerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The container that a job requests; unset is empty, 0 or None."""

    image: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    work_dir: str = ""
    hostname: str = ""
    labels: dict[str, str] = {}
    ports: tuple[str, ...] = ()
    port_map: dict[str, int] = {}
    network_mode: str = ""
    network_aliases: tuple[str, ...] = ()
    dns_servers: tuple[str, ...] = ()
    dns_search_domains: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()
    extra_hosts: tuple[str, ...] = ()
    mounts: tuple[DockerMount, ...] = ()
    readonly_rootfs: bool = False
    shm_size: int = 0
    cpu_hard_limit: bool = False
    cpu_cfs_period: int = 100_000
    memory_hard_limit: int = 0
    pids_limit: int = 0
    #: name -> (soft, hard); -1: unlimited.
    ulimit: dict[str, tuple[int, int]] = {}
    sysctl: dict[str, str] = {}
    #: without CAP_, upper case.
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    group_add: tuple[str, ...] = ()
    init: bool = False
    tty: bool = False
    interactive: bool = False
    stop_signal: str = ""
    no_healthcheck: bool = False
    force_pull: bool = False
    image_pull_timeout: int = 300_000_000_000
    auth_soft_fail: bool = False
    runtime: str = ""
    privileged: bool = False
    devices: tuple[DockerDevice, ...] = ()
    #: options of namespaces that are the node's.
    host_namespaces: tuple[str, ...] = ()
    #: the pull needs credentials of the node.
    node_auth: bool = False
    log_driver: str = LOG_DRIVER_DEFAULT
    log_options: dict[str, str] = {}


#: Options that are not read into a field of the same name.
_CONVERTED_OPTIONS = frozenset(
    (
        *("volumes", "mount", "mounts", "ulimit", "cap_add", "cap_drop", "healthchecks", "logging"),
        *("auth", "devices", *_NAMESPACE_OPTIONS),
    )
)


def read_docker(config: OptionValues) -> tuple[DockerOptions, tuple[OptionDiagnostic, ...]]:
    """Read the options of a docker task. With any error the options must not be used.

    `${…}` in numbers and flags passes: the node resolves it and reads the options again.
    """
    values, faults = read_options(config, OPTIONS, REFUSED_OPTIONS)
    if not config.get("image"):
        faults.append(OptionDiagnostic("image", "must not be empty"))
    plain = {name: value for name, value in values.items() if name not in _CONVERTED_OPTIONS}
    log_driver, log_options = _logging(values, faults)
    options = DockerOptions(
        **plain,
        devices=_devices(values, faults),
        host_namespaces=_namespaces(values, faults),
        node_auth=_auth(values, faults),
        log_driver=log_driver,
        log_options=log_options,
        mounts=_mounts(values, faults),
        ulimit=_ulimits(values.get("ulimit", {}), faults),
        cap_add=_caps("cap_add", values, faults),
        cap_drop=_caps("cap_drop", values, faults),
        no_healthcheck=_no_healthcheck(values, faults),
    )
    _check_bounds(options, faults)
    return options, tuple(faults)


def _namespaces(values: OptionValues, faults: list[OptionDiagnostic]) -> tuple[str, ...]:
    """Read which namespaces are to be the node's."""
    for name in _NAMESPACE_OPTIONS:
        allowed = ("private", "none", "host") if name == "ipc_mode" else ("private", "host")
        value = values.get(name, "")
        if value not in ("", *allowed) and "${" not in value:
            text = f"must be {' or '.join(allowed)}, was {value[:40]!r}"
            faults.append(OptionDiagnostic(name, text))
    if values.get("network_mode", "").startswith(("container:", "ns:")):
        text = (
            "joining the network of another container or a network namespace by path is not allowed"
        )
        faults.append(OptionDiagnostic("network_mode", text))
    return tuple(name for name in _NAMESPACE_OPTIONS if values.get(name) == "host")


def _logging(values: OptionValues, faults: list[OptionDiagnostic]) -> tuple[str, dict[str, str]]:
    """Read the engine's log driver and its options."""
    kind = LOG_DRIVER_DEFAULT
    options: dict[str, str] = {}
    for at, block in enumerate(values.get("logging", ())):
        found, wrong = read_options(block, _LOGGING, {}, path=f"logging[{at}].")
        faults.extend(wrong)
        kind = found.get("type") or found.get("driver") or kind
        options |= found.get("config", {})
    return kind, {} if kind == LOG_DRIVER_DEFAULT else options


def _auth(values: OptionValues, faults: list[OptionDiagnostic]) -> bool:
    """Read whether the pull needs credentials of the node."""
    asked = False
    for at, block in enumerate(values.get("auth", ())):
        never: dict[str, str] = dict.fromkeys(_CREDENTIALS, _CREDENTIALS_TEXT)
        found, wrong = read_options(block, _AUTH, never, path=f"auth[{at}].")
        faults.extend(wrong)
        asked = asked or bool(found.get("server_address"))
    return asked


def _devices(values: OptionValues, faults: list[OptionDiagnostic]) -> tuple[DockerDevice, ...]:
    found = []
    for at, block in enumerate(values.get("devices", ())):
        one, wrong = read_options(block, _DEVICE, {}, path=f"devices[{at}].")
        host = one.get("host_path", "")
        device = DockerDevice(
            host_path=host,
            container_path=one.get("container_path") or host,
            permissions=one.get("cgroup_permissions") or "rwm",
        )
        for name in ("host_path", "container_path"):
            text = getattr(device, name)
            if "${" not in text and not re.fullmatch(r"/dev/[^\0]+", posixpath.normpath(text)):
                message = f"must be a path below /dev, was {text[:80]!r}"
                wrong.append(OptionDiagnostic(f"devices[{at}].{name}", message))
        if not re.fullmatch("[rwm]{1,3}", device.permissions):
            message = f"must be of r, w and m, was {device.permissions[:40]!r}"
            wrong.append(OptionDiagnostic(f"devices[{at}].cgroup_permissions", message))
        faults.extend(wrong)
        found.append(device)
    return tuple(found)


def _no_healthcheck(values: OptionValues, faults: list[OptionDiagnostic]) -> bool:
    table = option_table(Option("disable", "flag", ""))
    off = False
    for block in values.get("healthchecks", ()):
        found, wrong = read_options(block, table, {}, path="healthchecks.")
        faults.extend(wrong)
        off = off or found.get("disable", False)
    return off


def _check_bounds(options: DockerOptions, faults: list[OptionDiagnostic]) -> None:
    if options.stop_signal and "${" not in options.stop_signal:
        text = signal_error(options.stop_signal)
        faults.extend([OptionDiagnostic("stop_signal", text)] if text else [])
    faults.extend(
        OptionDiagnostic(f"labels.{label[:80]}", "com.caravan.* is reserved")
        for label in sorted(options.labels)
        if label.startswith("com.caravan.")
    )
    for name in sorted(options.sysctl):
        if not name.startswith("net.") or options.network_mode == "host":
            text = "only net.* of the container's own network"
            faults.append(OptionDiagnostic(f"sysctl.{name[:80]}", text))


def _caps(name: str, values: OptionValues, faults: list[OptionDiagnostic]) -> tuple[str, ...]:
    found = tuple(one.strip().upper().removeprefix("CAP_") for one in values.get(name, ()))
    faults.extend(
        OptionDiagnostic(name, f"capability {cap[:40]} is not allowed for a container")
        for cap in found
        if name == "cap_add" and "${" not in cap and cap not in CAPS_GRANTABLE
    )
    return found


def _ulimits(values: dict[str, str], faults: list[OptionDiagnostic]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for name, text in sorted(values.items()):
        soft, _, hard = text.partition(":")
        if name not in ULIMITS:
            faults.append(OptionDiagnostic(f"ulimit.{name[:40]}", "is not a process limit"))
        elif re.fullmatch(r"-1|[0-9]{1,18}", soft) and re.fullmatch(r"(-1|[0-9]{1,18})?", hard):
            found[name] = int(soft), int(hard or soft)
        elif "${" not in text:
            faults.append(
                OptionDiagnostic(f"ulimit.{name}", f"must be soft or soft:hard, was {text!r}")
            )
    return found


# ---- mounts ----


def _mounts(values: OptionValues, faults: list[OptionDiagnostic]) -> tuple[DockerMount, ...]:
    found = [
        mount
        for at, text in enumerate(values.get("volumes", ()))
        if (mount := _volume(text, f"volumes[{at}]", faults)) is not None
    ]
    for name in ("mount", "mounts"):
        found += [
            mount
            for at, block in enumerate(values.get(name, ()))
            if (mount := _mount(block, f"{name}[{at}]", faults)) is not None
        ]
    targets: set[str] = set()
    for mount in found:
        target = posixpath.normpath(mount.target)
        if target in targets:
            faults.append(
                OptionDiagnostic(mount.path, f"another mount has the target {target[:80]!r}")
            )
        targets.add(target)
    return tuple(found)


def _volume(text: str, path: str, faults: list[OptionDiagnostic]) -> DockerMount | None:
    """Read `source:target[:options]`."""
    # A colon inside a reference is not a separator.
    parts = re.sub(r"\$\{[^}]*\}", lambda one: one[0].replace(":", "\0"), text).split(":")
    parts = [part.replace("\0", ":") for part in parts]
    flags = set(parts[2].split(",")) if len(parts) == 3 else set()
    if len(parts) not in {2, 3} or not parts[0] or not parts[1]:
        faults.append(OptionDiagnostic(path, f"must be source:target[:ro], was {text[:80]!r}"))
        return None
    if unknown := sorted(flags - {"ro", "rw", "z", "Z", "nocopy", *_PRIVATE, *_SHARING}):
        faults.append(OptionDiagnostic(path, f"{unknown[0][:40]!r} is not supported for a volume"))
        return None
    named = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", parts[0]) is not None
    # As in Nomad, a plain name is a directory of the task; a named volume needs `mount`.
    mount = DockerMount(
        path=path,
        kind="bind",
        source=f"./{parts[0]}" if named else parts[0],
        target=parts[1],
        readonly="ro" in flags,
        makes_source=True,
        propagation=next((one for one in sorted(flags) if one in _SHARING), ""),
    )
    if text := _propagation_error(mount):
        faults.append(OptionDiagnostic(path, text))
        return None
    return _check_mount(mount, faults)


def _mount(block: dict[str, Any], path: str, faults: list[OptionDiagnostic]) -> DockerMount | None:
    before = len(faults)
    values, wrong = read_options(block, _MOUNT, {}, path=f"{path}.")
    faults.extend(wrong)
    kind = values.get("type") or "volume"
    tmpfs = _inner(values, "tmpfs_options", _TMPFS, path=path, faults=faults)
    volume = _inner(values, "volume_options", _VOLUME, path=path, faults=faults)
    if len(faults) > before:
        return None
    mount = DockerMount(
        path=path,
        kind=kind,
        source=values.get("source", ""),
        target=values.get("target", ""),
        readonly=values.get("readonly", False),
        size_bytes=tmpfs.get("size", 0),
        mode=tmpfs.get("mode", 0),
        no_copy=volume.get("no_copy", False),
        propagation=_propagation(values),
    )
    if text := _propagation_error(mount):
        faults.append(OptionDiagnostic(f"{path}.bind_options.propagation", text))
        return None
    return _check_mount(mount, faults)


def _propagation(values: dict[str, Any]) -> str:
    said = [str(one.get("propagation") or "") for one in values.get("bind_options", ())]
    return said[-1] if said and said[-1] not in _PRIVATE else ""


def _propagation_error(mount: DockerMount) -> str:
    """Say why mounts below it cannot be shared with the node; empty: they can, or are not."""
    mode = mount.propagation
    if mode not in {"", *_SHARING}:
        return f"must be one of {', '.join((*_PRIVATE, *_SHARING))}, was {mode[:40]!r}"
    if mode and (mount.kind != "bind" or not mount.source.startswith("/")):
        return f"{mode} needs a bind from a full path of the node"
    if mode and mount.readonly:
        return f"{mode} is not built for a read-only mount: what is mounted later would be writable"
    return ""


def _inner(
    values: OptionValues,
    name: str,
    table: dict[str, Option],
    *,
    path: str,
    faults: list[OptionDiagnostic],
) -> dict[str, Any]:
    never = {"driver_config": _NO_DRIVER, "labels": _NO_DRIVER} if name == "volume_options" else {}
    found: dict[str, Any] = {}
    for block in values.get(name, ()):
        more, wrong = read_options(block, table, never, path=f"{path}.{name}.")
        found |= more
        faults.extend(wrong)
    return found


def _check_mount(mount: DockerMount, faults: list[OptionDiagnostic]) -> DockerMount | None:
    """Check what does not depend on the node."""
    target, source = posixpath.normpath(mount.target), posixpath.normpath(mount.source)
    text = ""
    if not mount.target.startswith("/") and "${" not in mount.target:
        text = f"target must be a full path inside, was {mount.target[:80]!r}"
    elif not (mount.is_device and f"{target}/".startswith("/dev/")) and (
        target in RESERVED_TARGETS or target.startswith(("/proc/", "/sys/", "/dev/"))
    ):
        text = f"mounting at {target} is not allowed"
    elif mount.kind == "tmpfs":
        text = "a tmpfs must not have a source" if mount.source else ""
    elif not mount.source:
        text = "source must not be empty"
    elif mount.kind == "bind" and source == ".":
        text = TASK_DIRECTORY_TEXT
    elif mount.kind == "bind" and (source == ".." or source.startswith("../")):
        # Older files write `../alloc` for NOMAD_ALLOC_DIR.
        text = (
            ""
            if source == "../alloc" or source.startswith("../alloc/")
            else "must not lead out of the task's directory"
        )
    elif mount.kind == "volume" and not re.fullmatch(r"[\w.${}\[\]\"-]+", mount.source):
        text = f"{mount.source[:80]!r} is not a valid volume name"
    if text:
        faults.append(OptionDiagnostic(mount.path, text))
        return None
    return mount
