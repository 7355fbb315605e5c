"""The in-memory bus: what a NATS server with our streams does, as far as any role can see.

Decides who gets a message and what the log takes. Must not know what a message means, nor when it arrives (the hops
are `weather.py`'s). Kept over a restart: LOG and JOBS. Lost with it: memory streams, last values, leaderships and
every subscription. Methods happen at the bus, at the present instant. Beside it: `stores.py`. Next: `process.py`.
"""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

from shared.bus import subjects
from shared.core.role import Listen, Read, Work
from shared.sim.loop import Loop
from shared.sim.stores import LastValues, Leaderships, Log, Value
from shared.sim.weather import Weather

_DIRECT_GET = subjects.js_direct_get("NODE", " ").rstrip()
#: How a requester hears the answer.
Answer = Callable[[bytes], None]


class Delivery(NamedTuple):
    """A message on its way to one source of one process."""

    source: str
    subject: str
    data: bytes
    answer: Answer | None = None
    stream_seq: int = 0
    msg_id: str = ""


class Member(Protocol):
    """What the bus knows of a process."""

    name: str

    def log_grew(self) -> None:
        """Hear that the log has a new record."""
        ...

    def credit(self, source: str) -> int:
        """Return how many more messages an opened source takes now."""
        ...

    def deliver(self, delivery: Delivery, delay_ns: int) -> None:
        """Take a message that arrives in `delay_ns`; counts against the credit from now on."""
        ...


class Stored(NamedTuple):
    """One message of JOBS."""

    seq: int
    subject: str
    data: bytes
    msg_id: str


class _Queue:
    """A durable consumer of a memory stream: messages until delivered, and who has it open."""

    __slots__ = ("pattern", "takers", "waiting")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.waiting: deque[tuple[str, bytes, str]] = deque()
        self.takers: list[tuple[Member, str]] = []


class _Reader:
    """A process that reads JOBS from a position of its own."""

    __slots__ = ("arrival_ns", "member", "next_seq", "source")

    def __init__(self, member: Member, source: str, next_seq: int) -> None:
        self.member = member
        self.source = source
        self.next_seq = next_seq
        self.arrival_ns = 0


@lru_cache(maxsize=1 << 14)
def matches(pattern: str, subject: str) -> bool:
    """Tell whether a subject matches a pattern with `*` and `>`."""
    left, right = pattern.split("."), subject.split(".")
    for at, token in enumerate(left):
        if token == ">":
            return len(right) > at
        if at >= len(right) or token not in ("*", right[at]):
            return False
    return len(left) == len(right)


class Bus:
    """One server."""

    def __init__(self, loop: Loop, weather: Weather) -> None:
        self.loop = loop
        self.weather = weather
        self.is_up = True
        self.boot = 1
        self.log = Log()
        self.values = LastValues(loop)
        self.leaderships = Leaderships(loop)
        self.jobs: list[Stored] = []
        self._jobs_seq = 0
        self._job_ids: dict[str, int] = {}
        self._followers: dict[str, Member] = {}
        self._listens: list[tuple[Member, Listen]] = []
        self._queues: dict[str, _Queue] = {}
        self._readers: list[_Reader] = []
        self._routes: dict[str, tuple[list[tuple[Member, Listen]], list[_Queue]]] = {}
        self._turn = 0
        self.log.watch(self._grew)

    # ---- connections ----

    def connect(self, member: Member, listens: tuple[Listen, ...], *, follows_log: bool) -> None:
        """Subscribe a process."""
        self._routes.clear()
        self._listens += [(member, listen) for listen in listens]
        if follows_log:
            self._followers[member.name] = member

    def disconnect(self, member: Member) -> None:
        """Forget a process's subscriptions; durable queues stay."""
        self._routes.clear()
        self._listens = [one for one in self._listens if one[0] is not member]
        self._followers.pop(member.name, None)
        self._readers = [one for one in self._readers if one.member is not member]
        for queue in self._queues.values():
            queue.takers = [one for one in queue.takers if one[0] is not member]

    def restart(self) -> None:
        """Lose what is in memory; every connection ends (the processes are told by who calls this)."""
        self.boot += 1
        self.values.clear()
        self.leaderships.clear()
        self._queues.clear()
        self._listens.clear()
        self._followers.clear()
        self._readers.clear()
        self._routes.clear()

    # ---- sources that are opened ----

    def open_work(self, member: Member, work: Work) -> None:
        """Start or join a durable consumer."""
        queue = self._queues.get(work.durable)
        if queue is None:
            queue = self._queues[work.durable] = _Queue(work.subject)
            self._routes.clear()
        if (member, work.name) not in queue.takers:
            queue.takers.append((member, work.name))
        self._pump(queue)

    def open_read(self, member: Member, read: Read, start: int) -> None:
        """Start to read JOBS from seq `start`."""
        self.close(member, read.name)
        self._readers.append(_Reader(member, read.name, max(start, 1)))
        self.pump()

    def close(self, member: Member, source: str) -> None:
        """Stop a process's opened source."""
        for queue in self._queues.values():
            if (member, source) in queue.takers:
                queue.takers.remove((member, source))
        self._readers = [r for r in self._readers if r.member is not member or r.source != source]

    def pump(self) -> None:
        """Deliver what waits to whoever has credit again."""
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
            for delay in self.weather.hop():
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
            at_ns = max(reader.arrival_ns, self.loop.now_ns + self.weather.calm_hop())
            reader.arrival_ns = at_ns
            delivery = Delivery(
                reader.source, stored.subject, stored.data, None, stored.seq, stored.msg_id
            )
            reader.member.deliver(delivery, at_ns - self.loop.now_ns)

    # ---- publishing ----

    def publish(
        self, subject: str, data: bytes, answer: Answer | None = None, msg_id: str = ""
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
        groups: dict[str, list[tuple[Member, Listen]]] = {}
        for member, listen in route[0]:
            if listen.queue:
                groups.setdefault(listen.queue, []).append((member, listen))
            else:
                self._hand(member, Delivery(listen.name, subject, data, answer, 0, msg_id))
        for takers in groups.values():
            self._turn += 1
            member, listen = takers[self._turn % len(takers)]
            self._hand(member, Delivery(listen.name, subject, data, answer, 0, msg_id))

    def request(self, subject: str, data: bytes, answer: Answer) -> None:
        """Publish a request; one for a last value is answered here, as JetStream does."""
        if subject.startswith(_DIRECT_GET) and self.is_up:
            answer(self.values.get(subject.removeprefix(_DIRECT_GET)).data)
        else:
            self.publish(subject, data, answer)

    def _hand(self, member: Member, delivery: Delivery) -> None:
        for delay in self.weather.hop():
            member.deliver(delivery, delay)

    def store_job(self, subject: str, data: bytes, msg_id: str) -> int:
        """Keep a message in JOBS; a known id is kept once. Returns its seq; 0: the bus is away."""
        if not self.is_up:
            return 0
        known = self._job_ids.get(msg_id)
        if known is not None:
            return known
        self._jobs_seq += 1
        self.jobs.append(Stored(self._jobs_seq, subject, data, msg_id))
        self._job_ids[msg_id] = self._jobs_seq
        for reader in self._readers:
            self._pump_reader(reader)
        return self._jobs_seq

    def purge(self, below: int) -> None:
        """Drop the messages of JOBS below a seq."""
        self.jobs = [stored for stored in self.jobs if stored.seq >= below]

    def put(self, subject: str, data: bytes, expected: int, ttl_s: int) -> tuple[bool, Value]:
        """Store a last value, and push it to whoever listens. Returns done, and what stands now."""
        done, value = self.values.put(subject, data, expected, ttl_s)
        if done:
            self.publish(subject, data)
        return done, value

    def _grew(self, _seq: int, _subject: str, _data: bytes) -> None:
        for member in self._followers.values():
            member.log_grew()
