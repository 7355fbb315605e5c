"""What an operator allows isolated processes on this node, from `CARAVAN_EXEC_*`.

Decides what is refused here although a job may request it, and which isolation must be there for the driver to be on.
What a job may request at all: shared/jobspec/drivers/exec.py.
"""

import os
import pwd
from collections.abc import Mapping

import msgspec

from services.agent.drivers.driver import split_list
from services.agent.drivers.isolation.kernel import CAPABILITIES
from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.exec import IsolationOptions
from shared.jobspec.drivers.switches import EXEC_PREFIX

PREFIX = EXEC_PREFIX
#: What a node can have; a demand names some of them.
ISOLATION_KINDS = (
    "user",
    "files",
    "landlock",
    "view",
    "pid",
    "ipc",
    "uts",
    "network",
    "cgroups",
    "seccomp",
)


class TaskUser(msgspec.Struct, frozen=True, kw_only=True):
    """User of a task."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str
    home: str = "/"


class ExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Operator's settings. Lists are separated by commas."""

    #: off: no isolated process is started on this node, with any kernel.
    enabled: bool = True
    #: what must work here, else the driver is off with a reason; `files` is a view or Landlock.
    require: str = "user,files"
    #: user of tasks that name none.
    user: str = "nobody"
    #: names or numbers that no task may run as, beside root and all below `uid_min`.
    denied_users: str = ""
    #: users of the system itself have smaller numbers.
    uid_min: int = 1000
    #: further paths of the node that every task may read and execute, and all below.
    paths: str = ""
    #: capabilities that jobs may add.
    allowed_caps: str = ""
    #: jobs may ask to see all processes of the node, or its shared memory.
    allow_host_namespaces: bool = False
    #: `memory_max = -1`.
    allow_unlimited_memory: bool = False
    #: off: every task has a network of its own with nothing but the loopback.
    allow_host_network: bool = True
    #: refuse system calls that no ordinary task makes.
    seccomp: bool = True
    #: processes and threads of one task.
    pids_limit: int = 4096
    #: open files of one process.
    open_files: int = 65_536
    #: processes of one user, all tasks together; 0: what the agent has.
    user_processes: int = 0
    #: where the cgroups are in each hierarchy.
    cgroup_parent: str = "caravan"
    #: arguments that jobs may give to qemu; `*`: any.
    qemu_args: str = ""
    #: directories with disk images that qemu may use.
    qemu_images: str = ""

    @property
    def demanded(self) -> tuple[str, ...]:
        """Kinds of isolation that must work."""
        return split_list(self.require)

    def forbids(self, asked: IsolationOptions, memory_max_mib: int = 0) -> str:
        """Explain why this node refuses a task's options; empty: it accepts them."""
        if memory_max_mib < 0 and not self.allow_unlimited_memory:
            text = "memory_max -1 is not allowed on this node"
            return f"{text} ({PREFIX}ALLOW_UNLIMITED_MEMORY)"
        for cap in asked.cap_add:
            if cap not in split_list(self.allowed_caps):
                return f"cap_add: {cap[:40]} is not allowed on this node ({PREFIX}ALLOWED_CAPS)"
        for name in ("pid_mode", "ipc_mode"):
            if getattr(asked, name) == "host" and not self.allow_host_namespaces:
                text = f"{name} host is not allowed on this node"
                return f"{text} ({PREFIX}ALLOW_HOST_NAMESPACES)"
        if asked.network_mode == "host" and not self.allow_host_network:
            return f"network_mode host is not allowed on this node ({PREFIX}ALLOW_HOST_NETWORK)"
        return ""

    def user_of(self, name: str) -> TaskUser | str:
        """Find the user of a task, or the reason for a refusal. `name` empty: the node's default."""
        asked = name or self.user
        try:
            found = pwd.getpwuid(int(asked)) if asked.isdigit() else pwd.getpwnam(asked)
        except (KeyError, OverflowError):
            return f"user {asked[:80]!r} is not known on this node"
        denied = split_list(self.denied_users)
        if found.pw_uid == 0 or found.pw_gid == 0 or found.pw_uid < self.uid_min:
            return f"user {asked[:80]!r} is a system user (uid below {PREFIX}UID_MIN) and not allowed for tasks"
        if found.pw_name in denied or str(found.pw_uid) in denied:
            return f"user {asked[:80]!r} is denied on this node ({PREFIX}DENIED_USERS)"
        return TaskUser(
            uid=found.pw_uid,
            gid=found.pw_gid,
            groups=_groups(found.pw_name, found.pw_gid),
            name=found.pw_name,
            home=found.pw_dir,
        )


def _groups(name: str, gid: int) -> tuple[int, ...]:
    """The groups of a user; those of the system (docker, disk, shadow) are not a task's."""
    return tuple(one for one in os.getgrouplist(name, gid) if one == gid or one >= 1000)


def exec_settings(environ: Mapping[str, str]) -> ExecSettings:
    """Read the settings. Raises ConfigInvalid."""
    found = settings_from(ExecSettings, environ, prefix=PREFIX)
    for kind in found.demanded:
        if kind not in ISOLATION_KINDS:
            raise ConfigInvalid(
                f"{PREFIX}REQUIRE: unknown isolation kind {kind!r}, expected one of {', '.join(ISOLATION_KINDS)}"
            )
    for cap in split_list(found.allowed_caps):
        if cap not in CAPABILITIES:
            raise ConfigInvalid(f"{PREFIX}ALLOWED_CAPS: capability {cap!r} cannot be granted")
    for path in (*split_list(found.paths), *split_list(found.qemu_images)):
        if not path.startswith("/") or ".." in path.split("/") or path.strip("/") == "":
            raise ConfigInvalid(
                f"{PREFIX}PATHS, {PREFIX}QEMU_IMAGES: {path!r} must be an absolute path below /"
            )
    parts = found.cgroup_parent.split("/")
    if not all(parts) or ".." in parts:
        raise ConfigInvalid(
            f"{PREFIX}CGROUP_PARENT: {found.cgroup_parent!r} must be a relative path without .."
        )
    if found.pids_limit < 1 or found.open_files < 16:
        raise ConfigInvalid(f"{PREFIX}PIDS_LIMIT must be above 0, {PREFIX}OPEN_FILES above 15")
    return found
