"""Keeps the output of tasks within bounds: by size and count, without a process beside the task.

A task writes into `<task>.stdout.0` by itself, so it goes on while the agent is away. When that file has grown past
its size, its beginning moves to `<task>.stdout.<n>`, n counting up, and the oldest of those leave. Nothing is lost: the
task appends, so what is copied does not change any more. The copied range is then turned into a hole by the kernel,
which also tells a later life how far a move came, and where the file system can, the hole is taken out of the front.
Readers: `services/cli/log_files.py`.

Rejected: copy and truncate (what is written between the two is lost), a pipe to a process of ours (its memory, and
its end is the task's).
"""

import ctypes
import errno
import os
from pathlib import Path

import structlog

from shared.core.tasks import LogLimits

#: Fallocate(2): take a range out and move the rest forward; make a range a hole.
_COLLAPSE, _PUNCH = 0x08, 0x02 | 0x01
#: Both work on whole blocks; no file system we know has larger ones than this.
BLOCK = 4096
#: Between the copy and the new name.
MOVING = "moving"
#: Devices whose file system makes no holes; found out once.
_without_holes: set[int] = set()
_log = structlog.get_logger()
_libc = ctypes.CDLL(None, use_errno=True)


def rotate(active: Path, limits: LogLimits) -> int:
    """Move what is too much out of a log; returns how many files that made. Raises OSError."""
    try:
        fd = os.open(active, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    made = 0
    try:
        if os.fstat(fd).st_dev in _without_holes:
            return 0
        _finish(active, fd)
        chunk = max(limits.file_bytes // BLOCK, 1) * BLOCK
        while True:
            start, end = data_range(fd)
            if end - start <= chunk or not _move(active, fd, start, chunk):
                break
            made += 1
        _prune(active, max(limits.files - 1, 0))
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


def numbers(active: Path) -> list[int]:
    """Numbers of the older files of a log, oldest first."""
    head = active.name.removesuffix("0")
    found = (path.name.removeprefix(head) for path in active.parent.glob(f"{_plain(head)}*"))
    return sorted(int(tail) for tail in found if tail.isdigit() and tail != "0")


def _plain(text: str) -> str:
    """Escape what a pattern would read."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def _beside(active: Path, tail: str) -> Path:
    return active.with_name(active.name.removesuffix("0") + tail)


def _copy(fd: int, to: Path, start: int, size: int) -> None:
    to.unlink(missing_ok=True)
    out = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        at = start
        while at < start + size:
            part = os.pread(fd, min(1 << 20, start + size - at), at)
            at += len(part)
            while part:
                part = part[os.write(out, part) :]
        os.fsync(out)
    finally:
        os.close(out)


def _move(active: Path, fd: int, start: int, size: int) -> bool:
    """Move a range from the front of the data to a file of its own; False where the file system cannot do that."""
    moving = _beside(active, f"{MOVING}{start}")
    _copy(fd, moving, start, size)
    if not _fallocate(fd, _PUNCH, 0, start + size):
        _without_holes.add(os.fstat(fd).st_dev)
        _log.warning("logs.not_rotated", path=str(active), error=os.strerror(ctypes.get_errno()))
        moving.unlink()
        return False
    _name(active, moving)
    _fallocate(fd, _COLLAPSE, 0, start + size)
    return True


def _fallocate(fd: int, mode: int, offset: int, size: int) -> bool:
    found = _libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(size))
    return int(found) == 0


def _name(active: Path, moving: Path) -> None:
    number = max(numbers(active), default=0) + 1
    moving.rename(_beside(active, str(number)))


def _finish(active: Path, fd: int) -> None:
    """End a move that a crash cut short: where its hole is not there yet, the copy says nothing new."""
    for moving in unfinished(active):
        tail = moving.name.rpartition(MOVING)[2]
        start, _ = data_range(fd)
        if tail.isdigit() and start > int(tail):
            _name(active, moving)
            _fallocate(fd, _COLLAPSE, 0, start // BLOCK * BLOCK)
        else:
            moving.unlink()


def unfinished(active: Path) -> list[Path]:
    """Moves under way: while there is one, the files of a log do not fit together."""
    return list(active.parent.glob(f"{_plain(active.name.removesuffix('0'))}{MOVING}*"))


def _prune(active: Path, keep: int) -> None:
    found = numbers(active)
    for number in found[: max(len(found) - keep, 0)]:
        _beside(active, str(number)).unlink(missing_ok=True)
