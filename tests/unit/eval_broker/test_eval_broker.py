"""The eval broker: order, credit, deadlines, sleep and waking, one step at a time."""

import msgspec

from schemas.base import EvalKey, JobId
from schemas.envelope import COMMANDS_DECODER, ENCODER, AnyEvent
from schemas.evaluations import (
    Blocked,
    EndEvaluations,
    EvaluationEnded,
    EvaluationsCreated,
    EvaluationsWoken,
    Lease,
    Leases,
    NewEvaluation,
    Presence,
    Waiting,
    WakeEvaluations,
)
from schemas.nodes import CapacityFreed
from schemas.plans import GroupPlacement, Origin, PlanCommitted, PlanRefused
from schemas.policy import Policy
from services.eval_broker.role import WAITING_PER_JOB_MAX, EvalBroker
from shared.core.runtime import messages
from shared.core.runtime.role import Input
from shared.core.splitmix import splitmix64
from shared.core.state.ids import make_key
from shared.protocol import subjects
from tests.unit.core.state.written_log import START_NS, WrittenLog

MS = 1_000_000
SECOND = 1_000 * MS
LEASES = msgspec.json.Decoder(Leases)


class Story:
    """A broker, the log it follows, and what it did, by hand."""

    def __init__(self, policy: Policy | None = None, *, leads: bool = True) -> None:
        self.log = WrittenLog(policy)
        self.now_ns = START_NS
        self.broker = EvalBroker(instance="b1")
        self.leases: list[tuple[str, Lease]] = []
        self.messages: list[Leases] = []
        self.commands: list[WakeEvaluations | EndEvaluations] = []
        self.timer_ns = 0
        self.effects: list[messages.Effect] = []
        self.step(messages.Reconnected(), *self.log.records, messages.CaughtUp(self.log.seq))
        if leads:
            self.step(messages.LeadershipWon())

    def step(self, *inputs: Input) -> None:
        """One step at the present time; remembers what came of it."""
        self.leases, self.messages, self.commands = [], [], []
        self.effects = self.broker.step(list(inputs), self.now_ns)
        for effect in self.effects:
            match effect:
                case messages.Send(subject, data) if subject == subjects.command("evaluation"):
                    self.commands += COMMANDS_DECODER.decode(data).commands
                case messages.Send(subject, data) if subject.startswith("eval."):
                    body = LEASES.decode(data)
                    self.messages.append(body)
                    self.leases += [(subjects.last_token(subject), one) for one in body.leases]
                case messages.SetTimer():
                    self.timer_ns = effect.at_ns
                case _:
                    pass

    def hear(self, *workers: str, active: bool = True, returned: tuple[EvalKey, ...] = ()) -> None:
        """Signs of life of scheduler workers."""
        self.step(*(self.sign(one, active=active, returned=returned) for one in workers))

    @staticmethod
    def sign(
        worker: str, *, active: bool = True, returned: tuple[EvalKey, ...] = ()
    ) -> messages.Message:
        """One sign of life."""
        body = Presence(role="scheduler", instance=worker, active=active, returned=returned)
        subject = subjects.presence("scheduler", worker)
        return messages.Message("presence", subject, ENCODER.encode(body), token=1)

    def create(self, *job_ids: str, priority: int = 50) -> list[EvalKey]:
        """Pending evaluations, in one transaction and one step."""
        record, keys = self.log.evaluations(*job_ids, priority=priority)
        self.step(record)
        return keys

    def tx(self, *events: AnyEvent) -> None:
        """One transaction and one step."""
        self.step(self.log.tx(*events, t_ns=self.now_ns))

    def wait(self, ns: int, *alive: str) -> None:
        """Let time pass, then step with the timer if it fires, and signs of life."""
        self.now_ns += ns
        inputs: list[Input] = [self.sign(one) for one in alive]
        if 0 < self.timer_ns <= self.now_ns:
            inputs.append(messages.Timer("due", self.timer_ns))
            self.timer_ns = 0
        self.step(*inputs)

    @property
    def leased(self) -> list[EvalKey]:
        """Keys leased by the last step, in order."""
        return [lease.key for _, lease in self.leases]

    def metric(self, name: str) -> float:
        """One metric by the end of its name."""
        return self.broker.metrics()[f"caravan_eval_broker_{name}"]


def ended(key: EvalKey, status: str = "complete") -> EvaluationEnded:
    return EvaluationEnded(key=key, status=status)


def origin(worker: str, number: int = 1, part: int = 0, parts: int = 1) -> Origin:
    return Origin(worker=worker, number=number, part=part, parts=parts, snapshot_seq=1)


def refused(key: EvalKey, job_id: str, by: Origin) -> PlanRefused:
    return PlanRefused(key=key, job_id=JobId(job_id), origin=by, code="stale", reason="moved on")


def test_priority_goes_before_age() -> None:
    """Leases go out by priority, and by age within one."""
    story = Story()
    low = story.create("a", "b", priority=10)
    high = story.create("c", priority=90)
    story.hear("w1")
    assert story.leased == [*high, *low]


def test_one_evaluation_of_a_job_is_out() -> None:
    """A second evaluation of a job is leased only when the first one has ended."""
    story = Story()
    first, second = story.create("a", "a")
    story.hear("w1")
    assert story.leased == [first]
    story.tx(ended(first))
    assert story.leased == [second]
    assert story.metric("pending_evaluations") == 0


def test_a_higher_priority_of_the_same_job_goes_first() -> None:
    """Within a job, too, priority goes before age, as long as nothing is out."""
    story = Story()
    [low] = story.create("a", priority=10)
    [high] = story.create("a", priority=90)
    story.hear("w1")
    assert story.leased == [high]
    story.tx(ended(high))
    assert story.leased == [low]


def test_a_standby_replays_and_is_silent() -> None:
    """A broker that does not lead leases nothing, and leases everything open once it leads."""
    story = Story(leads=False)
    keys = story.create("a", "b")
    story.hear("w1")
    assert not story.leases
    story.step(messages.LeadershipWon())
    assert story.leased == keys
    story.step(messages.LeadershipLost())
    story.create("c")
    assert not story.effects


def test_nobody_acts_before_the_log_was_read() -> None:
    """Leadership won before the end of the log was seen waits for it."""
    log = WrittenLog()
    made, [key] = log.evaluations("a")
    done = log.tx(ended(key))
    broker = EvalBroker(instance="b1")
    inputs = [messages.LeadershipWon(), Story.sign("w1"), *log.records[:-1]]
    assert broker.step(inputs, START_NS) == []
    assert made in log.records
    effects = broker.step([done, messages.CaughtUp(log.seq)], START_NS)
    assert not [one for one in effects if isinstance(one, messages.Send)]


def test_a_lease_says_what_place_needs() -> None:
    """Seed, lane, lanes and the seq to have seen stand in the lease; the job's fence counts as seen."""
    story = Story()
    story.step(story.log.jobs("a"))
    fence = story.log.seq
    [key] = story.create("a")
    story.hear("w2", "w1")
    [(worker, lease)] = story.leases
    assert (worker, lease.lane, lease.lanes) == ("w1", 0, 1)
    assert lease.seed == splitmix64(key)
    assert lease.min_seq == fence + 1
    place = GroupPlacement(group="g", version=0, rows=(0,), counts=(1,), names=(0, 1))
    plan = PlanCommitted(key=key, job_id=JobId("a"), origin=origin("w1"), placements=(place,))
    story.tx(plan, ended(key))
    moved = story.log.seq
    story.create("a")
    assert story.leases[0][1].min_seq == moved + 1


def test_lanes_are_for_those_who_decide_at_the_same_time() -> None:
    """Who decides alone looks at every node first; as soon as others have leases, each keeps to its lane."""
    story = Story()
    story.hear("w1", "w2")
    story.create("a")
    assert [(one.lane, one.lanes) for _, one in story.leases] == [(0, 1)]
    story.create("b")
    assert [(who, one.lane, one.lanes) for who, one in story.leases] == [("w2", 1, 2)]
    other = Story()
    other.hear("w1", "w2")
    other.create("a", "b")
    assert sorted((one.lane, one.lanes) for _, one in other.leases) == [(0, 2), (1, 2)]


def test_load_is_spread_evenly() -> None:
    """What is less than a chunk for each is split evenly; windows are 64 with two workers."""
    story = Story()
    story.hear("w1", "w2")
    story.create(*(f"j{at}" for at in range(10)))
    assert [len(one.leases) for one in story.messages] == [5, 5]
    story.create(*(f"k{at}" for at in range(300)))
    assert {one.leases[0].lane for one in story.messages} == {0, 1}
    assert story.metric("unacked_evaluations") == 128
    assert max(len(one.leases) for one in story.messages) <= 64


def test_a_lone_worker_has_a_wide_window() -> None:
    """One worker holds up to 256 leases, in messages of 64, and each end is a credit back."""
    story = Story()
    story.hear("w1")
    keys = story.create(*(f"j{at}" for at in range(300)))
    assert [len(one.leases) for one in story.messages] == [64] * 4
    story.tx(*(ended(key) for key in keys[:3]))
    assert story.leased == keys[256:259]


def test_a_silent_worker_loses_its_leases() -> None:
    """After two seconds without a sign of life, a worker's leases go to the others."""
    story = Story()
    story.hear("w1", "w2")
    [key] = story.create("a")
    story.wait(1_900 * MS, "w1")
    assert story.metric("workers") == 2
    story.wait(200 * MS, "w1")
    assert story.metric("workers") == 1
    assert story.metric("unacked_evaluations") == 1
    story.wait(2_100 * MS)
    assert (story.metric("workers"), story.metric("unacked_evaluations")) == (0, 0)
    story.hear("w2")
    assert [(worker, lease.key) for worker, lease in story.leases] == [("w2", key)]


def test_a_leaving_worker_hands_over_at_once() -> None:
    """Leases of a worker that says it leaves, and leases handed back, go out again in the same step."""
    story = Story()
    story.hear("w1", "w2")
    first, second = story.create("a", "b")
    assert [worker for worker, _ in story.leases] == ["w1", "w2"]
    story.hear("w1", returned=(first,))
    assert story.leased == [first]
    story.hear("w1", active=False)
    assert [(worker, lease.key) for worker, lease in story.leases] == [("w2", first)]
    story.hear("w1", returned=(second,))
    assert not story.leases, "a worker hands back only what it holds"


def test_a_refused_plan_is_leased_again() -> None:
    """A refusal is a credit back, and the same evaluation goes out with a higher seq to have seen."""
    story = Story()
    story.hear("w1")
    [key] = story.create("a")
    story.tx(refused(key, "a", origin("w1")))
    [(_, lease)] = story.leases
    assert (lease.key, lease.min_seq, lease.attempt) == (key, story.log.seq, 1)


def test_a_plan_of_a_former_holder_frees_nothing() -> None:
    """A late worker's refusal leaves the lease of the present holder alone."""
    story = Story()
    story.hear("w1")
    [key] = story.create("a")
    story.tx(refused(key, "a", origin("w0")))
    assert not story.leases
    assert story.metric("unacked_evaluations") == 1


def test_a_cut_plan_is_leased_again_after_its_last_part() -> None:
    """Parts of one plan keep the lease; the last one gives it back when the evaluation is still pending."""
    story = Story()
    story.step(story.log.jobs("a"))
    story.hear("w1")
    [key] = story.create("a")
    place = GroupPlacement(group="g", version=0, rows=(0,), counts=(1,), names=(0, 1))
    for part in (0, 1):
        by = origin("w1", part=part, parts=2)
        plan = PlanCommitted(
            key=key, job_id=JobId("a"), origin=by, placements=(place,), cut=(place,)[part:]
        )
        assert not story.leases or part == 0
        story.tx(plan)
    [(_, lease)] = story.leases
    assert (lease.min_seq, lease.attempt) == (story.log.seq, 0), "what landed is no failure"


def test_a_lease_dies_at_its_deadline() -> None:
    """A worker that lives and does not answer for five seconds loses the lease; its attempt counts."""
    story = Story()
    story.hear("w1")
    [key] = story.create("a")
    story.tx(CapacityFreed(classes=(0,)))
    for _ in range(4):
        story.wait(SECOND, "w1")
        assert all(lease.attempt == 0 for _, lease in story.leases), "reminders are the same lease"
    story.wait(SECOND, "w1")
    assert [(lease.key, lease.attempt) for _, lease in story.leases] == [(key, 1)]


def test_silence_of_the_log_is_nobody_s_fault() -> None:
    """Deadlines that pass while the log stands still do not count as attempts."""
    story = Story(Policy(delivery_limit=2))
    story.hear("w1")
    story.create("a")
    for _ in range(40):
        story.wait(SECOND, "w1")
        assert not story.commands
    assert story.metric("leases_expired_total") >= 4


def test_a_lost_lease_message_is_sent_again() -> None:
    """A live worker that does not list its lease gets it again, long before the deadline."""
    story = Story()
    story.hear("w1")
    [key] = story.create("a")
    first = story.leases
    story.wait(SECOND, "w1")
    assert not story.leases
    story.wait(SECOND, "w1")
    assert story.leases == first
    assert story.leased == [key]
    story.wait(500 * MS, "w1")
    assert not story.leases


def test_poison_is_given_up() -> None:
    """After as many attempts as the policy allows, the evaluation is failed by command, until the log shows it."""
    story = Story(Policy(delivery_limit=3))
    story.hear("w1")
    [key] = story.create("a")
    for number in (1, 2, 3):
        story.tx(refused(key, "a", origin("w1", number)))
    assert not story.leases
    [command] = story.commands
    assert isinstance(command, EndEvaluations)
    assert (command.keys, command.status) == ((key,), "failed")
    story.wait(400 * MS, "w1")
    assert not story.commands
    story.wait(100 * MS, "w1")
    assert story.commands == [command]
    story.tx(ended(key, "failed"))
    story.wait(SECOND, "w1")
    assert not story.commands


def test_a_crowd_of_one_job_is_thinned() -> None:
    """Of more than three waiting evaluations of a job, all but the newest are canceled."""
    story = Story()
    keys = story.create("a", "a", "a", "a", "b")
    [command] = story.commands
    assert isinstance(command, EndEvaluations)
    assert sorted(command.keys) == keys[:3]
    assert command.status == "canceled"
    story.hear("w1")
    assert story.leased == [keys[3], keys[4]]


def test_the_one_that_knows_most_stays() -> None:
    """The newest of a crowd is the one with the highest seq to have seen, whatever its age."""
    story = Story()
    record, asleep = story.log.blocked("a", Blocked(seen_classes=1, classes=(0,)))
    story.step(record)
    story.create("a", "a", "a")
    story.tx(EvaluationsWoken(keys=(asleep,)))
    [command] = story.commands
    assert asleep not in command.keys
    story.hear("w1")
    assert story.leased == [asleep]


def test_room_wakes_only_who_may_use_it() -> None:
    """Freed capacity wakes the blocked evaluations of that class, and those that never saw it."""
    story = Story()
    wants = {
        "right": Blocked(classes=(1, 3), seen_classes=5, snapshot_seq=2),
        "other": Blocked(classes=(2,), seen_classes=5, snapshot_seq=2),
        "early": Blocked(classes=(2,), seen_classes=3, snapshot_seq=2),
    }
    keys: dict[str, EvalKey] = {}
    for name, blocked in wants.items():
        record, keys[name] = story.log.blocked(name, blocked)
        story.step(record)
        assert not story.commands
    story.tx(CapacityFreed(classes=(3,)))
    [command] = story.commands
    assert isinstance(command, WakeEvaluations)
    assert sorted(command.keys) == [keys["right"], keys["early"]]
    story.tx(EvaluationsWoken(keys=command.keys))
    assert story.metric("blocked_evaluations") == 1
    story.hear("w1")
    assert story.leased == [keys["right"], keys["early"]]


def test_room_that_came_before_the_block_wakes_too() -> None:
    """An evaluation blocked on an older snapshot than the freed room is woken at once: no wake-up is lost."""
    story = Story()
    story.tx(CapacityFreed(classes=(1,)))
    freed = story.log.seq
    record, missed = story.log.blocked(
        "a", Blocked(classes=(1,), snapshot_seq=freed - 1, seen_classes=2)
    )
    story.step(record)
    assert [one.keys for one in story.commands] == [(missed,)]
    record, _ = story.log.blocked("b", Blocked(classes=(1,), snapshot_seq=freed, seen_classes=2))
    story.step(record)
    assert not story.commands


def test_a_new_leader_finds_missed_wake_ups() -> None:
    """A broker that wins later wakes what the former one did not."""
    story = Story(leads=False)
    record, key = story.log.blocked("a", Blocked(classes=(1,), snapshot_seq=2, seen_classes=2))
    story.step(record, story.log.tx(CapacityFreed(classes=(1,))))
    assert not story.commands
    story.step(messages.LeadershipWon())
    assert [one.keys for one in story.commands] == [(key,)]


def test_wakes_are_bounded_and_ordered() -> None:
    """At most 256 wake-ups are under way, by priority, and the log's word lets the next ones out."""
    story = Story()
    blocked = Blocked(classes=(0,), seen_classes=1, snapshot_seq=2)
    made = tuple(
        NewEvaluation(job_id=JobId(f"j{at}"), priority=1 + at % 100, blocked=blocked)
        for at in range(300)
    )
    story.tx(EvaluationsCreated(evaluations=made))
    seq = story.log.seq
    story.tx(CapacityFreed(classes=(0,)))
    [first] = story.commands
    assert len(first.keys) == 256
    of = {EvalKey(make_key(seq, at)): new.priority for at, new in enumerate(made)}
    priorities = [of[key] for key in first.keys]
    assert priorities == sorted(priorities, reverse=True)
    story.tx(CapacityFreed(classes=(0,)))
    assert not story.commands
    story.tx(EvaluationsWoken(keys=first.keys))
    [rest] = story.commands
    assert len(rest.keys) == 44
    assert not set(rest.keys) & set(first.keys)


def test_a_wake_is_asked_for_until_the_log_shows_it() -> None:
    """A lost wake command is sent again after half a second, by timer."""
    story = Story()
    record, key = story.log.blocked("a", Blocked(classes=(1,), snapshot_seq=2, seen_classes=2))
    story.step(record, story.log.tx(CapacityFreed(classes=(1,))))
    [command] = story.commands
    assert story.timer_ns == story.now_ns + 500 * MS
    story.wait(500 * MS)
    assert story.commands == [command]
    story.tx(EvaluationsWoken(keys=(key,)))
    story.wait(SECOND)
    assert not story.commands


def test_a_new_writer_is_asked_at_once() -> None:
    """Wakes and endings that the log does not show go to the next applier in the step that reads its lease."""
    story = Story()
    record, key = story.log.blocked("a", Blocked(classes=(1,), snapshot_seq=2, seen_classes=2))
    story.step(record, story.log.tx(CapacityFreed(classes=(1,))))
    crowd = story.create(*(["b"] * (WAITING_PER_JOB_MAX + 1)))
    asked = story.commands
    story.wait(MS)
    assert not story.commands
    story.step(story.log.takeover())
    wake, end = story.commands
    assert isinstance(wake, WakeEvaluations) and wake.keys == (key,)
    assert [end] == asked and set(end.keys) < set(crowd)
    story.tx(EvaluationsWoken(keys=(key,)), *(ended(one, "canceled") for one in end.keys))
    story.step(story.log.takeover())
    assert not story.commands


def test_a_delayed_evaluation_sleeps() -> None:
    """One that waits until a time is not leased before; then its waking is asked for, by one timer."""
    story = Story()
    story.hear("w1")
    until = story.now_ns + 1_900 * MS
    story.tx(
        EvaluationsCreated(evaluations=(NewEvaluation(job_id=JobId("a"), wait_until_ns=until),))
    )
    key = EvalKey(make_key(story.log.seq, 0))
    assert (story.leases, story.commands) == ([], [])
    assert story.timer_ns == until
    assert story.metric("waiting_evaluations") == 1
    story.wait(1_900 * MS, "w1")
    assert [one.keys for one in story.commands] == [(key,)]
    assert not story.leases
    story.tx(EvaluationsWoken(keys=(key,)))
    assert story.leased == [key]


def test_a_clock_set_back_stops_nothing() -> None:
    """Deadlines are distances: when the clock is set back an hour, a silent worker is lost as soon as ever."""
    story = Story()
    story.hear("w1", "w2")
    [key] = story.create("a")
    story.now_ns -= 3_600 * SECOND
    story.timer_ns = 0
    story.hear("w2")
    assert 0 < story.timer_ns <= story.now_ns + 2 * SECOND
    story.wait(800 * MS, "w2")
    assert [(worker, lease.key) for worker, lease in story.leases] == [("w2", key)]


def test_what_does_not_decode_is_kept() -> None:
    """An undecodable presence message goes to the dead letters, is counted, and changes no lease."""
    story = Story()
    subject = subjects.presence("scheduler", "x")
    bad = messages.Message("presence", subject, b"{", token=7)
    forged = messages.Message("presence", subject, Story.sign("w2").data, token=8)
    story.step(bad, forged, Story.sign("w1"))
    dead = [one for one in story.effects if isinstance(one, messages.Send)]
    assert [one.subject for one in dead] == [subjects.dead(subject)] * 2
    assert story.metric("dead_messages_total") == 2
    assert story.metric("workers") == 1


def test_a_damaged_log_stops_the_broker() -> None:
    """A gap in the log is no reason to guess: the process stops."""
    story = Story()
    story.log.tx()
    story.step(story.log.tx())
    assert isinstance(story.effects[0], messages.Stop)


def test_a_clock_behind_the_log_s_does_not_delay() -> None:
    """A delayed evaluation is woken when the log's time has come, however late the broker's clock is."""
    story = Story()
    until = story.now_ns + SECOND
    story.tx(
        EvaluationsCreated(evaluations=(NewEvaluation(job_id=JobId("a"), wait_until_ns=until),))
    )
    key = EvalKey(make_key(story.log.seq, 0))
    story.step(story.log.tx(CapacityFreed(classes=(0,)), t_ns=until))
    assert [one.keys for one in story.commands] == [(key,)]


def test_what_blocked_jobs_ask_for_is_shown() -> None:
    """The sum of what blocked evaluations could not place is a gauge, and goes with them."""
    story = Story()
    story.step(story.log.jobs("a", "b", count=9))
    for job_id, count in (("a", 2), ("b", 3)):
        blocked = Blocked(classes=(0,), seen_classes=1, waiting={"g": Waiting(count=count)})
        record, key = story.log.blocked(job_id, blocked)
        story.step(record)
    assert story.metric("blocked_cpu_mhz") == 500
    assert story.metric("blocked_memory_mib") == 5 * 64
    story.tx(EvaluationsWoken(keys=(key,)))
    assert story.metric("blocked_cpu_mhz") == 200


def test_times_in_the_queue_are_counted() -> None:
    """Waiting runs from being ready to the lease, processing from the lease to the end in the log."""
    story = Story()
    [key] = story.create("a")
    story.now_ns += SECOND
    story.hear("w1")
    story.now_ns += 2 * SECOND
    story.step(story.log.tx(ended(key)), story.sign("w1"))
    assert story.metric("wait_seconds_sum") == 1
    assert story.metric("process_seconds_sum") == 2
