"""Reads the log of a task: the rotated files in order, then the active one.

Decides how a reader keeps its position while the beginning of the active file moves to a numbered file
(`log_rotation.py`): the active file then has that many bytes less in front, and the numbered file begins with the
beginning of a line that the file before it ended with.
"""

import errno
import os
from collections import deque

from services.agent.executor.log_rotation import MOVING, OpenLog, cut_line, data_range

#: No such file, or something else in its place.
_NO_LOG = (errno.ENOENT, errno.EINVAL)
_BLOCK = 1 << 16


class TaskLogReader:
    """One output of one task. `take` gives what was not given before."""

    def __init__(self, log: OpenLog) -> None:
        self._log = log
        #: number of the last file that was given whole, and the bytes of it that the next number will begin with.
        self._last = 0
        self._cut = 0
        #: bytes of the file behind that one that were given; of the active file, behind its hole.
        self._given = 0

    def tail(self, lines: int, bytes_max: int = 0) -> bytes:
        """Return the last lines, at most `bytes_max` bytes (0: any number), and go to the end.

        A line ends with a newline alone: what a carriage return rewrites is one line.
        """
        kept: deque[bytes] = deque(maxlen=lines or None)
        length = 0
        rest = bytearray()
        while part := self.take():
            head, newline, end = part.rpartition(b"\n")
            if newline:
                kept.extend(line + b"\n" for line in (bytes(rest) + head).split(b"\n"))
                rest = bytearray(end)
            else:
                rest += part
                if bytes_max and len(rest) > 2 * bytes_max:
                    del rest[:-bytes_max]
            length = sum(map(len, kept)) if bytes_max else 0
            while bytes_max and length > bytes_max and kept:
                length -= len(kept.popleft())
        if rest:
            kept.append(bytes(rest))
        found = b"".join(kept)
        return found[-bytes_max:] if bytes_max else found

    def skip(self) -> None:
        """Go to the end."""
        while self.take():
            pass

    def take(self) -> bytes:
        """Return the next bytes; empty: nothing new."""
        for _ in range(1000):
            if self._is_moving():
                continue
            before = self._log.numbers()
            found = self._next(before)
            if not self._is_moving() and self._log.numbers() == before:
                data, (self._last, self._cut, self._given) = found
                return data
        return b""

    def _next(self, older: list[int]) -> tuple[bytes, tuple[int, int, int]]:
        """What comes next, and the place behind it."""
        last, cut, given = self._last, self._cut, self._given
        for number in older:
            if number <= last:
                continue
            # What was not read in time may have left: then the reading begins again with the oldest line.
            given = given + cut if number == last + 1 else 0
            name = self._log.file_name(str(number))
            data, size = self._read(name, given)
            if given < size:
                return data, (number - 1, 0, given + len(data))
            last, cut, given = number, self._cut_bytes(name), given - size
        data, _ = self._read(self._log.name, given, skips_hole=True)
        return data, (last, cut, given + len(data))

    def _cut_bytes(self, name: str) -> int:
        try:
            fd = self._log.open(os.O_RDONLY, name)
        except OSError as err:
            if err.errno not in _NO_LOG:
                raise
            return 0
        try:
            return len(cut_line(fd))
        finally:
            os.close(fd)

    def _is_moving(self) -> bool:
        head = self._log.file_name(MOVING)
        return any(name.startswith(head) for name in self._log.names())

    def _read(self, name: str, at: int, *, skips_hole: bool = False) -> tuple[bytes, int]:
        """Read one file from `at` on. Returns the bytes and its size; nothing for what is not a log."""
        try:
            fd = self._log.open(os.O_RDONLY, name)
        except OSError as err:
            if err.errno not in _NO_LOG:
                raise
            return b"", 0
        try:
            start, size = data_range(fd) if skips_hole else (0, os.fstat(fd).st_size)
            return os.pread(fd, _BLOCK, start + at), size
        finally:
            os.close(fd)
