"""Scheduler workers as far as they are heard of, and the leases that each holds.

Decides who is alive, who gets the next lease and which lane it names. Must not know what an evaluation is.
All of it is memory: a new broker hears of the workers within a fifth of a second and leases anew, which the job fence
makes harmless. Next: `role.py`.
"""

from collections import deque
from typing import NamedTuple

import msgspec

from schemas.base import EvalKey
from schemas.evaluations import Lease
from shared.core.waker import earliest

LEASE_NS = 5_000_000_000
LOST_NS = 2_000_000_000
#: A worker that holds leases shows life five times a second; three times unheard, others get what it holds. Should it
#: live after all, the job fence takes one of the two plans.
SUSPECT_NS = 750_000_000
#: A worker that is heard of and has had a lease for so long is told of it again: the message may have been lost.
REMIND_NS = 1_500_000_000
#: Outstanding leases: small where workers compete, so that they see each other's plans and priority stays honest.
WINDOW_ALONE = 256
WINDOW = 64


class Given(msgspec.Struct, eq=False, gc=False):
    """Leases that one worker got in one message. Times are steady ns."""

    leases: tuple[Lease, ...]
    worker: str
    given_ns: int
    #: last seq of the log when they were given.
    given_seq: int
    #: how many of them have not ended.
    left: int


#: The lease of an evaluation that was taken back, and with which others it was given.
Held = tuple[EvalKey, Given]


class Worker(msgspec.Struct, eq=False):
    """One live worker."""

    seen_ns: int
    reminded_ns: int
    #: number of leases it has.
    load: int = 0
    #: those, in the order in which they were given; what has ended whole is passed over.
    given: deque[Given] = msgspec.field(default_factory=deque[Given])
    #: its leases were taken back, and it was not heard of since: it gets none.
    is_suspect: bool = False

    @property
    def doubted_ns(self) -> int:
        """When it should have been heard of, because it got a lease; 0: it has none."""
        first = _first(self.given)
        return max(self.seen_ns, first.given_ns) + SUSPECT_NS if first is not None else 0


class Next(NamedTuple):
    """Who gets the next lease, how many more it may have, and whether nobody else has any."""

    instance: str
    room: int
    is_alone: bool


class Workers:
    """Live workers by instance, and every outstanding lease."""

    def __init__(self) -> None:
        self._live: dict[str, Worker] = {}
        #: instance -> lane, in sorted order of instances.
        self.lane_of: dict[str, int] = {}
        self._held: dict[EvalKey, Given] = {}
        #: in order of their deadlines; what has ended whole is passed over.
        self._deadlines: deque[Given] = deque()

    def __len__(self) -> int:
        """Number of outstanding leases; that of workers is the length of `lane_of`."""
        return len(self._held)

    def hear(self, instance: str, now_ns: int) -> None:
        """Take note that a worker lives."""
        worker = self._live.get(instance)
        if worker is not None:
            worker.seen_ns = now_ns
            worker.is_suspect = False
            return
        self._live[instance] = Worker(now_ns, now_ns)
        self._number()

    def leave(self, instance: str) -> list[Held]:
        """Forget a worker; return the leases it had."""
        worker = self._live.pop(instance, None)
        if worker is None:
            return []
        self._number()
        return self._taken(worker)

    def forget_leases(self) -> None:
        """Drop all leases: another broker gives them now, or this one starts anew."""
        self._held = {}
        self._deadlines.clear()
        for worker in self._live.values():
            worker.load = 0
            worker.given.clear()

    def unheard(self, now_ns: int) -> tuple[list[str], list[Held]]:
        """Say who was not heard of for too long, and take the leases of those that should have been heard of.

        The latter get no more until they are.
        """
        lost = [one for one, worker in self._live.items() if worker.seen_ns + LOST_NS <= now_ns]
        taken: list[Held] = []
        for one, worker in self._live.items():
            if one not in lost and 0 < worker.doubted_ns <= now_ns:
                worker.is_suspect = True
                taken += self._taken(worker)
        return lost, taken

    def share(self, ready: int, chunk: int) -> int:
        """Return how many of `ready` evaluations a worker gets in one message, at most `chunk`."""
        free = sum(worker.load < self._window for worker in self._trusted.values())
        return min(chunk, -(-ready // free)) if free else 0

    def next(self) -> "Next":
        """Return the least loaded worker and how many more leases it may have; 0: none has room."""
        loads = ((worker.load, one) for one, worker in self._trusted.items())
        load, instance = min(loads, default=(self._window, ""))
        return Next(instance, self._window - load, is_alone=len(self._held) == load)

    def give(self, leases: tuple[Lease, ...], instance: str, now_ns: int, seq: int) -> None:
        """Remember leases that go to a worker now."""
        given = Given(leases, instance, now_ns, seq, len(leases))
        self._held.update(dict.fromkeys([lease.key for lease in leases], given))
        worker = self._live[instance]
        worker.load += len(leases)
        worker.given.append(given)
        self._deadlines.append(given)

    def holder(self, key: EvalKey) -> str:
        """Return who has the lease of an evaluation; empty: nobody."""
        given = self._held.get(key)
        return given.worker if given is not None else ""

    def end(self, key: EvalKey) -> Given | None:
        """Take the credit of a lease back, if there is one; return with which others it was given."""
        given = self._held.pop(key, None)
        if given is not None:
            given.left -= 1
            self._live[given.worker].load -= 1
        return given

    def overdue(self, now_ns: int) -> list[Held]:
        """End the leases whose deadline has passed, and return them."""
        ended: list[Held] = []
        while 0 < self._next_deadline_ns <= now_ns:
            given = self._deadlines.popleft()
            for key in self._left_of(given):
                self.end(key)
                ended.append((key, given))
        return ended

    def forgotten(self, instance: str, now_ns: int) -> list[Lease]:
        """Return the leases that a worker, heard of just now, may never have got; once in a while."""
        worker = self._live[instance]
        if worker.reminded_ns + REMIND_NS > now_ns:
            return []
        old: list[Lease] = []
        for given in worker.given:
            if given.given_ns + REMIND_NS > now_ns:
                break
            old += [lease for lease in given.leases if self._held.get(lease.key) is given]
        if old:
            worker.reminded_ns = now_ns
        return old

    @property
    def due_ns(self) -> int:
        """When the next lease ends or the next worker is lost, if nothing is heard; 0: never."""
        ends = [worker.doubted_ns or worker.seen_ns + LOST_NS for worker in self._live.values()]
        return earliest(self._next_deadline_ns, min(ends, default=0))

    @property
    def _next_deadline_ns(self) -> int:
        first = _first(self._deadlines)
        return first.given_ns + LEASE_NS if first is not None else 0

    @property
    def _window(self) -> int:
        return WINDOW_ALONE if len(self._live) == 1 else WINDOW

    @property
    def _trusted(self) -> dict[str, Worker]:
        return {one: worker for one, worker in self._live.items() if not worker.is_suspect}

    def _number(self) -> None:
        self.lane_of = {one: lane for lane, one in enumerate(sorted(self._live))}

    def _left_of(self, given: Given) -> list[EvalKey]:
        """Return those of one message that have not ended, nor were given again since."""
        return [lease.key for lease in given.leases if self._held.get(lease.key) is given]

    def _taken(self, worker: Worker) -> list[Held]:
        """Take all that a worker has; in the order in which it got them."""
        taken = [(key, given) for given in worker.given for key in self._left_of(given)]
        for key, given in taken:
            del self._held[key]
            given.left -= 1
        worker.load = 0
        worker.given.clear()
        return taken


def _first(line: deque[Given]) -> Given | None:
    """Return the first in line of which something is left."""
    while line and not line[0].left:
        line.popleft()
    return line[0] if line else None
