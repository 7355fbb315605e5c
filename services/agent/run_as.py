"""Gives an agent's process to another user, after it has read its login: its tasks run as that user and cannot.

In containers the agent has no rights to isolate tasks with, so that they share its user; the login's file is root's.
"""

import ctypes
import os
from pathlib import Path

import msgspec

from shared.bus.process.settings import RunSettings
from shared.errors import ConfigInvalid

_PR_SET_DUMPABLE = 4


def run_as(user: str, settings: RunSettings) -> RunSettings:
    """Become `UID:GID` for good; empty: stay. Returns the settings with the credentials as a file in memory.

    Raises ConfigInvalid: not two numbers, not root, or the credentials cannot be read.
    """
    if not user:
        return settings
    try:
        uid, gid = (int(part) for part in user.split(":"))
    except ValueError:
        raise ConfigInvalid(f"CARAVAN_AGENT_RUN_AS is {user!r}, not UID:GID") from None
    try:
        held = _in_memory(settings.credentials) if settings.credentials else ""
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as err:
        raise ConfigInvalid(f"CARAVAN_AGENT_RUN_AS={user}: {err}") from err
    # Other processes of this user, tasks among them, can neither trace this one nor open its files by /proc.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise ConfigInvalid(f"CARAVAN_AGENT_RUN_AS={user}: {os.strerror(ctypes.get_errno())}")
    os.environ["HOME"] = "/"
    return msgspec.structs.replace(settings, credentials=held)


def _in_memory(path: str) -> str:
    """Copy a file into memory that no child inherits; returns where this process opens it."""
    fd = os.memfd_create("credentials")
    os.write(fd, Path(path).read_bytes())
    return f"/proc/self/fd/{fd}"
