"""The options of driver docker: an allow-list, used where a job is submitted and again on its node.

Decides what a container may ask for at all. What only some operators allow (networks, named volumes, more capabilities,
paths of the node) passes here and is decided on the node. Must not know an engine: the driver
(services/agent/drivers/docker*.py) turns these options into a container.
"""

import posixpath
import re
from typing import Any

import msgspec

from shared.jobspec.drivers.options import (
    Json,
    Option,
    OptionFault,
    by_name,
    read_options,
)

_HOST_SPACE = "namespaces of the node are not given to a container"

#: Every option that is acted on.
OPTIONS = by_name(
    Option("image", "text", "the image; `name:tag` or `name@sha256:…`"),
    Option("command", "text", "the program, instead of the image's"),
    Option("args", "list", "its arguments"),
    Option("entrypoint", "list", "instead of the image's entrypoint"),
    Option("work_dir", "text", "working directory inside"),
    Option("hostname", "text", "the container's host name"),
    Option("labels", "map", "labels of the container; `com.caravan.*` is ours"),
    Option("ports", "list", "labels of the group's ports to publish"),
    Option("port_map", "numbers", "label = port inside: the old way to publish"),
    Option("network_mode", "text", "bridge (default), none; host or a network by name where the operator allows"),
    Option("network_aliases", "list", "further names in a network by name"),
    Option("dns_servers", "list", "name servers"),
    Option("dns_search_domains", "list", "search domains"),
    Option("dns_options", "list", "resolver options"),
    Option("extra_hosts", "list", "`name:address` lines of /etc/hosts"),
    Option("volumes", "list",
           "`source:target[:ro]`; source relative to the task's directory, a path, or a volume's name"),
    Option("mount", "blocks", "type bind, tmpfs or volume; source, target, readonly"),
    Option("mounts", "blocks", "the same as a list"),
    Option("readonly_rootfs", "flag", "the image's files cannot be changed"),
    Option("shm_size", "number", "bytes of /dev/shm"),
    Option("cpu_hard_limit", "flag", "never more than the reserved MHz"),
    Option("cpu_cfs_period", "number", "period of that limit in µs"),
    Option("memory_hard_limit", "number", "MiB, the old way to write memory_max"),
    Option("pids_limit", "number", "processes and threads at most; not more than the operator's limit"),
    Option("ulimit", "map", "`name = soft[:hard]`"),
    Option("sysctl", "map", "settings of the container's own network (`net.*`)"),
    Option("cap_add", "list", "capabilities beyond the short list, of those the operator allows"),
    Option("cap_drop", "list", "capabilities less"),
    Option("group_add", "list", "further groups of the process"),
    Option("init", "flag", "a small init as process 1, which reaps zombies"),
    Option("tty", "flag", "a terminal; stdout and stderr become one"),
    Option("interactive", "flag", "stdin stays open"),
    Option("stop_signal", "text", "kill signal where the task names none; else the image's, else SIGTERM"),
    Option("healthchecks", "blocks", "`disable = true`: the image's health check is not run"),
    Option("force_pull", "flag", "pull even when the image is there"),
    Option("image_pull_timeout", "duration", "how long pulling may take (5m)"),
    Option("auth_soft_fail", "flag", "pull without the operator's credentials when they are refused"),
    Option("logging", "blocks", "only `type = json-file`: the agent keeps the logs"),
    Option("pid_mode", "text", "only `private`"),
    Option("ipc_mode", "text", "only `private` or `none`"),
    Option("uts_mode", "text", "only `private`"),
    Option("userns_mode", "text", "only `private`"),
    Option("runtime", "text", "a runtime the operator allows"),
)  # fmt: skip

#: Known to Nomad, never given here.
NEVER = {
    "privileged": "a privileged container is the node itself; name the capability in cap_add",
    "devices": "devices are reserved through resources.device, not opened by path",
    "security_opt": "seccomp and no-new-privileges stay as they are",
    "auth": "credentials in a job end up in the log for ever; they are the operator's (CARAVAN_DOCKER_AUTH_FILE)",
    "load": "an image from an archive is not offered; load it on the node, or push it to a registry",
    "isolation": "is for Windows",
    "cpuset_cpus": "cores are reserved through resources.cores",
    "storage_opt": "is not offered",
    "volume_driver": "is not offered; name a volume that the operator allows",
    "mac_address": "is not offered",
    "ipv4_address": "is not offered",
    "ipv6_address": "is not offered",
    "advertise_ipv6_address": "is not offered",
    "cgroupns": _HOST_SPACE,
}

#: Given to every container; what else there is only by cap_add.
CAPS_DEFAULT = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
#: What an operator can allow; the rest lets a container out, and is refused wherever it is asked for.
CAPS_POSSIBLE = frozenset(
    (
        *CAPS_DEFAULT,
        *("AUDIT_WRITE", "MKNOD", "SETFCAP", "NET_RAW", "NET_ADMIN", "NET_BROADCAST"),
        *("IPC_LOCK", "IPC_OWNER", "LEASE", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME"),
    )
)
MOUNT_TYPES = ("bind", "tmpfs", "volume")
#: Where a container's own places are: nothing is mounted over or above them.
RESERVED_TARGETS = ("/", "/proc", "/sys", "/dev", "/alloc", "/local", "/secrets")
ULIMITS = frozenset(
    (
        *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile"),
        *("nproc", "rss", "rtprio", "rttime", "sigpending", "stack"),
    )
)
_MOUNT = by_name(
    Option("type", "text", "bind, tmpfs or volume (default)"),
    Option("source", "text", "path or volume's name"),
    Option("target", "text", "path inside"),
    Option("readonly", "flag", "cannot be written to"),
    Option("bind_options", "blocks", "propagation: only private or rprivate"),
    Option("tmpfs_options", "blocks", "size in bytes, mode"),
    Option("volume_options", "blocks", "no_copy"),
)
_TMPFS = by_name(Option("size", "number", "bytes"), Option("mode", "number", "permissions"))
_VOLUME = by_name(Option("no_copy", "flag", "starts empty"))
_NO_DRIVER = "is not offered; the operator makes the volume"
_ENGINE_SOCKETS = ("docker.sock", "containerd.sock", "podman.sock", "crio.sock")


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


class DockerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A container as its job asks for it; unset is empty, 0 or None."""

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


#: Read into something else than a field of the same name.
_SHAPED = frozenset(
    (
        *("volumes", "mount", "mounts", "ulimit", "cap_add", "cap_drop", "healthchecks", "logging"),
        *("pid_mode", "ipc_mode", "uts_mode", "userns_mode"),
    )
)


def read_docker(config: Json) -> tuple[DockerOptions, tuple[OptionFault, ...]]:
    """Read the options of a docker task; with any fault the options are not to be used.

    `${…}` in numbers and flags is let pass: it is resolved on the node, and read there again.
    """
    values, faults = read_options(config, OPTIONS, NEVER)
    if not config.get("image"):
        faults.append(OptionFault("image", "must not be empty"))
    plain = {name: value for name, value in values.items() if name not in _SHAPED}
    options = DockerOptions(
        **plain,
        mounts=_mounts(values, faults),
        ulimit=_ulimits(values.get("ulimit", {}), faults),
        cap_add=_caps("cap_add", values, faults),
        cap_drop=_caps("cap_drop", values, faults),
        no_healthcheck=_no_healthcheck(values, faults),
    )
    _namespaces(values, faults)
    _logging(values, faults)
    _rest(options, faults)
    return options, tuple(faults)


def _namespaces(values: Json, faults: list[OptionFault]) -> None:
    for name in ("pid_mode", "ipc_mode", "uts_mode", "userns_mode"):
        allowed = ("", "private", "none") if name == "ipc_mode" else ("", "private")
        if values.get(name, "") not in allowed:
            faults.append(OptionFault(name, _HOST_SPACE))
    if values.get("network_mode", "").startswith(("container:", "ns:")):
        text = "the network of another container, or of the node by path, is not given"
        faults.append(OptionFault("network_mode", text))


def _logging(values: Json, faults: list[OptionFault]) -> None:
    for at, block in enumerate(values.get("logging", ())):
        kind = block.get("type") or block.get("driver") or "json-file"
        if kind != "json-file":
            text = f"only json-file: the agent keeps the logs and rotates them, was {kind!r}"
            faults.append(OptionFault(f"logging[{at}].type", text))


def _no_healthcheck(values: Json, faults: list[OptionFault]) -> bool:
    table = by_name(Option("disable", "flag", ""))
    off = False
    for block in values.get("healthchecks", ()):
        found, wrong = read_options(block, table, {}, path="healthchecks.")
        faults.extend(wrong)
        off = off or found.get("disable", False)
    return off


def _rest(options: DockerOptions, faults: list[OptionFault]) -> None:
    faults.extend(
        OptionFault(f"labels.{label[:80]}", "com.caravan.* is ours")
        for label in sorted(options.labels)
        if label.startswith("com.caravan.")
    )
    for name in sorted(options.sysctl):
        if not name.startswith("net.") or options.network_mode == "host":
            text = "only net.* of the container's own network"
            faults.append(OptionFault(f"sysctl.{name[:80]}", text))
    for label, port in sorted(options.port_map.items()):
        if not 1 <= port <= 65_535:
            faults.append(OptionFault(f"port_map.{label[:80]}", f"must be 1 to 65535, was {port}"))
    bounds = {
        "pids_limit": (0, 4_194_304),
        "shm_size": (0, 2**50),
        "memory_hard_limit": (0, 2**31 - 1),
        "cpu_cfs_period": (1_000, 1_000_000),
        "image_pull_timeout": (1_000_000_000, 86_400_000_000_000),
    }
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if not low <= value <= high:
            faults.append(OptionFault(name, f"must be {low} to {high}, was {value}"))


def _caps(name: str, values: Json, faults: list[OptionFault]) -> tuple[str, ...]:
    found = tuple(one.strip().upper().removeprefix("CAP_") for one in values.get(name, ()))
    faults.extend(
        OptionFault(name, f"capability {cap[:40]} is not given to a container")
        for cap in found
        if name == "cap_add" and "${" not in cap and cap not in CAPS_POSSIBLE
    )
    return found


def _ulimits(values: dict[str, str], faults: list[OptionFault]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for name, text in sorted(values.items()):
        soft, _, hard = text.partition(":")
        if name not in ULIMITS:
            faults.append(OptionFault(f"ulimit.{name[:40]}", "is no limit of a process"))
        elif re.fullmatch(r"-1|\d{1,18}", soft) and re.fullmatch(r"(-1|\d{1,18})?", hard):
            found[name] = int(soft), int(hard or soft)
        elif "${" not in text:
            faults.append(OptionFault(f"ulimit.{name}", f"must be soft or soft:hard, was {text!r}"))
    return found


# ---- mounts ----


def _mounts(values: Json, faults: list[OptionFault]) -> tuple[DockerMount, ...]:
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
            faults.append(OptionFault(mount.path, f"another mount is at {target[:80]!r}"))
        targets.add(target)
    return tuple(found)


def _volume(text: str, path: str, faults: list[OptionFault]) -> DockerMount | None:
    """Read `source:target[:options]`."""
    # References hold no colon that separates.
    parts = re.sub(r"\$\{[^}]*\}", lambda one: one[0].replace(":", "\0"), text).split(":")
    parts = [part.replace("\0", ":") for part in parts]
    flags = set(parts[2].split(",")) if len(parts) == 3 else set()
    if len(parts) not in {2, 3} or not parts[0] or not parts[1]:
        faults.append(OptionFault(path, f"must be source:target[:ro], was {text[:80]!r}"))
        return None
    if unknown := sorted(flags - {"ro", "rw", "z", "Z", "private", "rprivate", "nocopy"}):
        faults.append(OptionFault(path, f"{unknown[0][:40]!r} is not offered for a volume"))
        return None
    named = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", parts[0]) is not None
    # As in Nomad, a plain name is a directory of the task; a volume by name is asked for by `mount`.
    mount = DockerMount(
        path=path,
        kind="bind",
        source=f"./{parts[0]}" if named else parts[0],
        target=parts[1],
        readonly="ro" in flags,
        makes_source=True,
    )
    return _checked(mount, faults)


def _mount(block: dict[str, Any], path: str, faults: list[OptionFault]) -> DockerMount | None:
    before = len(faults)
    values, wrong = read_options(block, _MOUNT, {}, path=f"{path}.")
    faults.extend(wrong)
    kind = values.get("type") or "volume"
    tmpfs = _inner(values, "tmpfs_options", _TMPFS, path=path, faults=faults)
    volume = _inner(values, "volume_options", _VOLUME, path=path, faults=faults)
    for options in values.get("bind_options", ()):
        if options.get("propagation") not in (None, "", "private", "rprivate"):
            text = "mounts made later are not passed on between a node and its containers"
            faults.append(OptionFault(f"{path}.bind_options.propagation", text))
    if kind not in MOUNT_TYPES and "${" not in kind:
        faults.append(OptionFault(f"{path}.type", f"must be bind, tmpfs or volume, was {kind!r}"))
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
    )
    return _checked(mount, faults)


def _inner(
    values: Json, name: str, table: dict[str, Option], *, path: str, faults: list[OptionFault]
) -> dict[str, Any]:
    never = {"driver_config": _NO_DRIVER, "labels": _NO_DRIVER} if name == "volume_options" else {}
    found: dict[str, Any] = {}
    for block in values.get(name, ()):
        more, wrong = read_options(block, table, never, path=f"{path}.{name}.")
        found |= more
        faults.extend(wrong)
    return found


def _checked(mount: DockerMount, faults: list[OptionFault]) -> DockerMount | None:
    """Check what does not depend on the node."""
    target, source = posixpath.normpath(mount.target), posixpath.normpath(mount.source)
    text = ""
    if not mount.target.startswith("/") and "${" not in mount.target:
        text = f"target must be a full path inside, was {mount.target[:80]!r}"
    elif target in RESERVED_TARGETS or target.startswith(("/proc/", "/sys/", "/dev/")):
        text = f"nothing is mounted at {target}"
    elif mount.kind == "tmpfs":
        text = "a tmpfs has no source" if mount.source else ""
    elif not mount.source:
        text = "source must not be empty"
    elif mount.kind == "bind" and posixpath.basename(source) in _ENGINE_SOCKETS:
        text = "the engine's socket is the node itself"
    elif mount.kind == "bind" and (source == ".." or source.startswith("../")):
        # One's own allocation is reached by NOMAD_ALLOC_DIR; `../alloc` is how old files write it.
        text = "" if source == "../alloc" or source.startswith("../alloc/") else "leaves the task"
    elif mount.kind == "volume" and not re.fullmatch(r"[\w.${}\[\]\"-]+", mount.source):
        text = f"{mount.source[:80]!r} cannot name a volume"
    if text:
        faults.append(OptionFault(mount.path, text))
        return None
    return mount
