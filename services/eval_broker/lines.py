"""Lines: evaluations that wait for the same, one behind the other; who of them is tried, and when.

A *shape* (`shared/core/shapes.py`) is what cannot be told apart by whether it fits. All that wait for one shape stand
in one line, by priority, then age: blocked ones, which the log says found no room, and parked ones, which are pending
and stand behind such a one, so that trying them would show nothing new. Only the head is tried when something was
freed that could help it. Each try that found room lets two more go, so that a line runs as fast as there is room; one
that found none stops the line. So an event costs one try a line, and what is tried in vain is never more than what
was just placed, and one.

A shape of which nothing is known yet starts with a few tries, for the same reason: ten thousand jobs of one shape that
fits nowhere cost a handful of evaluations.

Decides nothing about nodes. Nothing here is memory that matters: a line is made of what the tables say, and a head
whose snapshot is older than the last room on its classes is tried at once. So nothing freed between a snapshot and its
block, or between two brokers, is ever missed. Next: `asleep.py`.
"""

from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush

import msgspec

from schemas.base import EvalKey, JobId
from schemas.evaluations import Blocked
from schemas.nodes import CapacityFreed
from services.eval_broker.wakes import Wakes
from shared.core.shapes import Ask, Shape

#: Tries that a shape of which nothing is known starts with.
FIRST_TRIES = 4
#: Tries of one line under way: as many as one worker alone may hold.
TRIES_MAX = 256
#: A line that finds room holds lower priorities back while the next of it are on their way, but no longer than this.
STALLED_NS = 250_000_000
#: Place of the job in the queue, then key.
Order = tuple[int, int, JobId, EvalKey]
#: Wait classes that no room given back can help.
HOPELESS = frozenset({"misconfigured", "never_fits"})


class Need(msgspec.Struct, frozen=True, gc=False):
    """What an evaluation waits for, and its place. `asks`: one of them must fit; empty: amounts say nothing."""

    job_id: JobId
    shape: Shape
    priority: int
    age: int
    asks: tuple[Ask, ...] = ()


class Member(msgspec.Struct, eq=False, gc=False):
    """One evaluation in a line: it waits there, or is tried. `blocked` is None for a parked one."""

    order: Order
    line: "Line"
    blocked: Blocked | None
    waits: bool


class Line(msgspec.Struct, eq=False):
    """All that wait for one shape. Times are steady ns."""

    shape: Shape
    #: of all lines there ever were: a name that is cheaper than a shape.
    number: int
    #: seq of the log from which on it heard of whatever was freed on the classes that it waits for.
    heard_seq: int = 0
    #: seq at which something was last freed that could help.
    freed_seq: int = 0
    #: tries that may be made now.
    credit: int = 0
    #: it was never found shut, or found room the last time.
    is_running: bool = True
    moved_ns: int = 0
    #: how many wait, and how many are tried.
    waiting: int = 0
    trying: int = 0
    #: places of those that wait: as they came, each behind the one before it, and those that came out of turn. A place
    #: that nobody waits at any more is passed over.
    queue: deque[Order] = msgspec.field(default_factory=deque[Order])
    heap: list[Order] = []
    #: what the last one blocked knew, which wakes the line.
    blocked: Blocked | None = None
    asks: tuple[Ask, ...] = ()


class Lines:
    """Every line. `freed_seq` and `grown_seq` are the evaluation table's, by computed class."""

    def __init__(self, freed_seq: Mapping[int, int], grown_seq: Mapping[int, int]) -> None:
        self._freed_seq = freed_seq
        self._grown_seq = grown_seq
        self._lines: dict[Shape, Line] = {}
        self._members: dict[EvalKey, Member] = {}
        #: who is parked, by job; for others to read.
        self.parked_of: dict[JobId, tuple[EvalKey, ...]] = {}
        self._wakes = Wakes()
        #: blocked ones that shall be woken.
        self._due: list[Order] = []
        self._ready: list[EvalKey] = []
        #: lines that find room and have more behind, by number.
        self._running: dict[int, Line] = {}
        self._blocked = 0
        self._numbered = 0

    def gauges(self) -> dict[str, int]:
        """Count the blocked, those parked behind others of their shape, and shapes that anything waits for or tries."""
        return {
            "blocked_evaluations": self._blocked,
            "parked_evaluations": sum(map(len, self.parked_of.values())),
            "shapes": len(self._lines),
        }

    @property
    def held_up(self) -> int:
        """Number of those in lines that move and were never found shut: workers, not nodes, are what they wait for."""
        return sum(line.waiting for line in self._running.values() if line.blocked is None)

    # ---- who waits ----

    def block(self, key: EvalKey, need: Need, blocked: Blocked, now: "Moment") -> None:
        """Take in an evaluation that the log says is blocked; room may have appeared since its snapshot."""
        if key in self._members:
            return
        line = self._line(need, now)
        line.credit = 0
        line.is_running = False
        self._enter(key, need, line, blocked)
        self._blocked += 1
        if line.blocked is None or blocked.snapshot_seq >= line.blocked.snapshot_seq:
            line.blocked = blocked
            line.asks = need.asks
            if self._wakes.put(line.shape, blocked):
                line.heard_seq = now.seq
        self._settle(line)

    def park(self, key: EvalKey, need: Need, now: "Moment") -> None:
        """Take in a pending evaluation that would only place; `ready` tells when it may be leased."""
        if key in self._members:
            return
        line = self._line(need, now)
        if line.credit and not line.waiting and line.trying < TRIES_MAX:
            # Nobody waits: what it will nearly always be.
            order = (-need.priority, need.age, need.job_id, key)
            self._members[key] = Member(order, line, None, waits=False)
            line.trying += 1
            line.credit -= 1
            self._ready.append(key)
            return
        self._enter(key, need, line, None)
        self.parked_of[need.job_id] = (*self.parked_of.get(need.job_id, ()), key)
        self._settle(line)

    def is_trying(self, key: EvalKey) -> bool:
        """Tell whether an evaluation of a line is tried now."""
        member = self._members.get(key)
        return member is not None and not member.waits

    def woken(self, key: EvalKey, now: "Moment") -> bool:
        """Take note that a blocked one is pending now, whoever woke it; returns whether it was here."""
        member = self._members.get(key)
        if member is None or member.blocked is None:
            return False
        self._blocked -= 1
        member.blocked = None
        line = member.line
        if member.waits:
            member.waits = False
            line.waiting -= 1
            line.trying += 1
        line.moved_ns = now.ns
        self._settle(line)
        return True

    def leave(
        self, key: EvalKey, now: "Moment", *, was_tried: bool = False, after: EvalKey | None = None
    ) -> bool:
        """Forget an evaluation: it ended, or is no one of a line any more. Returns whether it was here.

        `was_tried`: its plan is in the log. It found room for all that it waited for, unless what it left blocked
        (`after`) waits for the same.
        """
        member = self._members.pop(key, None)
        if member is None:
            return False
        line = member.line
        if member.blocked is not None:
            self._blocked -= 1
        if member.waits:
            line.waiting -= 1
            self._unpark(member.order)
        else:
            left = self._members.get(after) if after is not None else None
            line.trying -= 1
            found = (left is None or left.line is not line) if was_tried else None
            self._learn(line, now, found=found)
        if line.waiting or line.number in self._running:
            self._settle(line)
        if not line.waiting and not line.trying:
            del self._lines[line.shape]
            self._wakes.drop(line.shape)
        return True

    # ---- what may go ----

    def free(self, event: CapacityFreed, seq: int, now: "Moment") -> None:
        """Take note that room appeared; at most one of each line that it can help becomes due."""
        for shape in self._wakes.touched(event.classes):
            line = self._lines[shape]
            if _helps(line, event):
                line.freed_seq = seq
                if not line.trying:
                    line.credit = max(line.credit, 1)
                    line.moved_ns = now.ns
                    self._settle(line)

    def take(self, limit: int, now_ns: int) -> list[EvalKey]:
        """Return blocked ones that shall be woken, by priority, then age; they are not returned again."""
        keys: list[EvalKey] = []
        floor = self.floor(now_ns) if self._due else 0
        while self._due and len(keys) < limit and -self._due[0][0] >= floor:
            key = heappop(self._due)[3]
            member = self._members.get(key)
            if member is not None and member.blocked is not None and not member.waits:
                keys.append(key)
        return keys

    def ready(self) -> list[EvalKey]:
        """Return parked ones that may be leased now; they are not returned again, and stay until they leave."""
        if not self._ready:
            return []
        keys, self._ready = self._ready, []
        return [key for key in keys if self.is_trying(key)]

    def floor(self, now_ns: int) -> int:
        """Return the lowest priority that may be handed out now; 0: any.

        While a line finds room, those of lower priority do not take it before the next of the line come.
        """
        return max((self._priority(line, now_ns) for line in self._running.values()), default=0)

    def due_ns(self, now_ns: int) -> int:
        """When a line that does not move stops holding others back; 0: none does."""
        ends = [line.moved_ns + STALLED_NS for line in self._running.values()]
        return min((end for end in ends if end > now_ns), default=0)

    def _priority(self, line: Line, now_ns: int) -> int:
        is_moving = line.waiting and now_ns < line.moved_ns + STALLED_NS
        return -self._head(line).order[0] if is_moving else 0

    def _line(self, need: Need, now: "Moment") -> Line:
        line = self._lines.get(need.shape)
        if line is None:
            self._numbered += 1
            line = Line(need.shape, self._numbered, credit=FIRST_TRIES, moved_ns=now.ns)
            self._lines[need.shape] = line
        return line

    def _enter(self, key: EvalKey, need: Need, line: Line, blocked: Blocked | None) -> None:
        order = (-need.priority, need.age, need.job_id, key)
        self._members[key] = Member(order, line, blocked, waits=True)
        line.waiting += 1
        # Most come in the order in which they go: that costs no search.
        if not line.queue or line.queue[-1] < order:
            line.queue.append(order)
        else:
            heappush(line.heap, order)

    def _head(self, line: Line) -> Member:
        """Return who is next where anybody waits."""
        queue, heap = line.queue, line.heap
        first = late = None
        while queue and (first := self._waiting_at(queue[0])) is None:
            queue.popleft()
        while heap and (late := self._waiting_at(heap[0])) is None:
            heappop(heap)
        if first is None or (late is not None and late.order < first.order):
            first = late
        assert first is not None, (line.shape, line.waiting)
        return first

    def _waiting_at(self, order: Order) -> Member | None:
        member = self._members.get(order[3])
        is_there = member is not None and member.waits and member.order == order
        return member if is_there else None

    def _unpark(self, order: Order) -> None:
        job_id, key = order[2], order[3]
        keys = self.parked_of.get(job_id)
        if keys is None or key not in keys:
            return
        if len(keys) == 1:
            del self.parked_of[job_id]
        else:
            self.parked_of[job_id] = tuple(one for one in keys if one != key)

    def _learn(self, line: Line, now: "Moment", *, found: bool | None) -> None:
        """Let two go for one that found room; none where there is no more."""
        if found is None:
            line.credit += 1
            return
        line.is_running = found
        line.moved_ns = now.ns
        line.credit = min(line.credit + 2, TRIES_MAX) if found else 0

    def _settle(self, line: Line) -> None:
        """Let go whom the line may let go. A line at rest has a head that was tried since anything was freed."""
        if line.waiting and not line.trying and not line.credit:
            line.credit = int(self._is_due(line, self._head(line)))
        while line.waiting and line.credit and line.trying < TRIES_MAX:
            head = self._head(line)
            head.waits = False
            line.credit -= 1
            line.waiting -= 1
            line.trying += 1
            if head.blocked is not None:
                heappush(self._due, head.order)
            else:
                self._unpark(head.order)
                self._ready.append(head.order[3])
        if line.waiting and line.trying and line.is_running:
            self._running[line.number] = line
        else:
            self._running.pop(line.number, None)

    def _is_due(self, line: Line, head: Member) -> bool:
        """Tell whether a head was never tried, or room appeared after the snapshot on which it found none."""
        blocked = head.blocked
        if blocked is None:
            return True
        since = blocked.snapshot_seq
        if since >= line.heard_seq:
            # The line heard of everything since, amounts included.
            return line.freed_seq > since
        freed = self._grown_seq if is_hopeless(blocked) else self._freed_seq
        return any(freed.get(one, 0) > since for one in blocked.classes) or any(
            seq > since for one, seq in freed.items() if one >= blocked.seen_classes
        )


class Moment(msgspec.Struct, frozen=True, gc=False):
    """When something is heard of: steady ns, and the seq of the log."""

    ns: int
    seq: int


def is_hopeless(blocked: Blocked) -> bool:
    """Tell whether nothing that waits fits any node there is, so that only other nodes can help."""
    waiting = blocked.waiting
    return bool(waiting) and all(one.wait_class in HOPELESS for one in waiting.values())


def _helps(line: Line, event: CapacityFreed) -> bool:
    if line.blocked is not None and is_hopeless(line.blocked):
        return event.grown
    if not event.room or not line.asks:
        return True
    return any(all(a <= b for a, b in zip(ask, event.room, strict=True)) for ask in line.asks)
