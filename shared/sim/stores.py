"""What the in-memory bus keeps: the log, last values, leaderships.

Decides what each of them takes. Must not know who is told (`bus.py`) nor when (`weather.py`). The log outlives a
restart of the bus, the others live in its memory.
"""

from collections.abc import Callable
from typing import NamedTuple

from shared.bus import subjects
from shared.sim.loop import SECOND, Loop

LEADERSHIP_TTL_NS = 2 * SECOND
#: Hears (seq, subject, data) of a record.
LogWatcher = Callable[[int, str, bytes], None]


class Log:
    """LOG. `records[i]` is (subject, data) of the record at seq i + 1."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        #: it takes nothing until then.
        self.full_until_ns = 0
        #: number of the newest generation, and where those that were made ready begin.
        self.generation = 1
        self._ready: dict[int, int] = {}
        self._watchers: list[LogWatcher] = []
        self._ids: dict[str, int] = {}

    def watch(self, watcher: LogWatcher) -> None:
        """Tell of every record as it is written, in the order of asking."""
        self._watchers.append(watcher)

    def prepare(self, first_seq: int) -> int:
        """Make a generation ready that begins at a seq; returns its number."""
        for number, first in self._ready.items():
            if number > self.generation and first == first_seq:
                return number
        number = max((self.generation, *self._ready)) + 1
        self._ready[number] = first_seq
        return number

    def append(self, kind: str, data: bytes, expected_seq: int, msg_id: str) -> int | None:
        """Append if the log is at `expected_seq`. Returns the seq, that of the first copy for a known id, or None."""
        known = self._ids.get(msg_id)
        if known is not None:
            return known
        if expected_seq != len(self.records):
            return None
        seq = self.inject(subjects.log(self.generation, kind), data)
        self._ids[msg_id] = seq
        if kind == "roll":
            self.generation = min(n for n, first in self._ready.items() if first == seq + 1)
        return seq

    def inject(self, subject: str, data: bytes) -> int:
        """Append without any fence, as a forger on the server could."""
        self.records.append((subject, data))
        seq = len(self.records)
        for watcher in self._watchers:
            watcher(seq, subject, data)
        return seq


class Value(NamedTuple):
    """One last value; expires_ns 0: never."""

    seq: int
    data: bytes
    expires_ns: int


_NOTHING = Value(0, b"", 0)


class LastValues:
    """NODE and VIEW: one value a subject."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._values: dict[str, Value] = {}
        self._seq = 0

    def get(self, subject: str) -> Value:
        """Return a last value; seq 0 and no data: there is none."""
        value = self._values.get(subject, _NOTHING)
        return _NOTHING if 0 < value.expires_ns <= self._loop.now_ns else value

    def put(self, subject: str, data: bytes, expected: int, ttl_s: int) -> tuple[bool, Value]:
        """Store a value if its subject stands at `expected` (-1: whatever). Returns done, and what stands now."""
        value = self.get(subject)
        if expected not in (-1, value.seq):
            return False, value
        self._seq += 1
        expires_ns = self._loop.now_ns + ttl_s * SECOND if ttl_s else 0
        value = self._values[subject] = Value(self._seq, data, expires_ns)
        return True, value

    def clear(self) -> None:
        """Lose everything."""
        self._values.clear()


class Leaderships:
    """KV_LEADER: who holds which key until when."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._held: dict[str, tuple[str, int]] = {}

    def take(self, key: str, holder: str) -> bool:
        """Take or renew a leadership. Returns whether `holder` has it now."""
        held = self._held.get(key)
        if held is not None and held[0] != holder and held[1] > self._loop.now_ns:
            return False
        self._held[key] = (holder, self._loop.now_ns + LEADERSHIP_TTL_NS)
        return True

    def release(self, key: str, holder: str) -> None:
        """Give a leadership up, if `holder` has it."""
        if self._held.get(key, ("", 0))[0] == holder:
            del self._held[key]

    def usurp(self, key: str) -> bool:
        """Take a leadership away from whoever has it, who does not hear of it. Returns whether somebody had it."""
        return self._held.pop(key, None) is not None

    def clear(self) -> None:
        """Lose everything."""
        self._held.clear()


def log_subject(kind: str) -> str:
    """Subject of a record of the first generation."""
    return subjects.log(1, kind)
