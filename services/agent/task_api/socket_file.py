"""The socket of a task: made in its secrets directory without following a link, for its user alone.

The directory is the task's: a running task may put anything there while an agent that starts again makes the socket
anew. So the directory is opened step by step, the socket is bound below its descriptor, and its owner changes by a
descriptor that was checked.
"""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from services.agent.safe_open import HANDLE, open_below, open_within

NAME = "api.sock"
MODE = 0o600
#: Connections that wait to be accepted; further ones are refused by the kernel, or wait, as their makers want.
BACKLOG = 64


def make_socket(top: Path, folder: Path, owner: tuple[int, int]) -> socket.socket:
    """Listen on `api.sock` in a folder below `top`, in the place of a file of that name; `owner`: -1: the agent's user.

    Raises OSError.
    """
    directory = open_below(top, folder)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(NAME, dir_fd=directory)
        # The file gets the mode of the socket: it is never there with another one.
        os.fchmod(made.fileno(), MODE)
        # Fails for whatever has the name by now, a link included.
        made.bind(f"/proc/self/fd/{directory}/{NAME}")
        _give(directory, owner)
        made.listen(BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return made


def remove_socket(top: Path, folder: Path) -> None:
    """Remove the file of a socket; what is no socket stays."""
    with contextlib.suppress(OSError):
        directory = open_below(top, folder)
        try:
            if stat.S_ISSOCK(os.stat(NAME, dir_fd=directory, follow_symlinks=False).st_mode):
                os.unlink(NAME, dir_fd=directory)
        finally:
            os.close(directory)


def _give(directory: int, owner: tuple[int, int]) -> None:
    """Make the socket that was just bound the task's. Raises OSError."""
    if owner == (-1, -1):
        return
    fd = open_within(directory, NAME, flags=HANDLE)
    try:
        found = os.fstat(fd)
        is_ours = (
            stat.S_ISSOCK(found.st_mode)
            and found.st_nlink == 1
            and found.st_uid == os.geteuid()
            and stat.S_IMODE(found.st_mode) == MODE
        )
        if not is_ours:
            raise OSError(errno.EINVAL, "the task replaced its socket", NAME)
        os.chown(f"/proc/self/fd/{fd}", *owner)
    finally:
        os.close(fd)
