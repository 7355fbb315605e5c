"""A fleet that speaks as agents do and keeps its allocations in columns: the role behind `caravan fleet`.

Decides nothing that an agent would decide otherwise: what is an order (`orders.py`), what is said and how often
(`telling.py`), who registers again. Its tasks are `shared/fleet/lives.py`. Must not know the bus or a clock. Per
allocation there are elements of columns and lists alone; per node one small object.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import Heartbeat, NodeSpec
from services.agent.fleet.jobs import Jobs
from services.agent.fleet.orders import Ear, Order, Orders, Said
from services.agent.fleet.outages import Outages
from services.agent.fleet.telling import Telling
from shared.bus import subjects
from shared.core.columns import Rows
from shared.core.role import (
    Ack,
    Answer,
    Ask,
    Effect,
    Input,
    Listen,
    Message,
    Reconnected,
    Send,
    SetTimer,
    Source,
    Stop,
    Timer,
)
from shared.fleet.laws import Int64s
from shared.fleet.lives import Lives
from shared.fleet.profile import Habits

HEARTBEAT_NS = 1_000_000_000
#: Heartbeats are spread over the second in so many turns.
SLICES = 40
#: Between two questions for a job that nobody knew.
FETCH_NS = 500_000_000
#: What waits for jobs is looked at so often, for each node that waits: looking takes a small part of the time.
AGAIN_NS = 100_000
#: Words heard, and nodes that start something, in one step: heartbeats come between, and never seconds late.
HEARD_MAX = 1_000
STARTS_MAX = 500
LOOK = "look "


class Member:
    """One node of the fleet."""

    __slots__ = (
        "beat",
        "beat_subject",
        "crowd",
        "ear",
        "keys",
        "node_id",
        "number",
        "pending",
        "rows",
        "spec",
        "subject",
        "telling",
    )

    def __init__(self, number: int, spec: NodeSpec, boot_id: str) -> None:
        self.number = number
        self.spec = spec
        self.node_id: str = spec.node_id
        self.subject = subjects.report(spec.node_id)
        self.beat_subject = subjects.heartbeat(spec.node_id)
        self.begin(boot_id)

    def begin(self, boot_id: str) -> None:
        """Boot: nothing runs, nothing was heard or said."""
        self.ear = Ear()
        self.telling = Telling(self.spec, f"host-{self.node_id}", boot_id)
        #: allocations of the last order that shall run.
        self.keys: list[int] = []
        self.rows: list[int] = []
        #: orders that wait: for job versions, or for those who were evicted.
        self.pending: list[Order] = []
        #: keys and rows of evicted allocations that may not have ended.
        self.crowd: tuple[list[int], list[int]] | None = None
        beat = Heartbeat(node_id=self.telling.node_id, boot_id=boot_id)
        self.beat = ENCODER.encode(beat)[:-1]


class _Batch:
    """Orders of one step, put together over all nodes."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.rows: list[int] = []
        self.manners: list[int] = []
        self._nodes: list[int] = []
        self._counts: list[int] = []

    def add(self, keys: list[int], rows: list[int], node: int) -> None:
        """Add allocations of a node."""
        self.keys += keys
        self.rows += rows
        self._nodes.append(node)
        self._counts.append(len(keys))

    def take(self) -> tuple[Rows, Int64s, Rows]:
        """Return rows, keys and nodes, each row once, and forget them; manners are left."""
        rows = np.array(self.rows, dtype=np.int32)
        keys = np.array(self.keys, dtype=np.int64)
        nodes = np.repeat(np.array(self._nodes, dtype=np.int32), self._counts)
        self.keys, self.rows, self._nodes, self._counts = [], [], [], []
        return rows, keys, nodes


class Fleet:
    """The role. `boots(node, nth)` names the boot of a node: new with every process and outage."""

    name = "fleet"
    leader_key = ""
    next_seq = 0

    def __init__(
        self,
        specs: Sequence[NodeSpec],
        habits: Habits,
        *,
        instance: str,
        boots: Callable[[int, int], str],
        seed: int = 0,
    ) -> None:
        self.instance = instance
        self._boots = boots
        self.lives = Lives(seed)
        self._jobs = Jobs(habits, self.lives)
        self._orders = Orders()
        self.members = [Member(at, spec, boots(at, 0)) for at, spec in enumerate(specs)]
        self._at = {subjects.node(one.node_id): one for one in self.members}
        self._outages = Outages(habits, seed, len(self.members))
        #: when each node speaks next, as queued; 0: not.
        self._speaks = np.zeros(len(self.members), dtype=np.int64)
        self._starts, self._stops = _Batch(), _Batch()
        #: words of the view that wait for their step.
        self._unheard: deque[tuple[Member, bytes]] = deque()
        #: nodes with something to start.
        self._eager: dict[int, Member] = {}
        #: nodes that wait for a job version.
        self._held: dict[int, Member] = {}
        #: job versions became known since they were looked at.
        self._is_taught = False
        self._looked_ns = 0
        #: whose heartbeats are next, and when.
        self._slice = 0
        self._beat_ns = 0
        self._awake = False
        self._timers: dict[str, int] = {}
        self._looks: dict[int, None] = {}
        self.refused: dict[str, str] = {}
        self.reports = 0
        self.started = 0

    def sources(self) -> tuple[Source, ...]:
        """The projections of its nodes; of each the shell delivers the last value first."""
        return tuple(Listen("projection", subject) for subject in self._at)

    def metrics(self) -> dict[str, float]:
        """Gauges and counters."""
        ignored = {
            f'caravan_fleet_projections_ignored_total{{reason="{reason}"}}': float(count)
            for reason, count in self._orders.ignored.items()
        }
        tellings = [one.telling for one in self.members]
        return {
            "caravan_fleet_nodes": float(len(tellings)),
            "caravan_fleet_registered": float(sum(one.is_registered for one in tellings)),
            "caravan_fleet_refused": float(len(self.refused)),
            "caravan_fleet_away": float(len(self._outages)),
            "caravan_fleet_allocations": float(self.lives.alive()),
            "caravan_fleet_starts_total": float(self.started),
            "caravan_fleet_reports_total": float(self.reports),
            "caravan_fleet_states_unseen": float(sum(one.unseen for one in tellings)),
            **ignored,
        }

    def step(self, inputs: Sequence[Input], now_ns: int) -> list[Effect]:
        """Take what happened; let time pass in all lives, and say what is due."""
        out: list[Effect] = []
        if not self._awake:
            self._awake = True
            self._outages.begin(now_ns)
            self._speaks[:] = now_ns
            self._beat_ns = now_ns
            self._beat(now_ns, out)
        for one in inputs:
            self._take(one, now_ns, out)
        for _ in range(min(len(self._unheard), HEARD_MAX)):
            self._hear(*self._unheard.popleft(), out)
        self._fail(now_ns)
        self._obey(now_ns)
        self._live(now_ns)
        self._speak(now_ns, out)
        out += self._jobs.asks
        self._jobs.asks = []
        self._set("lives", self.lives.next_due_ns(), out)
        self._set("speak", self._next_word_ns(), out)
        self._set("outage", self._outages.next_ns(), out)
        self._set("taught", self._look_due_ns() if self._is_taught else 0, out)
        self._set("more", now_ns if self._unheard or self._eager else 0, out)
        return out

    def _set(self, name: str, at_ns: int, out: list[Effect]) -> None:
        if self._timers.get(name, 0) != at_ns:
            self._timers[name] = at_ns
            out.append(SetTimer(name, at_ns))

    # ---- inputs ----

    def _take(self, one: Input, now_ns: int, out: list[Effect]) -> None:
        match one:
            case Message():
                out.append(Ack(one.token))
                member = self._at.get(one.subject)
                if member is not None:
                    self._unheard.append((member, one.data))
            case Answer() if one.name.startswith(LOOK):
                member = self.members[int(one.name.removeprefix(LOOK))]
                self._looks.pop(member.number, None)
                if one.data:
                    self._unheard.append((member, one.data))
            case Answer():
                if self._jobs.take(one.name, one.data):
                    self._is_taught = True
                else:
                    self._set("fetch", now_ns + FETCH_NS, out)
            case Timer():
                self._timers.pop(one.name, None)
                if one.name == "beat":
                    self._beat(now_ns, out)
                elif one.name == "fetch":
                    self._eager.update(self._held)
            case Reconnected():
                for member in self.members:
                    member.telling.hurry()
                    self._plan(member)
            case _:
                pass

    def _hear(self, member: Member, data: bytes, out: list[Effect]) -> None:
        if self._outages.is_away(member.number) or member.node_id in self.refused:
            return
        said = self._orders.read(member.ear, member.node_id, data)
        if said is None or self._is_stranger(member, said, out):
            return
        order = self._orders.order(member.ear, said, data)
        telling = member.telling
        if said.boot_id == telling.boot_id:
            telling.see(said.reports_seen)
        elif telling.is_registered:
            # The log does not know this boot (any more), and with it states that are not ours.
            telling.register()
            self._touch_all(member)
        self._plan(member)
        if order is not None:
            self._follow(member, order)

    def _is_stranger(self, member: Member, said: Said, out: list[Effect]) -> bool:
        """Tell whether a node must not go on under its id; without any left the fleet ends."""
        telling = member.telling
        if said.host_id in ("", telling.host_id):
            return False
        self.refused[member.node_id] = said.refused or f"it belongs to host {said.host_id}"
        if len(self.refused) == len(self.members):
            text = f"every node was refused, {member.node_id}: {self.refused[member.node_id]}"
            out.append(Stop(text))
        return True

    def _touch_all(self, member: Member) -> None:
        rows = self.lives.on(np.asarray([member.number], dtype=np.int32))
        if len(rows):
            member.telling.touch(rows, self.lives.key[rows])

    # ---- orders ----

    def _follow(self, member: Member, order: Order) -> None:
        """Note what a node shall do; what starts is looked at once a step."""
        if not order.adds:
            named = {*order.keys, *order.stops[0]}
            gone = [at for at, key in enumerate(member.keys) if key not in named]
            if gone:
                rows, keys = member.rows, member.keys
                self._end([keys[at] for at in gone], [rows[at] for at in gone], member)
            member.keys, member.rows, member.pending = [], [], []
            if order.stops[0]:
                self._end(*order.stops, member)
            member.crowd = order.evicts if order.evicts[0] else None
        member.keys += order.keys
        member.rows += order.rows
        member.pending.append(order)
        self._eager[member.number] = member

    def _end(self, keys: list[int], rows: list[int], member: Member) -> None:
        """Order allocations to end; one that this boot never heard of is over, and that is said."""
        at, named = np.array(rows, dtype=np.int32), np.array(keys, dtype=np.int64)
        self._stops.add(keys, rows, member.number)
        fresh = ~self.lives.is_known(at, named)
        if fresh.any():
            at, named = at[fresh], named[fresh]
            self.lives.settle(at, named, np.full(len(at), member.number, dtype=np.int32))
            member.telling.touch(at, named)
            self._plan(member)

    def _start(self, member: Member) -> None:
        """Order to start what may: whose job is known, and not before those who were evicted are over."""
        if member.crowd is not None and self._lives_any(*member.crowd):
            return
        waiting: list[Order] = []
        for order in member.pending:
            manners = self._jobs.manners(order.labels)
            if -1 in manners:
                for label in {order.labels[at]: 0 for at, one in enumerate(manners) if one < 0}:
                    self._jobs.learn(label, member.ear.seq)
                manners = self._jobs.manners(order.labels)
            if -1 in manners:
                known = [at for at, one in enumerate(manners) if one >= 0]
                waiting.append(order.part([at for at, one in enumerate(manners) if one < 0]))
                part = order.part(known)
                self._starts.add(part.keys, part.rows, member.number)
                self._starts.manners += [manners[at] for at in known]
            else:
                self._starts.add(order.keys, order.rows, member.number)
                self._starts.manners += manners
        member.pending = waiting
        if waiting:
            self._held[member.number] = member
        else:
            self._held.pop(member.number, None)

    def _look_again(self, now_ns: int) -> None:
        """Go on with orders that waited for jobs, not too often."""
        if self._is_taught and now_ns >= self._look_due_ns():
            self._is_taught, self._looked_ns = False, now_ns
            self._eager.update(self._held)

    def _look_due_ns(self) -> int:
        return self._looked_ns + AGAIN_NS * len(self._held)

    def _lives_any(self, keys: list[int], rows: list[int]) -> bool:
        """Tell whether one of these has not ended."""
        at, named = np.array(rows, dtype=np.int32), np.array(keys, dtype=np.int64)
        return bool(self.lives.is_alive(at, named).any())

    def _obey(self, now_ns: int) -> None:
        """Give all orders of this step to the lives at once."""
        if self._stops.keys:
            rows, keys, _ = self._stops.take()
            rows, firsts = np.unique(rows, return_index=True)
            self.lives.stop(rows, keys[firsts], now_ns)
        self._look_again(now_ns)
        if not self._eager:
            return
        for number in list(islice(self._eager, STARTS_MAX)):
            self._start(self._eager.pop(number))
        if self._starts.keys:
            manners = np.array(self._starts.manners, dtype=np.int32)
            self._starts.manners = []
            rows, keys, nodes = self._starts.take()
            self.started += self.lives.start(rows, keys, nodes, manners, now_ns=now_ns)

    # ---- time ----

    def _live(self, now_ns: int) -> None:
        """Let pass what is due, and note it for the reports."""
        while True:
            changes = self.lives.due(now_ns)
            if not len(changes):
                return
            order = np.argsort(changes.nodes, kind="stable")
            nodes, rows, keys = changes.nodes[order], changes.rows[order], changes.keys[order]
            heads = np.flatnonzero(np.diff(nodes, prepend=-1)).tolist()
            for begin, end in zip(heads, [*heads[1:], len(nodes)], strict=True):
                member = self.members[nodes[begin]]
                member.telling.touch(rows[begin:end], keys[begin:end])
                self._plan(member)
                if member.crowd is not None and member.pending:
                    self._eager[member.number] = member
            if not self._eager:
                return
            self._obey(now_ns)

    def _fail(self, now_ns: int) -> None:
        """Take nodes away whose time has come, and boot those that come back."""
        for number in self._outages.fallen(now_ns):
            self.lives.lose(np.asarray([number], dtype=np.int32))
            self._held.pop(number, None)
            self._eager.pop(number, None)
            self._speaks[number] = 0
        for number, nth in self._outages.returned(now_ns):
            member = self.members[number]
            member.begin(self._boots(number, nth))
            self._plan(member)

    # ---- what goes up ----

    def _plan(self, member: Member) -> None:
        """Note when a node speaks next."""
        self._speaks[member.number] = member.telling.due_ns

    def _next_word_ns(self) -> int:
        due = self._speaks[self._speaks > 0]
        return int(due.min()) if len(due) else 0

    def _speak(self, now_ns: int, out: list[Effect]) -> None:
        due = np.flatnonzero((self._speaks > 0) & (self._speaks <= now_ns))
        for number in due.tolist():
            member = self.members[number]
            if self._outages.is_away(number) or member.node_id in self.refused:
                self._speaks[number] = 0
                continue
            report = member.telling.compose(self.lives, now_ns)
            batch = CommandBatch(sender=f"{self.instance}-{member.node_id}", commands=(report,))
            out.append(Send(member.subject, ENCODER.encode(batch)))
            self.reports += 1
            self._plan(member)
            if member.telling.is_unheard:
                self._look(member, out)

    def _look(self, member: Member, out: list[Effect]) -> None:
        """Ask what the projection is now: a push may be lost."""
        if member.number not in self._looks:
            self._looks[member.number] = None
            subject = subjects.js_direct_get("NODE", subjects.node(member.node_id))
            out.append(Ask(name=f"{LOOK}{member.number}", subject=subject, data=b""))

    def _beat(self, now_ns: int, out: list[Effect]) -> None:
        """Send the heartbeats of this part of the second, and of those that a busy processor made late."""
        # One round at the most: what is older than that has been said since.
        self._beat_ns = max(self._beat_ns, now_ns - HEARTBEAT_NS + 1)
        while self._beat_ns <= now_ns:
            for member in self.members[self._slice :: SLICES]:
                if not self._outages.is_away(member.number) and member.node_id not in self.refused:
                    data = b'%b,"seq":%d}' % (member.beat, member.ear.seq)
                    out.append(Send(member.beat_subject, data))
            self._slice = (self._slice + 1) % SLICES
            self._beat_ns += HEARTBEAT_NS // SLICES
        self._set("beat", self._beat_ns, out)
