"""Builds the jail of an isolated task: directories, environment, rights and limits.

Decides every number and path of a `Jail`; starts nothing. Read `driver.py` first.
"""

import os
import resource
from pathlib import Path
from typing import Any

import msgspec

from services.agent.drivers.driver import DriverRun, StartRefused, split_list
from services.agent.drivers.exec.settings import ExecSettings, TaskUser
from services.agent.drivers.isolation import cgroups, kernel
from services.agent.drivers.isolation.cgroups import CgroupLimits
from services.agent.drivers.isolation.kernel import CAPABILITIES
from services.agent.drivers.isolation.mount_view import SYSTEM, etc_names
from services.agent.drivers.isolation.probe import IsolationSupport
from services.agent.drivers.isolation.starter_protocol import Jail, RunCgroup
from services.agent.drivers.launch_values import launch_environment
from services.agent.drivers.process.driver import DEFAULT_PATH, prune_runs
from services.agent.drivers.process.run_record import group_name
from services.agent.executor.data_dir import TaskDirs
from services.agent.network.places import NetworkPlaces
from services.agent.safe_open import open_below
from shared.core.runtime.agent_messages import TaskLaunch, TaskNetwork, VolumeBind
from shared.jobspec.drivers.exec import IsolationOptions

#: Where the task sees its own, when its directory is its root.
_VIEW = {"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets"}
#: Without a view: of /proc what programs ask about the node; their own process is added where they run.
_PROC = tuple(
    f"/proc/{name}"
    for name in ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems")
)
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
_SPACES = (
    ("pid", kernel.CLONE_NEWPID),
    ("ipc", kernel.CLONE_NEWIPC),
    ("uts", kernel.CLONE_NEWUTS),
)
#: Propagation of a volume into which later mounts of the node come.
RECEIVES = "host-to-task"
#: Sticky: every user may create files, only the owner deletes them.
_SHARED_MODE = 0o1777


class JailBuilder:
    """One per driver."""

    def __init__(self, *, home: Path, settings: ExecSettings, found: IsolationSupport) -> None:
        self._home = home
        self._settings = settings
        self._works = frozenset(found.works)

    @property
    def has_view(self) -> bool:
        """Whether a task's directory is its root."""
        return "view" in self._works

    def variables(self, places: TaskDirs) -> dict[str, str]:
        """The directories as the task sees them."""
        return dict(_VIEW) if self.has_view else places.variables()

    def environment(self, run: DriverRun, launch: TaskLaunch, user: TaskUser) -> dict[str, str]:
        """All variables of a task, without those of the agent."""
        found = self.variables(run.places)
        home = "/local" if self.has_view else str(run.places.task / "local")
        ours = {"PATH": DEFAULT_PATH, "HOME": home, **({"USER": user.name} if user.name else {})}
        return launch_environment(launch, {**ours, **found})

    def work_dir(self, run: DriverRun, asked: str) -> str:
        """Where the command begins, from the task's directory; a path from the root is one in the view."""
        top = "/" if self.has_view else f"{run.places.task}/"
        if ".." in asked.split("/"):
            raise StartRefused(
                "work_dir must not lead out of the task's directory", recoverable=False
            )
        if [part for part in asked.split("/") if part not in {"", "."}][:1] == ["proc"]:
            raise StartRefused("work_dir must not be below /proc", recoverable=False)
        return top + asked.lstrip("/")

    def jail(
        self,
        run: DriverRun,
        options: IsolationOptions,
        network: TaskNetwork,
        *,
        user: TaskUser,
        groups: RunCgroup | None,
    ) -> Jail:
        """How the task is kept apart."""
        read, write = self._landlock(run)
        entries = []
        if groups is not None:
            entries = cgroups.CgroupTree(groups.found, groups.parent).entries(groups.name)
        caps = [cap for cap in options.cap_add if cap not in options.cap_drop]
        return Jail(
            uid=user.uid,
            gid=user.gid,
            groups=user.groups,
            capabilities=tuple(CAPABILITIES[cap] for cap in caps if cap in CAPABILITIES),
            rlimits=self._rlimits(),
            namespaces=self._namespaces(options, network),
            view=self.has_view,
            shown=split_list(self._settings.paths),
            landlock_read=read,
            landlock_write=write,
            seccomp=self._settings.seccomp and "seccomp" in self._works,
            cgroup_entries=tuple(entries),
            hostname=network.hostname or run.alloc_id[:12],
            **self._group_network(run, options, network),
        )

    def _group_network(
        self, run: DriverRun, options: IsolationOptions, network: TaskNetwork
    ) -> dict[str, Any]:
        """Fields of the jail for the network of the group; a task's own `network_mode` wins."""
        if not network.address or options.network_mode:
            return {}
        places = NetworkPlaces(self._home, run.alloc_id)
        etc = places.etc() if self.has_view else {}
        return {"network": str(places.namespace), "etc": etc}

    def with_volumes(self, jail: Jail, volumes: tuple[VolumeBind, ...]) -> Jail:
        """Add the host volumes of a task. Raises StartRefused where tasks have no view of their own."""
        if not volumes:
            return jail
        if not self.has_view:
            text = "this node cannot mount host volumes for exec: its tasks have no file view of their own"
            raise StartRefused(text, recoverable=False)
        found = tuple((one.path, one.target, one.read_only) for one in volumes)
        if odd := [one for one in volumes if one.propagation not in ("", RECEIVES) or one.label]:
            text = f"exec cannot mount {odd[0].source!r} with {odd[0].propagation or odd[0].label}"
            raise StartRefused(text, recoverable=False)
        receiving = tuple(one.target for one in volumes if one.propagation == RECEIVES)
        return msgspec.structs.replace(jail, volumes=found, receiving=receiving)

    def _namespaces(self, options: IsolationOptions, network: TaskNetwork) -> int:
        shared = {"pid": options.pid_mode, "ipc": options.ipc_mode}
        flags = 0
        for name, flag in _SPACES:
            if name in self._works and shared.get(name) != "host":
                flags |= flag
        mode = options.network_mode or network.mode
        is_in_group = bool(network.address) and not options.network_mode
        if not is_in_group and (mode == "none" or not self._settings.allow_host_network):
            if "network" not in self._works:
                raise StartRefused(
                    "network namespaces are not available on this node", recoverable=False
                )
            flags |= kernel.CLONE_NEWNET
        return flags

    def _landlock(self, run: DriverRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if "landlock" not in self._works:
            return (), ()
        if self.has_view:
            # The view says what is there; this keeps signals, sockets and traces among the task's own processes.
            return (), ("/",)
        read = [f"/{name}" for name in SYSTEM]
        read += [f"/etc/{name}" for name in etc_names()]
        own = (str(run.places.task), str(run.places.shared), *_DEVICES)
        return (*read, *_PROC, *split_list(self._settings.paths)), own

    def _rlimits(self) -> dict[int, tuple[int, int]]:
        files = self._settings.open_files
        if os.geteuid() != 0:
            files = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        found = {resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_NOFILE: (files, files)}
        count = self._settings.user_processes
        return {**found, resource.RLIMIT_NPROC: (count, count)} if count else found

    def groups_of(
        self, run: DriverRun, launch: TaskLaunch, groups: cgroups.CgroupTree | None
    ) -> RunCgroup | None:
        """The run's cgroups and what they allow; None: there are none here."""
        if groups is None:
            return None
        limits = CgroupLimits(
            cpu_mhz=launch.cpu_mhz,
            cores=launch.cores,
            memory_mib=launch.memory_mib,
            memory_max_mib=launch.memory_max_mib,
            processes=self._settings.pids_limit,
        )
        name = group_name(run.directory)
        return RunCgroup(found=groups.found, parent=groups.parent, name=name, limits=limits)

    def make_directories(self, run: DriverRun, directory: Path, user: TaskUser) -> None:
        """Make what a start needs, link by link; of earlier runs only the last is kept. Raises OSError."""
        places = run.places
        owner = (user.uid, user.gid) if "user" in self._works else (-1, -1)
        root = (0, 0) if "user" in self._works else (-1, -1)
        self._make(places.shared, 0o755, root)
        for part in ("data", "logs", "tmp"):
            self._make(places.shared / part, _SHARED_MODE, root)
        self._make(places.task, _SHARED_MODE, root)
        for part, mode in (("local", 0o755), ("secrets", 0o700), ("tmp", 0o755)):
            self._make(places.task / part, mode, owner)
        self._make(places.runs, 0o700, root)
        self._make(directory, 0o700, root)
        prune_runs(run)

    def _make(self, path: Path, mode: int, owner: tuple[int, int]) -> None:
        fd = open_below(self._home, path, make_mode=0o755)
        try:
            os.fchown(fd, *owner)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
