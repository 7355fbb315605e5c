"""The scheduler worker: leases in, numbered plans out, until the log tells their fate."""

import msgspec
import numpy as np

from schemas.base import EvalKey, JobId
from schemas.envelope import COMMANDS_DECODER, ENCODER, AnyCommand, AnyEvent
from schemas.evaluations import EndEvaluations, EvaluationEnded, Lease, Leases, Presence
from schemas.nodes import CapacityFreed
from schemas.plans import GroupPlacement, Origin, PlanCommitted, PlanRefused, Stops, SubmitPlan
from services.scheduler.plan_parts import split_proposal
from services.scheduler.role import DECISIONS_MAX, PlaceFunction, Scheduler
from shared.core.runtime import messages
from shared.core.runtime.replica import Replica
from shared.core.runtime.role import Input
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.core.scheduling.place import place
from shared.protocol import subjects
from tests.unit.core.state.written_log import START_NS, WrittenLog

MS = 1_000_000
SECOND = 1_000 * MS
PRESENCE = msgspec.json.Decoder(Presence)


class Fake:
    """Decides by placing one allocation on row 0, and remembers what it was shown."""

    def __init__(self) -> None:
        self.keys: list[EvalKey] = []
        self.used: list[int] = []
        self.seqs: list[int] = []
        self.poison = ""

    def __call__(
        self, snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
    ) -> Proposal:
        if assignment.job_id == self.poison:
            raise ZeroDivisionError("nothing is divided by nothing")
        self.keys.append(assignment.key)
        self.used.append(int(snapshot.held.columns(1)[0, 0]))
        self.seqs.append(snapshot.state.seq)
        return Proposal(placements=(one_on(0),))


def one_on(row: int, count: int = 1, group: str = "g") -> GroupPlacement:
    return GroupPlacement(group=group, version=0, rows=(row,), counts=(count,), names=(0, count))


class Story:
    """A worker, the log it follows, and what it sent."""

    def __init__(self, decide: PlaceFunction | None = None, *, jobs: int = 80) -> None:
        self.fake = Fake()
        self.log = WrittenLog()
        self.log.nodes(3, cpu_mhz=100_000)
        self.log.jobs(*(f"j{at}" for at in range(jobs)))
        self.now_ns = START_NS
        self.worker = Scheduler(instance="w1", decide=decide or self.fake)
        self.timer_ns = 0
        self.effects: list[messages.Effect] = []
        self.commands: list[AnyCommand] = []
        self.signs: list[Presence] = []
        self.step(messages.Reconnected(), *self.log.records, messages.CaughtUp(self.log.seq))

    def step(self, *inputs: Input) -> None:
        """One step at the present time."""
        self.effects = self.worker.step(list(inputs), self.now_ns)
        self.commands, self.signs = [], []
        for effect in self.effects:
            match effect:
                case messages.Send(subject, data) if subject == subjects.presence(
                    "scheduler", "w1"
                ):
                    self.signs.append(PRESENCE.decode(data))
                case messages.Send(subject, data) if subject.startswith("cmd."):
                    self.commands += COMMANDS_DECODER.decode(data).commands
                case messages.SetTimer():
                    self.timer_ns = effect.at_ns
                case _:
                    pass

    def wait(self, ns: int) -> None:
        """Let time pass; the timer fires if it is due."""
        self.now_ns += ns
        if 0 < self.timer_ns <= self.now_ns:
            fired, self.timer_ns = self.timer_ns, 0
            self.step(messages.Timer("due", fired))
        else:
            self.step()

    def lease(self, *numbers: int, min_seq: int = 1, attempt: int = 0) -> None:
        """Leases of evaluations 1000 + n of jobs `j<n>`, in one message and one step."""
        self.step(self.message(*numbers, min_seq=min_seq, attempt=attempt))

    @staticmethod
    def message(*numbers: int, min_seq: int = 1, attempt: int = 0) -> messages.Message:
        leases = tuple(
            Lease(
                key=EvalKey(1000 + number),
                job_id=JobId(f"j{number}"),
                min_seq=min_seq,
                lane=1,
                lanes=3,
                seed=7,
                attempt=attempt,
            )
            for number in numbers
        )
        body = ENCODER.encode(Leases(broker="b", leases=leases))
        return messages.Message("leases", subjects.leases("w1"), body, token=5)

    def tx(self, *events: AnyEvent) -> None:
        """One transaction and one step."""
        self.step(self.log.tx(*events))

    @property
    def plans(self) -> list[SubmitPlan]:
        """Plans that the last step sent."""
        return [one for one in self.commands if isinstance(one, SubmitPlan)]

    @property
    def numbers(self) -> list[int]:
        """Their numbers."""
        return [plan.origin.number for plan in self.plans]

    def metric(self, name: str) -> float:
        return self.worker.metrics()[f"caravan_scheduler_{name}"]


def committed(plan: SubmitPlan, *, ends: bool = True) -> list[AnyEvent]:
    """What the applier makes of a plan that fits."""
    done = PlanCommitted(
        key=plan.key, job_id=plan.job_id, origin=plan.origin, placements=plan.placements
    )
    return [done, EvaluationEnded(key=plan.key, status="complete")] if ends else [done]


def refused(plan: SubmitPlan, code: str = "stale") -> PlanRefused:
    return PlanRefused(
        key=plan.key, job_id=plan.job_id, origin=plan.origin, code=code, reason="moved on"
    )


def test_a_lease_becomes_a_plan() -> None:
    """A plan carries everything under which it was made; its lease message is acknowledged at once."""
    story = Story()
    story.lease(3)
    [plan] = story.plans
    state = story.worker.replica.state
    assert plan.origin == Origin(
        worker="w1",
        number=1,
        snapshot_seq=story.log.seq,
        policy=state.policy.policy_hash,
        seed=7,
        lane=1,
        lanes=3,
        core=plan.origin.core,
    )
    assert plan.origin.core
    assert (plan.key, plan.job_id, plan.end) == (1003, "j3", "complete")
    assert messages.Ack(5) in story.effects


def test_numbers_have_no_gap() -> None:
    """Plans are numbered from one without a gap, refused ones included."""
    story = Story()
    story.lease(1, 2)
    assert story.numbers == [1, 2]
    story.tx(refused(story.plans[0]))
    story.lease(1)
    assert story.numbers == [3]


def test_records_come_before_decisions() -> None:
    """What one step brings is applied first, whatever its order, so that no decision is made on less."""
    story = Story()
    record = story.log.tx(CapacityFreed(classes=(0,)))
    story.step(story.message(1), record)
    assert story.fake.seqs == [record.seq]


def test_a_lease_waits_for_its_seq() -> None:
    """A lease is decided only once the replica has seen what it asks for."""
    story = Story()
    story.lease(1, min_seq=story.log.seq + 2)
    story.lease(2)
    assert story.fake.keys == [1002]
    story.tx()
    assert story.fake.keys == [1002]
    story.tx()
    assert story.fake.keys == [1002, 1001]


def test_a_lease_that_waits_in_vain_goes_back() -> None:
    """After five seconds without its seq, a lease is handed back by a sign of life, and forgotten."""
    story = Story()
    story.lease(1, min_seq=story.log.seq + 1)
    for _ in range(9):
        story.wait(500 * MS)
        assert [sign.returned for sign in story.signs] == [()]
    story.wait(500 * MS)
    assert [sign.returned for sign in story.signs] == [(1001,)]
    story.tx()
    assert not story.fake.keys


def test_own_plans_are_seen_before_the_log_shows_them() -> None:
    """Each decision sees what this worker's unconfirmed plans hold; a refusal takes it away again."""
    story = Story()
    story.lease(1, 2, 3)
    assert story.fake.used == [0, 100, 200]
    story.tx(*committed(story.plans[0]), refused(story.plans[1]))
    story.lease(4)
    assert story.fake.used[-1] == 200
    assert story.metric("overlay_allocations") == 2


def test_an_unseen_plan_is_sent_again() -> None:
    """What the log has not shown after half a second is sent again, in number order, and never decided anew."""
    story = Story()
    story.lease(1, 2, 3)
    first = story.plans
    story.tx(*committed(first[0]))
    story.wait(400 * MS)
    assert not story.plans
    story.wait(100 * MS)
    assert story.plans == first[1:]
    assert len(story.fake.keys) == 3
    story.tx(*committed(first[1]), refused(first[2]))
    story.wait(SECOND)
    assert not story.plans
    assert story.metric("plans_outstanding") == 0


def test_a_new_writer_gets_the_plans_at_once() -> None:
    """Plans and failures that the log does not show go to the next applier in the step that reads its lease."""
    story = Story()
    story.fake.poison = "j4"
    story.lease(1, 2, 4)
    sent = story.commands
    assert len(sent) == 3
    story.wait(MS)
    assert not story.commands
    story.step(story.log.takeover())
    assert story.commands == sent
    story.tx(*committed(story.plans[0]))
    story.step(story.log.takeover())
    assert story.commands == sent[1:]


def test_a_second_copy_of_a_lease_is_no_second_plan() -> None:
    """A lease of what is planned sends that plan again; one of what has ended is ignored."""
    story = Story()
    story.lease(1)
    [plan] = story.plans
    story.lease(1, attempt=1)
    assert story.plans == [plan]
    story.tx(*committed(plan))
    story.lease(1)
    assert not story.plans
    assert len(story.fake.keys) == 1


def test_a_refused_evaluation_is_decided_anew() -> None:
    """After a refusal, the next lease of the same evaluation is a new decision with a new number."""
    story = Story()
    story.lease(1)
    story.tx(refused(story.plans[0]))
    story.lease(1, min_seq=story.log.seq, attempt=1)
    assert story.numbers == [2]
    assert story.plans[0].origin.snapshot_seq == story.log.seq


def test_a_copy_in_the_waiting_line_counts_once() -> None:
    """Two copies of a lease that waits are one."""
    story = Story()
    ahead = story.log.seq + 1
    story.step(story.message(1, min_seq=ahead), story.message(1, min_seq=ahead))
    story.tx()
    assert story.fake.keys == [1001]


def test_an_ended_evaluation_is_not_decided() -> None:
    """An evaluation that ends while its lease waits is dropped."""
    story = Story()
    story.lease(1, min_seq=story.log.seq + 1)
    story.tx(EvaluationEnded(key=EvalKey(1001), status="canceled"))
    assert not story.fake.keys


def test_one_bad_job_harms_no_other() -> None:
    """A decision that raises fails its evaluation by command, until the log shows it; the others continue."""
    story = Story()
    story.fake.poison = "j2"
    story.lease(1, 2, 3)
    assert story.fake.keys == [1001, 1003]
    assert story.numbers == [1, 2]
    [failed] = [one for one in story.commands if isinstance(one, EndEvaluations)]
    assert (failed.keys, failed.status) == ((1002,), "failed")
    assert "ZeroDivisionError" in failed.reason
    story.wait(500 * MS)
    assert failed in story.commands
    story.tx(EvaluationEnded(key=EvalKey(1002), status="failed"))
    story.wait(500 * MS)
    assert failed not in story.commands


def test_a_proposal_that_cannot_be_held_fails_too() -> None:
    """A proposal for a group or row that does not exist fails its evaluation and leaves nothing in the overlay."""
    good = tuple(one_on(0) for _ in range(9000))
    story = Story(lambda *_, **__: Proposal(placements=(*good, one_on(77))))
    story.lease(1)
    assert [type(one) for one in story.commands] == [EndEvaluations]
    assert story.metric("overlay_allocations") == 0
    assert story.metric("plans_outstanding") == 0


def test_long_work_is_done_in_turns() -> None:
    """One step decides one message's worth; a timer that is due at once takes up the rest."""
    story = Story()
    story.lease(*range(70))
    assert len(story.plans) == DECISIONS_MAX == 64
    assert story.timer_ns == story.now_ns
    story.wait(0)
    assert story.numbers == list(range(65, 71))


def test_signs_of_life_are_regular() -> None:
    """A worker shows life when it has read the log to its end, then five times a second, with its seq."""
    worker = Scheduler(instance="w1", decide=Fake())
    early = worker.step([messages.Reconnected()], START_NS)
    assert not [one for one in early if isinstance(one, messages.Send)]
    story = Story()
    assert [sign.seq for sign in story.signs] == [story.log.seq]
    story.wait(100 * MS)
    assert not story.signs
    story.wait(100 * MS)
    assert len(story.signs) == 1


def test_a_reconnected_worker_is_heard_at_once() -> None:
    """After the bus was away, leases are opened again, life is shown, and every unseen plan is sent again."""
    story = Story()
    story.lease(1)
    story.wait(10 * MS)
    story.step(messages.Reconnected())
    assert messages.Open("leases") in story.effects
    assert len(story.signs) == 1
    assert story.numbers == [1]


def test_a_damaged_log_takes_the_worker_out() -> None:
    """A worker that cannot follow the log gives its leases away and stops."""
    story = Story()
    story.log.tx()
    story.step(story.log.tx())
    assert [sign.active for sign in story.signs] == [False]
    assert isinstance(story.effects[-1], messages.Stop)


def test_what_does_not_decode_is_kept() -> None:
    """Undecodable leases go to the dead letters and give their credit back."""
    story = Story()
    for bad in (b"{", b'{"broker":"\xff","leases":[]}', b"[" * 5000):
        story.step(messages.Message("leases", subjects.leases("w1"), bad, token=9))
        sent = [one.subject for one in story.effects if isinstance(one, messages.Send)]
        assert sent == [subjects.dead(subjects.leases("w1"))]
        assert messages.Ack(9) in story.effects
    assert story.metric("dead_messages_total") == 3


def test_a_clock_set_back_stops_no_resend() -> None:
    """Resends go by distances: a clock set back an hour delays them by no more than half a second."""
    story = Story()
    story.lease(1)
    story.now_ns -= 3_600 * SECOND
    story.step()
    assert story.timer_ns <= story.now_ns + 500 * MS
    story.wait(500 * MS)
    assert story.numbers == [1]


def test_plans_are_made_again_from_the_log() -> None:
    """With the real placement: lanes and overlay of a plan are enough to make the same plan on another replica."""
    story = Story(place)
    story.lease(*range(6))
    made = story.plans
    rows = {row for plan in made for placement in plan.placements for row in placement.rows}
    assert rows <= set(range(3))
    assert all(sum(placement.counts) == 1 for plan in made for placement in plan.placements)
    again = Story(place)
    again.lease(*range(6))
    assert again.plans == made


# ---- parts ----


def job_of(*groups: str) -> tuple[WrittenLog, Replica]:
    """A replica with a job `j` that has these groups and four nodes."""
    log, replica = WrittenLog(), Replica()
    log.nodes(4)
    log.job_of("j", *groups)
    for record in log.records:
        replica.apply(record)
    return log, replica


def spread(group: str, count: int, previous: tuple[int, ...] = ()) -> GroupPlacement:
    """A placement that cannot be written as long runs."""
    return GroupPlacement(
        group=group,
        version=0,
        rows=tuple(at % 4 for at in range(count)),
        counts=(1,) * count,
        names=tuple(value for at in range(count) for value in (2 * at, 1)),
        previous=previous,
    )


def test_a_large_plan_is_cut_between_groups() -> None:
    """Parts stay below the bound, hold each placement once, and only the last one ends the evaluation."""
    _, replica = job_of("a", "b", "c")
    whole = Proposal(placements=tuple(spread(one, 200) for one in "abc"), end_reason="done")
    parts = split_proposal(whole, replica.state, 5_000)
    assert len(parts) == 2
    assert all(len(ENCODER.encode(part)) < 5_200 for part in parts)
    assert [one for part in parts for one in part.placements] == list(whole.placements)
    assert [(part.end, part.end_reason) for part in parts] == [("", ""), ("complete", "done")]


def test_a_plan_that_must_land_whole_is_not_cut() -> None:
    """All at once means one part, however large."""
    _, replica = job_of("a", "b")
    whole = Proposal(placements=(spread("a", 300), spread("b", 300)), all_at_once=True)
    assert split_proposal(whole, replica.state, 2_000) == [whole]


def test_a_plan_that_only_ends_its_evaluation_is_one_part() -> None:
    """What places, stops and updates nothing is one part, however long its record of the decision."""
    _, replica = job_of("a")
    record = msgspec.Raw(ENCODER.encode("x" * 3_000))
    whole = Proposal(decision=record)
    assert split_proposal(whole, replica.state, 2_000) == [whole]


def test_a_replacement_stays_with_its_stop() -> None:
    """A group too large by itself is cut between allocations, each stop in the part of what replaces it."""
    log, replica = job_of("a")
    first = one_on(0, 400, "a")
    origin = Origin(worker="w", number=1, snapshot_seq=1)
    plan = PlanCommitted(key=EvalKey(1), job_id=JobId("j"), origin=origin, placements=(first,))
    replica.apply(log.tx(plan))
    table = replica.state.allocations
    rows = table.rows_of(JobId("j"))
    keys = table.key[rows]
    placement = spread("a", 300, tuple(keys[:300].tolist()))
    whole = Proposal(
        stops=(Stops(rows=tuple(rows.tolist()), reason="job changed"),), placements=(placement,)
    )
    parts = split_proposal(whole, replica.state, 3_000)
    assert len(parts) > 3
    stopped: list[int] = []
    total = 0
    for part in parts:
        here = [row for stop in part.stops for row in stop.rows]
        stopped += here
        for one in part.placements:
            total += sum(one.counts)
            assert np.isin(one.previous, table.key[here]).all()
    assert sorted(stopped) == rows.tolist()
    assert total == 300
    names = [name for part in parts for one in part.placements for name in one.names[::2]]
    assert names == list(placement.names[::2])


def test_parts_share_a_number_and_settle_one_by_one() -> None:
    """All parts of a plan have one number; a refusal settles those that follow, too."""
    big = Proposal(placements=tuple(one_on(0, 1, "g") for _ in range(9000)))
    story = Story(lambda *_, **__: big)
    story.lease(1)
    parts = story.plans
    assert len(parts) > 1
    assert [(one.origin.number, one.origin.part) for one in parts] == [
        (1, at) for at in range(len(parts))
    ]
    assert {one.origin.parts for one in parts} == {len(parts)}
    assert [one.end for one in parts[:-1]] == [""] * (len(parts) - 1)
    story.tx(refused(parts[0]))
    assert story.metric("overlay_allocations") == 0
    story.wait(SECOND)
    assert not story.plans


def test_a_seen_part_is_not_sent_again() -> None:
    """A resend carries only the parts that the log lacks."""
    big = Proposal(placements=tuple(one_on(0, 1, "g") for _ in range(9000)))
    story = Story(lambda *_, **__: big)
    story.lease(1)
    first, *rest = story.plans
    story.tx(*committed(first, ends=False))
    story.wait(500 * MS)
    assert story.plans == rest
