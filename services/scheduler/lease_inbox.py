"""Lease inbox: undecided leases in order of arrival, until the log reaches their seq or they expire."""

from collections.abc import Iterator

import msgspec

from schemas.base import EvalKey
from schemas.evaluations import Lease

#: Seconds a lease waits for its seq.
LEASE_WAIT_NS = 5_000_000_000
#: Minimum number of ended evaluations remembered, to recognise late copies of a lease.
ENDED_KEPT = 4096


class PendingLease(msgspec.Struct, frozen=True):
    """A lease and the steady time at which it came."""

    lease: Lease
    came_ns: int


class LeaseInbox:
    """Undecided leases by evaluation."""

    def __init__(self) -> None:
        self._waiting: dict[EvalKey, PendingLease] = {}
        self._ended: set[EvalKey] = set()
        self._ended_before: set[EvalKey] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def due_ns(self) -> int:
        """Time when the oldest lease must be handed back, steady clock; 0: there is none."""
        for waiting in self._waiting.values():
            return waiting.came_ns + LEASE_WAIT_NS
        return 0

    def put(self, lease: Lease, now_ns: int) -> bool:
        """Add a lease; False: its evaluation ended, so it is an old copy."""
        if lease.key in self._ended or lease.key in self._ended_before:
            return False
        known = self._waiting.get(lease.key)
        if known is None or known.lease.attempt < lease.attempt:
            # A renewed lease has a new deadline: it moves to the end.
            self._waiting.pop(lease.key, None)
            self._waiting[lease.key] = PendingLease(lease, now_ns)
        return True

    def end(self, key: EvalKey) -> None:
        """Record that an evaluation ended."""
        self._waiting.pop(key, None)
        self._ended.add(key)
        if len(self._ended) >= ENDED_KEPT:
            self._ended, self._ended_before = set(), self._ended

    def ready(self, seq: int) -> Iterator[PendingLease]:
        """Take the leases that may be decided on a state at `seq`, oldest first."""
        for waiting in list(self._waiting.values()):
            if waiting.lease.min_seq <= seq:
                del self._waiting[waiting.lease.key]
                yield waiting

    def has_ready(self, seq: int) -> bool:
        """Return whether another lease can be decided at `seq`."""
        return any(waiting.lease.min_seq <= seq for waiting in self._waiting.values())

    def late(self, now_ns: int) -> tuple[EvalKey, ...]:
        """Take the expired leases; returns their evaluations."""
        keys: list[EvalKey] = []
        for key, waiting in self._waiting.items():
            if waiting.came_ns + LEASE_WAIT_NS > now_ns:
                break
            keys.append(key)
        for key in keys:
            del self._waiting[key]
        return tuple(keys)
