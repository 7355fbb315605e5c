"""A fleet that behaves like agents and keeps its allocations in columns: the role of `caravan fleet`.

It follows the rules of an agent: which projection is an order (projection_orders.py), what is reported and how often
(node_reports.py), when a node registers again. Its tasks are shared/fleet/simulated_allocs.py. An allocation costs
elements of columns and lists; a node costs one small object.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

import numpy as np

from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import HEARTBEAT_NS, Heartbeat, NodeSpec
from services.agent.fleet.node_reports import NodeReporter
from services.agent.fleet.projection_orders import (
    NodeOrder,
    ProjectionCursor,
    ProjectionReader,
    RawProjection,
)
from services.agent.fleet.simulated_fleet import SimulatedFleet
from services.agent.fleet.task_profiles import GroupTaskProfiles
from shared.core.columns import Int64s, Rows
from shared.core.runtime.messages import (
    Ack,
    Answer,
    Ask,
    Effect,
    Message,
    Reconnected,
    Send,
    Stop,
    Timer,
)
from shared.core.runtime.role import Input
from shared.fleet.simulated_allocs import SimulatedAllocs
from shared.protocol import subjects

#: Heartbeats are spread over the second in this many slices.
HEARTBEAT_SLICES = 40
#: Delay before a job version is queried again after an empty answer.
FETCH_NS = 500_000_000
#: Delay between two looks at nodes waiting for job versions, per waiting node: looking takes a small part of the time.
AGAIN_NS = 100_000
#: Projections read, and nodes that start allocations, per step: bounds the delay of heartbeats.
PROJECTIONS_MAX = 1_000
STARTS_MAX = 500
PROJECTION_QUERY = "look "


class FleetNode:
    """One node of the fleet."""

    __slots__ = (
        "beat",
        "beat_subject",
        "crowd",
        "ear",
        "epoch",
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
        #: of the plan applier, as last told; -1: not told.
        self.epoch = -1
        self.begin(boot_id)

    def begin(self, boot_id: str) -> None:
        """Boot: nothing runs, no projection was read, nothing was reported."""
        self.ear = ProjectionCursor()
        self.telling = NodeReporter(self.spec, f"host-{self.node_id}", boot_id)
        #: allocations that the last order wants to run.
        self.keys: list[int] = []
        self.rows: list[int] = []
        #: orders waiting for job versions or for the end of evicted allocations.
        self.pending: list[NodeOrder] = []
        #: keys and rows of evicted allocations that may not have ended.
        self.crowd: tuple[list[int], list[int]] | None = None
        beat = Heartbeat(node_id=self.telling.node_id, boot_id=boot_id)
        self.beat = ENCODER.encode(beat)[:-1]


class _OrderBatch:
    """Orders of one step, over all nodes."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.rows: list[int] = []
        #: numbers of their groups.
        self.groups: list[int] = []
        self._nodes: list[int] = []
        self._counts: list[int] = []

    def add(self, keys: list[int], rows: list[int], node: int) -> None:
        """Add allocations of a node."""
        self.keys += keys
        self.rows += rows
        self._nodes.append(node)
        self._counts.append(len(keys))

    def take(self) -> tuple[Rows, Int64s, Rows]:
        """Return and clear rows, keys and nodes; groups are kept."""
        rows = np.array(self.rows, dtype=np.int32)
        keys = np.array(self.keys, dtype=np.int64)
        nodes = np.repeat(np.array(self._nodes, dtype=np.int32), self._counts)
        self.keys, self.rows, self._nodes, self._counts = [], [], [], []
        return rows, keys, nodes


class ColumnarFleet(SimulatedFleet):
    """A fleet in columns."""

    def _set_up(self, seed: int) -> None:
        self.lives = SimulatedAllocs(seed)
        self._jobs = GroupTaskProfiles(self._node_profile, self.lives)
        self._orders = ProjectionReader()
        self.members = [
            FleetNode(at, spec, self._boots(at, 0)) for at, spec in enumerate(self._specs)
        ]
        #: when each node reports next; 0: never.
        self._speaks = np.zeros(len(self.members), dtype=np.int64)
        self._starts, self._stops = _OrderBatch(), _OrderBatch()
        #: projections waiting for their step.
        self._unheard: deque[tuple[FleetNode, bytes]] = deque()
        #: nodes with allocations to start.
        self._eager: dict[int, FleetNode] = {}
        #: nodes waiting for a job version.
        self._held: dict[int, FleetNode] = {}
        #: job versions have arrived since the last look.
        self._is_taught = False
        self._looked_ns = 0
        #: slice of the next heartbeats, and their time.
        self._slice = 0
        self._beat_ns = 0
        self._looks: dict[int, None] = {}
        self.reports = 0
        self.started = 0

    def metrics(self) -> dict[str, float]:
        """Gauges and counters."""
        ignored = {
            f'caravan_fleet_projections_ignored_total{{reason="{reason}"}}': float(count)
            for reason, count in self._orders.ignored.items()
        }
        tellings = [one.telling for one in self.members]
        return {
            **super().metrics(),
            "caravan_fleet_registered": float(sum(one.is_registered for one in tellings)),
            "caravan_fleet_allocations": float(self.lives.alive()),
            "caravan_fleet_starts_total": float(self.started),
            "caravan_fleet_reports_total": float(self.reports),
            "caravan_fleet_states_unseen": float(sum(one.unseen for one in tellings)),
            **ignored,
        }

    def step(self, inputs: Sequence[Input], now_ns: int) -> list[Effect]:
        """Take inputs, advance all allocations, and send what is due."""
        out: list[Effect] = []
        if not self._is_begun:
            self._is_begun = True
            self._outages.begin(now_ns)
            self._speaks[:] = now_ns
            self._beat_ns = now_ns
            self._beat(now_ns, out)
        for one in inputs:
            self._take(one, now_ns, out)
        for _ in range(min(len(self._unheard), PROJECTIONS_MAX)):
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

    # ---- inputs ----

    def _take(self, one: Input, now_ns: int, out: list[Effect]) -> None:
        match one:
            case Message():
                out.append(Ack(one.token))
                number = self._number_of.get(one.subject)
                if number is not None:
                    self._unheard.append((self.members[number], one.data))
            case Answer() if one.name.startswith(PROJECTION_QUERY):
                member = self.members[int(one.name.removeprefix(PROJECTION_QUERY))]
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

    def _hear(self, member: FleetNode, data: bytes, out: list[Effect]) -> None:
        if self._is_silent(member.number):
            return
        said = self._orders.read(member.ear, member.node_id, data)
        if said is None or self._is_stranger(member, said, out):
            return
        order = self._orders.order(member.ear, said, data)
        telling = member.telling
        if said.boot_id == telling.boot_id:
            telling.see(said.reports_seen)
            if said.epoch > member.epoch >= 0:
                telling.hurry()
            member.epoch = max(member.epoch, said.epoch)
        elif telling.is_registered:
            # The log knows another boot of this node, with states that are not ours.
            telling.register()
            self._touch_all(member)
        self._plan(member)
        if order is not None:
            self._follow(member, order)

    def _is_stranger(self, member: FleetNode, said: RawProjection, out: list[Effect]) -> bool:
        """Return whether the node's id belongs to another host; stop the fleet once every node is refused."""
        telling = member.telling
        if said.host_id in ("", telling.host_id):
            return False
        self.refused[member.node_id] = said.refused or f"the node belongs to host {said.host_id}"
        if len(self.refused) == len(self.members):
            text = f"every node was refused; {member.node_id}: {self.refused[member.node_id]}"
            out.append(Stop(text))
        return True

    def _touch_all(self, member: FleetNode) -> None:
        rows = self.lives.on(np.asarray([member.number], dtype=np.int32))
        if len(rows):
            member.telling.touch(rows, self.lives.key[rows])

    # ---- orders ----

    def _follow(self, member: FleetNode, order: NodeOrder) -> None:
        """Take an order of a node; starts are handled once per step."""
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

    def _end(self, keys: list[int], rows: list[int], member: FleetNode) -> None:
        """Order allocations to stop; one unknown to this boot counts as complete and is reported."""
        at, named = np.array(rows, dtype=np.int32), np.array(keys, dtype=np.int64)
        self._stops.add(keys, rows, member.number)
        fresh = ~self.lives.is_known(at, named)
        if fresh.any():
            at, named = at[fresh], named[fresh]
            self.lives.settle(at, named, np.full(len(at), member.number, dtype=np.int32))
            member.telling.touch(at, named)
            self._plan(member)

    def _start(self, member: FleetNode) -> None:
        """Start allocations whose job version is known, once evicted allocations have ended."""
        if member.crowd is not None and self._lives_any(*member.crowd):
            return
        waiting: list[NodeOrder] = []
        for order in member.pending:
            groups = self._jobs.numbers(order.labels)
            if -1 in groups:
                for label in {order.labels[at]: 0 for at, one in enumerate(groups) if one < 0}:
                    self._jobs.learn(label, member.ear.seq)
                groups = self._jobs.numbers(order.labels)
            if -1 in groups:
                known = [at for at, one in enumerate(groups) if one >= 0]
                waiting.append(order.part([at for at, one in enumerate(groups) if one < 0]))
                order = order.part(known)  # noqa: PLW2901
                groups = [groups[at] for at in known]
            self._starts.add(order.keys, order.rows, member.number)
            self._starts.groups += groups
        member.pending = waiting
        if waiting:
            self._held[member.number] = member
        else:
            self._held.pop(member.number, None)

    def _look_again(self, now_ns: int) -> None:
        """Resume orders waiting for job versions, at bounded cost."""
        if self._is_taught and now_ns >= self._look_due_ns():
            self._is_taught, self._looked_ns = False, now_ns
            self._eager.update(self._held)

    def _look_due_ns(self) -> int:
        return self._looked_ns + AGAIN_NS * len(self._held)

    def _lives_any(self, keys: list[int], rows: list[int]) -> bool:
        """Return whether any of these has not ended."""
        at, named = np.array(rows, dtype=np.int32), np.array(keys, dtype=np.int64)
        return bool(self.lives.is_alive(at, named).any())

    def _obey(self, now_ns: int) -> None:
        """Pass all orders of this step to the allocations."""
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
            task_profiles, rules = self._jobs.rules(np.array(self._starts.groups, dtype=np.int32))
            self._starts.groups = []
            rows, keys, nodes = self._starts.take()
            self.started += self.lives.start(
                rows, keys, nodes, task_profiles, now_ns=now_ns, rules=rules
            )

    # ---- time ----

    def _live(self, now_ns: int) -> None:
        """Apply due changes, and queue them for reports."""
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
        """Fail nodes by the profile, and boot those that return."""
        for number in self._outages.take_failed(now_ns):
            self.lives.lose(np.asarray([number], dtype=np.int32))
            self._held.pop(number, None)
            self._eager.pop(number, None)
            self._speaks[number] = 0
        for number, nth in self._outages.returned(now_ns):
            member = self.members[number]
            member.begin(self._boots(number, nth))
            self._plan(member)

    # ---- what goes up ----

    def _plan(self, member: FleetNode) -> None:
        """Schedule the next report of a node."""
        self._speaks[member.number] = member.telling.due_ns

    def _next_word_ns(self) -> int:
        due = self._speaks[self._speaks > 0]
        return int(due.min()) if len(due) else 0

    def _speak(self, now_ns: int, out: list[Effect]) -> None:
        due = np.flatnonzero((self._speaks > 0) & (self._speaks <= now_ns))
        for number in due.tolist():
            member = self.members[number]
            if self._is_silent(number):
                self._speaks[number] = 0
                continue
            report = member.telling.compose(self.lives, now_ns)
            batch = CommandBatch(sender=f"{self.instance}-{member.node_id}", commands=(report,))
            out.append(Send(member.subject, ENCODER.encode(batch)))
            self.reports += 1
            self._plan(member)
            if member.telling.is_unacknowledged:
                self._look(member, out)

    def _look(self, member: FleetNode, out: list[Effect]) -> None:
        """Query the projection: a push may be lost."""
        if member.number not in self._looks:
            self._looks[member.number] = None
            subject = subjects.js_direct_get("NODE", subjects.node(member.node_id))
            name = f"{PROJECTION_QUERY}{member.number}"
            out.append(Ask(name=name, subject=subject, data=b""))

    def _beat(self, now_ns: int, out: list[Effect]) -> None:
        """Send the heartbeats of this slice, and of late ones."""
        # At most one round: older ones have been sent since.
        self._beat_ns = max(self._beat_ns, now_ns - HEARTBEAT_NS + 1)
        while self._beat_ns <= now_ns:
            for member in self.members[self._slice :: HEARTBEAT_SLICES]:
                if not self._is_silent(member.number):
                    data = b'%b,"seq":%d}' % (member.beat, member.ear.seq)
                    out.append(Send(member.beat_subject, data))
            self._slice = (self._slice + 1) % HEARTBEAT_SLICES
            self._beat_ns += HEARTBEAT_NS // HEARTBEAT_SLICES
        self._set("beat", self._beat_ns, out)
