"""Reads the log of a task: the rotated files in order, then the active one.

Decides how a reader keeps its position while the beginning of the active file moves to a numbered file
(`log_rotation.py`): the active file then has that many bytes less in front, and the numbered file begins with the
beginning of a line that the file before it ended with.
"""

import errno
import os
from collections import deque

import msgspec

from services.agent.executor.log_rotation import MOVING, OpenLog, cut_line, data_range

#: No such file, or something else in its place.
_NO_LOG = (errno.ENOENT, errno.EINVAL)
_BLOCK = 1 << 16


class LogPosition(msgspec.Struct, frozen=True):
    """Where a reader is."""

    #: number of the last file that was given whole, and the bytes of it that the next number will begin with.
    last: int = 0
    cut: int = 0
    #: bytes of the file behind that one that were given; of the active file, behind its hole.
    given: int = 0


_BEGINNING = LogPosition()


class TaskLogReader:
    """One output of one task. `take` gives what was not given before.

    What was not read in time may have left: then the reading begins again with the oldest line, or, with `stops`, gives
    nothing until `pass_gap`.
    """

    def __init__(
        self, log: OpenLog, position: LogPosition = _BEGINNING, *, stops: bool = False
    ) -> None:
        self._log = log
        self._last, self._cut, self._given = position.last, position.cut, position.given
        self._stops = stops

    @property
    def position(self) -> LogPosition:
        """Where it is: another reader continues from there."""
        return LogPosition(self._last, self._cut, self._given)

    def behind(self) -> int:
        """About how many bytes were not given, without those of files that have left."""
        sizes = [
            self._read(self._log.file_name(str(number)), 0, size_only=True)[1]
            for number in self._log.numbers()
            if number > self._last
        ]
        sizes.append(self._read(self._log.name, 0, skips_hole=True, size_only=True)[1])
        return max(sum(sizes) - self._given, 0)

    def pass_gap(self) -> int:
        """Go to the oldest file if files in front of it left unread; returns about how many bytes those had."""
        numbers = self._log.numbers()
        gone = numbers[0] - self._last - 1 if numbers else 0
        if gone <= 0:
            return 0
        size = self._read(self._log.file_name(str(numbers[0])), 0, size_only=True)[1]
        read = self._cut + self._given
        self._last, self._cut, self._given = numbers[0] - 1, 0, 0
        return max(gone * size - read, 1)

    def pass_to(self, left: int) -> int:
        """Go on until about `left` bytes were not given; returns how many were passed, 0 while a file moves."""
        if self._is_moving():
            return 0
        before, excess, passed = self._log.numbers(), self.behind() - left, 0
        last, cut, given = self._last, self._cut, self._given
        for number in (one for one in before if one > self._last):
            given = given + cut if number == last + 1 else 0
            name = self._log.file_name(str(number))
            here = max(self._read(name, 0, size_only=True)[1] - given, 0)
            if passed + here > excess:
                last, cut = number - 1, 0
                break
            passed += here
            last, cut, given = number, self._cut_bytes(name), 0
        step = max(excess - passed, 0)
        if self._is_moving() or self._log.numbers() != before or passed + step == 0:
            return 0
        self._last, self._cut, self._given = last, cut, given + step
        return passed + step

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
            if number != last + 1 and self._stops:
                return b"", (last, cut, given)
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

    def _read(
        self, name: str, at: int, *, skips_hole: bool = False, size_only: bool = False
    ) -> tuple[bytes, int]:
        """Read one file from `at` on. Returns the bytes and its size; nothing for what is not a log."""
        try:
            fd = self._log.open(os.O_RDONLY, name)
        except OSError as err:
            if err.errno not in _NO_LOG:
                raise
            return b"", 0
        try:
            start, size = data_range(fd) if skips_hole else (0, os.fstat(fd).st_size)
            return b"" if size_only else os.pread(fd, _BLOCK, start + at), size - start
        finally:
            os.close(fd)
