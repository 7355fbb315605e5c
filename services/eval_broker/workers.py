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


class Held(msgspec.Struct, eq=False):
    """A lease and who has it. Times are steady ns."""

    lease: Lease
    worker: str
    given_ns: int
    #: last seq of the log when it was given.
    given_seq: int


class Worker(msgspec.Struct, eq=False):
    """One live worker."""

    seen_ns: int
    reminded_ns: int
    #: in the order in which they were given.
    held: dict[EvalKey, Held]
    #: its leases were taken back, and it was not heard of since: it gets none.
    is_suspect: bool = False

    @property
    def doubted_ns(self) -> int:
        """When it should have been heard of, because it got a lease; 0: it has none."""
        for first in self.held.values():
            return max(self.seen_ns, first.given_ns) + SUSPECT_NS
        return 0


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
        self._held: dict[EvalKey, Held] = {}
        #: in order of their deadlines; ended ones are passed over.
        self._deadlines: deque[Held] = deque()

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
        self._live[instance] = Worker(now_ns, now_ns, {})
        self._number()

    def leave(self, instance: str) -> list[Held]:
        """Forget a worker; return the leases it had."""
        worker = self._live.pop(instance, None)
        if worker is None:
            return []
        self._number()
        return [self._held.pop(key) for key in worker.held]

    def forget_leases(self) -> None:
        """Drop all leases: another broker gives them now, or this one starts anew."""
        self._held = {}
        self._deadlines.clear()
        for worker in self._live.values():
            worker.held = {}

    def unheard(self, now_ns: int) -> tuple[list[str], list[Held]]:
        """Say who was not heard of for too long, and take the leases of those that should have been heard of.

        The latter get no more until they are.
        """
        lost = [one for one, worker in self._live.items() if worker.seen_ns + LOST_NS <= now_ns]
        taken: list[Held] = []
        for one, worker in self._live.items():
            if one not in lost and 0 < worker.doubted_ns <= now_ns:
                worker.is_suspect = True
                taken += [self._held.pop(key) for key in worker.held]
                worker.held = {}
        return lost, taken

    def share(self, ready: int, chunk: int) -> int:
        """Return how many of `ready` evaluations a worker gets in one message, at most `chunk`."""
        free = sum(len(worker.held) < self._window for worker in self._trusted.values())
        return min(chunk, -(-ready // free)) if free else 0

    def next(self) -> "Next":
        """Return the least loaded worker and how many more leases it may have; 0: none has room."""
        loads = ((len(worker.held), one) for one, worker in self._trusted.items())
        load, instance = min(loads, default=(self._window, ""))
        return Next(instance, self._window - load, is_alone=len(self._held) == load)

    def give(self, leases: list[Lease], instance: str, now_ns: int, seq: int) -> None:
        """Remember leases that go to a worker now."""
        fresh = {lease.key: Held(lease, instance, now_ns, seq) for lease in leases}
        self._held.update(fresh)
        self._live[instance].held.update(fresh)
        self._deadlines.extend(fresh.values())

    def holder(self, key: EvalKey) -> str:
        """Return who has the lease of an evaluation; empty: nobody."""
        held = self._held.get(key)
        return held.worker if held is not None else ""

    def end(self, key: EvalKey) -> Held | None:
        """Take the credit of a lease back, if there is one."""
        held = self._held.pop(key, None)
        if held is not None:
            del self._live[held.worker].held[key]
        return held

    def overdue(self, now_ns: int) -> list[Held]:
        """End the leases whose deadline has passed, and return them."""
        ended: list[Held] = []
        while 0 < self._next_deadline_ns <= now_ns:
            held = self._deadlines.popleft()
            self.end(held.lease.key)
            ended.append(held)
        return ended

    def forgotten(self, instance: str, now_ns: int) -> list[Lease]:
        """Return the leases that a worker, heard of just now, may never have got; once in a while."""
        worker = self._live[instance]
        if worker.reminded_ns + REMIND_NS > now_ns:
            return []
        old: list[Lease] = []
        for held in worker.held.values():
            if held.given_ns + REMIND_NS > now_ns:
                break
            old.append(held.lease)
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
        deadlines = self._deadlines
        while deadlines and self._held.get(deadlines[0].lease.key) is not deadlines[0]:
            deadlines.popleft()
        return deadlines[0].given_ns + LEASE_NS if deadlines else 0

    @property
    def _window(self) -> int:
        return WINDOW_ALONE if len(self._live) == 1 else WINDOW

    @property
    def _trusted(self) -> dict[str, Worker]:
        return {one: worker for one, worker in self._live.items() if not worker.is_suspect}

    def _number(self) -> None:
        self.lane_of = {one: lane for lane, one in enumerate(sorted(self._live))}
