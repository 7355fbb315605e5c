"""Heartbeat: silence becomes absence after three missed heartbeats, and never because the monitor was deaf."""

import msgspec
import pytest

from schemas import nodes
from schemas.dead_letter import DeadLetter
from schemas.envelope import COMMANDS_DECODER, ENCODER
from schemas.nodes import (
    ChangeLiveness,
    NodeRegistered,
    NodesCollected,
    NodeSpec,
    NodesStatusChanged,
)
from schemas.policy import BeginIncarnation, IncarnationBegan, Policy, PolicyChanged
from services.heartbeat.liveness_deadlines import LivenessSettings
from services.heartbeat.role import NODES_MAX, HeartbeatMonitor
from shared.core.runtime.messages import (
    CaughtUp,
    Effect,
    LeadershipLost,
    LeadershipWon,
    Message,
    Reconnected,
    Send,
    SetTimer,
    Stop,
    Timer,
)
from shared.core.runtime.role import Input
from shared.protocol import subjects
from tests.unit.core.state.written_log import WrittenLog

SECOND = 1_000_000_000
TICK = SECOND // 10
#: from the last heartbeat to the first scan that may miss the third one after it.
FIRST_SCAN = 33 * TICK


class Story:
    """A leading monitor, a fleet that beats every second, and a clock that moves in ticks."""

    def __init__(
        self, count: int, *, applied: bool = True, settings: LivenessSettings | None = None
    ) -> None:
        # Most stories begin long after a start: no grace.
        settings = settings or LivenessSettings(grace_ns=0)
        self.role = HeartbeatMonitor(instance="heartbeat-1", settings=settings)
        self.log = WrittenLog()
        self.now = 1_000 * SECOND
        self.timer = 0
        #: the plan applier does what it is asked.
        self.applied = applied
        self.ids = [f"node.{n}" for n in range(count)]
        self.silent: set[str] = set()
        self.boots = dict.fromkeys(self.ids, "boot-1")
        #: what nodes have seen, and what of it was sent to the applier.
        self.seen_seq = 1
        self.ahead: list[BeginIncarnation] = []
        #: (time, status, node) in order of asking.
        self.asked: list[tuple[int, str, str]] = []
        registered = [self.log.tx(self.registration(one)) for one in self.ids]
        self.run(*self.log.records[:2], *registered, CaughtUp(self.log.seq), LeadershipWon())
        self.start = self.now

    def registration(self, node_id: str, boot_id: str = "boot-1") -> NodeRegistered:
        spec = NodeSpec(node_id=nodes.NodeId(node_id), cpu_mhz=1000, memory_mib=1000)
        return NodeRegistered(spec=spec, host_id="h", boot_id=boot_id)

    def beat(self, node_id: str) -> Message:
        beat = nodes.Heartbeat(
            node_id=nodes.NodeId(node_id), boot_id=self.boots[node_id], seq=self.seen_seq
        )
        return Message("heartbeats", subjects.heartbeat(node_id), ENCODER.encode(beat), token=0)

    def run(self, *inputs: Input) -> list[Effect]:
        """Step now."""
        effects = self.role.step(list(inputs), self.now)
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timer = effect.at_ns
            elif isinstance(effect, Send) and effect.subject == subjects.command("liveness"):
                self._ask(effect.data)
        return effects

    def _ask(self, data: bytes) -> None:
        for command in COMMANDS_DECODER.decode(data).commands:
            if isinstance(command, BeginIncarnation):
                self.ahead.append(command)
                continue
            assert isinstance(command, ChangeLiveness)
            self.asked += [(self.now - self.start, command.status, one) for one in command.node_ids]
            if self.applied:
                row_of = self.role.replica.state.fleet.row_of
                rows = tuple(row_of[one] for one in command.node_ids)
                self.run(self.log.tx(NodesStatusChanged(rows=rows, status=command.status)))

    def live(self, seconds: float) -> None:
        """Let time pass in ticks: heartbeats on whole seconds, the timer when it is due."""
        for _ in range(round(seconds * 10)):
            self.now += TICK
            inputs: list[Input] = []
            if (self.now - self.start) % SECOND == 0:
                inputs += [self.beat(one) for one in self.ids if one not in self.silent]
            if self.timer and self.timer <= self.now:
                inputs.append(Timer("scan", self.timer))
                self.timer = 0
            if inputs:
                self.run(*inputs)

    def down(self) -> list[str]:
        return [node for _, status, node in self.asked if status == "down"]


def test_a_silent_node_is_down_after_three_missed_heartbeats() -> None:
    """Who falls silent is asked to be down once the third heartbeat did not come, the others are left alone."""
    story = Story(10)
    story.live(2)
    story.silent = {"node.3"}
    story.live(20)
    assert story.asked == [(2 * SECOND + FIRST_SCAN, "down", "node.3")]


def test_a_beating_fleet_is_left_alone() -> None:
    """As long as every node beats nothing is asked for."""
    story = Story(10)
    story.live(60)
    assert story.asked == []


def test_the_policy_says_how_many_heartbeats_may_be_missed() -> None:
    """A change of the policy holds from the next heartbeat on."""
    story = Story(10)
    story.live(2)
    story.run(story.log.tx(PolicyChanged(policy=Policy(heartbeats_missed=5))))
    story.live(1)
    story.silent = {"node.3"}
    story.live(10)
    assert story.asked == [(3 * SECOND + FIRST_SCAN + 2 * SECOND, "down", "node.3")]


def test_a_node_that_beats_again_is_ready_again() -> None:
    """A node that is down in the log and beats under the boot the log knows is asked to be ready."""
    story = Story(10)
    story.silent = {"node.3"}
    story.live(10)
    story.silent = set()
    story.live(10)
    assert [(status, node) for _, status, node in story.asked] == [
        ("down", "node.3"),
        ("ready", "node.3"),
    ]


def test_a_disconnected_node_is_asked_about_now_and_then() -> None:
    """The applier knows when it may be down: it is asked every five seconds, not every half, and only while silent."""
    story = Story(10, applied=False)
    story.silent = {"node.3"}
    story.live(8)
    row = story.role.replica.state.fleet.row_of[nodes.NodeId("node.3")]
    away = NodesStatusChanged(rows=(row,), status="disconnected", since_ns=story.now)
    story.run(story.log.tx(away))
    story.asked.clear()
    story.live(20)
    assert {(status, node) for _, status, node in story.asked} == {("down", "node.3")}
    assert 3 <= len(story.asked) <= 5
    metrics = story.role.metrics()
    assert metrics["caravan_heartbeat_disconnected_nodes"] == 1
    assert metrics["caravan_heartbeat_up_nodes"] == 9


def test_a_disconnected_node_that_beats_is_ready_again() -> None:
    """Its first heartbeat asks for it."""
    story = Story(10)
    row = story.role.replica.state.fleet.row_of[nodes.NodeId("node.3")]
    story.run(story.log.tx(NodesStatusChanged(rows=(row,), status="disconnected", since_ns=1)))
    story.live(3)
    assert [(status, node) for _, status, node in story.asked] == [("ready", "node.3")]


@pytest.mark.parametrize("status", ["down", "disconnected"])
@pytest.mark.parametrize("is_registered", [False, True])
def test_whatever_makes_a_node_ready_counts_as_heard(status: str, *, is_registered: bool) -> None:
    """A report, or a registration, that comes before the first heartbeat: the node is not declared silent again."""
    story = Story(10, applied=False)
    story.live(2)
    story.silent = {"node.3"}
    story.live(14)
    row = story.role.replica.state.fleet.row_of[nodes.NodeId("node.3")]
    away = NodesStatusChanged(rows=(row,), status=status, since_ns=story.now)
    story.run(story.log.tx(away))
    story.asked.clear()
    # The applier took a report of the node.
    ready = NodesStatusChanged(rows=(row,), status="ready", reason="it reports again")
    back = story.registration("node.3") if is_registered else ready
    story.run(story.log.tx(back))
    story.live(2)
    assert story.asked == []
    story.live(3)
    assert {(status, node) for _, status, node in story.asked} == {("down", "node.3")}


def test_another_boot_is_no_sign_of_life() -> None:
    """Heartbeats under a boot that the log does not know keep no node alive and bring none back."""
    story = Story(10)
    story.boots["node.3"] = "boot-2"
    story.live(10)
    assert story.down() == ["node.3"]
    assert {status for _, status, _ in story.asked} == {"down"}
    story.run(story.log.tx(story.registration("node.3", "boot-2")))
    story.asked.clear()
    story.live(10)
    assert story.asked == []


def restarting(node_id: str) -> Message:
    """What the supervisor of an agent sends while it restarts the agent."""
    beat = nodes.Heartbeat(node_id=nodes.NodeId(node_id), boot_id="", restarting=True)
    return Message("heartbeats", subjects.heartbeat(node_id), ENCODER.encode(beat), token=0)


def test_a_node_whose_agent_is_restarted_stays_ready() -> None:
    """While the supervisor speaks for it a silent node is not down; afterwards it is, as any other."""
    story = Story(10)
    story.silent = {"node.3"}
    for _ in range(8):
        story.run(restarting("node.3"))
        story.live(1)
    assert story.asked == []
    story.live(4)
    assert story.down() == ["node.3"]


@pytest.mark.parametrize("status", ["down", "disconnected"])
def test_a_restart_alone_makes_no_node_ready(status: str) -> None:
    """A supervisor that tells of a restart when the node is already away changes nothing."""
    story = Story(10)
    row = story.role.replica.state.fleet.row_of[nodes.NodeId("node.3")]
    story.silent = {"node.3"}
    away = NodesStatusChanged(rows=(row,), status=status, since_ns=story.now)
    story.run(story.log.tx(away), restarting("node.3"), restarting("stranger"))
    story.live(2)
    assert story.asked == []


def test_commands_are_sent_again_until_the_log_shows_them() -> None:
    """Without an effect in the log the command goes out every half second; with it, no more."""
    story = Story(10, applied=False)
    story.silent = {"node.3"}
    story.live(4.8)
    times = [at - FIRST_SCAN for at, _, _ in story.asked]
    assert times == [0, 5 * TICK, 10 * TICK, 15 * TICK]
    row = story.role.replica.state.fleet.row_of[nodes.NodeId("node.3")]
    story.run(story.log.tx(NodesStatusChanged(rows=(row,), status="down")))
    story.asked.clear()
    story.live(5)
    assert story.asked == []


def test_a_new_writer_is_asked_at_once() -> None:
    """What the log does not show, of silent nodes and of those that came back, goes to the next applier in one step."""
    story = Story(10)
    story.silent = {"node.3"}
    story.live(FIRST_SCAN / SECOND)
    story.applied = False
    story.silent = {"node.7"}
    story.live(FIRST_SCAN / SECOND)
    assert {status for _, status, _ in story.asked} == {"down", "ready"}
    story.asked.clear()
    story.run(story.log.takeover())
    assert [(status, node) for _, status, node in story.asked] == [
        ("ready", "node.3"),
        ("down", "node.7"),
    ]
    row_of = story.role.replica.state.fleet.row_of
    back, gone = row_of[nodes.NodeId("node.3")], row_of[nodes.NodeId("node.7")]
    story.run(
        story.log.tx(
            NodesStatusChanged(rows=(back,), status="ready"),
            NodesStatusChanged(rows=(gone,), status="down"),
        )
    )
    story.asked.clear()
    story.run(story.log.takeover())
    assert story.asked == []


def test_what_one_transaction_had_no_room_for_is_asked_for_at_once() -> None:
    """When the log shows some of those asked about at one time, the next scan asks for the rest."""
    story = Story(40, applied=False)
    story.silent = {"node.3", "node.4", "node.5"}
    story.live(FIRST_SCAN / SECOND)
    assert story.down() == ["node.3", "node.4", "node.5"]
    row = story.role.replica.state.fleet.row_of[nodes.NodeId("node.4")]
    story.run(story.log.tx(NodesStatusChanged(rows=(row,), status="down")))
    story.asked.clear()
    story.live(0.4)
    assert [(at - FIRST_SCAN, node) for at, _, node in story.asked] == [
        (TICK, "node.3"),
        (TICK, "node.5"),
    ]


@pytest.mark.parametrize(
    ("told", "after_s"), [(LeadershipWon(), 3.2), (Reconnected(), 9.8), (CaughtUp(1), 9.8)]
)
def test_a_fresh_start_gives_everybody_a_fresh_deadline(told: Input, after_s: float) -> None:
    """After leadership, a reconnect or a replay no silence from before counts; agents that start get ten seconds."""
    story = Story(10, settings=LivenessSettings())
    story.live(1.2)
    story.silent = {"node.3"}
    story.live(2.4)
    story.run(told)
    story.live(after_s)
    assert story.asked == []
    story.live(1)
    assert story.down() == ["node.3"]


def test_a_node_heard_after_a_start_has_no_grace_left() -> None:
    """The longer deadline is for nodes that were not heard since; one heartbeat ends it."""
    story = Story(10, settings=LivenessSettings())
    story.run(CaughtUp(1))
    story.live(1.2)
    story.silent = {"node.3"}
    story.live(4.5)
    assert story.down() == ["node.3"]


def test_a_pause_of_the_monitor_is_not_the_nodes_silence() -> None:
    """A monitor that was paused longer than the deadline declares no node down when it continues."""
    story = Story(2)
    story.live(3)
    story.now += 30 * SECOND
    story.run(Timer("scan", story.timer))
    story.live(60)
    assert story.asked == []


def test_heartbeats_in_the_same_step_count_before_the_scan() -> None:
    """Heartbeats that arrive together with the timer are heard first, whatever their order."""
    story = Story(1)
    story.now += 5 * SECOND
    story.run(Timer("scan", story.timer), story.beat("node.0"))
    assert story.asked == []


def test_mass_silence_waits_three_heartbeats_more() -> None:
    """When over a fifth falls silent at once, three heartbeats more are awaited; who beats again is spared."""
    story = Story(10)
    story.live(2)
    story.silent = set(story.ids[:3])
    story.live(5.9)
    assert story.asked == []
    story.silent = {"node.1"}
    story.live(10)
    assert story.down() == ["node.1"]


def test_mass_silence_is_declared_at_a_bounded_pace() -> None:
    """After the wait at most N nodes a second are declared, and in the end all of them."""
    story = Story(100, settings=LivenessSettings(grace_ns=0, mass_nodes_per_s=20))
    story.silent = set(story.ids)
    story.live(6.2)
    assert story.asked == []
    story.live(1)
    assert 15 <= len(story.asked) <= 20
    story.live(2)
    assert len(story.asked) <= 60
    story.live(3)
    assert sorted(story.down()) == sorted(story.ids)


def test_a_few_of_a_small_fleet_are_no_mass() -> None:
    """In a fleet of three one silent node is declared without the extra wait."""
    story = Story(3)
    story.silent = {"node.0"}
    story.live(3.3)
    assert story.down() == ["node.0"]


def test_only_the_leader_speaks() -> None:
    """A standby listens and asks for nothing; it has no timer either."""
    story = Story(10)
    story.run(LeadershipLost())
    assert story.timer == 0
    story.silent = {"node.3"}
    story.live(20)
    assert story.asked == []


def test_nobody_is_declared_before_the_log_was_read() -> None:
    """A monitor that leads before it caught up asks for nothing."""
    role = HeartbeatMonitor(instance="h")
    effects = role.step([LeadershipWon(), Timer("scan", 1)], 100 * SECOND)
    assert not [one for one in effects if isinstance(one, Send | SetTimer)]


def test_a_collected_row_is_forgotten_and_reused() -> None:
    """A node that left the state is not declared, and the next one in its row is watched under its own name."""
    story = Story(10)
    story.silent = {"node.9"}
    story.live(6)
    story.run(story.log.tx(NodesCollected(rows=(9,))))
    story.run(story.log.tx(story.registration("late")))
    story.asked.clear()
    story.live(2)
    story.run(story.beat("node.9"))
    story.live(8)
    assert story.asked == [(6 * SECOND + FIRST_SCAN, "down", "late")]


def test_what_is_no_heartbeat_becomes_a_dead_letter() -> None:
    """Garbage on a heartbeat subject is put aside, a few a second, and keeps no node alive."""
    story = Story(10)
    garbage = Message("heartbeats", subjects.heartbeat("node.3"), b"\xff{", token=0)
    effects = story.run(*[garbage] * 100)
    letters = [one for one in effects if isinstance(one, Send)]
    assert 0 < len(letters) <= 10
    letter = msgspec.json.decode(letters[0].data, type=DeadLetter)
    assert letter.subject == subjects.heartbeat("node.3")
    stranger = msgspec.structs.replace(story.beat("node.3"), subject=subjects.heartbeat("else"))
    assert not [one for one in story.run(stranger) if isinstance(one, Send)]


def test_many_nodes_are_asked_for_in_parts() -> None:
    """A fleet that comes back at once is named in commands of bounded length."""
    count = NODES_MAX + 10
    story = Story(0)
    story.ids = [f"n{n}" for n in range(count)]
    story.boots = dict.fromkeys(story.ids, "boot-1")
    story.run(story.log.tx(*[story.registration(one) for one in story.ids]))
    story.run(story.log.tx(NodesStatusChanged(rows=tuple(range(count)), status="down")))
    effects = story.run(*[story.beat(one) for one in story.ids])
    sizes = [len(one.data) for one in effects if isinstance(one, Send)]
    assert len(sizes) == 2
    assert len(story.asked) == count
    assert {status for _, status, _ in story.asked} == {"ready"}


def test_a_damaged_log_stops_the_role() -> None:
    """A gap in the log stops the process instead of guessing."""
    story = Story(1)
    story.log.tx(NodesCollected(rows=()))
    assert any(isinstance(one, Stop) for one in story.run(story.log.tx(NodesCollected(rows=()))))


def test_a_node_that_has_seen_more_than_the_log_is_told_to_the_applier() -> None:
    """After a second, since it may have heard a moment before us; no more once the log began another incarnation."""
    story = Story(3)
    story.live(3)
    assert not story.ahead
    story.seen_seq = story.log.seq + 100
    story.live(4)
    assert {(one.incarnation, one.seq) for one in story.ahead} == {(0, story.seen_seq)}
    assert story.role.metrics()["caravan_heartbeat_ahead_of_log_info"] == 1
    (alarm,) = story.role.alarms
    assert f"has seen seq {story.seen_seq}, the log ends at {story.log.seq}" in alarm
    told = len(story.ahead)
    story.seen_seq = 1
    story.run(story.log.tx(IncarnationBegan(incarnation=10**12)))
    story.live(3)
    assert len(story.ahead) == told
    assert story.role.metrics()["caravan_heartbeat_ahead_of_log_info"] == 0
    assert story.role.alarms == ()


def test_what_no_log_can_hold_hides_nothing() -> None:
    """A node that claims an impossible seq is not told to the applier, and one that is truly ahead still is."""
    story = Story(3)
    story.live(3)
    story.seen_seq = 2**63 - 1
    story.live(4)
    assert not story.ahead
    story.seen_seq = story.log.seq + 100
    story.live(4)
    assert {one.seq for one in story.ahead} == {story.seen_seq}
