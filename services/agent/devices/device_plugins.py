"""All device plugins of a node: which programs there are, what they found, and what a task needs for its devices.

A plugin is a program in the operator's folder, or one that comes with the agent (`nvidia_probe.py`). They are pools of
the node like those of the pools file. An id that a task holds and no plugin knows fails the start.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import structlog

from schemas.nodes import Pool
from services.agent.devices.device_lines import (
    ANSWER_BYTES_MAX,
    DeviceMount,
    DeviceReservation,
    PluginAnswerInvalid,
    read_reservation,
)
from services.agent.devices.plugin_process import (
    END_S,
    PLUGIN_ENVIRONMENT,
    PluginLimits,
    PluginProcess,
    end_group,
    tethered,
)
from services.agent.drivers.driver import StartRefused
from services.agent.drivers.process.fork_server import python_command
from services.agent.operator_programs import OperatorFolder, ProgramRefused
from shared.core.runtime.agent_messages import TaskLaunch, VolumeBind
from shared.extras import missing_extra
from shared.jobspec.drivers.registry import driver_traits

SETTING = "CARAVAN_AGENT_DEVICE_PLUGINS"
ATTRIBUTE = "plugins.device."
DEVICE = "device."
#: The first fingerprint of a node waits so long for the first lines.
FIRST_S = 10.0
RESERVE_S = 30.0
#: One of them is there where NVIDIA's driver is loaded; the last on Windows' Linux.
NVIDIA_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
_NVIDIA_PACKAGE = "pynvml"
_log = structlog.get_logger()


class BuiltinPlugin(msgspec.Struct, frozen=True):
    """A plugin that comes with the agent. A program of the operator with its name takes its place."""

    name: str
    #: asked with each look whether the node has what it finds devices by.
    is_wanted: Callable[[], bool]
    command: Sequence[str]


class DevicePlugins:
    """The plugins of one agent. `folder` empty: the operator has none. Raises ConfigInvalid."""

    name = "device_plugins"
    has_dynamic_fingerprint = True

    def __init__(
        self,
        folder: str = "",
        builtin: Iterable[BuiltinPlugin] = (),
        limits: PluginLimits | None = None,
    ) -> None:
        self._folder = OperatorFolder(folder, SETTING)
        self._builtin = tuple(builtin)
        #: without a plugin now there may have been one, whose devices a task still names.
        self._may_have = bool(folder or self._builtin)
        self._limits = limits
        self._processes: dict[str, PluginProcess] = {}
        self._refused: dict[str, str] = {}
        self._waited = False
        #: what the node offers as a whole: ids of its file of pools are known, too.
        self.offered: Callable[[], Iterable[Pool]] = tuple

    def fingerprint(self) -> dict[str, str]:
        """Node attributes: the plugins that run. Starts those that are new, and ends those that are gone."""
        wanted = self._wanted()
        for name in self._processes.keys() - wanted.keys():
            self._processes.pop(name).close()
        for name in sorted(wanted.keys() - self._processes.keys()):
            self._processes[name] = PluginProcess(name, wanted[name], self._limits)
        if not self._waited:
            self._waited = True
            deadline_s = time.monotonic() + FIRST_S
            for one in self._processes.values():
                one.answered.wait(max(deadline_s - time.monotonic(), 0))
        return {f"{ATTRIBUTE}{name}": "1" for name in sorted(self._processes)}

    def pools(self) -> tuple[Pool, ...]:
        """Return what all plugins found, by name of the plugin."""
        return tuple(pool for _, one in sorted(self._processes.items()) for pool in one.pools())

    async def reserve(self, driver: str, launch: TaskLaunch) -> DeviceReservation:
        """Ask plugins what a task needs for its devices. Raises StartRefused."""
        if not self._processes and not self._may_have:
            return DeviceReservation()
        found = [await self._ask(name, ids) for name, ids in self._owners(launch.devices).items()]
        merged = DeviceReservation(
            env={key: text for one in found for key, text in sorted(one.env.items())},
            mounts=tuple(mount for one in found for mount in one.mounts),
            devices=tuple(path for one in found for path in one.devices),
        )
        return msgspec.structs.replace(merged, mounts=_needed_mounts(driver, merged))

    def close(self) -> None:
        """End all of them."""
        while self._processes:
            self._processes.popitem()[1].close()

    # ---- inside ----

    def _wanted(self) -> dict[str, Callable[[], Sequence[str]]]:
        found: dict[str, Callable[[], Sequence[str]]] = {}
        for one in self._builtin:
            if one.is_wanted():
                found[one.name] = lambda one=one: one.command  # type: ignore[misc]
        for name in self._folder.names():
            try:
                self._folder.check(name)
            except ProgramRefused as err:
                self._refuse(name, str(err))
                continue
            self._refused.pop(name, None)
            found[name] = lambda name=name: [self._folder.check(name)]  # type: ignore[misc]
        return found

    def _refuse(self, name: str, reason: str) -> None:
        if self._refused.get(name) != reason:
            self._refused[name] = reason
            _log.warning("devices.plugin_refused", plugin=name, reason=reason)

    def _owners(self, devices: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Say which plugin has which of a task's devices. Raises StartRefused for one that is unknown."""
        theirs = {
            (pool.name, one.id): name
            for name, process in sorted(self._processes.items(), reverse=True)
            for pool in process.pools()
            for one in pool.instances
        }
        known = {(pool.name, one.id) for pool in self.offered() for one in pool.instances}
        found: dict[str, list[str]] = {}
        for pool, ids in sorted(devices.items()):
            for one in ids:
                if (pool, one) in theirs:
                    found.setdefault(theirs[pool, one], []).append(one)
                elif pool.startswith(DEVICE) and (pool, one) not in known:
                    text = f"{pool} {one!r} is unknown to the device plugins of this node"
                    raise StartRefused(text, recoverable=True)
        return found

    async def _ask(self, name: str, ids: Sequence[str]) -> DeviceReservation:
        try:
            command = self._wanted()[name]()
            answer = await _call(tethered([*command, "reserve", *ids]))
            return read_reservation(answer)
        except KeyError:
            reason = "it is gone"
        except TimeoutError:
            reason = f"it gave no answer within {RESERVE_S:g} s"
        except (ProgramRefused, PluginAnswerInvalid) as err:
            reason = str(err)
        except (OSError, ValueError) as err:
            reason = f"it cannot be run: {getattr(err, 'strerror', None) or err}"
        raise StartRefused(f"device plugin {name}: {reason}", recoverable=True)


def nvidia_plugin(files: Sequence[str] = NVIDIA_FILES, packages: str = "") -> BuiltinPlugin:
    """Return the plugin for NVIDIA's GPUs (`nvidia_probe.py`), which is not run without their driver.

    `packages`: where its package is, else where Python finds it.
    """
    found = find_spec(_NVIDIA_PACKAGE) if not packages else None
    where = packages or (str(Path(found.origin or "").parent) if found is not None else "")
    said: list[str] = []

    def is_wanted() -> bool:
        if not any(Path(one).exists() for one in files):
            return False
        if not where and not said:
            said.append(missing_extra(_NVIDIA_PACKAGE))
            _log.info("devices.skipped", plugin="nvidia", reason=said[0])
        return bool(where)

    code = f"sys.path.insert(0, {where!r}); from services.agent.devices.nvidia_probe import main"
    command = python_command(f"{code}; sys.exit(main(sys.argv[1:]))")
    return BuiltinPlugin(name="nvidia", is_wanted=is_wanted, command=command)


def with_devices(launch: TaskLaunch, found: DeviceReservation) -> TaskLaunch:
    """Add mounts and device files to a launch; its variables are added with those of inputs."""
    if not (found.mounts or found.devices):
        return launch
    binds = tuple(
        VolumeBind(source=one.source, target=one.target, read_only=one.read_only, path=one.source)
        for one in found.mounts
    )
    paths = tuple(sorted({*launch.device_paths, *found.devices}))
    return msgspec.structs.replace(launch, volumes=(*launch.volumes, *binds), device_paths=paths)


def without_repeats(pools: Iterable[Pool]) -> tuple[Pool, ...]:
    """Keep the first entry of each instance, and of each pool the kind of its first entry: others refuse the node."""
    kinds: dict[str, bool] = {}
    seen: set[tuple[str, str]] = set()
    found = []
    for pool in pools:
        if not (pool.instances or pool.amount):
            # Nothing of a kind: it says nothing of which kind the others must be.
            found.append(pool)
            continue
        if kinds.setdefault(pool.name, bool(pool.instances)) != bool(pool.instances):
            continue
        kept = tuple(one for one in pool.instances if (pool.name, one.id) not in seen)
        seen |= {(pool.name, one.id) for one in kept}
        if kept or pool.amount:
            found.append(msgspec.structs.replace(pool, instances=kept))
    return tuple(found)


def _needed_mounts(driver: str, found: DeviceReservation) -> tuple[DeviceMount, ...]:
    """Leave out what a driver without mounts sees anyway. Raises StartRefused."""
    traits = driver_traits(driver)
    if traits.has_mounts:
        return found.mounts
    for one in found.mounts:
        if traits.is_isolated or one.source != one.target:
            text = f"driver {driver} cannot mount {one.source} at {one.target} for a device"
            raise StartRefused(text, recoverable=False)
    return ()


async def _call(command: Sequence[str]) -> bytes:
    """Run a program once, and return what it prints. Raises TimeoutError, OSError, PluginAnswerInvalid."""
    child = await asyncio.create_subprocess_exec(
        *command,
        env=PLUGIN_ENVIRONMENT,
        cwd="/",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(RESERVE_S):
            said = b""
            while part := await child.stdout.read(ANSWER_BYTES_MAX + 1):
                said += part
                if len(said) > ANSWER_BYTES_MAX:
                    raise PluginAnswerInvalid(f"it gave more than {ANSWER_BYTES_MAX} bytes")
            code = await child.wait()
    finally:
        if child.returncode is None:
            end_group(child.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), END_S)
        end_group(child.pid, signal.SIGKILL)
        # One that the kernel holds is left: the start fails. The pipe closes when it is read to its end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                while await child.stdout.read(ANSWER_BYTES_MAX):
                    pass
                await child.wait()
    if code and not said:
        raise PluginAnswerInvalid(f"it ended with {code}")
    return said
