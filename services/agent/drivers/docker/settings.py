"""What an operator allows containers on this node, from `CARAVAN_DOCKER_*`.

Decides what is refused here although a job may request it. Independent of jobs and of the engine's answers. The options
a job has at all: shared/jobspec/drivers/docker.py.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.agent.drivers.driver import split_list
from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.docker import (
    CAPS_DEFAULT,
    CAPS_GRANTABLE,
    LOG_DRIVERS,
    DockerOptions,
)
from shared.jobspec.drivers.switches import DOCKER_PREFIX, docker_switches

PREFIX = DOCKER_PREFIX
#: Processes and threads of one container.
PIDS_LIMIT_DEFAULT = 4096
#: `docker.sock` is that of most machines.
HOST_DEFAULT = "unix:///var/run/docker.sock"


class DockerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Operator's settings. Lists are separated by commas."""

    #: off: no container is started on this node, with any engine.
    enabled: bool = True
    #: `unix://path` or `tcp://host:port`; empty: DOCKER_HOST, else the usual socket.
    host: str = ""
    #: paths of the node that jobs may mount, and all below.
    allowed_roots: str = ""
    #: volumes by name that jobs may mount; `*`: any, made when it is not there.
    allowed_volumes: str = ""
    #: networks by name that jobs may join; `*`: any.
    allowed_networks: str = ""
    #: the node's own network.
    allow_host_network: bool = False
    #: capabilities that jobs may add.
    allowed_caps: str = ""
    #: runtimes that jobs may name.
    allowed_runtimes: str = ""
    #: off: an image has to be there.
    allow_pull: bool = True
    #: all capabilities and devices of the node.
    allow_privileged: bool = False
    #: devices of the node by path.
    allow_devices: bool = False
    #: the node's processes, shared memory, host name, users and cgroups.
    allow_host_namespaces: bool = False
    #: the socket of the engine itself, which is the node.
    allow_engine_socket: bool = False
    #: mounts of /dev and what is below it.
    allow_device_volumes: bool = False
    #: processes before all others of the node (ulimit rtprio, nice).
    allow_realtime: bool = False
    #: `memory_max = -1`.
    allow_unlimited_memory: bool = False
    #: log drivers of the engine that jobs may name beside json-file.
    allowed_log_drivers: str = ""
    #: a file like ~/.docker/config.json with credentials for registries.
    auth_file: str = ""
    #: of each container, at most.
    pids_limit: int = PIDS_LIMIT_DEFAULT
    #: of the engine's own copy of a container's output; ours is bounded by the job's `logs`.
    engine_log_mib: int = 10
    #: address of the node that ports are published at; empty: all.
    publish_address: str = ""

    @property
    def url(self) -> str:
        """Where the engine listens."""
        return self.host or os.environ.get("DOCKER_HOST") or HOST_DEFAULT

    @property
    def socket(self) -> Path | None:
        """The engine's socket, where it is a file."""
        kind, _, rest = self.url.partition("://")
        return Path(rest) if kind == "unix" else None

    @property
    def roots(self) -> tuple[Path, ...]:
        """Paths that may be mounted."""
        return tuple(Path(text) for text in split_list(self.allowed_roots))

    @property
    def caps(self) -> frozenset[str]:
        """All capabilities that a container can have here."""
        more = (text.upper().removeprefix("CAP_") for text in split_list(self.allowed_caps))
        return frozenset(CAPS_DEFAULT) | frozenset(more)

    def attributes(self) -> dict[str, str]:
        """Node attributes of what the operator offers beyond the usual."""
        names = [name for name in self.__struct_fields__ if name.startswith("allow_")]
        found = {f"driver.docker.{name}": "1" for name in names if getattr(self, name)}
        found |= {
            f"driver.docker.log_driver.{kind}": "1" for kind in split_list(self.allowed_log_drivers)
        }
        found["driver.docker.host_network"] = "1" if self.allow_host_network else ""
        found["driver.docker.auth_file"] = "1" if self.auth_file else ""
        for name in ("allow_pull", "allow_host_network"):
            found.pop(f"driver.docker.{name}", None)
        return {name: text for name, text in found.items() if text}

    def forbids(self, options: DockerOptions, memory_max_mib: int = 0) -> str:
        """Explain why this node refuses a container's options; empty: it accepts them."""
        offered = self.attributes()
        for switch in docker_switches(options, memory_max_mib):
            if switch.attribute not in offered:
                return f"{switch.option} is not allowed on this node ({switch.setting})"
        for cap in options.cap_add:
            if cap not in self.caps:
                return f"cap_add: {cap} is not allowed on this node ({PREFIX}ALLOWED_CAPS)"
        mode = options.network_mode
        own = ("", "bridge", "default", "none", "host")
        if mode not in own and not _named(mode, self.allowed_networks):
            return f"network {mode[:80]!r} is not allowed on this node ({PREFIX}ALLOWED_NETWORKS)"
        if options.runtime and options.runtime not in split_list(self.allowed_runtimes):
            text = f"runtime {options.runtime[:80]!r} is not allowed on this node"
            return f"{text} ({PREFIX}ALLOWED_RUNTIMES)"
        if options.pids_limit > self.pids_limit:
            return f"pids_limit: at most {self.pids_limit} on this node ({PREFIX}PIDS_LIMIT)"
        for mount in options.mounts:
            if mount.kind == "volume" and not _named(mount.source, self.allowed_volumes):
                text = f"{mount.path}: volume {mount.source[:80]!r} is not allowed on this node"
                return f"{text} ({PREFIX}ALLOWED_VOLUMES)"
        return ""


def _named(name: str, allowed: str) -> bool:
    found = split_list(allowed)
    return name in found or "*" in found


def docker_settings(environ: Mapping[str, str]) -> DockerSettings:
    """Read the settings. Raises ConfigInvalid."""
    found = settings_from(DockerSettings, environ, prefix=PREFIX)
    if wrong := sorted(found.caps - CAPS_GRANTABLE):
        raise ConfigInvalid(f"{PREFIX}ALLOWED_CAPS: capability {wrong[0]} cannot be granted")
    for kind in split_list(found.allowed_log_drivers):
        if kind not in LOG_DRIVERS:
            text = f"unknown log driver {kind!r}, expected some of {', '.join(LOG_DRIVERS)}"
            raise ConfigInvalid(f"{PREFIX}ALLOWED_LOG_DRIVERS: {text}")
    for root in found.roots:
        if not root.is_absolute():
            raise ConfigInvalid(f"{PREFIX}ALLOWED_ROOTS: {root} must be an absolute path")
    if found.pids_limit < 1 or found.engine_log_mib < 1:
        raise ConfigInvalid(f"{PREFIX}PIDS_LIMIT and {PREFIX}ENGINE_LOG_MIB must be above 0")
    return found
