"""A fleet that speaks as agents do and keeps its allocations in columns: the role behind `caravan fleet`.

Decides nothing that an agent would decide otherwise: what is an order (`orders.py`), what is said and how often
(`telling.py`), who registers again. Its tasks are `shared/fleet/lives.py`. Must not know the bus or a clock. Per
allocation there are array elements alone; per node one small object.
"""

from collections.abc import Callable, Sequence

import numpy as np

from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import Heartbeat, NodeSpec
from schemas.projections import NodeProjection
from services.agent.fleet.jobs import Jobs
from services.agent.fleet.orders import Ear, Orders
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
from shared.core.wanted import Wanted
from shared.fleet.due import DueQueue
from shared.fleet.laws import Int64s
from shared.fleet.lives import Lives
from shared.fleet.profile import Habits

HEARTBEAT_NS = 1_000_000_000
#: Heartbeats are spread over the second in so many turns.
SLICES = 40
#: Between two questions for a job that nobody knew.
FETCH_NS = 500_000_000
LOOK = "look "


class Member:
    """One node of the fleet."""

    __slots__ = (
        "beat",
        "beat_subject",
        "crowd",
        "ear",
        "node_id",
        "number",
        "pending",
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
        #: an order that waits: for job versions, or for those who were evicted.
        self.pending: Wanted | None = None
        #: rows and keys of evicted allocations that may not have ended.
        self.crowd: tuple[Rows, Int64s] | None = None
        beat = Heartbeat(node_id=self.telling.node_id, boot_id=boot_id)
        self.beat = ENCODER.encode(beat)[:-1]


class _Batch:
    """Orders of one step, put together over all nodes."""

    def __init__(self) -> None:
        self.parts: list[tuple[Rows, Int64s, Rows, Rows]] = []

    def add(self, rows: Rows, keys: Int64s, node: int, manners: Rows | None = None) -> None:
        """Add allocations of a node."""
        nodes = np.full(len(rows), node, dtype=np.int32)
        self.parts.append((rows, keys, nodes, nodes if manners is None else manners))

    def take(self) -> tuple[Rows, Int64s, Rows, Rows] | None:
        """Return all columns, each row once, and forget them."""
        parts, self.parts = self.parts, []
        if not parts:
            return None
        rows, keys, nodes, manners = (np.concatenate(column) for column in zip(*parts, strict=True))
        return rows, keys, nodes, manners


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
        self._queue = DueQueue()
        self._starts, self._stops, self._settled = _Batch(), _Batch(), _Batch()
        #: nodes that wait for a job version or for room.
        self._held: dict[int, Member] = {}
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
            self._plan_all()
            self._beat_ns = now_ns
            self._beat(now_ns, out)
        for one in inputs:
            self._take(one, now_ns, out)
        self._fail(now_ns)
        self._obey(now_ns)
        self._live(now_ns)
        self._speak(now_ns, out)
        out += self._jobs.asks
        self._jobs.asks = []
        self._set("lives", self.lives.next_due_ns(), out)
        self._set("speak", self._queue.next_ns(), out)
        self._set("outage", self._outages.next_ns(), out)
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
                    self._hear(member, one.data, out)
            case Answer() if one.name.startswith(LOOK):
                member = self.members[int(one.name.removeprefix(LOOK))]
                self._looks.pop(member.number, None)
                if one.data:
                    self._hear(member, one.data, out)
            case Answer():
                if self._jobs.take(one.name, one.data):
                    self._again()
                else:
                    self._set("fetch", now_ns + FETCH_NS, out)
            case Timer():
                self._timers.pop(one.name, None)
                if one.name == "beat":
                    self._beat(now_ns, out)
                elif one.name == "fetch":
                    self._again()
            case Reconnected():
                for member in self.members:
                    member.telling.hurry()
                self._plan_all()
            case _:
                pass

    def _hear(self, member: Member, data: bytes, out: list[Effect]) -> None:
        if self._outages.is_away(member.number) or member.node_id in self.refused:
            return
        said = self._orders.read(member.ear, member.node_id, data)
        if said is None or self._is_stranger(member, said, out):
            return
        telling = member.telling
        if said.boot_id == telling.boot_id:
            telling.see(said.reports_seen)
        elif telling.is_registered:
            # The log does not know this boot (any more), and with it states that are not ours.
            telling.register()
            self._touch_all(member)
        self._plan(member)
        order = self._orders.order(member.ear, said)
        if order is not None:
            self._follow(member, order, said)

    def _is_stranger(self, member: Member, said: NodeProjection, out: list[Effect]) -> bool:
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

    def _follow(self, member: Member, order: Wanted, said: NodeProjection) -> None:
        """Make the allocations of a node those that are wanted."""
        ear, node = member.ear, member.number
        gone = ear.omitted(order)
        if len(gone[0]):
            self._stops.add(*gone, node)
        ear.rows, ear.keys = order.rows, order.keys
        if not order.runs.all():
            ends = ~order.runs
            rows, keys = order.rows[ends], order.keys[ends]
            self._stops.add(rows, keys, node)
            unknown = ~self.lives.is_known(rows, keys)
            if unknown.any():
                # Ordered to end before it was ever heard of: nothing of it runs, and that is said.
                self._settled.add(rows[unknown], keys[unknown], node)
                member.telling.touch(rows[unknown], keys[unknown])
                self._plan(member)
            evicted = np.asarray(said.evicts, dtype=np.intp)
            member.crowd = (order.rows[evicted], order.keys[evicted]) if len(evicted) else None
        else:
            member.crowd = None
        member.pending = order
        self._start(member)

    def _start(self, member: Member) -> None:
        """Order to start what may: whose job is known, and not before those who were evicted are over."""
        order, told = member.pending, member.ear.told
        assert order is not None
        assert told is not None
        manners = np.asarray(
            [self._jobs.manner(group, told.seq) for group in told.groups], dtype=np.int32
        )
        of_each = manners[order.groups_at] if len(manners) else order.groups_at
        known = order.runs & (of_each >= 0)
        is_crowded = member.crowd is not None and bool(self.lives.is_alive(*member.crowd).any())
        if not is_crowded and known.any():
            rows, keys = order.rows[known], order.keys[known]
            self._starts.add(rows, keys, member.number, of_each[known])
        if is_crowded or not known[order.runs].all():
            self._held[member.number] = member
        else:
            member.pending = None
            self._held.pop(member.number, None)

    def _again(self) -> None:
        """Go on with orders that waited."""
        for member in list(self._held.values()):
            self._start(member)

    def _obey(self, now_ns: int) -> None:
        """Give all orders of this step to the lives at once."""
        settled = self._settled.take()
        if settled is not None:
            self.lives.settle(*settled[:3])
        stops = self._stops.take()
        if stops is not None:
            self.lives.stop(stops[0], stops[1], now_ns)
        starts = self._starts.take()
        if starts is not None:
            self.started += self.lives.start(*starts, now_ns=now_ns)

    # ---- time ----

    def _live(self, now_ns: int) -> None:
        """Let pass what is due, and note it for the reports."""
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
            if member.crowd is not None and member.pending is not None:
                self._start(member)
        if self._starts.parts:
            self._obey(now_ns)
            self._live(now_ns)

    def _fail(self, now_ns: int) -> None:
        """Take nodes away whose time has come, and boot those that come back."""
        for number in self._outages.fallen(now_ns):
            self.lives.lose(np.asarray([number], dtype=np.int32))
            self._held.pop(number, None)
            self._speaks[number] = 0
        for number, nth in self._outages.returned(now_ns):
            member = self.members[number]
            member.begin(self._boots(number, nth))
            self._plan(member)

    # ---- what goes up ----

    def _plan(self, member: Member) -> None:
        """Queue a node for when it speaks next."""
        due = member.telling.due_ns
        if due and due != self._speaks[member.number]:
            self._speaks[member.number] = due
            self._queue.push(
                np.asarray([due], dtype=np.int64), np.asarray([member.number], dtype=np.int32)
            )
        elif not due:
            self._speaks[member.number] = 0

    def _plan_all(self) -> None:
        due = np.asarray([one.telling.due_ns for one in self.members], dtype=np.int64)
        rows = np.flatnonzero((due > 0) & (due != self._speaks)).astype(np.int32)
        self._speaks = due
        self._queue.push(due[rows], rows)

    def _speak(self, now_ns: int, out: list[Effect]) -> None:
        due, numbers = self._queue.pop(now_ns)
        meant = self._speaks[numbers] == due
        for number in numbers[meant].tolist():
            member = self.members[number]
            if not self._speaks[number] or self._outages.is_away(number):
                continue
            self._speaks[number] = 0
            if member.node_id in self.refused:
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
