"""Capacity of the log: how full it is, and what may still be written.

Decides at which share of its bound the log raises an alarm, and at which it accepts no new work. The server reports its
usage periodically (LogSpace); between two reports the delivered records are counted.
"""

from shared.core.runtime.messages import LogSpace

ALARM_ABOVE = 0.7
#: Above this only what keeps running work alive is written: reports, stops, liveness, leadership, and the plans of
#: evaluations that exist.
NO_NEW_WORK_ABOVE = 0.9
#: What the server keeps for a record beside its bytes: subject, headers, its own frame.
RECORD_OVERHEAD_BYTES = 200


#: For people: the caller of a write, and operators.
WRITE_FAILED = "the bus cannot write the log, its disk is full or faulty"

#: Kept for what ends a generation.
RESERVE_BYTES = 64 * 1024


class LogCapacity:
    """Bytes in the newest generation against its bound; 0: no bound is known."""

    def __init__(self) -> None:
        self._bytes = 0
        self._bytes_max = 0
        self._last_seq = 0
        self._first_seq = 0
        #: the server stores nothing, whatever the bound says.
        self.is_write_failed = False

    def learn(self, space: LogSpace) -> None:
        """Take the server's own numbers, unless they are of a generation that is over."""
        self.is_write_failed = space.is_write_failed
        if space.last_seq + 1 < self._first_seq:
            return
        self._bytes = space.bytes
        self._bytes_max = space.bytes_max
        self._last_seq = space.last_seq

    def note(self, seq: int, size: int) -> None:
        """Count a record that went by, unless the server counted it already."""
        if seq > self._last_seq:
            self._last_seq = seq
            self._bytes += size + RECORD_OVERHEAD_BYTES

    def begin(self, first_seq: int) -> None:
        """Another generation begins, as large as the one before until the server says otherwise."""
        self._bytes, self._last_seq, self._first_seq = 0, first_seq - 1, first_seq

    @property
    def bytes_max(self) -> int:
        """The bound; 0: none is known."""
        return self._bytes_max

    @property
    def share(self) -> float:
        """How full it is, 0 to 1."""
        return self._bytes / self._bytes_max if self._bytes_max else 0.0

    @property
    def is_alarming(self) -> bool:
        """Tell whether an operator should know."""
        return self.share >= ALARM_ABOVE

    @property
    def refuses_new_work(self) -> bool:
        """Tell whether no new work may be taken."""
        return self.share >= NO_NEW_WORK_ABOVE

    @property
    def alarm(self) -> str:
        """Say what an operator should know; empty: nothing."""
        if self.is_write_failed:
            return WRITE_FAILED
        if self.is_alarming:
            return f"the log is {100 * self.share:.0f} % full: caravan log roll continues it in another stream"
        return ""

    @property
    def is_full(self) -> bool:
        """Tell whether there is room for nothing but a lease and a roll."""
        reserve = min(RESERVE_BYTES, self._bytes_max // 64)
        return bool(self._bytes_max) and self._bytes + reserve > self._bytes_max
