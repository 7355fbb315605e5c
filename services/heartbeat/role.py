"""Heartbeat monitor: reports nodes that fell silent and nodes that came back.

It decides a node's liveness from the heartbeats it receives; the plan applier makes it a fact and decides what a lost
node means for jobs. Every instance listens, only the leader sends commands, and repeats them until the log shows the
status. After a start, a change of leadership, a reconnect or a pause of its own every node gets a fresh deadline: the
monitor's own silence says nothing about the nodes. After a start and a reconnect it is a longer one, since the agents
may be starting too. Deadlines: `liveness_deadlines.py`.

Heartbeats are the one flood here (50,000 a second): a node is found by the whole subject, its boot by a search in the
bytes, and nothing is decoded unless that search fails.
"""

import contextlib
from collections.abc import Sequence

import msgspec
import numpy as np

from schemas import envelope
from schemas.base import SECOND_NS, Event, NodeId
from schemas.bounds import bounded_decoder
from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import ChangeLiveness, NodeRegistered, NodesCollected, NodesStatusChanged
from schemas.nodes import Heartbeat as Beat
from schemas.policy import BeginIncarnation, ClusterCreated, PolicyChanged
from services.heartbeat.liveness_deadlines import LivenessDeadlines, LivenessSettings, NodeRows
from shared.core.decide.incarnation import is_credible
from shared.core.runtime.counters import Counters
from shared.core.runtime.messages import (
    CaughtUp,
    LeadershipLost,
    LeadershipWon,
    Listen,
    Message,
    Reconnected,
    Replay,
    Send,
    SetTimer,
    Source,
    Timer,
)
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.restored import Restored
from shared.core.runtime.role import Input
from shared.core.runtime.step import Step
from shared.core.state.tables.fleet import DISCONNECTED, DOWN
from shared.protocol import subjects

SCAN_NS = SECOND_NS // 10
#: A pause of our own that is longer than this makes all silence before it meaningless.
OWN_PAUSE_NS = 3 * SECOND_NS // 2
#: Nodes in one command: ids of 128 bytes still keep it well below 512 KiB.
NODES_MAX = 1000
#: Dead letters a second; heartbeats are a flood by nature.
DEAD_PER_S = 10
#: How often it is asked whether a disconnected node is down by now: that is for the applier to say.
DISCONNECTED_RECHECK_NS = 5 * SECOND_NS

_TIMER = "scan"
#: Why a node is declared ready.
_BACK = "heartbeats are heard again"
_DECODER = bounded_decoder(Beat)
_RELEVANT_EVENTS = frozenset(
    (NodeRegistered, NodesCollected, NodesStatusChanged, ClusterCreated, PolicyChanged)
)

#: Nodes that come and go are looked at by the second: it need not hear of every record by itself.
BATCH_WINDOW_NS = 20_000_000
_COUNTED = ("heartbeats", "strangers", "declared_down", "declared_ready", "graces", "masses")


class HeartbeatMonitor(ReplicatedRole):
    """The role. Replays the fleet, and the policy, which says how many heartbeats a node may miss."""

    name = "heartbeat"
    leader_key = "heartbeat"

    def __init__(
        self,
        *,
        instance: str,
        settings: LivenessSettings | None = None,
        replicas: ReplicaFactory = Replica,
    ) -> None:
        super().__init__(instance, frozenset({"fleet", "policy"}), replicas)
        self._settings = settings or LivenessSettings()
        self._silence = LivenessDeadlines(self._settings, self._missed)
        #: heartbeat subject -> row, and back.
        self._row_of: dict[str, int] = {}
        self._subjects: list[str] = []
        #: row -> bytes of the boot id that the log knows.
        self._boots: list[bytes] = []
        #: rows that were asked to be ready again; those that the log shows, or that fell silent, are taken out.
        self._back: set[int] = set()
        #: rows heard in this step.
        self._beats: list[int] = []
        self._scanned_ns = 0
        self._lingered_ns = 0
        self._timer_fired = False
        self._dead_second = 0
        self._dead_in_second = 0
        #: a heartbeat that is ahead of the log, and since when.
        self._ahead: tuple[Beat, int] | None = None
        self._compared_ns = 0
        self._counters = Counters("caravan_heartbeat_", _COUNTED)

    @property
    def _missed(self) -> int:
        return self.replica.state.policy.policy.heartbeats_missed

    def sources(self) -> tuple[Source, ...]:
        """The log, and every node's heartbeat."""
        replay = Replay(tables=self.replica.tables, batch_window_ns=BATCH_WINDOW_NS)
        return replay, Listen("heartbeats", subjects.HEARTBEATS)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and the fleet as the log knows it."""
        fleet = self.replica.state.fleet
        live = fleet.live[: fleet.size]
        down = live & (fleet.status[: fleet.size] == DOWN)
        away = live & (fleet.status[: fleet.size] == DISCONNECTED)
        found = self._counters.totals()
        found["caravan_heartbeat_up_nodes"] = float(np.count_nonzero(live & ~down & ~away))
        found["caravan_heartbeat_down_nodes"] = float(np.count_nonzero(down))
        found["caravan_heartbeat_disconnected_nodes"] = float(np.count_nonzero(away))
        found["caravan_heartbeat_mass_silence_info"] = float(
            self._silence.mass_silence_until_ns > 0
        )
        found["caravan_heartbeat_ahead_of_log_info"] = float(self._ahead is not None)
        return found

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should know: a node has seen a history that the log does not hold."""
        if self._ahead is None:
            return ()
        beat = self._ahead[0]
        seen = f"node {beat.node_id} has seen seq {beat.seq}, the log ends at {self.replica.seq}"
        return (f"{seen}: the log was restored from an older copy",)

    # ---- inputs ----

    def take_inputs(self, inputs: list[Input], step: Step) -> None:
        """Take the inputs; the heartbeats of a step are one vector operation."""
        beats = self._beats = []
        row_of, boots = self._row_of, self._boots
        for item in inputs:
            if type(item) is not Message:
                self.take(item, step)
                continue
            row = row_of.get(item.subject)
            if row is not None and boots[row] in item.data:
                beats.append(row)
                if step.now_ns >= self._compared_ns + SCAN_NS:
                    self._compare(item.data, step)
            else:
                self._take_message(item, step)
        if beats:
            self._counters.add("heartbeats", len(beats))
            self._heard(np.array(beats, dtype=np.int64), step)

    def on_message(self, message: Message, step: Step) -> None:
        """Read a heartbeat that the fast look did not recognise."""
        row = self._row_of.get(message.subject)
        beat = self._decode(message, step)
        if beat is None:
            return
        if row is not None and self.replica.state.fleet.boot_ids[row] == beat.boot_id:
            self._beats.append(row)
        elif row is not None and beat.restarting:
            self._wait_for_restart(row, step)
        else:
            self._counters.add("strangers")

    def _wait_for_restart(self, row: int, step: Step) -> None:
        """Give a node whose agent is being restarted a fresh deadline; it makes no node ready."""
        rows = np.array([row], dtype=np.int64)
        if not len(self._absent(rows)):
            self._silence.heard(rows, step.now_ns)

    def _on_failed(self, message: Message, reason: str, step: Step) -> None:
        """Keep some of the invalid heartbeats."""
        self._bury(message, reason, step)

    def finish(self, step: Step) -> None:
        """Scan after the heartbeats of the same step: they may be what a scan misses."""
        if self._timer_fired:
            self._timer_fired = False
            self._scan(step)

    def on_input(self, item: Input, step: Step) -> None:
        """Follow leadership and the connection, both of which give every node a fresh deadline."""
        match item:
            case Restored():
                self._silence.set_missed_limit(self._missed)
                fleet = self.replica.state.fleet
                for node_id, row in fleet.row_of.items():
                    self._track_node(node_id, row, fleet.boot_ids[row], step)
            case CaughtUp() | Reconnected():
                self._begin(step, self._settings.grace_ns)
            case LeadershipWon():  # A standby listened all the time.
                self._begin(step)
            case LeadershipLost():
                step.emit(SetTimer(_TIMER, 0))
            case Timer():
                self._timer_fired = True
            case _:
                pass

    def _begin(self, step: Step, grace_ns: int = 0) -> None:
        """Start or restart watching, with a fresh deadline for every node."""
        self._back.clear()
        self._counters.add("graces")
        self._silence.reset_deadlines(step.now_ns, grace_ns)
        if self.is_acting:
            self._scanned_ns = step.now_ns
            step.emit(SetTimer(_TIMER, step.now_ns + SCAN_NS))

    # ---- the log ----

    def on_applied(self, record: envelope.LogRecord, seq: int, step: Step) -> None:
        """Follow the nodes that are registered, and the policy."""
        del seq
        for event in record.events:
            # Nearly all of the log is about other things.
            if type(event) in _RELEVANT_EVENTS:
                self._apply_event(event, step)

    def _on_new_writer(self, step: Step) -> None:
        """Resend at once the commands not yet in the log: for silent nodes by a scan, for returned nodes here."""
        if not self.is_acting:
            return
        self._silence.hurry()
        self._timer_fired = True
        back = np.array(sorted(self._back), dtype=np.int64)
        if len(back := self._absent(back)):
            self._ask(back, "ready", _BACK, step)

    def _apply_event(self, event: Event, step: Step) -> None:
        match event:
            case NodeRegistered():
                self._registered(event, step)
            case NodesCollected():
                self._back.difference_update(event.rows)
                for row in event.rows:
                    self._row_of.pop(self._subjects[row], None)
                    self._subjects[row] = ""
            case NodesStatusChanged():
                rows = np.array(event.rows, dtype=np.int64)
                self._silence.shown(rows)
                if event.status == "ready":
                    # Its report may have made it ready before a heartbeat came: the deadline of its silence is over.
                    self._silence.heard(rows, step.now_ns)
                self._back.difference_update(event.rows)
            case _:
                self._silence.set_missed_limit(self._missed)

    def _registered(self, event: NodeRegistered, step: Step) -> None:
        """Know a node by the subject of its heartbeats. A registration is a sign of life."""
        node_id = event.spec.node_id
        # A later event of the same transaction may have taken the node away again.
        row = self.replica.state.fleet.row_of.get(node_id)
        if row is not None:
            self._track_node(node_id, row, event.boot_id, step)

    def _track_node(self, node_id: NodeId, row: int, boot_id: str, step: Step) -> None:
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
        self._silence.heard(np.array([row], dtype=np.int64), step.now_ns)

    # ---- heartbeats ----

    def _decode(self, message: Message, step: Step) -> Beat | None:
        """Decode a heartbeat that the fast look did not recognise: a stranger's, another boot's, or none at all."""
        try:
            beat = _DECODER.decode(message.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            self._bury(message, f"no heartbeat: {err}", step)
            return None
        self._compare_seen(beat, step)
        return beat

    def _compare(self, data: bytes, step: Step) -> None:
        """Compare what one of the nodes has seen with the log: of a log that is an older copy most are ahead."""
        self._compared_ns = step.now_ns
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            self._compare_seen(_DECODER.decode(data), step)

    def _compare_seen(self, beat: Beat, step: Step) -> None:
        if self._ahead is None and self._is_ahead(beat):
            self._ahead = (beat, step.now_ns)

    def _is_ahead(self, beat: Beat) -> bool:
        newest = self.replica.state.policy.incarnations.newest
        return is_credible(beat.incarnation, beat.seq) and (beat.incarnation, beat.seq) > (
            newest,
            self.replica.seq,
        )

    def _report_ahead(self, step: Step) -> None:
        """Have the applier begin a new incarnation where a node has seen more than the log holds.

        Not at once: the node may have heard of a record a moment before us.
        """
        if self._ahead is None:
            return
        beat, since_ns = self._ahead
        if not self._is_ahead(beat):
            self._ahead = None
        elif step.now_ns - since_ns >= SECOND_NS:
            self._ahead = (beat, step.now_ns)
            command = BeginIncarnation(
                node_id=beat.node_id, incarnation=beat.incarnation, seq=beat.seq
            )
            batch = CommandBatch(sender=self.instance, commands=(command,))
            step.emit(Send(subjects.command("liveness"), ENCODER.encode(batch)))

    def _bury(self, message: Message, reason: str, step: Step) -> None:
        second = step.now_ns // SECOND_NS
        if second != self._dead_second:
            self._dead_second, self._dead_in_second = second, 0
        self._dead_in_second += 1
        if self.is_leader and self._dead_in_second <= DEAD_PER_S:
            step.emit(self.dead_letter(message, reason, step.now_ns))

    def _heard(self, rows: NodeRows, step: Step) -> None:
        """Record living nodes; request the ready status of those that the log has as down."""
        self._silence.heard(rows, step.now_ns)
        if not (self.is_acting):
            return
        back = self._absent(rows)
        if len(back):
            back = np.unique(back)
            self._counters.add("declared_ready", len(back))
            self._back.update(back.tolist())
            self._ask(back, "ready", _BACK, step)

    def _absent(self, rows: NodeRows) -> NodeRows:
        """Choose the rows whose nodes the log has as down or disconnected."""
        fleet = self.replica.state.fleet
        absent = (fleet.status[rows] == DOWN) | (fleet.status[rows] == DISCONNECTED)
        found: NodeRows = rows[absent & fleet.live[rows]]
        return found

    # ---- silence ----

    def _scan(self, step: Step) -> None:
        """Search for silent nodes, ten times a second."""
        if not (self.is_acting):
            return
        self._report_ahead(step)
        now_ns = step.now_ns
        if now_ns - self._scanned_ns > OWN_PAUSE_NS:
            self._counters.add("graces")
            self._silence.reset_deadlines(now_ns)
        self._scanned_ns = now_ns
        fleet = self.replica.state.fleet
        live, status = fleet.live[: fleet.size], fleet.status[: fleet.size]
        away = live & (status == DISCONNECTED)
        up = live & (status != DOWN) & ~away
        was_mass = self._silence.mass_silence_until_ns
        rows = self._silence.scan(up, now_ns)
        if self._silence.mass_silence_until_ns and not was_mass:
            self._counters.add("masses")
        if len(rows):
            self._counters.add("declared_down", len(rows))
            self._ask(rows, "down", f"{self._missed} heartbeats missed", step)
        if now_ns - self._lingered_ns >= DISCONNECTED_RECHECK_NS and away.any():
            self._lingered_ns = now_ns
            self._ask(self._silence.still(away, now_ns), "down", "it is still silent", step)
        step.emit(SetTimer(_TIMER, now_ns + SCAN_NS))

    def _ask(self, rows: NodeRows, status: str, reason: str, step: Step) -> None:
        """Ask the plan applier to change the status of these rows' nodes."""
        ids = self.replica.state.fleet.ids
        node_ids: Sequence[NodeId] = [ids[row] for row in rows.tolist()]
        for start in range(0, len(node_ids), NODES_MAX):
            command = ChangeLiveness(
                node_ids=tuple(node_ids[start : start + NODES_MAX]),
                status=status,
                reason=reason,
                seen_seq=self.replica.seq,
            )
            batch = CommandBatch(sender=self.instance, commands=(command,))
            step.emit(Send(subjects.command("liveness"), ENCODER.encode(batch)))
