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

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

import msgspec

from schemas.base import EvalKey, JobId
from schemas.evaluations import Blocked
from schemas.nodes import CapacityFreed
from services.eval_broker.wakes import Wakes
from shared.core.shapes import Ask, Shape
from shared.core.waker import earliest

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


class Need(msgspec.Struct, frozen=True):
    """What an evaluation waits for, and its place. `asks`: one of them must fit; empty: amounts say nothing."""

    job_id: JobId
    shape: Shape
    priority: int
    age: int
    asks: tuple[Ask, ...] = ()


class Member(msgspec.Struct, eq=False):
    """One evaluation in a line. `blocked` is None for a parked one."""

    key: EvalKey
    need: Need
    order: Order
    line: "Line"
    blocked: Blocked | None


class Line(msgspec.Struct, eq=False):
    """All that wait for one shape. Times are steady ns."""

    shape: Shape
    #: seq of the log from which on it heard of whatever was freed on the classes that it waits for.
    heard_seq: int = 0
    #: seq at which something was last freed that could help.
    freed_seq: int = 0
    #: tries that may be made now.
    credit: int = 0
    #: it was never found shut, or found room the last time.
    is_running: bool = True
    moved_ns: int = 0
    waiting: dict[EvalKey, Member] = {}
    heap: list[tuple[Order, EvalKey]] = []
    trying: dict[EvalKey, Member] = {}
    #: what the last one blocked knew, which wakes the line.
    blocked: Blocked | None = None
    asks: tuple[Ask, ...] = ()

    def head(self) -> Member | None:
        """Return who is next, if anybody waits."""
        heap, waiting = self.heap, self.waiting
        while heap and (heap[0][1] not in waiting or waiting[heap[0][1]].order != heap[0][0]):
            heappop(heap)
        return waiting[heap[0][1]] if heap else None


class Lines:
    """Every line. `freed_seq` and `grown_seq` are the evaluation table's, by computed class."""

    def __init__(self, freed_seq: Mapping[int, int], grown_seq: Mapping[int, int]) -> None:
        self._freed_seq = freed_seq
        self._grown_seq = grown_seq
        self._lines: dict[Shape, Line] = {}
        self._members: dict[EvalKey, Member] = {}
        self._parked_of: dict[JobId, dict[EvalKey, None]] = {}
        self._wakes = Wakes()
        #: blocked ones that shall be woken, by order.
        self._due: list[tuple[Order, EvalKey]] = []
        self._ready: list[EvalKey] = []
        #: lines that find room and have more behind.
        self.running: dict[Shape, Line] = {}
        self._blocked = 0

    def gauges(self) -> dict[str, int]:
        """Count the blocked, those parked behind others of their shape, and shapes that anything waits for or tries."""
        parked = sum(len(keys) for keys in self._parked_of.values())
        return {
            "blocked_evaluations": self._blocked,
            "parked_evaluations": parked,
            "shapes": len(self._lines),
        }

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
        if line.credit and not line.waiting and len(line.trying) < TRIES_MAX:
            # Nobody waits: what it will nearly always be.
            order = (-need.priority, need.age, need.job_id, key)
            self._members[key] = line.trying[key] = Member(key, need, order, line, None)
            line.credit -= 1
            self._ready.append(key)
            return
        self._enter(key, need, line, None)
        self._parked_of.setdefault(need.job_id, {})[key] = None
        self._settle(line)

    def parked_of(self, job_id: JobId) -> list[EvalKey]:
        """Evaluations of a job that are parked."""
        return list(self._parked_of.get(job_id, ()))

    def is_trying(self, key: EvalKey) -> bool:
        """Tell whether an evaluation of a line is tried now."""
        member = self._members.get(key)
        return member is not None and key in member.line.trying

    def woken(self, key: EvalKey, now: "Moment") -> bool:
        """Take note that a blocked one is pending now, whoever woke it; returns whether it was here."""
        member = self._members.get(key)
        if member is None or member.blocked is None:
            return False
        self._blocked -= 1
        member.blocked = None
        line = member.line
        if key in line.waiting:
            del line.waiting[key]
            line.trying[key] = member
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
        left = self._members.get(after) if after is not None else None
        found = (left is None or left.line is not line) if was_tried else None
        self._blocked -= member.blocked is not None
        if line.waiting.pop(key, None) is not None:
            self._unpark(member)
        else:
            del line.trying[key]
            self._learn(line, now, found=found)
        if line.waiting or line.shape in self.running:
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
        floor = self.floor(now_ns)
        while self._due and len(keys) < limit and -self._due[0][0][0] >= floor:
            key = heappop(self._due)[1]
            member = self._members.get(key)
            if member is not None and member.blocked is not None and key in member.line.trying:
                keys.append(key)
        return keys

    def ready(self) -> list[EvalKey]:
        """Return parked ones that may be leased now; they are not returned again, and stay until they leave."""
        keys, self._ready = self._ready, []
        return [key for key in keys if self.is_trying(key)]

    def floor(self, now_ns: int) -> int:
        """Return the lowest priority that may be handed out now; 0: any.

        While a line finds room, those of lower priority do not take it before the next of the line come.
        """
        return max((self._priority(line, now_ns) for line in self.running.values()), default=0)

    def due_ns(self, now_ns: int) -> int:
        """When a line that does not move stops holding others back; 0: none does."""
        ends = [line.moved_ns + STALLED_NS for line in self.running.values()]
        return earliest(*[end for end in ends if end > now_ns])

    def _priority(self, line: Line, now_ns: int) -> int:
        head = line.head()
        is_moving = head is not None and now_ns < line.moved_ns + STALLED_NS
        return head.need.priority if head is not None and is_moving else 0

    def _line(self, need: Need, now: "Moment") -> Line:
        line = self._lines.get(need.shape)
        if line is None:
            line = Line(shape=need.shape, credit=FIRST_TRIES, moved_ns=now.ns)
            self._lines[need.shape] = line
        return line

    def _enter(self, key: EvalKey, need: Need, line: Line, blocked: Blocked | None) -> None:
        order = (-need.priority, need.age, need.job_id, key)
        member = self._members[key] = Member(key, need, order, line, blocked)
        line.waiting[key] = member
        heappush(line.heap, (order, key))

    def _unpark(self, member: Member) -> None:
        of_job = self._parked_of.get(member.need.job_id)
        if of_job is not None and of_job.pop(member.key, 0) is None and not of_job:
            del self._parked_of[member.need.job_id]

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
        head = line.head()
        if head is not None and not line.trying and not line.credit and self._is_due(line, head):
            line.credit = 1
        while head is not None and line.credit and len(line.trying) < TRIES_MAX:
            line.credit -= 1
            del line.waiting[head.key]
            line.trying[head.key] = head
            if head.blocked is not None:
                heappush(self._due, (head.order, head.key))
            else:
                self._unpark(head)
                self._ready.append(head.key)
            head = line.head()
        if head is not None and line.trying and line.is_running:
            self.running[line.shape] = line
        else:
            self.running.pop(line.shape, None)

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


class Moment(msgspec.Struct, frozen=True):
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


def held_up(running: Iterable[Line]) -> int:
    """Count those in lines that move and were never found shut: workers, not nodes, are what they wait for."""
    return sum(len(line.waiting) for line in running if line.blocked is None)
