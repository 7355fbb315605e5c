"""What a helper process does before it reads what others wrote: it becomes another user, and gains nothing again."""

import errno
import os
import resource
import signal
from collections.abc import Mapping

from services.agent.drivers.isolation import kernel

#: User and group of a helper, where the agent is root.
UNPRIVILEGED_ID = 65_534


def give_up_rights(*, owner: tuple[int, int], parent_pid: int, limits: Mapping[int, int]) -> None:
    """Become `owner` (-1: stay), die with the parent, and take limits of resources. Raises OSError."""
    uid, gid = owner
    if uid >= 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise OSError(errno.ESRCH, "the parent has ended")
    kernel.no_new_privileges()
    for what, most in limits.items():
        resource.setrlimit(what, (most, most))
