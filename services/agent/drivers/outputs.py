"""Opening what a task's output goes into, where the task may have put something else in its way.

Decides what is a log: a plain file with one name, found without following a link and without waiting for a pipe's
reader. Lives in the starter too: must not import much.
"""

import os
import stat

_FLAGS = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    | os.O_NOFOLLOW
    | os.O_NONBLOCK
    | os.O_CLOEXEC
    | os.O_NOCTTY
)


def open_log(name: str, directory: int, mode: int) -> int:
    """Open a log in an open directory; it is made with `mode`. Raises OSError; the caller closes it."""
    try:
        fd = os.open(name, _FLAGS, mode, dir_fd=directory)
    except OSError as err:
        # ENXIO: a pipe without a reader; ELOOP: a link.
        raise OSError(22, f"log {name} is no plain file: {err.strerror}") from err
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(fd)
        raise OSError(22, f"log {name} is no plain file")
    os.set_blocking(fd, True)
    return fd
