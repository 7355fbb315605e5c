"""Reading what a task wrote: the older files in order, then the one being written.

Decides how a reader keeps its place while the beginning of a log moves to a file of its own
(`edge_logs.py`): a new file with a number is that many bytes less in front of the one being written.
"""

import errno
import os
import stat
from collections import deque
from pathlib import Path

_MOVING = "moving"
#: Nothing there, or a link.
_NO_LOG = (errno.ENOENT, errno.ELOOP)
_BLOCK = 1 << 16


class LogFiles:
    """One output of one task. `take` gives what was not given before."""

    def __init__(self, active: Path) -> None:
        self._active = active
        self._head = active.name.removesuffix("0")
        self._last = 0
        #: bytes of the active file, behind its hole, that were given.
        self._given = 0

    def size(self) -> int:
        """How much is kept, all files together."""
        older = sum(path.stat().st_size for _, path in self._older())
        start, end = _range(self._active)
        return older + end - start

    def tail(self, lines: int, bytes_max: int = 0) -> bytes:
        """Give the last lines, at most `bytes_max` bytes (0: any number), and go to the end."""
        kept: deque[bytes] = deque(maxlen=lines or None)
        length = 0
        rest = b""
        while part := self.take():
            whole = (rest + part).splitlines(keepends=True)
            rest = whole.pop() if whole and not whole[-1].endswith(b"\n") else b""
            kept.extend(whole)
            length = sum(map(len, kept)) if bytes_max else 0
            while bytes_max and length > bytes_max and kept:
                length -= len(kept.popleft())
        if rest:
            kept.append(rest)
        found = b"".join(kept)
        return found[-bytes_max:] if bytes_max else found

    def take(self) -> bytes:
        """Give the next bytes; empty: nothing new."""
        for _ in range(1000):
            if self._is_moving():
                continue
            before = self._older()
            found = self._next(before)
            if not self._is_moving() and self._older() == before:
                data, self._last, self._given = found
                if data or (self._last, self._given) == found[1:]:
                    return data
        return b""

    def _next(self, older: list[tuple[int, Path]]) -> tuple[bytes, int, int]:
        """What comes next, and the place behind it."""
        last, given = self._last, self._given
        for number, path in older:
            if number <= last:
                continue
            size = path.stat().st_size
            if given < size:
                data = _read(path, given)
                return data, last, given + len(data)
            last, given = number, given - size
        start, _ = _range(self._active)
        data = _read(self._active, start + given)
        return data, last, given + len(data)

    def _older(self) -> list[tuple[int, Path]]:
        tails = [name.removeprefix(self._head) for name in self._names()]
        found = sorted(int(tail) for tail in tails if tail.isdigit() and tail != "0")
        return [(number, self._active.with_name(f"{self._head}{number}")) for number in found]

    def _is_moving(self) -> bool:
        return any(name.startswith(f"{self._head}{_MOVING}") for name in self._names())

    def _names(self) -> list[str]:
        try:
            names = [path.name for path in self._active.parent.iterdir()]
        except FileNotFoundError:
            return []
        return [name for name in names if name.startswith(self._head)]


def _open(path: str, flags: int) -> int:
    """Open a log and nothing else: its task may have put a link or a pipe in its place."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "log is no plain file", path)
    return fd


def _read(path: Path, at: int) -> bytes:
    try:
        with open(path, "rb", opener=_open) as file:
            file.seek(at)
            return file.read(_BLOCK)
    except OSError as err:
        if err.errno not in _NO_LOG:
            raise
        return b""


def _range(path: Path) -> tuple[int, int]:
    """Where the data behind the hole in front begins, and where it ends."""
    try:
        with open(path, "rb", opener=_open) as file:
            end = file.seek(0, 2)
            if not end:
                return 0, 0
            try:
                return os.lseek(file.fileno(), 0, os.SEEK_DATA), end
            except OSError as err:
                return (end, end) if err.errno == errno.ENXIO else (0, end)
    except OSError as err:
        if err.errno not in _NO_LOG:
            raise
        return 0, 0
