"""exec: a task is a process isolated by the kernel features of this node.

Decides user, view and limits of a task, and whether this node may run any; `isolation/stages.py` applies them.
Rejected: a runtime beside the agent (runc: another program to install and to trust), Docker for everything (its start
takes ten times as long).
"""

import asyncio
import os
from pathlib import Path

import msgspec

from services.agent.drivers.driver import (
    DriverRun,
    StartRefused,
    TaskUsage,
    directories_refused,
    raise_option_faults,
)
from services.agent.drivers.exec.fingerprint import ExecFingerprint
from services.agent.drivers.exec.jail_builder import JailBuilder
from services.agent.drivers.exec.settings import ExecSettings, TaskUser
from services.agent.drivers.isolation import cgroups
from services.agent.drivers.isolation.probe import IsolationSupport
from services.agent.drivers.isolation.starter_protocol import (
    Jail,
    StartOrder,
    encode_arguments,
    encode_environment,
)
from services.agent.drivers.launch_values import fill_options
from services.agent.drivers.process.driver import ProcessDriver, check_environment
from services.agent.drivers.process.run_record import ProcessRun, group_name
from services.agent.drivers.process.starter_client import StarterClient, probe_isolation
from services.agent.executor.data_dir import TaskDirs
from shared.core.runtime.agent_messages import TaskLaunch
from shared.jobspec.drivers.exec import ExecOptions, IsolationOptions, read_exec

_JAIL = "jail.json"


class ExecDriver(ProcessDriver):
    """The driver. `home` is the agent's data directory; `found`: what works here; None: probe it."""

    name = "exec"

    def __init__(
        self,
        *,
        home: Path,
        kernel_boot: str,
        settings: ExecSettings,
        found: IsolationSupport | None = None,
        starter: StarterClient | None = None,
    ) -> None:
        super().__init__(kernel_boot=kernel_boot, starter=starter)
        self._home = home
        self.settings = settings
        self._parent = cgroups.agent_level(settings.cgroup_parent, home)
        self.found = found or probe_isolation(self._parent)
        self.kills_session = "pid" not in self.found.works
        if "cgroups" in self.found.works:
            self.groups = cgroups.CgroupTree(self.found.hierarchies, self._parent)
            self.starter.shelter = tuple(self.groups.entries(cgroups.KEEPERS_GROUP))
            if found is None:
                # Remove empty groups of earlier agent processes; nothing is started yet.
                self.groups.sweep()
                self.groups.sweep_abandoned()
        self.offer = ExecFingerprint(settings, self.found)
        self._shape = JailBuilder(home=home, settings=settings, found=self.found)

    def fingerprint(self) -> dict[str, str]:
        """Node attributes of what works; `driver.exec.off`: why the driver is off."""
        return self.offer.attributes()

    async def start(self, run: DriverRun, launch: TaskLaunch) -> ProcessRun:
        """Start a run."""
        options = self._read(launch)
        command = (options.command, *options.args)
        return await self._start_command(run, launch, command, options)

    def _read(self, launch: TaskLaunch) -> ExecOptions:
        options, faults = read_exec(msgspec.json.decode(launch.config))
        raise_option_faults(self.name, faults)
        return options

    async def _start_command(
        self,
        run: DriverRun,
        launch: TaskLaunch,
        command: tuple[str, ...],
        options: IsolationOptions,
        *,
        devices: tuple[str, ...] = (),
        shown: tuple[str, ...] = (),
    ) -> ProcessRun:
        """Start a run of a command that a driver on top of this one made. Raises StartRefused.

        `devices`, `shown`: full paths of the node's that it sees beside what every task does.
        """
        why = self.offer.off() or self.settings.forbids(options, launch.memory_max_mib)
        if why:
            raise StartRefused(why, recoverable=False)
        order = await asyncio.to_thread(self._order, run, launch, command, options)
        if devices or shown:
            order = _with_paths(order, devices, shown)
        return await self.start_order(run, order)

    def _order(
        self,
        run: DriverRun,
        launch: TaskLaunch,
        command: tuple[str, ...],
        options: IsolationOptions,
    ) -> StartOrder:
        user = self._user(launch.user)
        directory = run.directory
        try:
            self._shape.make_directories(run, directory, user)
        except OSError as err:
            raise directories_refused(err) from err
        env = self._shape.environment(run, launch, user)
        view = self._shape.variables(run.places)
        texts = [*command, getattr(options, "work_dir", "")]
        texts = fill_options(texts, launch, {**env, **view})
        check_environment(texts, env)
        groups = self._shape.groups_of(run, launch, self.groups)
        jail = self._shape.jail(run, options, launch.network, user=user, groups=groups)
        jail = self._shape.with_volumes(jail, launch.volumes)
        (directory / _JAIL).write_bytes(msgspec.json.encode(jail))
        return StartOrder(
            directory=str(directory),
            kernel_boot=self._kernel_boot,
            top=str(self._home),
            task=str(run.places.task),
            shared=str(run.places.shared),
            stdout="" if launch.logs.disabled else str(run.places.stdout),
            stderr="" if launch.logs.disabled else str(run.places.stderr),
            devices=launch.device_paths,
            argv=encode_arguments(texts[:-1]),
            env=encode_environment(env),
            work_dir=os.fsencode(self._shape.work_dir(run, texts[-1])),
            jail=jail,
            groups=groups,
        )

    def _user(self, name: str) -> TaskUser:
        if "user" not in self.found.works:
            if name:
                raise StartRefused(
                    f"this node cannot change users; tasks run as the agent's user, not {name!r}",
                    recoverable=False,
                )
            return TaskUser(uid=os.getuid(), gid=os.getgid(), name="", home="/")
        found = self.settings.user_of(name)
        if isinstance(found, str):
            raise StartRefused(found, recoverable=False)
        return found

    def jail_of(self, handle: ProcessRun) -> Jail:
        """Isolation that a run was started with. Raises StartRefused."""
        try:
            return msgspec.json.decode((handle.directory / _JAIL).read_bytes(), type=Jail)
        except (OSError, msgspec.MsgspecError) as err:
            text = f"isolation settings of the task ({_JAIL}) cannot be read: {err}"
            raise StartRefused(text, recoverable=False) from err

    def directories(self, places: TaskDirs) -> dict[str, str]:
        """Return the directories as a task sees them."""
        return self._shape.variables(places)

    def owner(self, user: str) -> tuple[int, int]:
        """Return uid and gid of a task."""
        found = self._user(user)
        return (found.uid, found.gid) if "user" in self.found.works else (-1, -1)

    async def stats(self, handle: ProcessRun) -> TaskUsage:
        """Processor time and memory of the task's group, else of its own process."""
        if self.groups is None:
            return await super().stats(handle)
        found = self.groups.usage(group_name(handle.directory))
        return TaskUsage(**msgspec.structs.asdict(found))


def _with_paths(order: StartOrder, devices: tuple[str, ...], shown: tuple[str, ...]) -> StartOrder:
    jail = msgspec.structs.replace(order.jail, shown=(*order.jail.shown, *shown))
    if jail.landlock_read:
        read, write = (*jail.landlock_read, *shown), (*jail.landlock_write, *devices)
        jail = msgspec.structs.replace(jail, landlock_read=read, landlock_write=write)
    return msgspec.structs.replace(order, devices=(*order.devices, *devices), jail=jail)
