"""One output of a task on its way to the bus: what is sent next, and from where it continues after a crash.

Decides how bytes become lines, when a line without an end is sent, and what is given up. Sends nothing itself:
`log_shipper.py`. What is acknowledged is kept as a whole (`KeptOutput`): a batch that was not is read again.
"""

import os
import time
from pathlib import Path

import msgspec

from schemas.base import MIB
from schemas.shipped_logs import ShippedLogs
from services.agent.executor.log_reader import LogPosition, TaskLogReader
from services.agent.executor.log_rotation import OpenLog
from services.agent.safe_open import open_below

#: A longer line is sent in parts.
LINE_BYTES_MAX = 8192
#: A line without an end is sent after so long; at once when its task has ended.
PART_S = 5.0
#: More than that is not caught up with: the oldest of it is given up, until so much is left.
BEHIND_MAX, BEHIND_LEFT = 16 * MIB, 8 * MIB
_CONTINUES, _LEADING = 0x80, 0xC0


class KeptOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one output in each life of the agent: all before `offset` is acknowledged, or lost."""

    alloc_id: str
    task: str
    #: stdout or stderr.
    stream: str
    job_id: str = ""
    group: str = ""
    position: LogPosition = LogPosition()
    #: bytes of the output, from its beginning on.
    offset: int = 0
    #: bytes that were given up, and of which no reader knows yet.
    lost: int = 0

    @property
    def name(self) -> tuple[str, str, str]:
        """Allocation, task and stream."""
        return self.alloc_id, self.task, self.stream


class LineFramer:
    """Lines of chunks of bytes, each with its line feed; `rest` is the beginning of the next one."""

    def __init__(self) -> None:
        self.rest = b""

    def add(self, data: bytes) -> list[bytes]:
        """Return the lines that a chunk completes, and the parts of a long one."""
        *found, self.rest = (self.rest + data).split(b"\n")
        lines = [part for line in found for part in _parts(line + b"\n")]
        if len(self.rest) > LINE_BYTES_MAX:
            *parts, self.rest = _parts(self.rest)
            lines += parts
        return lines

    def end(self) -> list[bytes]:
        """Return the rest, and begin anew."""
        rest, self.rest = self.rest, b""
        return [rest] if rest else []


class Batch(msgspec.Struct, frozen=True):
    """A message, and what is kept once it is acknowledged."""

    message: ShippedLogs
    after: KeptOutput


class ShippedOutput:
    """One output. `path`: of its active file, below `top`."""

    def __init__(self, kept: KeptOutput, *, node_id: str, top: Path, path: Path) -> None:
        self.kept = kept
        #: nothing is left and its task does not run.
        self.is_done = False
        #: its files have gone with the allocation.
        self.is_gone = False
        #: why it could not be read the last time.
        self.problem = ""
        self._node_id = node_id
        self._top, self._path = top, path
        self._framer = LineFramer()
        self._ahead = kept
        self._reader_at = kept.position
        self._rest_since = 0.0

    def acknowledge(self, batch: Batch) -> None:
        """Keep what a batch brought."""
        self.kept = batch.after

    def again(self) -> None:
        """Continue with what was not acknowledged."""
        self._framer.end()
        self._ahead, self._reader_at = self.kept, self.kept.position

    def give_up(self) -> bool:
        """Pass what cannot be caught up with or has left; True: `kept` has changed, to be saved before more is read."""
        with self._opened() as log:
            reader = TaskLogReader(log, self._reader_at, stops=True)
            lost = reader.pass_gap()
            if reader.behind() > BEHIND_MAX:
                lost += reader.pass_to(BEHIND_LEFT)
        if not lost:
            return False
        lost += len(self._framer.rest)
        self.kept = msgspec.structs.replace(
            self._ahead,
            position=reader.position,
            offset=self._ahead.offset + lost,
            lost=self._ahead.lost + lost,
        )
        self.again()
        return True

    def batches(self, most: int, *, is_live: bool, now_s: float) -> list[Batch]:
        """Read what comes next, at most so many messages of a block each."""
        found: list[Batch] = []
        with self._opened() as log:
            reader = TaskLogReader(log, self._reader_at, stops=True)
            while len(found) < most:
                data = reader.take()
                lines = self._framer.add(data)
                if self._framer.rest and (lines or not self._rest_since):
                    self._rest_since = now_s
                if not data and (not is_live or now_s - self._rest_since >= PART_S):
                    lines = self._framer.end()
                if not self._framer.rest:
                    self._rest_since = 0.0
                self._reader_at = reader.position
                if lines or self._ahead.lost:
                    found.append(self._batch(lines))
                if not data:
                    break
        return found

    def _batch(self, lines: list[bytes]) -> Batch:
        before, at = self._ahead, self._reader_at
        # The rest is of the last block, all of it: a line begins there, or a part.
        place = LogPosition(at.last, at.cut, at.given - len(self._framer.rest))
        size = sum(map(len, lines))
        self._ahead = msgspec.structs.replace(
            before, position=place, offset=before.offset + size, lost=0
        )
        message = ShippedLogs(
            node_id=self._node_id,
            job_id=before.job_id,
            group=before.group,
            alloc_id=before.alloc_id,
            task=before.task,
            stream=before.stream,
            at_ms=time.time_ns() // 1_000_000,
            offset=before.offset,
            lost=before.lost,
            lines=tuple(line.decode("utf-8", "replace") for line in lines),
            sizes=tuple(map(len, lines)),
        )
        return Batch(message, self._ahead)

    def _opened(self) -> "_OpenedLog":
        return _OpenedLog(self._top, self._path)


class _OpenedLog:
    """An open log, as a context. Raises OSError."""

    def __init__(self, top: Path, path: Path) -> None:
        self._fd = open_below(top, path.parent)
        self._name = path.name

    def __enter__(self) -> OpenLog:
        return OpenLog(self._fd, self._name)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _parts(line: bytes) -> list[bytes]:
    """Cut a long line, not within a character."""
    found = []
    while len(line) > LINE_BYTES_MAX:
        at = LINE_BYTES_MAX
        while at > LINE_BYTES_MAX - 4 and line[at] & _LEADING == _CONTINUES:
            at -= 1
        found.append(line[:at])
        line = line[at:]
    return [*found, line]
