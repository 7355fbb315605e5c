"""The specification of a container: from a job's options, reservation and ports to the engine's request.

Decides limits, hardening, names and labels. Independent of the engine: it writes one JSON object. Nothing of a job gets
into that object but through an option of shared/jobspec/drivers/docker.py.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from schemas.base import MIB
from services.agent.drivers.docker.mounts import (
    CONTAINER_DIRECTORIES,
    TASK_MOUNT_POINTS,
    MountSources,
)
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.driver import DriverRun, StartRefused, raise_option_faults
from services.agent.drivers.launch_values import fill_options, fill_secrets, input_variables
from services.agent.network.places import NetworkPlaces
from services.agent.tasks.environment import interpolate, interpolate_json
from services.agent.tasks.task_resources import env_name
from shared.core.runtime.agent_messages import TaskLaunch, VolumeBind
from shared.jobspec.drivers.docker import (
    CAPS_DEFAULT,
    LOG_DRIVER_DEFAULT,
    DockerOptions,
    read_docker,
)

LABEL = "com.caravan."
#: The kernel's lowest.
_CPU_SHARES_MIN = 2
_CPU_SHARES_MAX = 262_144
_NANO_US = 1_000

#: In a variable of the task the place of one that an input holds, until all references are resolved.
_MARK = re.compile("\0([^\0]*)\0")
#: What the engine takes where an image has none.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostCpu(msgspec.Struct, frozen=True, kw_only=True):
    """What a hard limit is a share of."""

    core_mhz: int
    cores: int


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container to be made."""

    name: str
    options: DockerOptions
    #: variables that inputs of the task hold are marks in it (`with_inputs`).
    env: dict[str, str]


def container_name(run: DriverRun, home_id: str) -> str:
    """Name of a run's container: the same for every attempt.

    Ids of allocations are computed, so two clusters on one engine may share them: the agent's directory differs.
    """
    return f"{run.task}-{run.alloc_id}-{run.number}-{home_id[:8]}"


def pause_name(alloc_id: str, home_id: str) -> str:
    """Name of the container that has the network namespace of a group."""
    return f"pause-{alloc_id}-{home_id[:8]}"


def container_spec(name: str, launch: TaskLaunch) -> ContainerSpec:
    """Read a task's options, with its environment as it is inside. Raises StartRefused with all that is wrong."""
    config = msgspec.json.decode(launch.config)
    ports = _inside_ports(config, launch)
    inherited = CONTAINER_DIRECTORIES
    inside_ports = {f"NOMAD_PORT_{env_name(label)}": str(inside) for label, inside in ports.items()}
    own = {**inherited, **launch.env, **inside_ports}
    values = {**own, **{held: f"\0{held}\0" for held in input_variables(launch)}}
    env = {name: _resolved(name, own, values) for name in own}
    options, faults = read_docker(_filled(config, launch, env))
    raise_option_faults("docker", faults)
    return ContainerSpec(name=name, options=options, env=env)


def _filled(config: dict[str, Any], launch: TaskLaunch, env: dict[str, str]) -> dict[str, Any]:
    """Resolve the references of options; labels get no secrets: everybody who may ask the engine reads them."""
    found: dict[str, Any] = fill_options(config, launch, with_inputs(env, launch))
    if "labels" in config:
        plain = {**_without_marks(env, launch), **input_variables(launch)}
        found["labels"] = interpolate_json(config["labels"], plain)
    return found


def with_inputs(env: dict[str, str], launch: TaskLaunch) -> dict[str, str]:
    """Add what a task's inputs hold, when all its references are resolved: one in such a value is none."""
    return {**_without_marks(fill_secrets(env, launch), launch), **input_variables(launch)}


def _without_marks(env: dict[str, str], launch: TaskLaunch) -> dict[str, str]:
    """Put the variables that inputs hold in the place of their marks."""
    held = input_variables(launch)
    return {
        name: _MARK.sub(lambda mark: held.get(mark.group(1), ""), text)
        for name, text in env.items()
    }


def _resolved(name: str, own: dict[str, str], values: dict[str, str]) -> str:
    """Resolve the references of a variable; one to its own name means the image's (`of_image`)."""
    if name in own[name]:
        values = {key: text for key, text in values.items() if key != name}
    return interpolate(own[name], values)


def of_image(env: dict[str, str], image: Sequence[str]) -> dict[str, str]:
    """Resolve what is left of a task's references by the variables of its image, as `PATH = "${PATH}:/opt/own"`."""
    pairs = {"PATH": _PATH, **dict(pair.split("=", 1) for pair in image if "=" in pair)}
    return {name: interpolate(text, pairs) for name, text in env.items()}


def _inside_ports(config: dict[str, Any], launch: TaskLaunch) -> dict[str, int]:
    """Ports with a different number inside: those on which the task listens."""
    if not isinstance(config, dict):
        raise StartRefused("config must be an object", recoverable=False)
    options, _ = read_docker(config)
    if _mode(options, launch) == "host" or _is_in_group(options, launch):
        return {}
    found = {}
    for label, (host, inside) in launch.ports.items():
        if label in options.port_map:
            found[label] = options.port_map[label]
        elif label in options.ports and inside not in {0, host}:
            found[label] = inside
    return found


def create_request(
    plan: ContainerSpec,
    run: DriverRun,
    launch: TaskLaunch,
    *,
    settings: DockerSettings,
    sources: MountSources,
    machine: HostCpu,
    labels: dict[str, str],
) -> dict[str, Any]:
    """Write the request that makes the container. Raises StartRefused."""
    options = plan.options
    if refused := settings.forbids(options, launch.memory_max_mib):
        raise StartRefused(refused, recoverable=False)
    exposed, bindings = _ports(options, launch, settings)
    body: dict[str, Any] = {
        "Image": options.image.removeprefix("https://"),
        "Env": [f"{name}={text}" for name, text in sorted(plan.env.items())],
        "Labels": {**options.labels, **labels},
        "ExposedPorts": exposed,
        "Tty": options.tty,
        "OpenStdin": options.interactive,
        "HostConfig": _host_config(options, launch, settings, machine),
    }
    mounts = _mounts(options, run, sources)
    mounts += [_volume(one, sources) for one in launch.volumes if not one.label]
    body["HostConfig"] |= {"PortBindings": bindings, "Mounts": mounts}
    if labelled := [_labelled_volume(one, sources) for one in launch.volumes if one.label]:
        body["HostConfig"]["Binds"] = labelled
    command = [options.command] if options.command else []
    optional = {
        "Cmd": [*command, *options.args],
        "Entrypoint": list(options.entrypoint),
        "WorkingDir": options.work_dir,
        "User": launch.user,
        "Hostname": options.hostname or _hostname(options, launch),
        "StopSignal": options.stop_signal,
        "Healthcheck": {"Test": ["NONE"]} if options.no_healthcheck else None,
    }
    body |= {name: value for name, value in optional.items() if value}
    if options.network_mode not in {"", "bridge", "default", "none", "host"}:
        aliases = {"Aliases": list(options.network_aliases)}
        body["NetworkingConfig"] = {"EndpointsConfig": {options.network_mode: aliases}}
    if _is_in_group(options, launch):
        _group_network(body, run, labels, run.places.top)
    return body


def _host_config(
    options: DockerOptions, launch: TaskLaunch, settings: DockerSettings, machine: HostCpu
) -> dict[str, Any]:
    return {
        **_resources(options, launch, machine),
        "Devices": _devices(options, launch),
        "NetworkMode": _mode(options, launch),
        **_rights(options),
        "PidsLimit": options.pids_limit or settings.pids_limit,
        **_host_namespaces(options),
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "ReadonlyRootfs": options.readonly_rootfs,
        "ShmSize": options.shm_size or 64 * MIB,
        "Init": options.init,
        "GroupAdd": list(options.group_add),
        "Dns": list(options.dns_servers or launch.network.dns_servers),
        "DnsSearch": list(options.dns_search_domains or launch.network.dns_searches),
        "DnsOptions": list(options.dns_options or launch.network.dns_options),
        "ExtraHosts": list(options.extra_hosts),
        "Sysctls": options.sysctl,
        "Ulimits": [
            {"Name": name, "Soft": soft, "Hard": hard}
            for name, (soft, hard) in sorted(options.ulimit.items())
        ],
        "LogConfig": _log_config(options, settings),
        **({"Runtime": options.runtime} if options.runtime else {}),
    }


def _rights(options: DockerOptions) -> dict[str, Any]:
    """Capabilities, and whether programs may gain more; all of them where it is privileged."""
    if options.privileged:
        return {"Privileged": True}
    caps = {*CAPS_DEFAULT, *options.cap_add} - set(options.cap_drop)
    if "ALL" in options.cap_drop:
        caps = set(options.cap_add)
    return {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": sorted(caps),
        "SecurityOpt": ["no-new-privileges:true"],
    }


def _host_namespaces(options: DockerOptions) -> dict[str, str]:
    """Namespaces that are the node's; the others are the container's own."""
    keys = {
        "cgroupns": "CgroupnsMode",
        "ipc_mode": "IpcMode",
        "pid_mode": "PidMode",
        "userns_mode": "UsernsMode",
        "uts_mode": "UTSMode",
    }
    return {"IpcMode": "private", **{keys[name]: "host" for name in options.host_namespaces}}


def _log_config(options: DockerOptions, settings: DockerSettings) -> dict[str, Any]:
    """Where the engine writes output; the agent copies it from any of them."""
    if options.log_driver != LOG_DRIVER_DEFAULT:
        return {"Type": options.log_driver, "Config": options.log_options}
    config = {"max-size": f"{settings.engine_log_mib}m", "max-file": "2"}
    return {"Type": LOG_DRIVER_DEFAULT, "Config": config}


def _mode(options: DockerOptions, launch: TaskLaunch) -> str:
    """The network of a container: its own option, else none if its group has none."""
    return options.network_mode or ("none" if launch.network.mode == "none" else "bridge")


def _is_in_group(options: DockerOptions, launch: TaskLaunch) -> bool:
    """Say whether a container is in the network namespace of its group; an option of its own wins."""
    return bool(launch.network.address) and not options.network_mode


def _hostname(options: DockerOptions, launch: TaskLaunch) -> str:
    is_node = _mode(options, launch) == "host" or "uts_mode" in options.host_namespaces
    return "" if is_node or _is_in_group(options, launch) else launch.network.hostname


def _group_network(body: dict[str, Any], run: DriverRun, labels: dict[str, str], top: Path) -> None:
    """Let a container join the one that has its group's namespace, which decides names and resolver."""
    config = body["HostConfig"]
    for name in ("Dns", "DnsSearch", "DnsOptions", "ExtraHosts"):
        config.pop(name, None)
    config["NetworkMode"] = f"container:{pause_name(run.alloc_id, labels[f'{LABEL}home'])}"
    config["Mounts"] += [
        {"Type": "bind", "Source": path, "Target": f"/etc/{name}", "ReadOnly": True}
        for name, path in NetworkPlaces(top, run.alloc_id).etc().items()
    ]
    body.pop("Hostname", None)


def _devices(options: DockerOptions, launch: TaskLaunch) -> list[dict[str, str]]:
    found = [(path, path, "rw") for path in launch.device_paths]
    found += [(one.host_path, one.container_path, one.permissions) for one in options.devices]
    return [
        {"PathOnHost": path, "PathInContainer": inside, "CgroupPermissions": rights}
        for path, inside, rights in found
    ]


def _resources(options: DockerOptions, launch: TaskLaunch, machine: HostCpu) -> dict[str, Any]:
    """Limits. Memory: `memory_max` is the limit, the reservation what is taken back first under pressure."""
    found: dict[str, Any] = {
        "CpuShares": min(max(launch.cpu_mhz, _CPU_SHARES_MIN), _CPU_SHARES_MAX)
    }
    if launch.cores:
        found["CpusetCpus"] = ",".join(str(core) for core in launch.cores)
    if options.cpu_hard_limit:
        period = options.cpu_cfs_period
        found["CpuPeriod"] = period
        quota = period * launch.cpu_mhz // max(machine.core_mhz, 1)
        found["CpuQuota"] = min(max(quota, _NANO_US), period * max(machine.cores, 1))
    most = launch.memory_max_mib or options.memory_hard_limit
    if launch.memory_mib:
        limit = max(launch.memory_mib, most)
        if most == -1:
            found["MemoryReservation"] = launch.memory_mib * MIB
            return found
        # Memory and swap together: no swap.
        found |= {"Memory": limit * MIB, "MemorySwap": limit * MIB}
        if limit > launch.memory_mib:
            found["MemoryReservation"] = launch.memory_mib * MIB
    return found


def _ports(
    options: DockerOptions, launch: TaskLaunch, settings: DockerSettings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Publish ports by label: at the node's port, to the one inside."""
    wanted = dict.fromkeys(options.ports, 0) | options.port_map
    if _mode(options, launch) in {"host", "none"} or _is_in_group(options, launch):
        # Nothing is translated there: the task listens on the node's port itself, or has no network; or its group has.
        return {}, {}
    bindings: dict[str, Any] = {}
    for label, mapped in wanted.items():
        if label not in launch.ports:
            known = ", ".join(sorted(launch.ports)) or "none"
            text = f"ports: the group has no port {label[:80]!r} (it has: {known})"
            raise StartRefused(text, recoverable=False)
        host, inside = launch.ports[label]
        address = launch.network.addresses.get(label) or settings.publish_address
        one = {"HostIp": address, "HostPort": str(host)}
        for kind in ("tcp", "udp"):
            bindings.setdefault(f"{mapped or inside or host}/{kind}", []).append(one)
    return {name: {} for name in bindings}, bindings


def _mounts(options: DockerOptions, run: DriverRun, sources: MountSources) -> list[dict[str, Any]]:
    places = run.places
    own = {
        TASK_MOUNT_POINTS["alloc"]: places.shared,
        # A mount of its own: so the folder that logs are written in cannot be moved away from inside.
        f"{TASK_MOUNT_POINTS['alloc']}/logs": places.shared / "logs",
        TASK_MOUNT_POINTS["local"]: places.task / "local",
        TASK_MOUNT_POINTS["secrets"]: places.task / "secrets",
    }
    found: list[dict[str, Any]] = [
        {"Type": "bind", "Source": sources.own(path), "Target": target}
        for target, path in own.items()
    ]
    for mount in options.mounts:
        one: dict[str, Any] = {
            "Type": mount.kind,
            "Target": mount.target,
            "ReadOnly": mount.readonly,
        }
        if mount.kind == "bind":
            one["Source"] = sources.source(mount)
            one["BindOptions"] = {"Propagation": mount.propagation or "rprivate"}
        elif mount.kind == "volume":
            one["Source"] = mount.source
            one["VolumeOptions"] = {"NoCopy": mount.no_copy}
        else:
            one["TmpfsOptions"] = {"SizeBytes": mount.size_bytes, "Mode": mount.mode or 0o1777}
        found.append(one)
    return found


#: Nomad's propagation modes -> the engine's.
_PROPAGATIONS = {"": "rprivate", "host-to-task": "rslave", "bidirectional": "rshared"}


def _volume(one: VolumeBind, sources: MountSources) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": sources.volume(one),
        "Target": one.target,
        "ReadOnly": one.read_only,
        "BindOptions": {"Propagation": _PROPAGATIONS[one.propagation]},
    }


def _labelled_volume(one: VolumeBind, sources: MountSources) -> str:
    """Write a mount with an SELinux label: the engine takes labels in this form alone. Raises StartRefused."""
    path = sources.volume(one)
    if ":" in path or ":" in one.target:
        text = f"host volume {one.source!r}: a mount with an SELinux label cannot have a colon in its paths"
        raise StartRefused(text, recoverable=False)
    words = [one.label, _PROPAGATIONS[one.propagation], *(("ro",) if one.read_only else ())]
    return f"{path}:{one.target}:{','.join(words)}"
