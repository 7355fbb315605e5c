"""Text of one output of a task, from the messages in which its node shipped it: each byte once, and marks.

Decides what is a repetition, by offsets. Where messages come from: `shipped_logs.py`.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from schemas.shipped_logs import ShippedLogs
from services.cli.runtime.output import strip_control_chars


class ShippedText:
    """One output: `stream` is stdout or stderr."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        #: offset behind what was given.
        self._at = 0
        self._in_line = False
        #: bytes given, and bytes lost.
        self.size = 0
        self.lost = 0

    def add(self, message: ShippedLogs) -> Iterator[str]:
        """Return what a message adds: lines with their ends, or parts of one. Control characters are replaced."""
        if message.stream != self._stream or len(message.lines) != len(message.sizes):
            return
        if min((message.offset, *message.sizes)) < 0:
            return
        if (missing := message.offset - self._at) > 0:
            self.lost += missing
            self._at = message.offset
            yield ("\n" if self._in_line else "") + f"[{missing} bytes lost]\n"
            self._in_line = False
        begin = message.offset
        for line, size in zip(message.lines, message.sizes, strict=True):
            end = begin + size
            if end > self._at:
                text = line
                raw = line.encode("utf-8", "replace")
                if begin < self._at and len(raw) == size:
                    # Its beginning was shipped before it had an end.
                    text = raw[self._at - begin :].decode("utf-8", "replace")
                self.size += end - self._at
                self._at = end
                self._in_line = not text.endswith("\n")
                yield strip_control_chars(text)
            begin = end


class LastLines:
    """The last lines of texts that may be parts of lines. `most`: at least 1."""

    def __init__(self, most: int) -> None:
        self._lines: deque[str] = deque(maxlen=most)

    def add(self, texts: Iterable[str]) -> None:
        """Add what follows."""
        for text in texts:
            for line in text.splitlines(keepends=True):
                if self._lines and not self._lines[-1].endswith("\n"):
                    self._lines[-1] += line
                else:
                    self._lines.append(line)

    def text(self) -> str:
        """Return the lines."""
        return "".join(self._lines)
