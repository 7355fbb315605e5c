"""Host volumes: directories of the node that its operator offers to tasks by name, and those made by request.

Decides what the setting means and what a node says of it: attribute `volume.NAME`, `rw` or `ro`, which the scheduler
compares, and a pool of that name, of which writers hold a part or all. Paths are resolved at start, so that a mount
never follows a link that came later.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from schemas.nodes import Pool
from services.agent.drivers.driver import StartRefused, split_list
from shared.core.resources.asks import WHOLE
from shared.core.runtime.agent_messages import TaskLaunch
from shared.errors import ConfigInvalid

ATTRIBUTE = "volume."
SETTING = "CARAVAN_AGENT_HOST_VOLUMES"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}(\[(0|[1-9][0-9]{0,8})\])?")


class HostVolume(msgspec.Struct, frozen=True):
    """One directory. `path`: without links."""

    path: str
    read_only: bool


class HostVolumes:
    """What one agent offers."""

    def __init__(self, found: Mapping[str, HostVolume]) -> None:
        self._found = found
        #: by name, those that were created by request.
        self._made: dict[str, HostVolume] = {}

    def attributes(self) -> dict[str, str]:
        """Node attributes."""
        pairs = sorted(self._found.items())
        return {ATTRIBUTE + name: "ro" if one.read_only else "rw" for name, one in pairs}

    def pools(self) -> tuple[Pool, ...]:
        """What writers of the volumes hold: one unit of each, whole or in parts."""
        return tuple(
            Pool(name=ATTRIBUTE + name, amount=WHOLE)
            for name, one in sorted(self._found.items())
            if not one.read_only
        )

    def offer(self, name: str, volume: HostVolume) -> bool:
        """Let tasks mount a volume that was made; return false where the operator's own has its name."""
        if name in self._found:
            return False
        self._made[name] = volume
        return True

    def withdraw(self, name: str, path: str) -> None:
        """Let no task mount a volume that was made, any more."""
        if name in self._made and path in ("", self._made[name].path):
            del self._made[name]

    def resolved(self, launch: TaskLaunch) -> TaskLaunch:
        """Fill in the paths of a launch's volumes. Raises StartRefused."""
        if not launch.volumes:
            return launch
        mounts = []
        for mount in launch.volumes:
            volume = self._found.get(mount.source) or self._made.get(mount.source)
            if volume is None:
                text = f"host volume {mount.source!r} no longer exists on this node"
                raise StartRefused(text, recoverable=False)
            if volume.read_only and not mount.read_only:
                text = f"host volume {mount.source!r} is read only on this node"
                raise StartRefused(text, recoverable=False)
            if not Path(volume.path).is_dir():
                text = f"directory of host volume {mount.source!r} is missing on this node"
                raise StartRefused(text, recoverable=True)
            mounts.append(msgspec.structs.replace(mount, path=volume.path))
        return msgspec.structs.replace(launch, volumes=tuple(mounts))


def read_host_volumes(text: str, data_dir: str) -> HostVolumes:
    """Read `name=path[:ro],…`. Raises ConfigInvalid: also for what would show tasks the agent's own files."""
    found: dict[str, HostVolume] = {}
    own = Path(data_dir).resolve()
    for entry in split_list(text):
        name, _, rest = entry.partition("=")
        path, _, mode = rest.partition(":")
        if not _NAME.fullmatch(name) or not path or mode not in ("", "ro", "rw"):
            raise ConfigInvalid(f"{SETTING}: expected name=path, name=path:ro, was {entry!r}")
        if name in found:
            raise ConfigInvalid(f"{SETTING}: {name!r} is named twice")
        real = Path(path).resolve()
        if not Path(path).is_absolute() or not real.is_dir():
            raise ConfigInvalid(f"{SETTING}: {path!r} is not an absolute path of a directory")
        if own.is_relative_to(real) or real.is_relative_to(own):
            raise ConfigInvalid(
                f"{SETTING}: {path!r} holds the agent's data directory, or is in it"
            )
        found[name] = HostVolume(str(real), mode == "ro")
    return HostVolumes(found)
