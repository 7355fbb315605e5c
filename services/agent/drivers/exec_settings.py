"""What an operator allows isolated processes on this node, from `CARAVAN_EXEC_*`.

Decides what is refused here although a job may ask for it, and which isolation must be there for the driver to be on.
What a job may ask for at all: shared/jobspec/drivers/exec.py.
"""

import os
import pwd
from collections.abc import Mapping

import msgspec

from services.agent.drivers.isolation.kernel import CAPABILITIES
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.exec import IsolationOptions

PREFIX = "CARAVAN_EXEC_"
#: What a node can have; a demand names some of them.
KINDS = ("user", "files", "landlock", "view", "pid", "ipc", "uts", "network", "cgroups", "seccomp")


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Who a task runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str
    home: str = "/"


class ExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Operator's settings. Lists are separated by commas."""

    #: off: no isolated process is started on this node, whatever the kernel offers.
    enabled: bool = True
    #: what must work here, else the driver is off with a reason; `files` is a view or Landlock.
    require: str = "user,files"
    #: who a task runs as that names nobody.
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
    #: where the cgroups stand in each hierarchy.
    cgroup_parent: str = "caravan"
    #: arguments that jobs may give to qemu; `*`: any.
    qemu_args: str = ""
    #: paths of the node whose disk images qemu may use.
    qemu_images: str = ""

    @property
    def demanded(self) -> tuple[str, ...]:
        """Kinds of isolation that must work."""
        return listed(self.require)

    def forbids(self, asked: IsolationOptions) -> str:
        """Say why this node does not give a task what it asks for; empty: it does."""
        for cap in asked.cap_add:
            if cap not in listed(self.allowed_caps):
                return f"cap_add: {cap[:40]} is not allowed on this node ({PREFIX}ALLOWED_CAPS)"
        for name in ("pid_mode", "ipc_mode"):
            if getattr(asked, name) == "host" and not self.allow_host_namespaces:
                text = f"{name} host is not allowed on this node"
                return f"{text} ({PREFIX}ALLOW_HOST_NAMESPACES)"
        if asked.network_mode == "host" and not self.allow_host_network:
            return f"network_mode host is not allowed on this node ({PREFIX}ALLOW_HOST_NETWORK)"
        return ""

    def user_of(self, name: str) -> User | str:
        """Find who a task runs as, or say why it may not. `name` empty: the node's default."""
        asked = name or self.user
        try:
            found = pwd.getpwuid(int(asked)) if asked.isdigit() else pwd.getpwnam(asked)
        except (KeyError, OverflowError):
            return f"user {asked[:80]!r} is not known on this node"
        denied = listed(self.denied_users)
        if found.pw_uid == 0 or found.pw_gid == 0 or found.pw_uid < self.uid_min:
            return f"user {asked[:80]!r} is the system's own; no task runs as that"
        if found.pw_name in denied or str(found.pw_uid) in denied:
            return f"user {asked[:80]!r} is denied on this node ({PREFIX}DENIED_USERS)"
        return User(
            uid=found.pw_uid,
            gid=found.pw_gid,
            groups=_groups(found.pw_name, found.pw_gid),
            name=found.pw_name,
            home=found.pw_dir,
        )


def _groups(name: str, gid: int) -> tuple[int, ...]:
    """The groups of a user; those of the system (docker, disk, shadow) are not a task's."""
    return tuple(one for one in os.getgrouplist(name, gid) if one == gid or one >= 1000)


def listed(text: str) -> tuple[str, ...]:
    """Read a list that is separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def exec_settings(environ: Mapping[str, str]) -> ExecSettings:
    """Read the settings. Raises ConfigInvalid."""
    names = ExecSettings.__struct_fields__
    given = {name: environ[key] for name in names if (key := PREFIX + name.upper()) in environ}
    try:
        found = msgspec.convert(given, ExecSettings, strict=False)
    except msgspec.ValidationError as err:
        raise ConfigInvalid(f"{PREFIX}* settings: {err}") from err
    for kind in found.demanded:
        if kind not in KINDS:
            raise ConfigInvalid(f"{PREFIX}REQUIRE: {kind!r} is none of {', '.join(KINDS)}")
    for cap in listed(found.allowed_caps):
        if cap not in CAPABILITIES:
            raise ConfigInvalid(f"{PREFIX}ALLOWED_CAPS: {cap!r} is not given to a task")
    for path in (*listed(found.paths), *listed(found.qemu_images)):
        if not path.startswith("/") or ".." in path.split("/") or path.strip("/") == "":
            raise ConfigInvalid(f"{PREFIX}PATHS, {PREFIX}QEMU_IMAGES: {path!r} is no full path")
    parts = found.cgroup_parent.split("/")
    if not all(parts) or ".." in parts:
        raise ConfigInvalid(f"{PREFIX}CGROUP_PARENT: {found.cgroup_parent!r} is no place below")
    if found.pids_limit < 1 or found.open_files < 16:
        raise ConfigInvalid(f"{PREFIX}PIDS_LIMIT must be above 0, {PREFIX}OPEN_FILES above 15")
    return found
