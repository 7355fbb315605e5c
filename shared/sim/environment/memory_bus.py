"""The in-memory bus: what roles can see of a NATS server with our streams.

Kept over a restart: LOG and JOBS. Lost with it: memory streams, last values, leaderships and subscriptions. Methods act
at the bus, at the present instant; delays are those of message_faults.py, storage is memory_stores.py.
"""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

from shared.core.runtime.messages import Listen, Read, Work
from shared.protocol import subjects
from shared.sim.environment.memory_stores import LastValue, LastValues, Leaderships, MemoryLog
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.virtual_time import VirtualLoop

_DIRECT_GET = subjects.js_direct_get("NODE", " ").rstrip()
#: Delivers an answer to the requester.
AnswerCallback = Callable[[bytes], None]


class Delivery(NamedTuple):
    """A message in transit to one source of one process."""

    source: str
    subject: str
    data: bytes
    answer: AnswerCallback | None = None
    stream_seq: int = 0
    msg_id: str = ""


class BusMember(Protocol):
    """A process, as the bus sees it."""

    name: str

    def log_grew(self) -> None:
        """Called when the log has a new record."""
        ...

    def credit(self, source: str) -> int:
        """Return the remaining credit of an opened source."""
        ...

    def deliver(self, delivery: Delivery, delay_ns: int) -> None:
        """Take a message that arrives in `delay_ns`; it counts against the credit at once."""
        ...


class StoredSubmission(NamedTuple):
    """One message of JOBS."""

    seq: int
    subject: str
    data: bytes
    msg_id: str


class _Queue:
    """A durable consumer of a memory stream: undelivered messages, and the processes that have it open."""

    __slots__ = ("pattern", "takers", "waiting")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.waiting: deque[tuple[str, bytes, str]] = deque()
        self.takers: list[tuple[BusMember, str]] = []


class _Reader:
    """A process that reads JOBS from a position of its own."""

    __slots__ = ("arrival_ns", "member", "next_seq", "source")

    def __init__(self, member: BusMember, source: str, next_seq: int) -> None:
        self.member = member
        self.source = source
        self.next_seq = next_seq
        self.arrival_ns = 0


@lru_cache(maxsize=1 << 14)
def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject matches a pattern with `*` and `>`."""
    left, right = pattern.split("."), subject.split(".")
    for at, token in enumerate(left):
        if token == ">":
            return len(right) > at
        if at >= len(right) or token not in ("*", right[at]):
            return False
    return len(left) == len(right)


class MemoryBus:
    """One bus server."""

    def __init__(self, loop: VirtualLoop, message_faults: MessageFaults) -> None:
        self.loop = loop
        self.message_faults = message_faults
        self.is_up = True
        self.boot = 1
        #: id of this start, as roles receive it; empty: none.
        self.identity = ""
        self.log = MemoryLog()
        self.values = LastValues(loop)
        self.leaderships = Leaderships(loop)
        self.jobs: list[StoredSubmission] = []
        self._jobs_seq = 0
        self._job_ids: dict[str, int] = {}
        self._followers: dict[str, BusMember] = {}
        self._listens: list[tuple[BusMember, Listen]] = []
        self._queues: dict[str, _Queue] = {}
        self._readers: list[_Reader] = []
        self._routes: dict[str, tuple[list[tuple[BusMember, Listen]], list[_Queue]]] = {}
        self._turn = 0
        self.log.watch(self._grew)

    # ---- connections ----

    def connect(self, member: BusMember, listens: tuple[Listen, ...], *, follows_log: bool) -> None:
        """Subscribe a process."""
        self._routes.clear()
        self._listens += [(member, listen) for listen in listens]
        if follows_log:
            self._followers[member.name] = member

    def disconnect(self, member: BusMember) -> None:
        """Forget a process's subscriptions; durable queues stay."""
        self._routes.clear()
        self._listens = [one for one in self._listens if one[0] is not member]
        self._followers.pop(member.name, None)
        self._readers = [one for one in self._readers if one.member is not member]
        for queue in self._queues.values():
            queue.takers = [one for one in queue.takers if one[0] is not member]

    def restart(self) -> None:
        """Lose all memory and connections; the caller disconnects the processes."""
        self.boot += 1
        self.values.clear()
        self.leaderships.clear()
        self._queues.clear()
        self._listens.clear()
        self._followers.clear()
        self._readers.clear()
        self._routes.clear()

    # ---- sources that are opened ----

    def open_work(self, member: BusMember, work: Work) -> None:
        """Start or join a durable consumer."""
        queue = self._queues.get(work.durable)
        if queue is None:
            queue = self._queues[work.durable] = _Queue(work.subject)
            self._routes.clear()
        if (member, work.name) not in queue.takers:
            queue.takers.append((member, work.name))
        self._pump(queue)

    def open_read(self, member: BusMember, read: Read, start: int) -> None:
        """Start to read JOBS from seq `start`."""
        self.close(member, read.name)
        self._readers.append(_Reader(member, read.name, max(start, 1)))
        self.pump()

    def close(self, member: BusMember, source: str) -> None:
        """Stop a process's opened source."""
        for queue in self._queues.values():
            if (member, source) in queue.takers:
                queue.takers.remove((member, source))
        self._readers = [r for r in self._readers if r.member is not member or r.source != source]

    def pump(self) -> None:
        """Deliver waiting messages to sources with credit."""
        for queue in self._queues.values():
            if queue.waiting:
                self._pump(queue)
        for reader in self._readers:
            self._pump_reader(reader)

    def _pump(self, queue: _Queue) -> None:
        while queue.waiting:
            takers = [one for one in queue.takers if one[0].credit(one[1]) > 0]
            if not takers:
                return
            self._turn += 1
            member, source = takers[self._turn % len(takers)]
            subject, data, msg_id = queue.waiting.popleft()
            for delay in self.message_faults.hop_delays():
                member.deliver(Delivery(source, subject, data, msg_id=msg_id), delay)

    def _pump_reader(self, reader: _Reader) -> None:
        room = reader.member.credit(reader.source)
        for stored in self.jobs:
            if stored.seq < reader.next_seq:
                continue
            if room <= 0:
                return
            room -= 1
            reader.next_seq = stored.seq + 1
            at_ns = max(reader.arrival_ns, self.loop.now_ns + self.message_faults.reliable_hop())
            reader.arrival_ns = at_ns
            delivery = Delivery(
                reader.source, stored.subject, stored.data, None, stored.seq, stored.msg_id
            )
            reader.member.deliver(delivery, at_ns - self.loop.now_ns)

    # ---- publishing ----

    def publish(
        self, subject: str, data: bytes, answer: AnswerCallback | None = None, msg_id: str = ""
    ) -> None:
        """Hand a message to queues, listeners and one of each queue group."""
        if not self.is_up:
            return
        route = self._routes.get(subject)
        if route is None:
            head = subject.partition(".")[0]
            listens = [one for one in self._listens if one[1].subject.startswith(head)]
            queues = [one for one in self._queues.values() if one.pattern.startswith(head)]
            route = self._routes[subject] = (
                [one for one in listens if matches(one[1].subject, subject)],
                [queue for queue in queues if matches(queue.pattern, subject)],
            )
        for queue in route[1]:
            queue.waiting.append((subject, data, msg_id))
            self._pump(queue)
        groups: dict[str, list[tuple[BusMember, Listen]]] = {}
        for member, listen in route[0]:
            if listen.queue:
                groups.setdefault(listen.queue, []).append((member, listen))
            else:
                self._hand(member, Delivery(listen.name, subject, data, answer, 0, msg_id))
        for takers in groups.values():
            self._turn += 1
            member, listen = takers[self._turn % len(takers)]
            self._hand(member, Delivery(listen.name, subject, data, answer, 0, msg_id))

    def request(self, subject: str, data: bytes, answer: AnswerCallback) -> None:
        """Publish a request; requests for a last value are answered here, as by JetStream."""
        if subject.startswith(_DIRECT_GET) and self.is_up:
            answer(self.values.get(subject.removeprefix(_DIRECT_GET)).data)
        else:
            self.publish(subject, data, answer)

    def _hand(self, member: BusMember, delivery: Delivery) -> None:
        for delay in self.message_faults.hop_delays():
            member.deliver(delivery, delay)

    def store_job(self, subject: str, data: bytes, msg_id: str) -> int:
        """Store a message in JOBS, once per id. Returns its seq; 0: the bus is down."""
        if not self.is_up:
            return 0
        known = self._job_ids.get(msg_id)
        if known is not None:
            return known
        self._jobs_seq += 1
        self.jobs.append(StoredSubmission(self._jobs_seq, subject, data, msg_id))
        self._job_ids[msg_id] = self._jobs_seq
        for reader in self._readers:
            self._pump_reader(reader)
        return self._jobs_seq

    def purge(self, below: int) -> None:
        """Drop the messages of JOBS below a seq."""
        self.jobs = [stored for stored in self.jobs if stored.seq >= below]

    def put(self, subject: str, data: bytes, expected: int, ttl_s: int) -> tuple[bool, LastValue]:
        """Store a last value, and push it to listeners. Returns whether it was stored, and the value now."""
        done, value = self.values.put(subject, data, expected, ttl_s)
        if done:
            self.publish(subject, data)
        return done, value

    def _grew(self, _seq: int, _subject: str, _data: bytes) -> None:
        for member in self._followers.values():
            member.log_grew()
