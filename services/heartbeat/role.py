"""Heartbeat: says which nodes fell silent and which came back.

Decides a node's liveness from what it hears itself; the fact becomes one only through the plan applier. Must not know
allocations: what a lost node means for jobs is decided there. Every instance listens, only the leader speaks, and it
speaks again until the log shows the status. After a start, a change of leadership, a reconnect or a pause of its own it
gives every node a fresh deadline: that it heard nothing then says nothing about the nodes. Next: `silence.py`.

Heartbeats are the one flood here (50,000 a second): a node is found by the whole subject, its boot by a search in the
bytes, and nothing is decoded unless that search fails.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.base import Event, NodeId
from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import ChangeLiveness, NodeRegistered, NodesCollected, NodesStatusChanged
from schemas.nodes import Heartbeat as Beat
from schemas.policy import ClusterCreated, PolicyChanged
from services.heartbeat.silence import SECOND_NS, Rows, Settings, Silence
from shared.bus import subjects
from shared.core.dead import dead_letter
from shared.core.replica import Replica
from shared.core.role import (
    CaughtUp,
    Effect,
    Input,
    LeadershipLost,
    LeadershipWon,
    Listen,
    Message,
    Reconnected,
    Record,
    Replay,
    Restored,
    Send,
    SetTimer,
    Source,
    Stop,
    Timer,
)
from shared.core.tables.fleet import DISCONNECTED, DOWN
from shared.errors import LogError

SCAN_NS = SECOND_NS // 10
#: A pause of our own that is longer than this makes all silence before it meaningless.
PAUSE_NS = 3 * SECOND_NS // 2
#: Nodes in one command: ids of 128 bytes still keep it well below 512 KiB.
NODES_MAX = 1000
#: Dead letters a second; heartbeats are a flood by nature.
DEAD_PER_S = 10
#: How often it is asked whether a disconnected node is down by now: that is for the applier to say.
LINGER_NS = 5 * SECOND_NS

_TIMER = "scan"
_DECODER = msgspec.json.Decoder(Beat)
_HEEDED = frozenset(
    (NodeRegistered, NodesCollected, NodesStatusChanged, ClusterCreated, PolicyChanged)
)

#: Nodes that come and go are looked at by the second: it need not hear of every record by itself.
LULL_NS = 20_000_000


class Heartbeat:
    """The role. Replays the fleet, and the policy, which says how many heartbeats a node may miss."""

    name = "heartbeat"
    leader_key = "heartbeat"

    def __init__(self, *, instance: str, settings: Settings | None = None) -> None:
        self.instance = instance
        self._settings = settings or Settings()
        self._replica = Replica(frozenset({"fleet", "policy"}))
        self._silence = Silence(self._settings, self._missed)
        #: heartbeat subject -> row, and back.
        self._row_of: dict[str, int] = {}
        self._subjects: list[str] = []
        #: row -> bytes of the boot id that the log knows.
        self._boots: list[bytes] = []
        self._leads = False
        self._caught_up = False
        self._scanned_ns = 0
        self._lingered_ns = 0
        self._timer_fired = False
        self._dead_second = 0
        self._dead_in_second = 0
        self._now_ns = 0
        self._effects: list[Effect] = []
        self._counts = dict.fromkeys(
            ("heartbeats", "strangers", "declared_down", "declared_ready", "graces", "masses"), 0
        )

    @property
    def next_seq(self) -> int:
        """First seq of the log not applied yet."""
        return self._replica.next_seq

    @property
    def _missed(self) -> int:
        return self._replica.state.policy.policy.heartbeats_missed

    def sources(self) -> tuple[Source, ...]:
        """The log, and every node's heartbeat."""
        replay = Replay(tables=self._replica.tables, lull_ns=LULL_NS)
        return replay, Listen("heartbeats", subjects.HEARTBEATS)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and the fleet as the log knows it."""
        fleet = self._replica.state.fleet
        live = fleet.live[: fleet.size]
        down = live & (fleet.status[: fleet.size] == DOWN)
        away = live & (fleet.status[: fleet.size] == DISCONNECTED)
        found = {f"caravan_heartbeat_{name}_total": float(n) for name, n in self._counts.items()}
        found["caravan_heartbeat_up_nodes"] = float(np.count_nonzero(live & ~down & ~away))
        found["caravan_heartbeat_down_nodes"] = float(np.count_nonzero(down))
        found["caravan_heartbeat_disconnected_nodes"] = float(np.count_nonzero(away))
        found["caravan_heartbeat_mass_silence_info"] = float(self._silence.mass_until_ns > 0)
        return found

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take what happened, return what shall be done."""
        self._now_ns = now_ns
        beats: list[int] = []
        row_of, boots = self._row_of, self._boots
        for item in inputs:
            if type(item) is Message:
                row = row_of.get(item.subject)
                if row is not None and boots[row] in item.data:
                    beats.append(row)
                elif self._is_known_boot(item, row):
                    assert row is not None
                    beats.append(row)
            elif type(item) is Record:
                if not self._record(item):
                    break
            else:
                self._other(item)
        if beats:
            self._counts["heartbeats"] += len(beats)
            self._heard(np.array(beats, dtype=np.int64))
        # After the heartbeats of the same step: they may be what a scan misses.
        if self._timer_fired:
            self._timer_fired = False
            self._scan()
        effects, self._effects = self._effects, []
        return effects

    def _other(self, item: Input) -> None:
        match item:
            case Restored():
                self._replica.begin_at(item.replica)
                self._silence.miss(self._missed)
                fleet = self._replica.state.fleet
                for node_id, row in fleet.row_of.items():
                    self._know(node_id, row, fleet.boot_ids[row])
            case CaughtUp():
                self._caught_up = True
                self._begin()
            case LeadershipWon():
                self._leads = True
                self._begin()
            case LeadershipLost():
                self._leads = False
                self._effects.append(SetTimer(_TIMER, 0))
            case Reconnected():
                self._begin()
            case Timer():
                self._timer_fired = True
            case _:
                pass

    def _begin(self) -> None:
        """Start to watch, or start again, with a fresh deadline for everybody."""
        self._counts["graces"] += 1
        self._silence.forgive(self._now_ns)
        if self._leads and self._caught_up:
            self._scanned_ns = self._now_ns
            self._effects.append(SetTimer(_TIMER, self._now_ns + SCAN_NS))

    # ---- the log ----

    def _record(self, record: Record) -> bool:
        """Apply one record; False when the log cannot be followed any more."""
        try:
            decoded = self._replica.apply(record)
        except LogError as err:
            self._effects.append(Stop(str(err)))
            return False
        if decoded is not None:
            for event in decoded.events:
                # Nearly all of the log is about other things.
                if type(event) in _HEEDED:
                    self._heed(event)
        return True

    def _heed(self, event: Event) -> None:
        match event:
            case NodeRegistered():
                self._registered(event)
            case NodesCollected():
                for row in event.rows:
                    self._row_of.pop(self._subjects[row], None)
                    self._subjects[row] = ""
            case NodesStatusChanged():
                self._silence.shown(np.array(event.rows, dtype=np.int64))
            case _:
                self._silence.miss(self._missed)

    def _registered(self, event: NodeRegistered) -> None:
        """Know a node by the subject of its heartbeats. A registration is a sign of life."""
        node_id = event.spec.node_id
        # A later event of the same transaction may have taken the node away again.
        row = self._replica.state.fleet.row_of.get(node_id)
        if row is not None:
            self._know(node_id, row, event.boot_id)

    def _know(self, node_id: NodeId, row: int, boot_id: str) -> None:
        """Hear a node from now on."""
        if row >= len(self._subjects):
            more = row + 1 - len(self._subjects)
            self._subjects += [""] * more
            self._boots += [b""] * more
            self._silence.grow(row + 1)
        self._row_of.pop(self._subjects[row], None)
        try:
            subject = subjects.heartbeat(node_id)
        except ValueError:  # An id without a token cannot be heard, so it will be down.
            subject = ""
        self._subjects[row] = subject
        self._row_of[subject] = row
        self._boots[row] = boot_id.encode()
        self._silence.heard(np.array([row], dtype=np.int64), self._now_ns)

    # ---- heartbeats ----

    def _is_known_boot(self, message: Message, row: int | None) -> bool:
        """Decode a heartbeat that the fast look did not recognise: a stranger's, another boot's, or none at all."""
        try:
            beat = _DECODER.decode(message.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            self._bury(message, f"no heartbeat: {err}")
            return False
        if row is not None and self._replica.state.fleet.boot_ids[row] == beat.boot_id:
            return True
        self._counts["strangers"] += 1
        return False

    def _bury(self, message: Message, reason: str) -> None:
        second = self._now_ns // SECOND_NS
        if second != self._dead_second:
            self._dead_second, self._dead_in_second = second, 0
        self._dead_in_second += 1
        if self._leads and self._dead_in_second <= DEAD_PER_S:
            letter = dead_letter(self, message, reason, self._now_ns)
            self._effects.append(Send(subjects.dead(message.subject), letter))

    def _heard(self, rows: Rows) -> None:
        """Note who lives; who is down in the log and lives is asked to be ready, with every heartbeat again."""
        self._silence.heard(rows, self._now_ns)
        if not (self._leads and self._caught_up):
            return
        fleet = self._replica.state.fleet
        absent = (fleet.status[rows] == DOWN) | (fleet.status[rows] == DISCONNECTED)
        back = rows[absent & fleet.live[rows]]
        if len(back):
            back = np.unique(back)
            self._counts["declared_ready"] += len(back)
            self._ask(back, "ready", "heartbeats are heard again")

    # ---- silence ----

    def _scan(self) -> None:
        """Look for silent nodes, ten times a second."""
        if not (self._leads and self._caught_up):
            return
        now_ns = self._now_ns
        if now_ns - self._scanned_ns > PAUSE_NS:
            self._counts["graces"] += 1
            self._silence.forgive(now_ns)
        self._scanned_ns = now_ns
        fleet = self._replica.state.fleet
        live, status = fleet.live[: fleet.size], fleet.status[: fleet.size]
        away = live & (status == DISCONNECTED)
        up = live & (status != DOWN) & ~away
        was_mass = self._silence.mass_until_ns
        rows = self._silence.scan(up, now_ns)
        if self._silence.mass_until_ns and not was_mass:
            self._counts["masses"] += 1
        if len(rows):
            self._counts["declared_down"] += len(rows)
            self._ask(rows, "down", f"{self._missed} heartbeats missed")
        if now_ns - self._lingered_ns >= LINGER_NS and away.any():
            self._lingered_ns = now_ns
            self._ask(self._silence.still(away, now_ns), "down", "it is still silent")
        self._effects.append(SetTimer(_TIMER, now_ns + SCAN_NS))

    def _ask(self, rows: Rows, status: str, reason: str) -> None:
        """Ask the plan applier to change the status of these rows' nodes."""
        ids = self._replica.state.fleet.ids
        node_ids: Sequence[NodeId] = [ids[row] for row in rows.tolist()]
        for start in range(0, len(node_ids), NODES_MAX):
            command = ChangeLiveness(
                node_ids=tuple(node_ids[start : start + NODES_MAX]),
                status=status,
                reason=reason,
                seen_seq=self._replica.seq,
            )
            batch = CommandBatch(sender=self.instance, commands=(command,))
            self._effects.append(Send(subjects.command("liveness"), ENCODER.encode(batch)))
