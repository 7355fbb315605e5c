"""Leases that a worker holds and has not decided: in order of arrival, each until its seq is there or it is too late.

Decides which may be decided now and which are handed back. Must not know what deciding means.
"""

from collections.abc import Iterator

import msgspec

from schemas.base import EvalKey
from schemas.evaluations import Lease

#: A lease waits so long for its seq.
WAIT_NS = 5_000_000_000
#: Ended evaluations that are remembered at the least, so that a late copy of a lease is told from a new one.
ENDED_KEPT = 4096


class Waiting(msgspec.Struct, frozen=True):
    """A lease and the steady time at which it came."""

    lease: Lease
    came_ns: int


class LeaseInbox:
    """Undecided leases by evaluation."""

    def __init__(self) -> None:
        self._waiting: dict[EvalKey, Waiting] = {}
        self._ended: set[EvalKey] = set()
        self._ended_before: set[EvalKey] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def due_ns(self) -> int:
        """When the oldest lease must be handed back, steady time; 0: there is none."""
        for waiting in self._waiting.values():
            return waiting.came_ns + WAIT_NS
        return 0

    def put(self, lease: Lease, now_ns: int) -> bool:
        """Take a lease in; False: its evaluation ended, it is an old copy."""
        if lease.key in self._ended or lease.key in self._ended_before:
            return False
        known = self._waiting.get(lease.key)
        if known is None or known.lease.attempt < lease.attempt:
            # A new lease has a new deadline: it goes to the end.
            self._waiting.pop(lease.key, None)
            self._waiting[lease.key] = Waiting(lease, now_ns)
        return True

    def end(self, key: EvalKey) -> None:
        """Take note that an evaluation ended."""
        self._waiting.pop(key, None)
        self._ended.add(key)
        if len(self._ended) >= ENDED_KEPT:
            self._ended, self._ended_before = set(), self._ended

    def ready(self, seq: int) -> Iterator[Waiting]:
        """Take out leases that may be decided on a state at `seq`, one by one, oldest first."""
        for waiting in list(self._waiting.values()):
            if waiting.lease.min_seq <= seq:
                del self._waiting[waiting.lease.key]
                yield waiting

    def has_ready(self, seq: int) -> bool:
        """Tell whether one more could be decided at `seq`."""
        return any(waiting.lease.min_seq <= seq for waiting in self._waiting.values())

    def late(self, now_ns: int) -> tuple[EvalKey, ...]:
        """Take out the leases that waited too long; returns their evaluations."""
        keys: list[EvalKey] = []
        for key, waiting in self._waiting.items():
            if waiting.came_ns + WAIT_NS > now_ns:
                break
            keys.append(key)
        for key in keys:
            del self._waiting[key]
        return tuple(keys)
