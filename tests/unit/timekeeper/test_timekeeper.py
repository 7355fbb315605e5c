"""The timekeeper sends what is due, late rather than early, until the log shows it; a successor finds the same."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from schemas.base import EvalKey, Event
from schemas.envelope import COMMANDS_DECODER
from schemas.evaluations import (
    EvaluationsCreated,
    EvaluationsWoken,
    NewEvaluation,
    WakeEvaluations,
)
from schemas.jobs import JobRegistered, PeriodicBlock
from services.timekeeper.due_heap import DueHeap, DueKey, DueTime
from services.timekeeper.role import COMMANDS_MAX, Timekeeper
from shared.core.runtime.chain import decode_record
from shared.core.runtime.messages import (
    CaughtUp,
    LeadershipLost,
    LeadershipWon,
    Reconnected,
    Send,
    SetTimer,
    Timer,
)
from shared.core.runtime.role import Input
from shared.core.runtime.selective_decoding import decoder_for
from shared.core.state.ids import make_key
from shared.core.state.state import State
from tests.unit.core.state.written_log import WrittenLog

SECOND = 1_000_000_000


class DelayedEvaluations:
    """A toy: delayed evaluations are due at their time."""

    tables = frozenset({"evaluations"})
    events: frozenset[type[Event]] = frozenset({EvaluationsCreated, EvaluationsWoken})
    is_told_again = True

    def __init__(self, grace_ns: int = 0, *, is_log_time: bool = False) -> None:
        self._grace_ns = grace_ns
        self.is_log_time = is_log_time

    def keys(self, state: State) -> Iterable[DueKey]:
        """All that are open."""
        return list(state.evaluations.open)

    def changed(self, state: State, event: Event) -> Iterable[DueKey]:
        """All that are open: there are few."""
        del event
        return self.keys(state)

    def due_ns(self, state: State, key: DueKey, at: DueTime) -> int:
        """Until when it sleeps."""
        del at
        return state.evaluations.by_key[key].wait_until_ns  # type: ignore[index]

    def grace_ns(self, state: State, key: DueKey) -> int:
        """The same for all."""
        del state, key
        return self._grace_ns

    def command(self, state: State, key: DueKey, at: DueTime) -> WakeEvaluations:
        """Wake it."""
        del state, at
        return WakeEvaluations(keys=(key,), reason="due")  # type: ignore[arg-type]


class Story:
    """A leading timekeeper and its clock."""

    def __init__(self, *, grace_ns: int = 0, is_log_time: bool = False) -> None:
        source = DelayedEvaluations(grace_ns, is_log_time=is_log_time)
        self.role = Timekeeper(instance="t1", sources=[source])
        self.log = WrittenLog()
        self.now = 1_000 * SECOND
        self.alarm = 0
        #: (time, key) in order of asking.
        self.asked: list[tuple[int, EvalKey]] = []
        self.sizes: list[int] = []

    def lead(self) -> "Story":
        """Read the log so far, and lead."""
        self.step(*self.log.records, CaughtUp(self.log.seq), LeadershipWon())
        return self

    def sleepers(self, *until_s: int) -> list[EvalKey]:
        """Write evaluations that sleep until these times."""
        new = [NewEvaluation(job_id="j", wait_until_ns=one * SECOND) for one in until_s]
        record = self.log.tx(EvaluationsCreated(evaluations=tuple(new)))
        if self.role.is_acting:
            self.step(record)
        return [EvalKey(make_key(record.seq, at)) for at in range(len(new))]

    def step(self, *inputs: Input) -> None:
        """Take inputs, note what it asks for."""
        for effect in self.role.step(list(inputs), self.now):
            if isinstance(effect, SetTimer):
                self.alarm = effect.at_ns
            elif isinstance(effect, Send):
                assert effect.subject == "cmd.timer"
                batch = COMMANDS_DECODER.decode(effect.data)
                self.sizes.append(len(batch.commands))
                self.asked += [(self.now, one.keys[0]) for one in batch.commands]  # type: ignore[union-attr]

    def run_until(self, second: int) -> None:
        """Let the clock run from alarm to alarm."""
        while self.alarm and self.alarm <= second * SECOND:
            at_ns, self.alarm = self.alarm, 0
            self.now = max(self.now, at_ns)
            self.step(Timer("due", at_ns))
        self.now = second * SECOND

    def asked_s(self) -> list[float]:
        """When something was asked, in seconds."""
        return [when / SECOND for when, _ in self.asked]


def test_nothing_is_said_before_its_time_and_each_thing_in_its_order() -> None:
    """Three deadlines fire at their instants, and no timer is set without one."""
    story = Story().lead()
    assert story.alarm == 0
    late, first, second = story.sleepers(1_030, 1_010, 1_020)
    story.run_until(1_009)
    assert story.asked == []
    story.run_until(1_031)
    firsts = {key: when for when, key in reversed(story.asked)}
    assert firsts == {first: 1_010 * SECOND, second: 1_020 * SECOND, late: 1_030 * SECOND}


def test_a_command_is_sent_again_until_the_log_shows_it() -> None:
    """The pauses double up to eight seconds; once the log shows it, nothing more is sent."""
    story = Story().lead()
    (key,) = story.sleepers(1_001)
    story.run_until(1_040)
    pauses = [later - earlier for earlier, later in pairwise(story.asked_s())]
    assert pauses == [0.5, 1, 2, 4, 8, 8, 8]
    story.step(story.log.tx(EvaluationsWoken(keys=(key,), reason="due")))
    sent = len(story.asked)
    story.run_until(2_000)
    assert len(story.asked) == sent
    assert story.role.metrics()["caravan_timekeeper_unconfirmed_commands"] == 0


def test_a_standby_says_nothing_and_a_successor_finds_what_is_due() -> None:
    """What fell due while another led is sent as soon as this one leads; what it led before is forgotten."""
    story = Story()
    story.sleepers(1_001)
    story.step(*story.log.records, CaughtUp(story.log.seq))
    story.run_until(1_100)
    assert story.asked == [] and story.alarm == 0
    story.step(LeadershipWon())
    assert story.asked_s() == [1_100]
    story.step(LeadershipLost())
    story.run_until(1_200)
    assert story.asked_s() == [1_100]


def test_a_source_with_grace_waits_after_a_takeover_and_after_a_lost_connection() -> None:
    """Reports that would have met the deadline are on their way."""
    story = Story(grace_ns=15 * SECOND)
    story.sleepers(990)
    story.lead()
    story.run_until(1_014)
    assert story.asked == []
    story.step(Reconnected(fsync=True, replicas=1, bus="b"))
    story.run_until(1_028)
    assert story.asked == []
    story.run_until(1_029)
    assert story.asked_s() == [1_029]


def test_a_clock_that_is_set_back_delays_and_says_nothing_early() -> None:
    """The instant is one of the wall clock: it comes when the clock shows it."""
    story = Story().lead()
    story.sleepers(1_010)
    story.now = 900 * SECOND
    story.step()
    story.run_until(1_009)
    assert story.asked == []
    story.run_until(1_010)
    assert story.asked_s()[0] == 1_010


def test_thousands_that_are_due_at_once_are_cut_into_messages() -> None:
    """No message is longer than the bus takes."""
    story = Story().lead()
    story.sleepers(*[1_010] * 1_200)
    story.run_until(1_010)
    assert story.sizes == [COMMANDS_MAX, COMMANDS_MAX, 1_200 - 2 * COMMANDS_MAX]


@pytest.mark.parametrize("is_log_time", [True, False])
def test_a_log_that_is_ahead_of_the_clock_reaches_only_what_counts_in_log_time(
    *, is_log_time: bool
) -> None:
    """A clock that is an hour behind delays no deadline that the log has passed; a launch waits for the clock."""
    story = Story(is_log_time=is_log_time).lead()
    (key,) = story.sleepers(1_010)
    other = JobRegistered(submission_id="s", digest="d", job_id="other", version=0)
    story.step(story.log.tx(other, t_ns=4_600 * SECOND))
    assert story.asked == ([(1_000 * SECOND, key)] if is_log_time else [])


def test_a_later_word_replaces_an_earlier_one_in_the_heap() -> None:
    """A deadline that is moved or taken away does not fire at its old time."""
    heap = DueHeap()
    heap.put("a", 5)
    heap.put("b", 6)
    heap.put("c", 4)
    heap.put("a", 9)
    heap.put("c", 0)
    assert (len(heap), heap.earliest_ns()) == (2, 6)
    assert heap.take_due(8, 10) == ["b"]
    assert heap.take_due(9, 10) == ["a"]
    assert (len(heap), heap.earliest_ns()) == (0, 0)


def test_what_is_not_needed_is_not_decoded() -> None:
    """Without a needed event a record keeps its place in the chain and has no events; with one it is whole."""
    log = WrittenLog()
    plain = log.jobs("a", "b")
    block = PeriodicBlock(crons=("@daily",))
    cron = log.tx(
        JobRegistered(submission_id="s", digest="d", job_id="c", version=0, periodic=block)
    )
    child = log.tx(JobRegistered(submission_id="", digest="", job_id="c/1", version=0, parent="c"))
    decode = decoder_for({JobRegistered, EvaluationsWoken})
    whole = [decode_record(one.seq, one.subject, one.data) for one in log.records]
    found = [decode(one.seq, one.subject, one.data) for one in log.records]
    for record, mine, full in zip(log.records, found, whole, strict=True):
        assert mine is not None and full is not None
        needed = record in (cron, child)
        assert mine.events == (full.events if needed else ()), record.seq
        assert (mine.sum, mine.prev, mine.lease, mine.t_ns) == (
            full.sum,
            full.prev,
            full.lease,
            full.t_ns,
        )
    assert whole[plain.seq - 1].events  # type: ignore[union-attr]


def test_a_new_writer_is_asked_at_once() -> None:
    """What the log does not show goes to the next applier in the step that reads its lease."""
    story = Story().lead()
    [early, _] = story.sleepers(1_010, 1_900)
    story.run_until(1_012)
    story.asked.clear()
    story.step(story.log.takeover())
    assert [key for _, key in story.asked] == [early]
    story.step(story.log.tx(EvaluationsWoken(keys=(early,))))
    story.asked.clear()
    story.step(story.log.takeover())
    assert story.asked == []
