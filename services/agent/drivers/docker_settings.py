"""What an operator allows containers on this node, from `CARAVAN_DOCKER_*`.

Decides what is refused here although a job may ask for it. Must not know a job or an engine's answers. The options a
job has at all: shared/jobspec/drivers/docker.py.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from shared.errors import ConfigInvalid
from shared.jobspec.drivers.docker import CAPS_DEFAULT, CAPS_POSSIBLE, DockerOptions

PREFIX = "CARAVAN_DOCKER_"
#: Processes and threads of one container.
PIDS_LIMIT_DEFAULT = 4096
#: `docker.sock` is that of most machines.
HOST_DEFAULT = "unix:///var/run/docker.sock"


class DockerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Operator's settings. Lists are separated by commas."""

    #: off: no container is started on this node, whatever engine runs here.
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
        return tuple(Path(text) for text in _listed(self.allowed_roots))

    @property
    def caps(self) -> frozenset[str]:
        """All capabilities that a container can have here."""
        more = (text.upper().removeprefix("CAP_") for text in _listed(self.allowed_caps))
        return frozenset(CAPS_DEFAULT) | frozenset(more)

    def forbids(self, options: DockerOptions) -> str:
        """Say why this node does not give a container what it asks for; empty: it does."""
        for cap in options.cap_add:
            if cap not in self.caps:
                return f"cap_add: {cap} is not allowed on this node ({PREFIX}ALLOWED_CAPS)"
        mode = options.network_mode
        if mode == "host" and not self.allow_host_network:
            return f"network_mode host is not allowed on this node ({PREFIX}ALLOW_HOST_NETWORK)"
        own = ("", "bridge", "default", "none", "host")
        if mode not in own and not _named(mode, self.allowed_networks):
            return f"network {mode[:80]!r} is not allowed on this node ({PREFIX}ALLOWED_NETWORKS)"
        if options.runtime and options.runtime not in _listed(self.allowed_runtimes):
            text = f"runtime {options.runtime[:80]!r} is not allowed on this node"
            return f"{text} ({PREFIX}ALLOWED_RUNTIMES)"
        if options.pids_limit > self.pids_limit:
            return f"pids_limit: at most {self.pids_limit} on this node ({PREFIX}PIDS_LIMIT)"
        for mount in options.mounts:
            if mount.kind == "volume" and not _named(mount.source, self.allowed_volumes):
                text = f"{mount.path}: volume {mount.source[:80]!r} is not allowed on this node"
                return f"{text} ({PREFIX}ALLOWED_VOLUMES)"
        return ""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _named(name: str, allowed: str) -> bool:
    found = _listed(allowed)
    return name in found or "*" in found


def docker_settings(environ: Mapping[str, str]) -> DockerSettings:
    """Read the settings. Raises ConfigInvalid."""
    names = DockerSettings.__struct_fields__
    given = {name: environ[key] for name in names if (key := PREFIX + name.upper()) in environ}
    try:
        found = msgspec.convert(given, DockerSettings, strict=False)
    except msgspec.ValidationError as err:
        raise ConfigInvalid(f"{PREFIX}* settings: {err}") from err
    if wrong := sorted(found.caps - CAPS_POSSIBLE):
        raise ConfigInvalid(f"{PREFIX}ALLOWED_CAPS: {wrong[0]} is not given to a container")
    for root in found.roots:
        if not root.is_absolute():
            raise ConfigInvalid(f"{PREFIX}ALLOWED_ROOTS: {root} is no full path")
    if found.pids_limit < 1 or found.engine_log_mib < 1:
        raise ConfigInvalid(f"{PREFIX}PIDS_LIMIT and {PREFIX}ENGINE_LOG_MIB must be above 0")
    return found
