"""raw_exec: a task is a plain process of the agent's own user, with no isolation. Off unless the operator allows it.

Decides command, environment and directories of a task; the rest is `process/driver.py`. A cgroup holds the processes
of a task together where the kernel gives one; their init adopts and ends what leaves it in any case.
"""

import asyncio
import os
import pwd
import resource
import shutil
from pathlib import Path

import msgspec

from services.agent.drivers.driver import DriverRun, StartRefused, raise_option_faults
from services.agent.drivers.isolation.cgroups import CgroupLimits, CgroupTree, holding_tree
from services.agent.drivers.isolation.starter_protocol import (
    Jail,
    RunCgroup,
    StartOrder,
    encode_arguments,
    encode_environment,
)
from services.agent.drivers.launch_values import fill_options, launch_environment
from services.agent.drivers.process.driver import (
    DEFAULT_PATH,
    ProcessDriver,
    check_environment,
    prune_runs,
)
from services.agent.drivers.process.run_record import ProcessRun, group_name
from services.agent.network.places import NetworkPlaces, namespace_of
from shared.core.runtime.agent_messages import TaskLaunch
from shared.jobspec.drivers.exec import read_raw_exec

#: What a task inherits of the agent's environment; the rest may hold secrets of the agent.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL")


def own_groups(parent: str) -> CgroupTree | None:
    """Find cgroups that hold the processes of each task together; None: this node gives none."""
    try:
        mounts, own = (Path("/proc/self", name).read_text() for name in ("mounts", "cgroup"))
    except OSError:
        return None
    return holding_tree(mounts, own, parent)


class RawExecDriver(ProcessDriver):
    """The driver."""

    name = "raw_exec"

    def __init__(self, *, kernel_boot: str, groups: CgroupTree | None = None) -> None:
        super().__init__(kernel_boot=kernel_boot)
        self.groups = groups
        # The agent raises its own limit later; tasks keep the one that it was given.
        self._jail = Jail(
            plain=True,
            view=False,
            rlimits={resource.RLIMIT_NOFILE: resource.getrlimit(resource.RLIMIT_NOFILE)},
        )

    def fingerprint(self) -> dict[str, str]:
        """Usable where /proc is."""
        return {"driver.raw_exec": "1"} if Path("/proc/self/stat").exists() else {}

    async def start(self, run: DriverRun, launch: TaskLaunch) -> ProcessRun:
        """Start a run."""
        return await self.start_order(run, await asyncio.to_thread(self._order, run, launch))

    def _order(self, run: DriverRun, launch: TaskLaunch) -> StartOrder:
        _check_user(launch.user)
        places = run.places
        found = places.variables()
        env = {name: os.environ[name] for name in INHERITED if name in os.environ}
        inherited = {"PATH": DEFAULT_PATH, **env, **found}
        env = launch_environment(launch, inherited)
        config = fill_options(msgspec.json.decode(launch.config), launch, env)
        options, faults = read_raw_exec(config)
        raise_option_faults(self.name, faults)
        check_environment((options.command, *options.args), env)
        run.make_directories()
        prune_runs(run)
        return StartOrder(
            directory=str(run.directory),
            kernel_boot=self._kernel_boot,
            top=str(places.shared),
            task=str(places.task),
            shared=str(places.shared),
            stdout="" if launch.logs.disabled else str(places.stdout),
            stderr="" if launch.logs.disabled else str(places.stderr),
            argv=encode_arguments((_resolve(options.command, env, places.task), *options.args)),
            env=encode_environment(env),
            work_dir=os.fsencode(places.task / options.work_dir),
            jail=self._in_group(self._jail_in(run.directory), run, launch),
            groups=self._group_of(run.directory),
        )

    def _group_of(self, directory: Path) -> RunCgroup | None:
        if self.groups is None:
            return None
        tree, name = self.groups, group_name(directory)
        return RunCgroup(found=tree.found, parent=tree.parent, name=name, limits=CgroupLimits())

    def _jail_in(self, directory: Path) -> Jail:
        if self.groups is None:
            return self._jail
        entries = tuple(self.groups.entries(group_name(directory)))
        return msgspec.structs.replace(self._jail, cgroup_entries=entries)

    @staticmethod
    def _in_group(jail: Jail, run: DriverRun, launch: TaskLaunch) -> Jail:
        """Let a run enter the network namespace of its group, where it has one; its files are the node's."""
        if not launch.network.address:
            return jail
        namespace = NetworkPlaces(run.places.top, run.alloc_id).namespace
        return msgspec.structs.replace(jail, network=str(namespace))

    def jail_of(self, handle: ProcessRun) -> Jail:
        """A command beside a task joins its cgroup, where it has one: it ends with the task; and its network."""
        is_held = self.groups is not None and self.groups.exists(group_name(handle.directory))
        jail = self._jail_in(handle.directory) if is_held else Jail(plain=True)
        namespace = namespace_of(handle.directory)
        return msgspec.structs.replace(jail, network=str(namespace)) if namespace.exists() else jail


def _resolve(command: str, env: dict[str, str], directory: Path) -> str:
    """Find the program: a path, or a name in the task's PATH. Raises StartRefused when there is none."""
    if "/" in command:
        path = directory / command
        found = str(path) if path.is_file() and os.access(path, os.X_OK) else None
    else:
        found = shutil.which(command, path=env.get("PATH", "")) if command else None
    if found is None:
        raise StartRefused(f"command {command!r} not found on this node", recoverable=False)
    return found


def _check_user(user: str) -> None:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    if user not in ("", name):
        raise StartRefused(
            f"raw_exec runs tasks as {name}, the agent's user, not as {user!r}", recoverable=False
        )
