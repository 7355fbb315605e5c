"""Live scheduler workers, and the leases that each holds.

Decides which worker is live, which gets the next lease, and its lane. Independent of what an evaluation is.
Nothing of it is in the log: a new broker receives the presence of all workers within a fifth of a second and leases
again; the job fence refuses the second plan. Next: `role.py`.
"""

from collections import deque
from typing import NamedTuple

import msgspec

from schemas.base import EvalKey
from schemas.evaluations import Lease
from shared.core.runtime.deadline_timer import earliest

LEASE_NS = 5_000_000_000
LOST_NS = 2_000_000_000
#: A worker that holds leases sends presence five times a second; after three missed ones its leases go to others.
#: If it still runs, the job fence accepts one of the two plans.
SUSPECT_NS = 750_000_000
#: A live worker that has had a lease for so long is sent it again: the message may have been lost.
REMIND_NS = 1_500_000_000
#: Outstanding leases of one worker: few when workers compete, so that they see each other's plans and priorities hold.
WINDOW_ALONE = 256
WINDOW = 64


class LeaseBatch(msgspec.Struct, eq=False, gc=False):
    """Leases sent to one worker in one message. Times are steady ns."""

    leases: tuple[Lease, ...]
    worker: str
    leased_at_ns: int
    #: last seq of the log when they were given.
    leased_at_seq: int
    #: number of leases that have not ended.
    left: int


#: The key of a revoked lease, and the batch it was sent in.
RevokedLease = tuple[EvalKey, LeaseBatch]


class SchedulerWorker(msgspec.Struct, eq=False):
    """One live worker."""

    seen_ns: int
    reminded_ns: int
    #: number of outstanding leases.
    load: int = 0
    #: their batches in order of sending; a batch that has ended completely is skipped.
    given: deque[LeaseBatch] = msgspec.field(default_factory=deque[LeaseBatch])
    #: its leases were revoked, and it has sent no presence since: it gets no lease.
    is_suspect: bool = False

    @property
    def suspect_at_ns(self) -> int:
        """When it becomes suspect unless it sends presence; 0: it holds no lease."""
        first = _first(self.given)
        return max(self.seen_ns, first.leased_at_ns) + SUSPECT_NS if first is not None else 0


class NextWorker(NamedTuple):
    """The worker of the next lease, its free leases, and whether no other worker holds any."""

    instance: str
    room: int
    is_alone: bool


class WorkerLeases:
    """Live workers by instance, and every outstanding lease."""

    def __init__(self) -> None:
        self._live: dict[str, SchedulerWorker] = {}
        #: instance -> lane, in sorted order of instances.
        self.lane_by_worker: dict[str, int] = {}
        self._held: dict[EvalKey, LeaseBatch] = {}
        #: in order of deadlines; a batch that has ended completely is skipped.
        self._deadlines: deque[LeaseBatch] = deque()
        #: batches of evaluations that waited for room, in order of sending; one that has ended completely is skipped.
        self._waited: deque[LeaseBatch] = deque()

    def __len__(self) -> int:
        """Number of outstanding leases; `lane_by_worker` has one entry for each worker."""
        return len(self._held)

    def record_presence(self, instance: str, now_ns: int) -> None:
        """Record presence of a worker."""
        worker = self._live.get(instance)
        if worker is not None:
            worker.seen_ns = now_ns
            worker.is_suspect = False
            return
        self._live[instance] = SchedulerWorker(now_ns, now_ns)
        self._number()

    def leave(self, instance: str) -> list[RevokedLease]:
        """Remove a worker; return its leases."""
        worker = self._live.pop(instance, None)
        if worker is None:
            return []
        self._number()
        return self._taken(worker)

    def forget_leases(self) -> None:
        """Drop all leases: another broker leads now, or this one starts to lead."""
        self._held = {}
        self._deadlines.clear()
        self._waited.clear()
        for worker in self._live.values():
            worker.load = 0
            worker.given.clear()

    def take_silent(self, now_ns: int) -> tuple[list[str], list[RevokedLease]]:
        """Return the lost workers, and revoke the leases of suspect ones.

        A suspect worker gets no lease until it sends presence again.
        """
        lost = [one for one, worker in self._live.items() if worker.seen_ns + LOST_NS <= now_ns]
        taken: list[RevokedLease] = []
        for one, worker in self._live.items():
            if one not in lost and 0 < worker.suspect_at_ns <= now_ns:
                worker.is_suspect = True
                taken += self._taken(worker)
        return lost, taken

    def share(self, ready: int, chunk: int) -> int:
        """Return how many of `ready` evaluations a worker gets in one message, at most `chunk`."""
        free = sum(worker.load < self._window for worker in self._trusted.values())
        return min(chunk, -(-ready // free)) if free else 0

    def next(self, *, waited: bool = False) -> "NextWorker":
        """Return the least loaded worker and how many more leases it may hold; 0: every worker is full.

        `waited`: for a batch of evaluations that waited for room. Only one such batch is open at a time: of two workers
        none would decide on a state without the other's plans, and of two messages the second may arrive first.
        """
        if waited and _first(self._waited) is not None:
            return NextWorker("", 0, is_alone=False)
        loads = ((worker.load, one) for one, worker in self._trusted.items())
        load, instance = min(loads, default=(self._window, ""))
        return NextWorker(instance, self._window - load, is_alone=len(self._held) == load)

    def give(
        self,
        leases: tuple[Lease, ...],
        instance: str,
        now_ns: int,
        seq: int,
        *,
        waited: bool = False,
    ) -> None:
        """Record leases that are sent to a worker now. `waited`: all waited for room, or none did."""
        given = LeaseBatch(leases, instance, now_ns, seq, len(leases))
        self._held.update(dict.fromkeys([lease.key for lease in leases], given))
        worker = self._live[instance]
        worker.load += len(leases)
        worker.given.append(given)
        self._deadlines.append(given)
        if waited:
            self._waited.append(given)

    def holder(self, key: EvalKey) -> str:
        """Return the worker that holds the lease of an evaluation; empty: none."""
        given = self._held.get(key)
        return given.worker if given is not None else ""

    def end(self, key: EvalKey) -> LeaseBatch | None:
        """End a lease, if there is one; return the batch it was sent in."""
        given = self._held.pop(key, None)
        if given is not None:
            given.left -= 1
            self._live[given.worker].load -= 1
        return given

    def take_overdue(self, now_ns: int) -> list[RevokedLease]:
        """End the leases whose deadline has passed, and return them."""
        ended: list[RevokedLease] = []
        while 0 < self._next_deadline_ns <= now_ns:
            given = self._deadlines.popleft()
            for key in self._left_of(given):
                self.end(key)
                ended.append((key, given))
        return ended

    def forgotten(self, instance: str, now_ns: int) -> list[Lease]:
        """Return leases that a live worker may not have received; at most once in REMIND_NS."""
        worker = self._live[instance]
        if worker.reminded_ns + REMIND_NS > now_ns:
            return []
        old: list[Lease] = []
        for given in worker.given:
            if given.leased_at_ns + REMIND_NS > now_ns:
                break
            old += [lease for lease in given.leases if self._held.get(lease.key) is given]
        if old:
            worker.reminded_ns = now_ns
        return old

    @property
    def due_ns(self) -> int:
        """When the next lease expires, or the next worker becomes suspect or lost; 0: never."""
        ends = [worker.suspect_at_ns or worker.seen_ns + LOST_NS for worker in self._live.values()]
        return earliest(self._next_deadline_ns, min(ends, default=0))

    @property
    def _next_deadline_ns(self) -> int:
        first = _first(self._deadlines)
        return first.leased_at_ns + LEASE_NS if first is not None else 0

    @property
    def _window(self) -> int:
        return WINDOW_ALONE if len(self._live) == 1 else WINDOW

    @property
    def _trusted(self) -> dict[str, SchedulerWorker]:
        return {one: worker for one, worker in self._live.items() if not worker.is_suspect}

    def _number(self) -> None:
        self.lane_by_worker = {one: lane for lane, one in enumerate(sorted(self._live))}

    def _left_of(self, given: LeaseBatch) -> list[EvalKey]:
        """Return the keys of a batch that have not ended and were not leased again since."""
        return [lease.key for lease in given.leases if self._held.get(lease.key) is given]

    def _taken(self, worker: SchedulerWorker) -> list[RevokedLease]:
        """Revoke all leases of a worker, in order of sending."""
        taken = [(key, given) for given in worker.given for key in self._left_of(given)]
        for key, given in taken:
            del self._held[key]
            given.left -= 1
        worker.load = 0
        worker.given.clear()
        return taken


def _first(batches: deque[LeaseBatch]) -> LeaseBatch | None:
    """Return the first batch with an outstanding lease; drop those before it."""
    while batches and not batches[0].left:
        batches.popleft()
    return batches[0] if batches else None
