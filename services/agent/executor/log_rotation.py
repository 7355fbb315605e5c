"""Rotates the logs of tasks by size and count, without a process beside the task.

A task writes into `<task>.stdout.0` by itself, so it continues while the agent is away. When that file has grown past
its size, its beginning moves to `<task>.stdout.<n>`, n counting up, and the oldest of those leave. Nothing is lost: the
task appends, so what is copied does not change any more. The copied range is then turned into a hole by the kernel,
which also tells a later agent process how far a move came, and where the file system can, the hole is taken out of
the front.
A move takes whole blocks, so its end is inside a line: the beginning of that line leaves the file with the next move,
and comes first in the next file. Each file but the active one thus begins with a line, also after older ones left.
Readers: `log_reader.py`.

Rejected: copy and truncate (what is written between the two is lost), a pipe to a process of the agent (its memory, and
its end is the task's).
"""

import contextlib
import ctypes
import errno
import os

import msgspec
import structlog

from services.agent.safe_open import open_regular
from shared.core.runtime.agent_messages import LogLimits

#: Fallocate(2): take a range out and move the rest forward; make a range a hole.
_COLLAPSE, _PUNCH = 0x08, 0x02 | 0x01
#: Both work on whole blocks; no file system we know has larger ones than this.
BLOCK = 4096
#: Between the copy and the new name.
MOVING = "moving"
#: Of a longer line the beginning stays in its file.
LINE_MAX = 1 << 16
#: Devices whose file system makes no holes; found out once.
_without_holes: set[int] = set()
_log = structlog.get_logger()
_libc = ctypes.CDLL(None, use_errno=True)


class OpenLog(msgspec.Struct, frozen=True):
    """One output of one task: an open directory and the name of the file in it that is written to."""

    directory_fd: int
    name: str

    def file_name(self, tail: str) -> str:
        """Name of another file of this log."""
        return self.name.removesuffix("0") + tail

    def names(self) -> list[str]:
        """Names of its files of any type."""
        head = self.file_name("")
        with os.scandir(self.directory_fd) as found:
            return [one.name for one in found if one.name.startswith(head)]

    def numbers(self) -> list[int]:
        """Numbers of its rotated files, oldest first."""
        head = self.file_name("")
        found = (name.removeprefix(head) for name in self.names())
        return sorted(int(tail) for tail in found if tail.isdigit() and tail != "0")

    def open(self, flags: int, name: str = "") -> int:
        """Open one of its files, by default the active one. Raises OSError for anything but a regular file."""
        return open_regular(name or self.name, self.directory_fd, flags)


def rotate(log: OpenLog, limits: LogLimits) -> int:
    """Move what is too much out of a log; returns how many files that made. Raises OSError."""
    try:
        fd = log.open(os.O_RDWR)
    except FileNotFoundError:
        return 0
    made = 0
    # A single file could not begin with a line: two of half its size.
    files, file_bytes = max(limits.files, 2), limits.file_bytes // (1 if limits.files > 1 else 2)
    try:
        if os.fstat(fd).st_dev in _without_holes:
            return 0
        _finish_interrupted(log, fd)
        while True:
            start, end = data_range(fd)
            head = _cut_line(log)
            chunk = max((file_bytes - len(head)) // BLOCK, 1) * BLOCK
            if end - start <= max(file_bytes, BLOCK) or not _move(log, fd, start, chunk, head=head):
                break
            made += 1
        _prune(log, files - 1)
    finally:
        os.close(fd)
    return made


def data_range(fd: int) -> tuple[int, int]:
    """Where the data of a log begins behind its hole, and where it ends."""
    end = os.fstat(fd).st_size
    if end == 0:
        return 0, 0
    try:
        return os.lseek(fd, 0, os.SEEK_DATA), end
    except OSError as err:
        if err.errno == errno.ENXIO:
            return end, end
        return 0, end


def cut_line(fd: int) -> bytes:
    """Return the beginning of a line at the end of a rotated file; empty: it ends with a line, or in a long one."""
    size = os.fstat(fd).st_size
    end = os.pread(fd, LINE_MAX, max(size - LINE_MAX, 0))
    _, newline, rest = end.rpartition(b"\n")
    return rest if newline else b""


def _cut_line(log: OpenLog) -> bytes:
    """Return the beginning of the line that continues in the active file."""
    numbers = log.numbers()
    # The files are the task's: what it put in place of one is left alone.
    with contextlib.suppress(OSError):
        fd = log.open(os.O_RDONLY, log.file_name(str(max(numbers, default=0))))
        try:
            return cut_line(fd) if numbers else b""
        finally:
            os.close(fd)
    return b""


def _copy(log: OpenLog, fd: int, to: str, *, head: bytes, start: int, size: int) -> None:
    _unlink(log, to)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    out = os.open(to, flags, 0o644, dir_fd=log.directory_fd)
    try:
        _write_all(out, head)
        at = start
        while at < start + size:
            part = os.pread(fd, min(1 << 20, start + size - at), at)
            at += len(part)
            _write_all(out, part)
        os.fsync(out)
    except OSError:
        # A full disk: half a copy is useless, and its space is needed.
        _unlink(log, to)
        raise
    finally:
        os.close(out)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _unlink(log: OpenLog, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=log.directory_fd)


def _move(log: OpenLog, fd: int, start: int, size: int, *, head: bytes) -> bool:
    """Move a range from the front of the data to a file of its own; False where the file system cannot do that.

    `head`: the beginning of the line that the range begins inside, from the file before.
    """
    moving = log.file_name(f"{MOVING}{start}")
    _copy(log, fd, moving, head=head, start=start, size=size)
    if not _fallocate(fd, _PUNCH, 0, start + size):
        _without_holes.add(os.fstat(fd).st_dev)
        _log.warning("logs.not_rotated", log=log.name, error=os.strerror(ctypes.get_errno()))
        _unlink(log, moving)
        return False
    _number_file(log, moving)
    _fallocate(fd, _COLLAPSE, 0, start + size)
    return True


def _fallocate(fd: int, mode: int, offset: int, size: int) -> bool:
    found = _libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(size))
    return int(found) == 0


def _number_file(log: OpenLog, moving: str) -> None:
    newest = max(log.numbers(), default=0)
    if newest:
        with contextlib.suppress(OSError):
            _drop_cut_line(log, log.file_name(str(newest)), moving)
    there = log.directory_fd
    os.rename(moving, log.file_name(str(newest + 1)), src_dir_fd=there, dst_dir_fd=there)


def _drop_cut_line(log: OpenLog, before: str, moving: str) -> None:
    """Take the beginning of a line from the end of a file, if it is the beginning of the next one by now."""
    fd = log.open(os.O_RDWR, before)
    try:
        head = cut_line(fd)
        new = log.open(os.O_RDONLY, moving)
        try:
            is_there = os.pread(new, len(head), 0) == head
        finally:
            os.close(new)
        if head and is_there:
            os.ftruncate(fd, os.fstat(fd).st_size - len(head))
    finally:
        os.close(fd)


def _finish_interrupted(log: OpenLog, fd: int) -> None:
    """End a move that a crash cut short: where its hole is not there yet, the copy is a duplicate."""
    head = log.file_name(MOVING)
    for moving in log.names():
        if not moving.startswith(head):
            continue
        tail = moving.removeprefix(head)
        start, _ = data_range(fd)
        if tail.isdigit() and start > int(tail):
            _number_file(log, moving)
            _fallocate(fd, _COLLAPSE, 0, start // BLOCK * BLOCK)
        else:
            _unlink(log, moving)


def _prune(log: OpenLog, keep: int) -> None:
    found = log.numbers()
    for number in found[: max(len(found) - keep, 0)]:
        _unlink(log, log.file_name(str(number)))
