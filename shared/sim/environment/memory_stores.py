"""The stores of the in-memory bus: log, last values, leaderships. Only the log survives a restart of the bus."""

from collections.abc import Callable
from typing import NamedTuple

from shared.protocol import subjects
from shared.sim.virtual_time import SECOND, VirtualLoop

LEADERSHIP_TTL_NS = 2 * SECOND
#: Called with (seq, subject, data) of a record.
LogWatcher = Callable[[int, str, bytes], None]


class MemoryLog:
    """LOG. `records[i]` is (subject, data) of the record at seq i + 1."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        #: the log refuses appends until then.
        self.full_until_ns = 0
        #: number of the newest generation, and the first seqs of prepared ones.
        self.generation = 1
        self._ready: dict[int, int] = {}
        self._watchers: list[LogWatcher] = []
        self._ids: dict[str, int] = {}

    def watch(self, watcher: LogWatcher) -> None:
        """Call a watcher with every record as it is written."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: LogWatcher) -> None:
        """Call a watcher no more."""
        self._watchers.remove(watcher)

    def prepare(self, first_seq: int) -> int:
        """Prepare a generation that begins at a seq; returns its number."""
        for number, first in self._ready.items():
            if number > self.generation and first == first_seq:
                return number
        number = max((self.generation, *self._ready)) + 1
        self._ready[number] = first_seq
        return number

    def append(self, kind: str, data: bytes, expected_seq: int, msg_id: str) -> int | None:
        """Append if the log is at `expected_seq`. Returns the seq (of the first copy, for a known id), or None."""
        known = self._ids.get(msg_id)
        if known is not None:
            return known
        if expected_seq != len(self.records):
            return None
        seq = self.inject(subjects.log(self.generation, kind), data)
        self._ids[msg_id] = seq
        if kind == "roll":
            self.generation = self._prepared_at(seq + 1)
        return seq

    def restore(self, last_seq: int) -> None:
        """Go back to an older copy, what comes now is another history."""
        del self.records[last_seq:]
        self._ids = {name: seq for name, seq in self._ids.items() if seq <= last_seq}
        self.full_until_ns = 0
        rolls = [
            seq for seq, (subject, _) in enumerate(self.records, 1) if subject.endswith("roll")
        ]
        # A preparation that was lost has taken a number.
        self.generation = self._prepared_at(rolls[-1] + 1) if rolls else 1

    def _prepared_at(self, first_seq: int) -> int:
        return min(number for number, first in self._ready.items() if first == first_seq)

    def inject(self, subject: str, data: bytes) -> int:
        """Append without any check, as a foreign writer could."""
        self.records.append((subject, data))
        seq = len(self.records)
        for watcher in self._watchers:
            watcher(seq, subject, data)
        return seq


class LastValue(NamedTuple):
    """One last value; expires_ns 0: never."""

    seq: int
    data: bytes
    expires_ns: int


_NOTHING = LastValue(0, b"", 0)


class LastValues:
    """NODE and VIEW: one value per subject."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._values: dict[str, LastValue] = {}
        self._seq = 0

    def get(self, subject: str) -> LastValue:
        """Return a last value; seq 0 and no data: none."""
        value = self._values.get(subject, _NOTHING)
        return _NOTHING if 0 < value.expires_ns <= self._loop.now_ns else value

    def put(self, subject: str, data: bytes, expected: int, ttl_s: int) -> tuple[bool, LastValue]:
        """Store a value if its subject is at seq `expected` (-1: any). Returns (stored, value now)."""
        value = self.get(subject)
        if expected not in (-1, value.seq):
            return False, value
        self._seq += 1
        expires_ns = self._loop.now_ns + ttl_s * SECOND if ttl_s else 0
        value = self._values[subject] = LastValue(self._seq, data, expires_ns)
        return True, value

    def clear(self) -> None:
        """Lose everything."""
        self._values.clear()


class Leaderships:
    """KV_LEADER: the holder of each key, with expiry."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._held: dict[str, tuple[str, int]] = {}

    def take(self, key: str, holder: str) -> bool:
        """Take or renew a leadership. Returns whether `holder` holds it now."""
        held = self._held.get(key)
        if held is not None and held[0] != holder and held[1] > self._loop.now_ns:
            return False
        self._held[key] = (holder, self._loop.now_ns + LEADERSHIP_TTL_NS)
        return True

    def release(self, key: str, holder: str) -> None:
        """Release a leadership, if `holder` holds it."""
        if self._held.get(key, ("", 0))[0] == holder:
            del self._held[key]

    def usurp(self, key: str) -> bool:
        """Remove the holder of a leadership without notice. Returns whether there was one."""
        return self._held.pop(key, None) is not None

    def clear(self) -> None:
        """Lose everything."""
        self._held.clear()


def log_subject(kind: str) -> str:
    """Subject of a record of the first generation."""
    return subjects.log(1, kind)
