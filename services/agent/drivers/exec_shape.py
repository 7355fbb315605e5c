"""What an isolated task is given: its directories, its environment, its rights, its limits.

Decides every number and path of a `Jail`. Must not start anything. Read `exec.py` first.
"""

import hashlib
import os
import resource
import shutil
from pathlib import Path

from services.agent.drivers.driver import Run, StartRefused
from services.agent.drivers.exec_settings import ExecSettings, User, listed
from services.agent.drivers.isolation import cgroups, kernel
from services.agent.drivers.isolation.cgroups import Limits
from services.agent.drivers.isolation.kernel import CAPABILITIES
from services.agent.drivers.isolation.orders import Groups, Jail
from services.agent.drivers.isolation.probe import Found
from services.agent.drivers.isolation.view import SYSTEM, etc_names, open_below
from services.agent.environment import interpolate
from shared.core.tasks import TaskLaunch, TaskNetwork
from shared.jobspec.drivers.exec import IsolationOptions

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
#: Anybody may make a file there, and only its owner takes it away.
_SHARED_MODE = 0o1777


class Shape:
    """One per driver."""

    def __init__(self, *, home: Path, settings: ExecSettings, found: Found) -> None:
        self._home = home
        self._settings = settings
        self._works = frozenset(found.works)

    @property
    def has_view(self) -> bool:
        """Whether a task's directory is its root."""
        return "view" in self._works

    def variables(self, run: Run) -> dict[str, str]:
        """The directories as the task sees them."""
        return dict(_VIEW) if self.has_view else run.places.variables()

    def environment(self, run: Run, launch: TaskLaunch, user: User) -> dict[str, str]:
        """All variables of a task: nothing of the agent's own is among them."""
        found = self.variables(run)
        home = "/local" if self.has_view else str(run.places.task / "local")
        ours = {"PATH": _DEFAULT_PATH, "HOME": home, **({"USER": user.name} if user.name else {})}
        env = {**ours, **found, **launch.env}
        return {name: interpolate(text, found) for name, text in env.items()}

    def work_dir(self, run: Run, asked: str) -> str:
        """Where the command begins, from the task's directory; a path from the root is one in the view."""
        top = "/" if self.has_view else f"{run.places.task}/"
        if ".." in asked.split("/"):
            raise StartRefused(
                "work_dir must not lead out of the task's directory", recoverable=False
            )
        return top + asked.lstrip("/")

    def jail(
        self,
        run: Run,
        options: IsolationOptions,
        network: TaskNetwork,
        *,
        user: User,
        groups: Groups | None,
    ) -> Jail:
        """How the task is kept apart."""
        read, write = self._landlock(run)
        entries = []
        if groups is not None:
            entries = cgroups.Groups(groups.found, groups.parent).entries(groups.name)
        caps = [cap for cap in options.cap_add if cap not in options.cap_drop]
        return Jail(
            uid=user.uid,
            gid=user.gid,
            groups=user.groups,
            capabilities=tuple(CAPABILITIES[cap] for cap in caps if cap in CAPABILITIES),
            rlimits=self._rlimits(),
            namespaces=self._namespaces(options, network),
            view=self.has_view,
            shown=listed(self._settings.paths),
            landlock_read=read,
            landlock_write=write,
            seccomp=self._settings.seccomp and "seccomp" in self._works,
            cgroup_entries=tuple(entries),
            hostname=network.hostname or run.alloc_id[:12],
        )

    def _namespaces(self, options: IsolationOptions, network: TaskNetwork) -> int:
        shared = {"pid": options.pid_mode, "ipc": options.ipc_mode}
        flags = 0
        for name, flag in _SPACES:
            if name in self._works and shared.get(name) != "host":
                flags |= flag
        mode = options.network_mode or network.mode
        if mode == "none" or not self._settings.allow_host_network:
            if "network" not in self._works:
                raise StartRefused("a task's own network does not work here", recoverable=False)
            flags |= kernel.CLONE_NEWNET
        return flags

    def _landlock(self, run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if "landlock" not in self._works:
            return (), ()
        if self.has_view:
            # The view says what is there; this keeps signals, sockets and traces among the task's own processes.
            return (), ("/",)
        read = [f"/{name}" for name in SYSTEM]
        read += [f"/etc/{name}" for name in etc_names()]
        own = (str(run.places.task), str(run.places.shared), *_DEVICES)
        return (*read, *_PROC, *listed(self._settings.paths)), own

    def _rlimits(self) -> dict[int, tuple[int, int]]:
        files = self._settings.open_files
        if os.geteuid() != 0:
            files = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        found = {resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_NOFILE: (files, files)}
        count = self._settings.user_processes
        return {**found, resource.RLIMIT_NPROC: (count, count)} if count else found

    def groups_of(
        self, run: Run, launch: TaskLaunch, groups: cgroups.Groups | None
    ) -> Groups | None:
        """The run's cgroups and what they allow; None: there are none here."""
        if groups is None:
            return None
        limits = Limits(
            cpu_mhz=launch.cpu_mhz,
            cores=launch.cores,
            memory_mib=launch.memory_mib,
            memory_max_mib=launch.memory_max_mib,
            processes=self._settings.pids_limit,
        )
        name = self.group_name(run.places.runs / str(run.number))
        return Groups(found=groups.found, parent=groups.parent, name=name, limits=limits)

    def group_name(self, directory: Path) -> str:
        """Name of a run's cgroup: of its own directory, so that every life finds it."""
        return hashlib.sha256(str(directory).encode()).hexdigest()[:20]

    def make_directories(self, run: Run, directory: Path, user: User) -> None:
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
        for old in places.runs.iterdir():
            if old.name.isdigit() and int(old.name) < run.number - 1:
                shutil.rmtree(old, ignore_errors=True)

    def _make(self, path: Path, mode: int, owner: tuple[int, int]) -> None:
        fd = open_below(str(self._home), str(path), make=True)
        try:
            os.fchown(fd, *owner)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
