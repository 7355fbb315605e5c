"""Lines of the eval broker: who of those that wait for the same is tried, and that no wake-up is lost."""

import pytest

from schemas.base import EvalKey, JobId
from schemas.evaluations import Blocked, Waiting
from schemas.nodes import CapacityFreed
from services.eval_broker.blocked_queue import (
    FIRST_TRIES,
    STALL_TIMEOUT_NS,
    BlockedQueues,
    PlacementNeed,
    StepTime,
)
from shared.core.splitmix import splitmix64

SHAPE = ("gpu",)


class Queue:
    """Lines, and the tables' word for what was freed."""

    def __init__(self) -> None:
        self.freed: dict[int, int] = {}
        self.grown: dict[int, int] = {}
        self.seq = 10
        self.ns = 0
        self.lines = BlockedQueues(self.freed, self.grown)
        self.blocked: list[EvalKey] = []

    @property
    def now(self) -> StepTime:
        return StepTime(self.ns, self.seq)

    def need(
        self, job: str, priority: int = 50, ask: int = 0, shape: tuple = SHAPE
    ) -> PlacementNeed:
        asks = ((ask, 0, 0),) if ask else ()
        return PlacementNeed(JobId(job), shape, priority, 1, asks)

    def park(self, key: int, job: str, priority: int = 50) -> None:
        self.seq += 1
        self.lines.park(EvalKey(key), self.need(job, priority), self.now)

    def block(
        self,
        key: int,
        job: str,
        *,
        snapshot: int = 0,
        why: str = "capacity",
        ask: int = 0,
        priority: int = 50,
        shape: tuple = SHAPE,
    ) -> None:
        self.seq += 1
        blocked = Blocked(
            classes=(0,),
            seen_classes=1,
            snapshot_seq=snapshot or self.seq - 1,
            waiting={"g": Waiting(count=1, wait_class=why)},
        )
        need = self.need(job, priority, ask, shape)
        self.blocked.append(EvalKey(key))
        self.lines.block(EvalKey(key), need, blocked, self.now)

    def free(self, *, room: int = 0, grown: bool = False, of: int = 0) -> list[int]:
        """Free capacity; returns the jobs to wake."""
        self.seq += 1
        self.freed[of] = self.seq
        if grown:
            self.grown[of] = self.seq
        amounts = (room, 0, 0) if room else ()
        event = CapacityFreed(classes=(of,), room=amounts, grown=grown)
        self.lines.free(event, self.seq, self.now)
        return self.take()

    def take(self) -> list[int]:
        return [int(key) for key in self.lines.take(100, self.ns)]

    def ready(self) -> list[int]:
        return [int(key) for key in self.lines.ready()]

    def wake(self, key: int) -> None:
        self.seq += 1
        assert self.lines.mark_woken(EvalKey(key), self.now)

    def end(self, key: int, *, found: bool | None) -> None:
        self.seq += 1
        after = self.blocked[-1] if found is False else None
        was_tried = found is not None
        assert self.lines.leave(EvalKey(key), self.now, was_tried=was_tried, after=after)


def test_a_new_shape_starts_with_a_few() -> None:
    """Of many of an unknown shape a few are tried; each that finds room lets two more go."""
    queue = Queue()
    for at in range(20):
        queue.park(at, f"j{at:02}")
    assert queue.ready() == list(range(FIRST_TRIES))
    queue.end(0, found=True)
    queue.end(1, found=True)
    assert queue.ready() == [4, 5, 6, 7]
    assert queue.lines.gauges()["parked_evaluations"] == 12


def test_a_shut_line_waits_for_its_head() -> None:
    """Once one found no room the rest stays parked; room tries the head alone, and its success the next two."""
    queue = Queue()
    for at in range(20):
        queue.park(at, f"j{at:02}")
    for at in range(FIRST_TRIES):
        queue.block(100 + at, f"j{at:02}")
        queue.end(at, found=False)
    assert queue.ready() == []
    assert queue.free() == [100]
    assert queue.free() == []
    queue.wake(100)
    queue.end(100, found=True)
    assert queue.take() == [101, 102]


def test_room_that_came_while_the_head_was_tried_tries_it_again() -> None:
    """Room after the snapshot of a try that found none is not lost."""
    queue = Queue()
    queue.block(1, "a")
    assert queue.free() == [1]
    queue.wake(1)
    snapshot = queue.seq
    assert queue.free() == []
    queue.block(2, "a", snapshot=snapshot)
    queue.end(1, found=False)
    assert queue.take() == [2]


def test_room_between_the_first_snapshot_and_the_block_is_not_lost() -> None:
    """A shape that was never blocked has no listener: the tables remember capacity freed in the meantime."""
    queue = Queue()
    queue.park(1, "a")
    assert queue.ready() == [1]
    snapshot = queue.seq
    queue.free()
    queue.block(2, "a", snapshot=snapshot)
    queue.end(1, found=False)
    assert queue.take() == [2]


def test_higher_priority_is_tried_whatever_the_line_knows() -> None:
    """What found no room for one may leave some for a more important one: others' reservations end there."""
    queue = Queue()
    queue.block(1, "a")
    queue.park(2, "b")
    assert queue.ready() == []
    queue.park(3, "c", priority=80)
    assert queue.ready() == [3]


def test_room_too_small_for_the_shape_wakes_nobody() -> None:
    """An event that says how much it freed wakes only what could fit into it."""
    queue = Queue()
    queue.block(1, "a", ask=500)
    assert queue.free(room=499) == []
    assert queue.free(room=500) == [1]


def test_what_never_fits_wakes_for_other_nodes_only() -> None:
    """Room that is given back helps nothing that fits no node; a node that came or grew may."""
    queue = Queue()
    queue.block(1, "a", why="never_fits")
    assert queue.free() == []
    assert queue.free(of=1) == []
    assert queue.free(grown=True) == [1]


def test_a_moving_line_goes_before_lower_priorities_but_not_for_long() -> None:
    """While a line finds room, less important ones do not take it; a stalled line blocks no other job."""
    queue = Queue()
    for at in range(20):
        queue.park(at, f"j{at:02}", priority=70)
    assert queue.lines.floor(queue.ns) == 70
    assert queue.lines.due_ns(queue.ns) == STALL_TIMEOUT_NS
    assert queue.lines.floor(queue.ns + STALL_TIMEOUT_NS) == 0
    queue.block(100, "j00", priority=70)
    queue.end(0, found=False)
    assert queue.lines.floor(queue.ns) == 0


def test_one_event_wakes_one_of_each_shape() -> None:
    """However many wait: an event wakes a head a shape, the most important first."""
    queue = Queue()
    for at in range(300):
        queue.block(at, f"j{at:03}", shape=(at % 3,), priority=40 + at % 3)
    assert queue.free() == [2, 1, 0]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_that_fits_waits_at_rest(seed: int) -> None:
    """Random arrivals, ends, delays and takeovers: at rest no head of a line fits what is free."""
    town = Model(seed)
    for _ in range(120):
        town.act()
    town.rest()
    assert town.starving() == []


class Model:
    """One class of nodes with an amount free, tries with delays, and brokers that follow each other."""

    def __init__(self, seed: int) -> None:
        self._draw = splitmix64(seed)
        self.queue = Queue()
        self.total = self.free = 20
        #: pending and blocked ones by key: job, ask, priority, snapshot of the block (0: pending).
        self.open: dict[int, tuple[str, int, int, int]] = {}
        self.running: list[int] = []
        #: tries under way: key -> snapshot seq and what was free then.
        self.tries: dict[int, tuple[int, int]] = {}
        self.next_key = 1

    def below(self, limit: int) -> int:
        self._draw = splitmix64(self._draw)
        return self._draw % limit

    def act(self) -> None:
        what = self.below(10)
        if what < 4:
            self.arrive()
        elif what < 6 and self.running:
            self.complete(self.below(len(self.running)))
        elif what < 9:
            self.begin()
            if self.tries:
                self.conclude(sorted(self.tries)[self.below(len(self.tries))])
        elif self.below(4) == 0:
            self.take_over()

    def arrive(self) -> None:
        ask, priority = 1 + 6 * self.below(3), 40 + 10 * self.below(3)
        key, self.next_key = self.next_key, self.next_key + 1
        self.open[key] = (f"j{key:04}", ask, priority, 0)
        self.admit(key)

    def admit(self, key: int) -> None:
        job, ask, priority, snapshot = self.open[key]
        if snapshot:
            self.queue.block(key, job, snapshot=snapshot, ask=ask, priority=priority, shape=(ask,))
        else:
            self.queue.seq += 1
            need = PlacementNeed(JobId(job), (ask,), priority, 1)
            self.queue.lines.park(EvalKey(key), need, self.queue.now)

    def complete(self, at: int) -> None:
        self.free += self.running.pop(at)
        self.queue.seq += 1
        self.queue.freed[0] = self.queue.seq
        event = CapacityFreed(classes=(0,), room=(self.free, 0, 0))
        self.queue.lines.free(event, self.queue.seq, self.queue.now)

    def begin(self) -> None:
        """Woken and ready ones are leased; a try sees what is free now."""
        for key in self.queue.take():
            self.queue.wake(key)
            job, ask, priority, _ = self.open[key]
            self.open[key] = (job, ask, priority, 0)
            self.tries[key] = (self.queue.seq, self.free)
        for key in self.queue.ready():
            self.tries[key] = (self.queue.seq, self.free)

    def conclude(self, key: int) -> None:
        snapshot, free = self.tries.pop(key)
        job, ask, priority, _ = self.open[key]
        if ask <= free and ask > self.free:
            # Cut by the applier: it is planned anew.
            self.tries[key] = (self.queue.seq, self.free)
            return
        del self.open[key]
        if ask <= free:
            self.free -= ask
            self.running.append(ask)
            self.queue.end(key, found=True)
            return
        new, self.next_key = self.next_key, self.next_key + 1
        self.open[new] = (job, ask, priority, snapshot)
        self.admit(new)
        self.queue.end(key, found=False)

    def take_over(self) -> None:
        """Another broker starts with nothing but the tables; what was leased is leased again."""
        self.queue.lines = BlockedQueues(self.queue.freed, self.queue.grown)
        self.tries = {}
        for key in sorted(self.open):
            self.admit(key)

    def rest(self) -> None:
        for _ in range(10_000):
            self.begin()
            if not self.tries:
                return
            self.conclude(min(self.tries))
        raise AssertionError("it never rests")

    def starving(self) -> list[tuple[str, int, int, int]]:
        return [one for one in self.open.values() if one[1] <= self.free]
