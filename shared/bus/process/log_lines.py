"""The lines that this process logs, for readers that follow them: `configure_logging` passes each by here.

A line is made once for all followers. A follower that is slow loses lines, and hears how many: logging never waits.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

#: Lines that wait for one follower, and their bytes.
LINES_MAX, BYTES_MAX = 1_000, 1 << 20
_FIRST = ("timestamp", "level", "event")


class LineFollower:
    """Keeps the lines of a level and above until they are taken. `wake` is called from any thread."""

    def __init__(self, level: int, wake: Callable[[], None], *, as_json: bool) -> None:
        self.level = level
        self.as_json = as_json
        self._wake = wake
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def add(self, line: bytes) -> None:
        """Keep a line, or count it where too much waits."""
        with self._lock:
            if len(self._lines) >= LINES_MAX or self._size + len(line) > BYTES_MAX:
                self._dropped += 1
                return
            self._lines.append(line)
            self._size += len(line)
        self._wake()

    def take(self, bytes_max: int) -> bytes:
        """Take whole lines of at most so many bytes, at least one where there is one; then how many were lost."""
        with self._lock:
            parts: list[bytes] = []
            size = 0
            while self._lines and (not parts or size + len(self._lines[0]) <= bytes_max):
                parts.append(self._lines.popleft())
                size += len(parts[-1])
            self._size -= size
            if self._dropped and not self._lines:
                fields = {
                    "event": "monitor.lines_dropped",
                    "level": "warning",
                    "lines": self._dropped,
                }
                parts.append(as_json(fields) if self.as_json else as_text(fields))
                self._dropped = 0
        return b"".join(parts)


class LogLines:
    """A processor of structlog, just before a line is written."""

    def __init__(self) -> None:
        self._followers: tuple[LineFollower, ...] = ()

    def __len__(self) -> int:
        """Number of followers."""
        return len(self._followers)

    def follow(self, follower: LineFollower) -> None:
        """Pass each line to a follower from now on."""
        self._followers = (*self._followers, follower)

    def leave(self, follower: LineFollower) -> None:
        """Pass it no more."""
        self._followers = tuple(one for one in self._followers if one is not follower)

    def __call__(self, _logger: Any, _method: str, fields: MutableMapping[str, Any]) -> Any:
        """See one line."""
        if self._followers:
            level = logging.getLevelNamesMapping().get(str(fields.get("level", "")).upper(), 0)
            made: dict[bool, bytes] = {}
            for one in self._followers:
                if level >= one.level:
                    if one.as_json not in made:
                        made[one.as_json] = as_json(fields) if one.as_json else as_text(fields)
                    one.add(made[one.as_json])
        return fields


def as_json(fields: Mapping[str, Any]) -> bytes:
    """A line as the service writes it where it writes JSON."""
    return json.dumps(dict(fields), default=str).encode() + b"\n"


def as_text(fields: Mapping[str, Any]) -> bytes:
    """A line in the form of Nomad's agents: time, level, event, and fields with their values quoted where needed."""
    level = str(fields.get("level", "")).upper()
    text = f"{fields.get('timestamp', '')} [{level}] {fields.get('event', '')}"
    more = "".join(
        f" {name}={_quoted(value)}" for name, value in fields.items() if name not in _FIRST
    )
    return f"{_plain(text)}{':' if more else ''}{more}\n".lstrip().encode(errors="backslashreplace")


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    is_word = text.isprintable() and not any(one in text for one in ' "=')
    return text if is_word and text else json.dumps(text)


def _plain(text: str) -> str:
    """Without line ends and control characters: one event is one line."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


#: Of this process.
LOG_LINES = LogLines()
