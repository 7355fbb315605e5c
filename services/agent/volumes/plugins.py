"""What makes host volumes on this node: `mkdir`, and programs of the operator in a folder.

A program is called as Nomad calls its plugins for host volumes: `PROGRAM fingerprint|create|delete`, what it needs in
environment variables, its answer as JSON on its standard output. It runs as the agent's user, so no other user may be
able to change it or its folder. A call may come again for a volume that is there, or gone, already.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from schemas.host_volumes import VolumeSpec
from services.agent.operator_programs import OperatorFolder, ProgramRefused
from services.agent.program_calls import ProgramCall, ProgramFailed
from services.agent.settings import PREFIX
from services.agent.volumes import mkdir
from services.agent.volumes.mkdir import VolumeRefused
from shared.errors import ConfigInvalid

SETTING = f"{PREFIX}HOST_VOLUME_PLUGINS"
#: A program gets so long; then SIGTERM, and so long until SIGKILL. At the start of the agent it says its version.
CALL_S, END_S, FINGERPRINT_S = 60.0, 2.0, 5.0
ANSWER_BYTES_MAX = 64 * 1024
_REASON_CHARS_MAX = 300
_VERSION_CHARS_MAX = 64
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Name of the attribute by which a node says that it has a plugin.
_ATTRIBUTE = "plugins.host_volume."


class MadeVolume(msgspec.Struct, frozen=True):
    """A volume that is there. `capacity_bytes`: 0: its plugin does not say."""

    path: str
    capacity_bytes: int = 0


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where volumes are made, and for which node. Paths are absolute."""

    data_dir: str
    #: below it volumes are made; empty: `host_volumes` in the data directory.
    volumes_dir: str = ""
    node_id: str = ""
    node_pool: str = "default"

    @property
    def top(self) -> Path:
        """Below it volumes are made."""
        return Path(self.volumes_dir) if self.volumes_dir else Path(self.data_dir) / "host_volumes"


class _Answer(msgspec.Struct):
    path: str = ""
    bytes: int = 0
    version: str = ""
    error: str = ""


class VolumePlugins:
    """The plugins of one node. Raises ConfigInvalid for a folder that is not an absolute path."""

    def __init__(self, folder: str, place: NodePlace) -> None:
        if place.volumes_dir and not Path(place.volumes_dir).is_absolute():
            raise ConfigInvalid(
                f"{PREFIX}HOST_VOLUMES_DIR is {place.volumes_dir!r}, it must be an absolute path"
            )
        self._folder = folder
        self._programs = OperatorFolder(folder, SETTING)
        self._place = place
        #: program -> when it was changed, and the version that it said then.
        self._versions: dict[str, tuple[int, str]] = {}

    def attributes(self) -> dict[str, str]:
        """Node attributes: the plugins that may be used, and their versions. Runs a program that is new or changed."""
        found = {mkdir.PLUGIN: mkdir.VERSION}
        for name in self._programs.names():
            if name == mkdir.PLUGIN:
                continue
            with contextlib.suppress(VolumeRefused, OSError):
                program = self._check(name)
                changed_ns = Path(program).stat().st_mtime_ns
                if self._versions.get(name, (0, ""))[0] != changed_ns:
                    self._versions[name] = (changed_ns, self._ask_version(program))
                if version := self._versions[name][1]:
                    found[name] = version
        return {f"{_ATTRIBUTE}{name}.version": version for name, version in sorted(found.items())}

    async def create(self, spec: VolumeSpec, *, is_new: bool) -> MadeVolume:
        """Make a volume, or find it. Raises VolumeRefused; of a new one nothing is left then, as far as can be told."""
        if spec.plugin == mkdir.PLUGIN:
            made = await asyncio.to_thread(
                mkdir.make_directory, self._place.top, spec, is_new=is_new
            )
            return MadeVolume(str(made))
        try:
            answer = await self._call(spec, "create", {})
            path = await asyncio.to_thread(self._checked_path, answer.path)
        except VolumeRefused as err:
            if is_new:
                await self._undo(spec, str(err))
            raise
        return MadeVolume(path, max(answer.bytes, 0))

    async def delete(self, spec: VolumeSpec, path: str) -> None:
        """Delete a volume; one that is gone is gone. Raises VolumeRefused."""
        if spec.plugin == mkdir.PLUGIN:
            await asyncio.to_thread(mkdir.remove_directory, self._place.top, spec.id)
        else:
            await self._call(spec, "delete", {"DHV_CREATED_PATH": path})

    async def _undo(self, spec: VolumeSpec, why: str) -> None:
        """Have a program delete what it may have half made. Raises VolumeRefused with both reasons."""
        try:
            await self.delete(spec, "")
        except VolumeRefused as err:
            raise VolumeRefused(f"{why}; what is left could not be deleted: {err}") from None

    async def _call(self, spec: VolumeSpec, verb: str, more: Mapping[str, str]) -> _Answer:
        program = await asyncio.to_thread(self._check, spec.plugin)
        await asyncio.to_thread(self._make_top)
        call = ProgramCall(program, (verb,), {**self._environment(spec, verb), **more})
        try:
            said, code = await call.run(limit_s=CALL_S, end_s=END_S, bytes_max=ANSWER_BYTES_MAX)
        except ProgramFailed as err:
            raise VolumeRefused(f"plugin {spec.plugin} {err}") from None
        return _read_answer(spec.plugin, verb, said, code)

    def _make_top(self) -> None:
        try:
            self._place.top.mkdir(mode=0o711, parents=True, exist_ok=True)
        except OSError as err:
            text = f"folder {self._place.top} cannot be made: {err.strerror or err}"
            raise VolumeRefused(text) from None

    def _environment(self, spec: VolumeSpec, verb: str) -> dict[str, str]:
        parameters = msgspec.json.encode(spec.parameters, order="sorted").decode()
        return {
            "PATH": _PATH,
            "DHV_OPERATION": verb,
            "DHV_VOLUMES_DIR": str(self._place.top),
            "DHV_PLUGIN_DIR": self._folder,
            "DHV_NAMESPACE": "default",
            "DHV_VOLUME_ID": spec.id,
            "DHV_VOLUME_NAME": spec.name,
            "DHV_NODE_ID": self._place.node_id,
            "DHV_NODE_POOL": self._place.node_pool,
            "DHV_PARAMETERS": parameters,
            "DHV_CAPACITY_MIN_BYTES": str(spec.capacity_min_bytes),
            "DHV_CAPACITY_MAX_BYTES": str(spec.capacity_max_bytes),
        }

    def _checked_path(self, said: str) -> str:
        """Return where a program made a volume, without links. Raises VolumeRefused for what no task may see."""
        if not Path(said).is_absolute() or "\0" in said:
            raise VolumeRefused(f"its plugin says path {said[:80]!r}, which is not absolute")
        real, own, top = Path(said).resolve(), Path(self._place.data_dir).resolve(), self._place.top
        if not real.is_dir():
            raise VolumeRefused(f"its plugin says path {said[:80]!r}, which is not a directory")
        is_made = real.is_relative_to(top.resolve()) and real != top.resolve()
        if own.is_relative_to(real) or (real.is_relative_to(own) and not is_made):
            raise VolumeRefused(f"its plugin says path {said[:80]!r}, which has files of the agent")
        return str(real)

    def _check(self, name: str) -> str:
        """Return the path of a program that may be run. Raises VolumeRefused."""
        if not self._folder:
            raise VolumeRefused(f"this node has no plugin {name} ({SETTING} is not set)")
        try:
            return self._programs.check(name)
        except ProgramRefused as err:
            raise VolumeRefused(str(err)) from None

    def _ask_version(self, program: str) -> str:
        """Ask a program for its version; empty: it gives none, and is not offered."""
        env = {"PATH": _PATH, "DHV_OPERATION": "fingerprint"}
        try:
            said = subprocess.run(  # noqa: S603 - a program of the operator, checked.
                [program, "fingerprint"],
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=FINGERPRINT_S,
                check=True,
            ).stdout
            return _read_answer(
                Path(program).name, "fingerprint", said[:ANSWER_BYTES_MAX], 0
            ).version
        except (OSError, subprocess.SubprocessError, VolumeRefused):
            return ""


def _read_answer(plugin: str, verb: str, said: bytes, code: int) -> _Answer:
    """Read an answer; that of a delete may be empty. Raises VolumeRefused."""
    found = _Answer()
    if said.strip():
        try:
            found = msgspec.json.decode(said, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            text = f"plugin {plugin} ended with {code}" if code else f"plugin {plugin} gave no JSON"
            raise VolumeRefused(text) from None
    if found.error:
        words = " ".join(found.error.split())[:_REASON_CHARS_MAX]
        raise VolumeRefused(f"plugin {plugin}: {words}")
    if code:
        raise VolumeRefused(f"plugin {plugin} ended with {code}")
    if verb == "create" and not found.path:
        raise VolumeRefused(f"plugin {plugin} gave no path")
    version = "".join(char for char in found.version if char.isprintable())
    return msgspec.structs.replace(found, version=version[:_VERSION_CHARS_MAX])
