"""The live feed of the console: what changed, made once in an interval and sent to all viewers as the same bytes.

Decides how often viewers hear something, when one is too slow, and that they hear of a lost bus. Records are described
and the fleet's columns are compared only while there is a viewer.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from schemas.envelope import LogRecord
from services.gateway.role import Gateway
from shared.core.state.state import State
from shared.display.event_text import describe_event
from shared.query.event_scope import event_scope
from shared.query.fleet_columns import FleetColumns, fleet_columns

#: Shortest time between two messages; where making one takes more CPU time, five times that.
INTERVAL_S, SHARE = 0.1, 5
#: Lines in one message; of more only the number is sent.
LINES_MAX = 200
#: Bytes that wait for a viewer before it is cut, and seconds after which it hears that nothing happened.
BEHIND_MAX, HEARTBEAT_S = 10 << 20, 10.0
#: How often the connection to the bus is looked at while there is a viewer.
LOOK_S = 0.5
#: Names in one line.
_NAMES_MAX = 20
_ENCODER = msgspec.json.Encoder()
_FLEET_TABLES = ("fleet", "allocations")


class RecordLine(msgspec.Struct, frozen=True):
    """One event for people, with the jobs and nodes that it is about."""

    seq: int
    t_ms: int
    type: str
    text: str
    jobs: list[str] = []
    nodes: list[str] = []


def record_lines(state: State, record: LogRecord, seq: int) -> list[RecordLine]:
    """The events of a record. `state`: the one before it."""
    t_ms = record.t_ns // 1_000_000
    if not record.events:
        return [RecordLine(seq, t_ms, record.kind, "")]
    found = []
    for event in record.events:
        about = event_scope(state, event)
        jobs, nodes = sorted(about.jobs)[:_NAMES_MAX], sorted(about.nodes)[:_NAMES_MAX]
        kind = str(event.__struct_config__.tag)
        found.append(RecordLine(seq, t_ms, kind, describe_event(event, state), jobs, nodes))
    return found


class Viewer:
    """One reader of the feed."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._arrived = asyncio.Event()
        self.is_cut = False

    def put(self, message: bytes) -> None:
        """Add a message; a viewer that is too far behind is cut, and begins anew."""
        self._waiting.append(message)
        self._size += len(message)
        self.is_cut = self.is_cut or self._size > BEHIND_MAX
        self._arrived.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield messages as they come, and a comment after a while without."""
        while not self.is_cut:
            if self._waiting:
                one = self._waiting.popleft()
                self._size -= len(one)
                yield one
                continue
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), HEARTBEAT_S)
            except TimeoutError:
                yield b": nothing changed\n\n"


class LiveFeed:
    """All viewers of one gateway. `trouble`: why nothing newer can be read now; empty: nothing is wrong."""

    def __init__(self, role: Gateway, trouble: Callable[[], str]) -> None:
        self._role = role
        self._trouble = trouble
        self._said = ""
        self._viewers: set[Viewer] = set()
        self._lines: list[RecordLine] = []
        self._left_out = 0
        self._fleet: FleetColumns | None = None
        self._fleet_index = 0
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def join(self) -> Viewer:
        """Add a viewer: it hears what changes from now on."""
        if not self._viewers:
            self._role.follow(self)
            self._said = self._trouble()
            self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._look())]
        viewer = Viewer()
        self._viewers.add(viewer)
        viewer.put(_message("seq", self._role.seq, {"seq": self._role.seq}))
        if self._said:
            viewer.put(self._state())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        self._viewers.discard(viewer)
        if not self._viewers and self._tasks:
            self._role.unfollow(self)
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    # ---- as a follower of the role ----

    def begin(self, state: State, seq: int) -> None:
        """Begin at a state."""
        del seq
        self._lines, self._left_out = [], 0
        self._fleet = fleet_columns(state)
        self._fleet_index = self._role.changes.newest(_FLEET_TABLES)

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """Describe a record by the names of the state before it."""
        if len(self._lines) < LINES_MAX:
            self._lines += record_lines(state, record, seq)
        else:
            self._left_out += max(len(record.events), 1)

    def after(self, state: State, record: LogRecord, seq: int) -> None:
        """Let the next message be made."""
        del state, record, seq
        self._changed.set()

    # ---- out ----

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            # What it costs, not how long a busy machine makes it wait.
            began_s = time.thread_time()
            message = self._made()
            for viewer in self._viewers:
                viewer.put(message)
            took_s = time.thread_time() - began_s
            await asyncio.sleep(max(INTERVAL_S, SHARE * took_s))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if (now := self._trouble()) != self._said:
                self._said = now
                for viewer in self._viewers:
                    viewer.put(self._state())

    def _state(self) -> bytes:
        """Why nothing newer comes; empty: it does again."""
        return _message("state", self._role.seq, {"seq": self._role.seq, "text": self._said})

    def _made(self) -> bytes:
        """What happened since the last message."""
        role = self._role
        body: dict[str, object] = {
            "seq": role.seq,
            "t_ms": role.times.at(role.seq) // 1_000_000,
            "lines": self._lines[:LINES_MAX],
            "left_out": self._left_out + max(len(self._lines) - LINES_MAX, 0),
        }
        self._lines, self._left_out = [], 0
        index = role.changes.newest(_FLEET_TABLES)
        if index != self._fleet_index:
            older, self._fleet_index = self._fleet, index
            members = None if older is None else older.members
            self._fleet = fleet = fleet_columns(role.state, members)
            changed = None if older is None else fleet.changed_since(older)
            if changed is None:
                body["fleet_is_new"] = True
            else:
                body["rows"] = fleet.rows(changed)
        return _message("change", role.seq, body)


def _message(kind: str, seq: int, body: dict[str, object]) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), _ENCODER.encode(body))
