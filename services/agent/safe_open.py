"""Opens files below a directory that tasks can write to, without following a link anywhere on the way.

Every caller names a directory that no task controls (`top`) and a path below it. Each step of the path is opened from
the descriptor of the step before, with O_NOFOLLOW, and `..` is refused: a link that a task swaps in between two steps
fails the open, a directory that it moves away stays its own. A descriptor pins what was opened: callers check it, mount
it or read it by `/proc/self/fd`, never by its path again.

The only place of the agent that opens such paths. Imported by the starter, so it imports the standard library alone.
Rejected: openat2 (older kernels and system call filters refuse it, and it cannot create directories on the way).
"""

import contextlib
import errno
import os
import stat
from pathlib import Path

_STEP = os.O_NOFOLLOW | os.O_CLOEXEC
#: The last step is a directory that is read, or used as `dir_fd`.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
#: The last step is anything, a link included; its descriptor neither reads nor blocks.
HANDLE = os.O_PATH
#: A log is appended to, and created when it is missing.
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def open_below(
    top: str | Path, path: str | Path = "", *, flags: int = DIRECTORY, make_mode: int = 0
) -> int:
    """Open a path below `top`, absolute or relative to it; `make_mode`: create missing directories with that mode.

    Raises OSError, whose filename is the step that failed: ELOOP for a link, ENOTDIR for another file in the way.
    """
    path = Path(path)
    relative = path.relative_to(top) if path.is_absolute() else path
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return _descend(fd, relative, flags, make_mode)


def is_swapped(err: OSError) -> bool:
    """Say whether an open failed for what a task put in the place of a directory: it stays there for the next try."""
    return err.errno in {errno.ELOOP, errno.ENOTDIR}


def make_below(top: str | Path, path: str | Path, mode: int = 0o755) -> None:
    """Make a directory below `top`, and those on the way, where they are missing. Raises OSError as `open_below`."""
    os.close(open_below(top, path, make_mode=mode))


def open_within(directory_fd: int, path: str, *, flags: int = DIRECTORY, make_mode: int = 0) -> int:
    """Open a path below an open directory, which stays open. Raises OSError as `open_below`."""
    return _descend(os.dup(directory_fd), Path(path), flags, make_mode)


def _descend(fd: int, path: Path, flags: int, make_mode: int) -> int:
    """Open step by step; closes `fd`."""
    parts = path.parts or (".",)
    for at, part in enumerate(parts, start=1):
        above = fd
        try:
            wanted = flags if at == len(parts) else os.O_PATH | os.O_DIRECTORY
            fd = _open_step(above, part, wanted, make_mode)
        except OSError as err:
            raise OSError(err.errno, err.strerror, "/".join(parts[:at])) from err
        finally:
            os.close(above)
    return fd


def _open_step(above: int, part: str, flags: int, make_mode: int) -> int:
    if part == "..":
        raise OSError(errno.EPERM, "a path must not contain ..")
    if make_mode:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, make_mode, dir_fd=above)
    try:
        return os.open(part, flags | _STEP, dir_fd=above)
    except OSError as err:
        # The kernel says ENOTDIR for a link, too.
        if err.errno in (errno.ENOTDIR, errno.ELOOP):
            if stat.S_ISLNK(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, "is not a directory but a symbolic link") from err
            raise OSError(errno.ENOTDIR, "is not a directory") from err
        raise


def open_regular(name: str, directory_fd: int, flags: int, mode: int = 0o644) -> int:
    """Open a log in an open directory: a regular file with one name, never a link, pipe or device.

    Does not wait for the other end of a pipe. Raises OSError: ENOENT when it is missing, else EINVAL.
    """
    try:
        fd = os.open(name, flags | _STEP | os.O_NONBLOCK | os.O_NOCTTY, mode, dir_fd=directory_fd)
    except FileNotFoundError:
        raise
    except OSError as err:
        # ENXIO: a pipe without a reader; ELOOP: a link.
        text = f"log {name} is not a regular file: {err.strerror}"
        raise OSError(errno.EINVAL, text) from err
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise OSError(errno.EINVAL, f"log {name} is not a regular file")
    os.set_blocking(fd, True)
    return fd


def open_log(top: str | Path, path: str | Path, mode: int = 0o644) -> int:
    """Open a log below `top` for appending. Raises OSError."""
    directory = open_below(top, Path(path).parent)
    try:
        return open_regular(Path(path).name, directory, APPEND, mode)
    finally:
        os.close(directory)


def write_below(top: str | Path, path: str | Path, data: bytes, *, mode: int) -> None:
    """Write a new file below `top`, with missing directories on the way; what is there already stays as it is.

    The file is whole or absent: it gets its name last. Raises OSError as `open_below`.
    """
    path = Path(path)
    directory = open_below(top, path.parent, make_mode=0o755)
    draft = f".{path.name[:200]}.draft"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.stat(path.name, dir_fd=directory, follow_symlinks=False)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _STEP
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.rename(draft, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)


def replace_below(
    top: str | Path, path: str | Path, data: bytes, *, mode: int, owner: tuple[int, int]
) -> bool:
    """Write a file below `top` in the place of what has its name; one that is equal already stays untouched.

    The file is whole or as it was, and has its mode and owner (-1: its maker's) before its name. Returns whether it was
    written. Raises OSError as `open_below`.
    """
    path = Path(path)
    directory = open_below(top, path.parent, make_mode=0o755)
    draft = f".{path.name[:200]}.draft"
    try:
        if _is_same(path.name, directory, data, mode=mode, owner=owner):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _STEP
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(data)
            file.flush()
            os.fchown(file.fileno(), *owner)
            # After the owner, whose change takes set-user bits off.
            os.fchmod(file.fileno(), mode)
        os.rename(draft, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
    return True


def _is_same(name: str, directory: int, data: bytes, *, mode: int, owner: tuple[int, int]) -> bool:
    """Say whether a regular file with one name has this content, mode and owner."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _STEP, dir_fd=directory)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return False
        wanted = (
            os.geteuid() if owner[0] < 0 else owner[0],
            found.st_gid if owner[1] < 0 else owner[1],
        )
        if found.st_size != len(data) or stat.S_IMODE(found.st_mode) != mode:
            return False
        return (found.st_uid, found.st_gid) == wanted and _content(fd, len(data)) == data
    finally:
        os.close(fd)


def _content(fd: int, size: int) -> bytes:
    """Read an open file, and one byte more than it should have."""
    parts: list[bytes] = []
    left = size + 1
    while left > 0 and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
