"""A fleet of simulated nodes: orders, registration, reports; lean and real say the same."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from schemas.allocations import CLIENT_STATUSES
from schemas.envelope import COMMANDS_DECODER, ENCODER
from schemas.job_answers import JobVersionAnswer
from schemas.nodes import Heartbeat, ReportNode
from services.agent.fleet.agent_fleet import AgentFleet
from services.agent.fleet.columnar_fleet import PROJECTIONS_MAX, ColumnarFleet
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.core.runtime.messages import (
    Answer,
    Ask,
    Message,
    Reconnected,
    Send,
    SetTimer,
    Stop,
    Timer,
)
from shared.core.state.ids import alloc_id
from shared.fleet.profile import FleetProfile, NodeProfile, node_specs
from shared.protocol import subjects
from tests.projected import projected

SECOND = 1_000_000_000
START_NS = 1_000 * SECOND


class Field:
    """A fleet under test, with a cluster that answers at once: every report is seen, every job is known."""

    def __init__(
        self,
        kind: type[ColumnarFleet | AgentFleet] = ColumnarFleet,
        *,
        nodes: int = 2,
        profile: dict[str, Any] | None = None,
        job: dict[str, Any] | None = None,
        restart: dict[str, Any] | None = None,
    ) -> None:
        self.profile = msgspec.convert(profile or {}, FleetProfile)
        self.job = job or {"Type": "service"}
        self.restart = restart or {"Attempts": 0, "Mode": "fail"}
        self.now_ns = START_NS
        self.timers: dict[str, int] = {}
        self.sent: list[ReportNode] = []
        self.beats: list[Heartbeat] = []
        self.stopped: list[str] = []
        self.asked: list[Ask] = []
        #: what the log would hold: status by key.
        self.log: dict[int, str] = {}
        self.healths: dict[int, int] = {}
        self.boots: dict[str, str] = {}
        self.seen: dict[str, int] = {}
        self.wants: dict[str, list[DesiredAlloc]] = {}
        self.seq = 1
        self.knows_jobs = True
        specs = node_specs(self.profile, nodes, prefix="n")
        self.ids = [str(spec.node_id) for spec in specs]
        self.fleet = kind(
            specs,
            NodeProfile(self.profile),
            instance="f",
            boots=lambda node, nth: f"b{node}-{nth}",
            seed=3,
        )
        self.step()

    def step(self, *inputs: Any) -> "Field":
        """Feed inputs; what is asked is answered."""
        todo = list(inputs)
        first = True
        while first or todo:
            first = False
            effects = self.fleet.step(todo, self.now_ns)
            todo = []
            for effect in effects:
                if isinstance(effect, SetTimer):
                    self.timers[effect.name] = effect.at_ns
                elif isinstance(effect, Stop):
                    self.stopped.append(effect.reason)
                elif isinstance(effect, Ask):
                    self.asked.append(effect)
                    if "job_version" in effect.subject and self.knows_jobs:
                        todo.append(self.answer(effect))
                elif isinstance(effect, Send):
                    self._sent(effect)
        return self

    def answer(self, ask: Ask) -> Answer:
        """What view says of a job version."""
        version, _, job_id = ask.name.strip().partition(" ")
        task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "x"}}
        policy = self.restart
        group = {"Name": "g", "Tasks": [task], "RestartPolicy": policy}
        spec = {"ID": job_id, "Name": job_id, "TaskGroups": [group], **self.job}
        raw = msgspec.Raw(ENCODER.encode(spec))
        found = JobVersionAnswer(seq=1, job_id=job_id, version=int(version), spec=raw)
        return Answer(name=ask.name, data=ENCODER.encode(found))

    def _sent(self, effect: Send) -> None:
        if effect.subject.startswith("hb."):
            self.beats.append(msgspec.json.decode(effect.data, type=Heartbeat))
            return
        for command in COMMANDS_DECODER.decode(effect.data).commands:
            assert isinstance(command, ReportNode)
            assert effect.subject == subjects.report(command.node_id)
            self.sent.append(command)

    def hear(self, node: str, seq: int = 0, **more: Any) -> "Field":
        """The node's projection as it is now."""
        self.seq = seq or self.seq + 1
        fields: dict[str, Any] = {
            "cluster_id": "c1",
            "node_id": node,
            "host_id": f"host-{node}",
            "boot_id": self.boots.get(node, ""),
            "reports_seen": self.seen.get(node, 0),
        }
        said = projected(self.wants.get(node, []), seq=self.seq, **{**fields, **more})
        return self.step(Message("projection", subjects.node(node), ENCODER.encode(said), token=1))

    def take(self) -> int:
        """The log takes what was reported; returns how many reports that were."""
        taken, self.sent = self.sent, []
        for report in taken:
            self.boots[report.node_id] = report.boot_id
            self.seen[report.node_id] = max(report.number, self.seen.get(report.node_id, 0))
            for state in report.states:
                self.log[state.key] = state.status
                self.healths[state.key] = state.health
            brief = report.brief
            healths = expanded(brief.healths or (0, len(brief.keys)))
            codes = expanded(brief.statuses)
            for key, code, health in zip(brief.keys, codes, healths, strict=True):
                self.log[key] = CLIENT_STATUSES[code]
                self.healths[key] = health
        return len(taken)

    def settle(self, seconds: float = 5.0) -> "Field":
        """Let time pass; the log takes reports, and tells their nodes."""
        until = self.now_ns + int(seconds * SECOND)
        while self.wait(0.05).now_ns < until:
            nodes = sorted({str(report.node_id) for report in self.sent})
            self.take()
            for node in nodes:
                self.hear(node)
        return self

    def wait(self, seconds: float) -> "Field":
        """Let time pass, timers fire in order."""
        until = self.now_ns + int(seconds * SECOND)
        while True:
            due = [(at, name) for name, at in self.timers.items() if 0 < at <= until]
            if not due:
                break
            at, name = min(due)
            self.now_ns = max(self.now_ns, at)
            del self.timers[name]
            self.step(Timer(name, at))
        self.now_ns = until
        return self

    def want(self, node: str, keys: Iterable[int], **more: Any) -> "Field":
        """Place allocations on a node, and tell it."""
        self.wants.setdefault(node, []).extend(alloc(key, **more) for key in keys)
        return self.hear(node)


def expanded(runs: Iterable[int]) -> list[int]:
    """Codes of a column of runs, one by one."""
    parts = list(runs)
    return [
        code for code, count in zip(parts[0::2], parts[1::2], strict=True) for _ in range(count)
    ]


def alloc(key: int, job: str = "j", **more: Any) -> DesiredAlloc:
    """An allocation of a job."""
    fields: dict[str, Any] = {"job_id": job, "version": 0, "group": "g", "index": 0, **more}
    return DesiredAlloc(key=key, row=key, alloc_id=alloc_id(key), **fields)


BOTH = pytest.mark.parametrize("kind", [ColumnarFleet, AgentFleet], ids=["lean", "real"])


@BOTH
def test_a_node_registers_again_until_it_is_seen(kind: type[ColumnarFleet | AgentFleet]) -> None:
    """Without an answer the registration is sent again under its number; seen, it is not."""
    field = Field(kind, nodes=1)
    first = field.sent[0]
    assert first.spec is not None and first.number == 1
    field.wait(3)
    assert len(field.sent) > 2
    assert {(one.number, one.spec is not None) for one in field.sent} == {(1, True)}
    field.take()
    field.hear("n00000").wait(20)
    assert not field.sent


@BOTH
def test_every_node_beats_once_a_second(kind: type[ColumnarFleet | AgentFleet]) -> None:
    """In ten seconds each node says ten times, give or take one, that it is there."""
    field = Field(kind, nodes=7)
    field.beats.clear()
    field.wait(10)
    for node in field.ids:
        assert 9 <= sum(beat.node_id == node for beat in field.beats) <= 11


@BOTH
@pytest.mark.parametrize(
    "more",
    [{"cluster_id": "other"}, {"node_id": "n00001"}, {"seq": 1}],
    ids=["another cluster", "another node", "an older one"],
)
def test_what_is_no_order_ends_nothing(
    kind: type[ColumnarFleet | AgentFleet], more: dict[str, Any]
) -> None:
    """Silence, another cluster's, another node's and an older projection leave everything running."""
    # Long enough for the reports of health.
    field = Field(kind).settle(1).want("n00000", (7, 8)).settle(12)
    assert field.log == {7: "running", 8: "running"}
    field.wants.clear()
    field.hear("n00000", **{"seq": field.seq + 1, **more})
    field.step(Message("projection", subjects.node("n00000"), b"{", token=1))
    field.settle(30)
    assert field.log == {7: "running", 8: "running"}
    field.seq += 5
    field.wants["n00000"] = [alloc(8)]
    field.hear("n00000").settle(2)
    assert field.log == {7: "complete", 8: "running"}


@BOTH
def test_what_was_to_stop_before_it_was_heard_of_is_complete(
    kind: type[ColumnarFleet | AgentFleet],
) -> None:
    """An allocation that is unknown to this boot and ordered to stop is reported as complete."""
    field = Field(kind).settle(1).want("n00000", (7,), desired="stop").settle(2)
    assert field.log == {7: "complete"}


@BOTH
def test_a_job_that_nobody_knows_is_asked_for_again(kind: type[ColumnarFleet | AgentFleet]) -> None:
    """Until view answers, nothing of the job starts; what is asked is asked again."""
    field = Field(kind).settle(1)
    field.knows_jobs = False
    field.want("n00000", (7,))
    (ask,) = [one for one in field.asked if "job_version" in one.subject]
    field.step(Answer(name=ask.name, data=None)).settle(3)
    assert field.log == {}
    field.knows_jobs = True
    field.asked.clear()
    again = field.step(Answer(name=ask.name, data=None)).settle(6).asked
    assert [one for one in again if "job_version" in one.subject]
    assert field.log == {7: "running"}


@BOTH
def test_evicted_ones_end_before_others_start(kind: type[ColumnarFleet | AgentFleet]) -> None:
    """What takes the place of an evicted allocation waits until that is over."""
    field = Field(kind, profile={"stops": "4s"}).settle(1).want("n00000", (7,)).settle(2)
    field.wants["n00000"] = [alloc(7, desired="evict"), alloc(8)]
    field.hear("n00000").settle(3)
    assert field.log == {7: "running"}
    field.settle(3)
    assert field.log == {7: "complete", 8: "running"}


@BOTH
def test_a_reconnected_fleet_says_again_what_nobody_answered(
    kind: type[ColumnarFleet | AgentFleet],
) -> None:
    """After a loss of the bus unseen states go at once."""
    field = Field(kind, nodes=1).settle(1).want("n00000", (7,))
    field.wait(0.1)
    assert field.take() == 1
    field.wait(0.1)
    field.step(Reconnected())
    assert len(field.sent) == 1


@BOTH
def test_a_node_of_another_host_is_left_alone(kind: type[ColumnarFleet | AgentFleet]) -> None:
    """A node id that belongs to another host is not spoken for; when none is left the fleet ends."""
    field = Field(kind)
    field.hear("n00000", host_id="elsewhere", boot_id="x", refused="host f: conflict: no")
    field.hear("n00000", host_id="elsewhere", boot_id="x", refused="host f: conflict: no")
    assert not field.stopped
    field.beats.clear()
    field.sent.clear()
    field.wait(3)
    assert "n00000" not in {one.node_id for one in field.beats}
    assert "n00000" not in {one.node_id for one in field.sent}
    for _ in range(2):
        field.hear("n00001", host_id="elsewhere", boot_id="x", refused="host f: conflict: no")
    assert len(field.stopped) == 1


@BOTH
def test_a_node_that_fails_is_silent_and_boots_anew(kind: type[ColumnarFleet | AgentFleet]) -> None:
    """An outage ends what ran without a word; then another boot registers, and runs what is still wanted."""
    failures = {"per_node_day": 1000.0, "away": "20s", "boot": "5s"}
    field = Field(kind, nodes=1, profile={"failures": failures}).settle(1)
    field.want("n00000", (7,)).settle(1)
    boots = set()
    for _ in range(600):
        field.beats.clear()
        field.settle(1)
        boots.add(field.boots["n00000"])
        if not field.beats:
            break
    assert not field.beats, "it never failed"
    field.settle(60)
    assert field.boots["n00000"] not in boots and field.log == {7: "running"}
    field.wants["n00000"] = []
    field.hear("n00000").settle(2)
    assert field.log == {7: "complete"}


ODD = {
    "starts": {"after": {"exponential": "200ms"}, "fail": 0.1},
    "runs": [{"type": "batch", "lasts": {"uniform": ["0s", "3s"]}, "fail": 0.3}],
    "stops": {"uniform": ["0s", "1s"]},
}


@pytest.mark.parametrize("kind", ["service", "batch"])
@pytest.mark.parametrize("seed", range(5))
def test_lean_and_real_fleets_report_the_same(kind: str, seed: int) -> None:
    """For the same orders and profile the log ends with the same status of every allocation in both kinds of fleet."""
    ends = []
    for agents in (ColumnarFleet, AgentFleet):
        field = Field(agents, nodes=3, profile=ODD, job={"Type": kind})
        field.settle(1)
        for wave in range(4):
            for at, node in enumerate(field.ids):
                keys = range(
                    1000 * seed + 100 * wave + 10 * at + 1, 1000 * seed + 100 * wave + 10 * at + 9
                )
                field.want(node, keys, job=f"j{wave}").settle(0.3)
            node = field.ids[(seed + wave) % 3]
            wants = field.wants[node]
            # One is left out, one is stopped, one is evicted.
            field.wants[node] = [
                *wants[1:-2],
                msgspec.structs.replace(wants[-2], desired="stop"),
                msgspec.structs.replace(wants[-1], desired="evict"),
            ]
            field.hear(node).settle(0.2)
        field.settle(20)
        ends.append(field.log)
    assert ends[0] == ends[1]
    assert len(ends[0]) == 96 and len(set(ends[0].values())) >= 2


@BOTH
@pytest.mark.parametrize(
    ("mode", "interval_s", "ends"),
    [("fail", 600, "failed"), ("delay", 600, "running"), ("fail", 5, "running")],
    ids=["attempts used up", "never gives up", "attempts counted anew"],
)
def test_failed_tasks_are_started_again_by_their_policy(
    kind: type[ColumnarFleet | AgentFleet], mode: str, interval_s: int, ends: str
) -> None:
    """Two restarts in place, then the allocation has failed, unless the policy begins again."""
    restart = {
        "Attempts": 2,
        "Delay": 2 * SECOND,
        "Interval": interval_s * SECOND,
        "Mode": mode,
    }
    profile = {"runs": [{"lasts": "1s", "fail": 1.0}]}
    field = Field(kind, nodes=1, profile=profile, job={"Type": "batch"}, restart=restart)
    field.settle(1).want("n00000", (7,)).settle(5)
    assert field.log.get(7) in ("running", "pending")
    field.settle(30)
    assert field.log[7] in ((ends, "pending") if ends == "running" else (ends,))


UPDATE = {"MinHealthyTime": 10 * SECOND}


@BOTH
@pytest.mark.parametrize(
    ("job", "runs", "healths"),
    [
        ({"Type": "service", "Update": UPDATE}, "forever", (0, 1)),
        ({"Type": "service", "Update": {**UPDATE, "HealthCheck": "manual"}}, "forever", (0, 0)),
        ({"Type": "service", "Update": UPDATE}, "4s", (2, 2)),
        ({"Type": "system", "Update": UPDATE}, "10s", (0, 1)),
        ({"Type": "batch"}, "forever", (0, 0)),
    ],
)
def test_health_follows_the_start_or_the_end(
    kind: type[ColumnarFleet | AgentFleet],
    job: dict[str, Any],
    runs: str,
    healths: tuple[int, int],
) -> None:
    """Healthy after min_healthy_time, unhealthy with a failure before it, and never for a batch job."""
    field = Field(kind, nodes=1, profile={"runs": [{"lasts": runs}]}, job=job)
    field.settle(1).want("n00000", (7, 8)).settle(8)
    assert {field.healths[key] for key in (7, 8)} == {healths[0]}
    field.settle(6)
    assert {field.healths[key] for key in (7, 8)} == {healths[1]}


@BOTH
def test_another_version_in_place_begins_its_health_anew(
    kind: type[ColumnarFleet | AgentFleet],
) -> None:
    """An allocation that another version took over has no health before it ran as long again."""
    field = Field(kind, nodes=1, job={"Type": "service", "Update": UPDATE})
    field.settle(1).want("n00000", (7,)).settle(13)
    assert field.healths == {7: 1}
    field.wants["n00000"] = [alloc(7, version=1)]
    field.healths[7] = 0
    field.hear("n00000").settle(8)
    assert field.healths == {7: 0}
    field.settle(4)
    assert field.healths == {7: 1}


def test_a_flood_of_words_is_heard_in_parts_with_heartbeats_between() -> None:
    """Of more words than one step hears the rest waits for the next, at once, and none of it is lost."""
    field = Field(nodes=PROJECTIONS_MAX + 200)
    said = {"cluster_id": "c", "seq": 5}
    flood = [
        Message(
            "projection",
            subjects.node(node),
            ENCODER.encode(projected([alloc(at + 1)], node_id=node, **said)),
            at,
        )
        for at, node in enumerate(field.ids)
    ]
    effects = field.fleet.step(flood, field.now_ns)
    assert SetTimer("more", field.now_ns) in effects
    assert sum(one.ear.seq == 5 for one in field.fleet.members) == PROJECTIONS_MAX
    again = field.fleet.step([Timer("more", field.now_ns), Timer("beat", 0)], field.now_ns + SECOND)
    assert all(one.ear.seq == 5 for one in field.fleet.members)
    assert any(isinstance(one, Send) and one.subject.startswith("hb.") for one in again)
    for _ in range(5):
        again = field.fleet.step([Timer("more", 0)], field.now_ns + SECOND)
    assert not any(isinstance(one, SetTimer) and one.name == "more" and one.at_ns for one in again)
    assert sum(isinstance(one, Ask) and "job_version" in one.subject for one in effects) == 1
