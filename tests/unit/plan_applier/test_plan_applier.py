"""The single writer: who holds the write lease, what follows a failed append, what may come on which subject."""

import pytest

from schemas.base import NodeId
from schemas.envelope import (
    ENCODER,
    RECORD_DECODER,
    AnyCommand,
    CommandBatch,
    LeaseHeld,
    LogRecord,
)
from schemas.jobs import JobRegistered, SubmissionRefused
from schemas.nodes import ReportNode
from schemas.plans import SubmitPlan
from services.plan_applier import batch as batches
from services.plan_applier import role as applier
from services.plan_applier.command_queue import CommandQueue
from services.plan_applier.role import PlanApplier
from shared.core.runtime import chain, messages
from shared.core.runtime.chain import seal
from shared.core.runtime.messages import (
    Ack,
    Append,
    Appended,
    AppendRefused,
    AppendUnknown,
    CaughtUp,
    Close,
    Effect,
    LeadershipLost,
    LeadershipWon,
    LogSpace,
    Message,
    Open,
    Reconnected,
    Resign,
    Rewind,
    Send,
    Stop,
    Timer,
)
from shared.core.runtime.role import Input
from shared.protocol import subjects
from tests.builders import SECOND, join, register, stop


class Bench:
    """One applier and a log in memory; appends are answered by hand or at once."""

    def __init__(self, name: str = "a1", records: list[tuple[str, bytes]] | None = None) -> None:
        self.role = PlanApplier(instance=name, cluster_id="c1")
        self.log = records if records is not None else []
        self.now_ns = 100_000 * SECOND
        self.outstanding: Append | None = None

    def step(self, *inputs: Input) -> list[Effect]:
        self.now_ns += 1_000_000
        effects = self.role.step(list(inputs), self.now_ns)
        for effect in effects:
            if isinstance(effect, Append):
                assert self.outstanding is None, "two appends in flight"
                self.outstanding = effect
        return effects

    def store(self) -> int:
        """Put the outstanding append into the log, as the server would; return its seq."""
        append = self.outstanding
        assert append is not None and append.expected_seq == len(self.log)
        self.log.append((f"log.1.{append.kind}", append.data))
        self.outstanding = None
        return len(self.log)

    def settle(self, *inputs: Input) -> list[Effect]:
        """Step, and answer every append by success."""
        effects = self.step(*inputs)
        while self.outstanding is not None:
            effects = effects + self.step(Appended(self.store()))
        return effects

    def lead(self) -> "Bench":
        self.settle(Reconnected(fsync=True), CaughtUp(len(self.log)), LeadershipWon())
        return self

    def replay(self) -> list[Input]:
        return [messages.Record(seq, *entry) for seq, entry in enumerate(self.log, start=1)]

    def send(self, *commands: AnyCommand, kind: str = "job") -> Message:
        data = ENCODER.encode(CommandBatch(sender="t", commands=commands))
        return Message(kind, f"cmd.{kind}", data, token=7)


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_a_leader_takes_the_pen_by_a_lease_record_before_any_command() -> None:
    """The first record is the lease, the second creates the cluster; queues open after the lease."""
    bench = Bench()
    effects = bench.step(Reconnected(fsync=True), CaughtUp(0), LeadershipWon())
    assert [e.kind for e in effects if isinstance(e, Append)] == ["lease"]
    assert not any(isinstance(e, Open) for e in effects)
    effects = bench.settle(Appended(bench.store()))
    assert sum(isinstance(e, Open) for e in effects) == len(subjects.COMMAND_KINDS)
    assert bench.role.replica.state.policy.cluster_id == "c1"


def test_a_standby_that_has_not_caught_up_writes_nothing() -> None:
    """Leadership alone gives no write lease: first the whole log."""
    bench = Bench()
    assert "Append" not in kinds(bench.step(Reconnected(fsync=True), LeadershipWon()))


def test_a_bus_that_does_not_fsync_is_refused() -> None:
    """Without fsync nothing would be kept that we say is kept."""
    assert any(isinstance(e, Stop) for e in Bench().step(Reconnected(fsync=False)))


def test_a_nearly_full_log_takes_only_stops_and_reports() -> None:
    """Above nine tenths new work is left with its sender; a stop and a node's report are written all the same."""
    bench = Bench().lead()
    bench.settle(bench.send(register("old")))
    bench.settle(LogSpace(bytes=95, bytes_max=100, last_seq=10**6))
    seq = len(bench.log)
    assert Ack(7) in bench.settle(bench.send(register("new", submission_id="n")))
    assert len(bench.log) == seq
    bench.settle(bench.send(stop("old")))
    report = Message("report", "cmd.report.n1", ENCODER.encode(_report("n1")), token=8)
    bench.settle(report, Timer("linger", bench.now_ns))
    jobs, fleet = bench.role.replica.state.jobs, bench.role.replica.state.fleet
    assert (set(jobs.by_id), jobs.by_id["old"].stopped) == ({"old"}, True)
    assert "n1" in fleet.row_of
    shown = bench.role.metrics()
    assert shown["caravan_log_fill_ratio"] > 0.9
    assert shown["caravan_log_fill_alarm_info"] == 1
    bench.settle(LogSpace(bytes=10, bytes_max=100, last_seq=10**6))
    bench.settle(bench.send(register("new", submission_id="n")), Timer("linger", bench.now_ns))
    assert "new" in jobs.by_id


def _report(node_id: str) -> CommandBatch:
    return CommandBatch(sender="agent", commands=(join(node_id),))


def test_a_transaction_that_no_log_takes_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose facts no record holds becomes a refusal and a dead letter; applier and others continue."""
    bench = Bench().lead()
    monkeypatch.setattr(applier, "RECORD_BYTES_MAX", 2_000)
    long, short = register("a", salt="x" * 2_000), register("b", submission_id="s-b")
    for _ in range(5):
        # Its sender sends it again until the log shows its effect or its refusal.
        waiting = [
            one
            for one in (long, short)
            if one.submission_id not in bench.role.replica.state.jobs.submissions
        ]
        effects = bench.settle(bench.send(*waiting)) if waiting else []
        assert not [one for one in effects if isinstance(one, Stop)]
        if any(isinstance(one, Rewind) for one in effects):
            bench.settle(*bench.replay(), CaughtUp(len(bench.log)))
            bench.settle()
    submissions = bench.role.replica.state.jobs.submissions
    assert sorted(submissions) == sorted([long.submission_id, "s-b"])
    refused = [
        event
        for record in bench.log
        for event in RECORD_DECODER.decode(record[1]).events
        if isinstance(event, SubmissionRefused)
    ]
    assert [one.submission_id for one in refused] == [long.submission_id]


def test_the_log_of_another_cluster_is_not_written() -> None:
    """An applier that finds another cluster's log stops, says so, and leaves the log as it was."""
    bench = Bench().lead()
    stranger = Bench("a2", bench.log)
    stranger.role = PlanApplier(instance="a2", cluster_id="c2")
    inputs = [Reconnected(fsync=True), *bench.replay(), CaughtUp(len(bench.log)), LeadershipWon()]
    effects = stranger.step(*inputs)
    assert "Append" not in kinds(effects)
    (stopped,) = [effect for effect in effects if isinstance(effect, Stop)]
    assert "to cluster c1, not c2" in stopped.reason


@pytest.mark.parametrize(("core", "is_refused"), [("0.100.0", True), ("0.2.0", False)])
def test_the_log_of_a_newer_release_is_not_written(
    monkeypatch: pytest.MonkeyPatch, core: str, *, is_refused: bool
) -> None:
    """An applier leaves a log as it was that a release with newer decisions wrote; an older release's it continues."""
    with monkeypatch.context() as patch:
        patch.setattr(chain, "CORE_VERSION", core)
        other = Bench().lead()
    bench = Bench("a2", other.log)
    inputs = [Reconnected(fsync=True), *other.replay(), CaughtUp(len(other.log)), LeadershipWon()]
    effects = bench.step(*inputs)
    reasons = [effect.reason for effect in effects if isinstance(effect, Stop)]
    assert bool(reasons) is is_refused
    assert ("Append" not in kinds(effects)) is is_refused
    if is_refused:
        assert f"the log was written by core {core}" in reasons[0]


def test_a_transaction_of_many_evaluations_takes_no_more_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What few commands turn into must fit the bus too: the rest becomes the next transaction, and nothing is lost."""
    monkeypatch.setattr(batches, "EVALUATIONS_MAX", 2)
    bench = Bench().lead()
    jobs = [register(f"job-{n}", submission_id=f"s{n}") for n in range(8)]
    effects = bench.settle(bench.send(*jobs))
    for _ in range(6):
        effects += bench.settle(Timer("linger", bench.now_ns))
    appended = [RECORD_DECODER.decode(e.data) for e in effects if isinstance(e, Append)]
    registered = [
        sum(isinstance(event, JobRegistered) for event in one.events)
        for one in appended
        if one.kind == "tx"
    ]
    assert registered == [3, 3, 2]
    assert effects.count(Ack(7)) == 1


def test_one_append_in_flight_and_the_rest_becomes_the_next() -> None:
    """Commands that come meanwhile are one transaction after it, and are acknowledged when durable."""
    bench = Bench().lead()
    bench.step(bench.send(register("a", submission_id="1")))
    first = bench.outstanding
    assert first is not None
    later = bench.step(
        bench.send(register("b", submission_id="2")), bench.send(register("c", submission_id="3"))
    )
    assert bench.outstanding is first and "Ack" not in kinds(later)
    effects = bench.settle(Appended(bench.store()))
    assert sum(isinstance(e, Ack) for e in effects) == 3
    assert bench.log[-1][1].count(b'"job.registered"') == 2


def test_a_refused_append_drops_the_state_and_replays() -> None:
    """Another applier wrote: state is rebuilt from the log, never undone; then it competes again."""
    bench = Bench().lead()
    bench.step(bench.send(register("a")))
    bench.outstanding = None
    effects = bench.step(AppendRefused())
    assert Rewind(1) in effects and sum(isinstance(e, Close) for e in effects) == len(
        subjects.COMMAND_KINDS
    )
    assert "a" not in bench.role.replica.state.jobs.by_id
    effects = bench.settle(*bench.replay(), CaughtUp(len(bench.log)))
    assert bench.log[-1][0] == "log.1.lease"


def test_an_unanswered_append_that_is_in_the_log_is_taken_as_done() -> None:
    """After AppendUnknown the record itself tells, byte for byte."""
    bench = Bench().lead()
    bench.step(bench.send(register("a")))
    seq = bench.store()
    bench.step(AppendUnknown())
    effects = bench.settle(messages.Record(seq, *bench.log[-1]))
    assert "Rewind" not in kinds(effects) and bench.role.next_seq == seq + 1
    assert Ack(7) in effects


def test_an_unanswered_append_that_never_shows_is_dropped() -> None:
    """After a second without a trace the state is rebuilt; the late append cannot land, its seq is taken."""
    bench = Bench().lead()
    bench.step(bench.send(register("a")))
    bench.outstanding = None
    bench.step(AppendUnknown())
    effects = bench.step(Timer("unknown", 0))
    assert Rewind(1) in effects


def test_another_record_at_our_seq_rebuilds_even_if_it_is_foreign() -> None:
    """The state was evolved for that seq, so it cannot be kept."""
    bench = Bench().lead()
    bench.step(bench.send(register("a")))
    bench.outstanding = None
    bench.log.append(("log.1.tx", b'{"stream":"CMD","seq":1}'))
    assert Rewind(1) in bench.step(messages.Record(len(bench.log), *bench.log[-1]))
    bench.step(AppendRefused())
    bench.settle(*bench.replay(), CaughtUp(len(bench.log)))
    bench.settle(bench.send(register("a")))
    assert bench.role.replica.chain.foreign == 1
    assert "a" in bench.role.replica.state.jobs.by_id


def test_a_higher_epoch_makes_it_resign() -> None:
    """An applier that reads a newer lease of another closes its queues and gives up leadership."""
    bench = Bench().lead()
    seq = len(bench.log) + 1
    held = LeaseHeld(holder="a2", cluster_id="c1")
    chain = bench.role.replica.chain
    lease = LogRecord(
        kind="lease", schema=1, core="t", epoch=seq, prev=chain.head, t_ns=chain.t_ns, lease=held
    )
    effects = bench.step(messages.Record(seq, "log.1.lease", seal(lease)[0]))
    assert any(isinstance(e, Resign) for e in effects)
    assert sum(isinstance(e, Close) for e in effects) == len(subjects.COMMAND_KINDS)


def test_after_losing_leadership_nothing_is_written() -> None:
    """A deposed applier takes no commands and forgets what it queued."""
    bench = Bench().lead()
    bench.step(LeadershipLost())
    effects = bench.step(bench.send(register("a")))
    assert kinds(effects) == ["Ack"]


def test_a_lease_that_lands_after_leadership_went_opens_nothing() -> None:
    """Leadership may go while the lease is under way."""
    bench = Bench()
    bench.step(Reconnected(fsync=True), CaughtUp(0), LeadershipWon())
    bench.step(LeadershipLost())
    effects = bench.step(Appended(bench.store()))
    assert not any(isinstance(e, Open) for e in effects)


def test_a_standby_takes_over_the_same_state() -> None:
    """A standby that replayed writes the next lease, and its checkpoint equals the first one's tables."""
    one = Bench("a1").lead()
    one.settle(one.send(register("a")))
    two = Bench("a2", one.log)
    two.settle(Reconnected(fsync=True), *two.replay(), CaughtUp(len(two.log)), LeadershipWon())
    assert two.log[-1][0] == "log.1.lease"
    assert two.role.replica.state.hashes() == one.role.replica.state.hashes()


def test_a_checkpoint_follows_many_facts_however_few_their_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a checkpoint proves is bounded by facts, too: a rush is proved in parts, and counting begins anew."""
    monkeypatch.setattr("services.plan_applier.role.CHECKPOINT_FACTS", 20)
    bench = Bench().lead()
    for rush in range(4):
        jobs = [register(f"j{rush}-{n}", submission_id=f"s{rush}-{n}") for n in range(6)]
        bench.now_ns += 10**9
        bench.settle(bench.send(*jobs))
    kinds_of = [subject.rpartition(".")[2] for subject, _ in bench.log]
    assert kinds_of == ["lease", "tx", "tx", "tx", "checkpoint", "tx", "tx", "checkpoint"]


def test_a_checkpoint_follows_a_quiet_second_once() -> None:
    """One checkpoint after the last transaction, and none where nothing happened since."""
    bench = Bench().lead()
    bench.settle(bench.send(register("a")))
    bench.settle(Timer("checkpoint", 0))
    assert bench.log[-1][0] == "log.1.checkpoint"
    before = len(bench.log)
    bench.settle(Timer("checkpoint", 0))
    assert len(bench.log) == before


def test_what_another_had_no_time_to_prove_is_proven() -> None:
    """Records without a checkpoint at a change of the write lease: the new holder writes one after a quiet second."""
    one = Bench("a1").lead()
    one.settle(one.send(register("a")))
    two = Bench("a2", one.log)
    took = two.settle(
        Reconnected(fsync=True), *two.replay(), CaughtUp(len(two.log)), LeadershipWon()
    )
    assert two.log[-1][0] == "log.1.lease"
    assert [timer.name for timer in took if isinstance(timer, messages.SetTimer)].count(
        "checkpoint"
    ) == 1
    two.settle(Timer("checkpoint", 0))
    assert two.log[-1][0] == "log.1.checkpoint"


def test_log_time_never_runs_backwards() -> None:
    """A clock set back does not show in the log."""
    bench = Bench().lead()
    newest = bench.role.replica.chain.t_ns
    bench.now_ns -= 3_600 * SECOND
    bench.settle(bench.send(register("a")))
    behind = bench.role.replica.chain.t_ns
    assert behind >= newest
    bench.now_ns += 60 * SECOND
    bench.settle(bench.send(register("b")))
    # At half pace: deadlines come, and the clock catches up.
    assert behind + 30 * SECOND <= bench.role.replica.chain.t_ns < behind + 31 * SECOND
    bench.now_ns -= 30 * SECOND
    bench.settle(LogSpace(bytes=1, bytes_max=100, last_seq=1))
    assert 3_599 < bench.role.metrics()["caravan_plan_applier_log_ahead_seconds"] < 3_601


@pytest.mark.parametrize(("off_s", "alarm"), [(0, 0), (4, 0), (6, 1), (-4, 0), (-3_600, 1)])
def test_the_clock_alarm_compares_clocks(off_s: int, alarm: int) -> None:
    """The alarm is about the bus's clock and ours, in both directions; the age of the last record is no difference."""
    bench = Bench().lead()
    bench.settle(bench.send(register("a")))
    bench.now_ns += 730 * SECOND
    bench.settle(bench.send(register("b")))
    bench.now_ns += 730 * SECOND
    space = LogSpace(bytes=1, bytes_max=100, last_seq=1, clock_off_ns=off_s * SECOND)
    bench.settle(space)
    shown = bench.role.metrics()
    assert shown["caravan_plan_applier_clock_alarm"] == alarm
    assert shown["caravan_plan_applier_clock_off_seconds"] == abs(off_s)
    assert shown["caravan_plan_applier_log_ahead_seconds"] == 0


def test_what_does_not_decode_or_does_not_belong_goes_to_dead() -> None:
    """Bad bytes, a plan smuggled as a report, another node's report: a dead letter each, no event."""
    bench = Bench().lead()
    before = len(bench.log)
    plan = SubmitPlan(key=1, job_id="a", origin=one_origin())  # type: ignore[arg-type]
    smuggled = Message("report", "cmd.report.n1", bench.send(plan).data, token=1)
    spoofed = Message("report", "cmd.report.n2", bench.send(join("n1")).data, token=2)
    bad = Message("job", "cmd.job", b'{"sender":"x","commands":[{"type":"boom"}]}', token=3)
    deep = Message("job", "cmd.job", b"[" * 100_000, token=4)
    not_text = Message("job", "cmd.job", b'{"sender":"\xff\xfe"}', token=5)
    effects = bench.settle(smuggled, spoofed, bad, deep, not_text)
    assert sum(isinstance(e, Send) and e.subject.startswith("dead.") for e in effects) == 5
    assert {e.token for e in effects if isinstance(e, Ack)} == {1, 2, 3, 4, 5}
    assert len(bench.log) == before


def one_origin() -> object:
    from schemas.plans import Origin

    return Origin(worker="w", number=1, snapshot_seq=1)


def test_no_kind_starves_another() -> None:
    """A flood of reports leaves room for a plan in every transaction."""
    inbox = CommandQueue()
    reports = tuple(
        ReportNode(node_id=NodeId("n1"), host_id="h", boot_id="b", number=n) for n in range(1000)
    )
    data = ENCODER.encode(CommandBatch(sender="t", commands=reports))
    inbox.put(Message("report", "cmd.report.n1", data, token=1))
    plan = SubmitPlan(key=1, job_id="a", origin=one_origin())  # type: ignore[arg-type]
    data = ENCODER.encode(CommandBatch(sender="w", commands=(plan,)))
    inbox.put(Message("plan", "cmd.plan", data, token=2))
    taken = list(inbox.take(256, 10**9))
    assert len(taken) == 256 and isinstance(taken[0].command, SubmitPlan)


def test_a_transaction_is_bounded_in_bytes() -> None:
    """What would make it too large waits for the next one."""
    inbox = CommandQueue()
    big = b'{"x":"' + b"y" * 200_000 + b'"}'
    for number in range(4):
        import msgspec

        command = register("a", submission_id=str(number))
        command = msgspec.structs.replace(command, spec=msgspec.Raw(big))
        data = ENCODER.encode(CommandBatch(sender="t", commands=(command,)))
        inbox.put(Message("job", "cmd.job", data, token=number))
    assert len(list(inbox.take(256, 450_000))) == 2 and len(inbox) == 2


def test_a_log_that_refuses_every_record_stops_the_applier() -> None:
    """The replay shows no record behind the last one, and the bus refuses ours there: the applier gives up."""
    bench = Bench().lead()
    bench.step(bench.send(register("a")))
    for _ in range(applier.REFUSALS_MAX - 1):
        bench.outstanding = None
        effects = bench.step(AppendRefused("wrong last sequence"))
        assert "Stop" not in kinds(effects)
        bench.step(*bench.replay(), CaughtUp(len(bench.log)), LeadershipWon())
        bench.now_ns += 2 * SECOND
        bench.step(Timer("pause", 0))
        if bench.outstanding is None:
            bench.step(bench.send(register("a")))
    bench.outstanding = None
    stops = [
        one for one in bench.step(AppendRefused("wrong last sequence")) if isinstance(one, Stop)
    ]
    assert len(stops) == 1 and "wrong last sequence" in stops[0].reason, stops


def test_a_snapshot_of_more_than_the_log_stops_a_role() -> None:
    """A snapshot that was made of this log at a later seq proves that its end is lost; one of another log nothing."""
    bench = Bench().lead()
    end, own = len(bench.log), bench.role.replica.chain.cluster_id
    others = bench.step(CaughtUp(end, {"another": end + 9, own: end}))
    assert "Stop" not in kinds(others)
    stops = [one for one in bench.step(CaughtUp(end, {own: end + 2})) if isinstance(one, Stop)]
    assert len(stops) == 1 and f"records {end + 1} to {end + 2} are lost" in stops[0].reason


def test_a_full_log_pauses_the_pen() -> None:
    """After a refusal for want of room the applier rebuilds and waits before it tries again."""
    bench = Bench().lead()
    bench.step(bench.send(register("a")))
    bench.outstanding = None
    bench.step(AppendRefused(full=True))
    effects = bench.step(*bench.replay(), CaughtUp(len(bench.log)))
    assert "Append" not in kinds(effects)
    bench.now_ns += 2 * SECOND
    assert "Append" in kinds(bench.step(Timer("pause", 0)))
