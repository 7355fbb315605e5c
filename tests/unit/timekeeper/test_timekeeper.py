"""The timekeeper sends what is due, late rather than early, until the log shows it; a successor finds the same."""

from itertools import pairwise

import pytest

from schemas.evaluations import EvaluationsWoken
from schemas.jobs import JobRegistered, PeriodicBlock
from services.timekeeper.due_heap import DueHeap
from services.timekeeper.role import COMMANDS_MAX
from shared.core.runtime.chain import decode_record
from shared.core.runtime.messages import LeadershipLost, LeadershipWon, Reconnected
from shared.core.runtime.selective_decoding import decoder_for
from tests.unit.core.state.written_log import WrittenLog
from tests.unit.timekeeper.sleepers import SECOND, Story


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
    story.shown(key)
    sent = len(story.asked)
    story.run_until(2_000)
    assert len(story.asked) == sent
    assert story.role.metrics()["caravan_timekeeper_unconfirmed_commands"] == 0


def test_a_standby_says_nothing_that_needs_the_lease_and_a_successor_finds_what_is_due() -> None:
    """What fell due while another led is sent as soon as this one leads; what it led before is forgotten."""
    story = Story()
    story.sleepers(1_001)
    story.stand_by()
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
