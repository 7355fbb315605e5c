"""A standby sends what needs no lease where the log shows no progress on it, and little where it does."""

from itertools import pairwise

import pytest

from services.timekeeper.patience import PATIENCE_MAX_NS, PATIENCE_NS, Patience
from services.timekeeper.role import STEP_MAX
from shared.core.runtime.deadline_timer import RESEND_NS
from shared.core.runtime.messages import LeadershipLost, LeadershipWon, Reconnected
from tests.unit.timekeeper.sleepers import SECOND, Story

PATIENCE_S = PATIENCE_NS / SECOND


def standby() -> Story:
    """A standby with a source whose commands need no lease."""
    return Story(needs_lease=False).stand_by()


def count(story: Story, name: str) -> float:
    """A counter of the role."""
    return story.role.metrics()[f"caravan_timekeeper_{name}_total"]


def test_what_a_dead_leader_leaves_is_said_by_the_standby_until_the_log_shows_it() -> None:
    """It waits for its patience from the instant on, and sends again as a leader does."""
    story = standby()
    (key,) = story.sleepers(1_010)
    story.run_until(1_010)
    assert story.asked == []
    story.run_until(1_012)
    first = 1_010 + PATIENCE_S
    assert story.asked_s() == [first, first + 0.5, first + 1.5]
    assert (count(story, "standby_commands"), count(story, "resends")) == (3, 2)
    story.shown(key)
    story.run_until(1_100)
    assert len(story.asked) == 3


def test_a_standby_is_silent_where_the_log_shows_what_the_leader_sent() -> None:
    """Nothing is said twice as long as each thing is shown in time."""
    story = standby()
    keys = story.sleepers(*range(1_010, 1_030))
    for second, key in enumerate(keys, 1_010):
        story.run_until(second)
        story.shown(key)
    story.run_until(1_100)
    assert story.asked == []


def test_progress_on_something_that_is_due_makes_a_standby_wait_anew() -> None:
    """A leader that works through many is not helped; progress on what is not due yet says nothing of it."""
    story = standby()
    [one, other, later] = story.sleepers(1_010, 1_010, 1_900)
    story.run_until(1_010 + PATIENCE_S / 2)
    story.shown(one)
    story.run_until(1_010 + PATIENCE_S)
    assert story.asked == []
    story.shown(later)
    story.run_until(1_010 + 1.5 * PATIENCE_S)
    assert [key for _, key in story.asked] == [other]


def test_what_has_a_grace_is_left_to_the_leader() -> None:
    """The grace begins with the lease."""
    story = Story(grace_ns=15 * SECOND, needs_lease=False).stand_by()
    story.sleepers(1_001)
    story.run_until(1_100)
    assert story.asked == [] and story.role.metrics()["caravan_timekeeper_waiting_deadlines"] == 0
    story.step(LeadershipWon())
    story.run_until(1_115)
    assert story.asked_s() == [1_115]


def test_one_that_begins_to_lead_sends_at_once_what_it_did_not_send_yet() -> None:
    """What it sent before is not sent twice; what is due is not left to its patience."""
    story = standby()
    [early] = story.sleepers(1_010)
    story.run_until(1_010 + PATIENCE_S)
    late = story.sleepers(1_010, 1_020)
    story.step(LeadershipWon())
    assert [key for _, key in story.asked] == [early, late[0]]
    story.shown(early, late[0])
    story.run_until(1_020)
    assert [key for _, key in story.asked] == [early, *late]
    assert story.asked_s()[-1] == 1_020


@pytest.mark.parametrize("event", [LeadershipLost(), Reconnected(fsync=True, replicas=1, bus="b")])
def test_one_that_begins_to_stand_by_is_patient_with_all_that_is_due(
    event: LeadershipLost | Reconnected,
) -> None:
    """What it sent as a leader, or before it was cut off, is known to its successor, too."""
    story = Story(needs_lease=False)
    story.lead() if isinstance(event, LeadershipLost) else story.stand_by()
    [key] = story.sleepers(1_010)
    story.run_until(1_015)
    story.asked.clear()
    story.step(event)
    assert story.asked == []
    story.run_until(1_015 + PATIENCE_S)
    assert story.asked == [(story.now, key)]


def test_nothing_that_the_log_keeps_silent_of_is_more_than_one_message() -> None:
    """Without an applier a standby says one message of commands, then the same again, ever later."""
    story = standby()
    story.sleepers(*[1_010] * (3 * STEP_MAX))
    story.run_until(1_060)
    assert set(story.sizes) == {STEP_MAX}
    assert len({key for _, key in story.asked}) == STEP_MAX
    times = sorted(set(story.asked_s()))
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(times)]
    assert pauses[:6] == [RESEND_NS / SECOND, 1, 2, 4, 8, 8]


def test_a_new_writer_is_told_at_once_and_the_rest_follows_as_the_log_shows_it() -> None:
    """The machine of both leaders is gone: what the former applier was sent goes to the next one."""
    story = standby()
    keys = story.sleepers(*[1_010] * (STEP_MAX + 1))
    story.run_until(1_011)
    story.asked.clear()
    story.step(story.log.takeover())
    assert [key for _, key in story.asked] == keys[:STEP_MAX]
    story.shown(*keys[:STEP_MAX])
    story.run_until(1_011 + 2 * PATIENCE_S)
    assert story.asked[STEP_MAX:] == [(story.now, keys[STEP_MAX])]


def test_a_standby_of_a_slow_leader_helps_less_and_less() -> None:
    """Each thing is shown after a gap that is longer than the patience; once all is done the patience is short."""
    story = standby()
    keys = story.sleepers(*[1_010] * (10 * STEP_MAX), 1_900)
    for key in keys[:-1]:
        gap_ns = 3 * PATIENCE_NS if key in keys[:10] else 0
        story.run_until(max(story.now + gap_ns, 1_010 * SECOND) / SECOND)
        story.shown(key)
    helped = len({key for _, key in story.asked})
    assert STEP_MAX <= helped < 2 * STEP_MAX
    story.run_until(1_900 + PATIENCE_S)
    assert story.asked[-1] == (story.now, keys[-1])


def test_pauses_double_up_to_a_bound_while_something_is_left() -> None:
    """A pause begins with the newest of the instant, the progress and the last send."""
    patience, now = Patience(), 1_000 * SECOND
    patience.begin(now)
    pauses: list[int] = []
    for _ in range(8):
        pauses.append(patience.ready_ns(900 * SECOND) - now)
        now += SECOND
        patience.sent(now)
    assert pauses[:3] == [PATIENCE_NS, 2 * PATIENCE_NS, 4 * PATIENCE_NS]
    assert pauses[-2:] == [PATIENCE_MAX_NS] * 2
    patience.rest()
    assert patience.ready_ns(2_000 * SECOND) == 2_000 * SECOND + PATIENCE_NS
    patience.saw_progress(2_001 * SECOND)
    assert patience.ready_ns(2_000 * SECOND) == 2_001 * SECOND + PATIENCE_NS


def test_a_clock_that_is_set_back_delays_a_standby() -> None:
    """The instant is one of the wall clock, the patience is a distance."""
    story = standby()
    story.sleepers(1_010)
    story.now = 900 * SECOND
    story.step()
    story.run_until(1_010)
    assert story.asked == []
    story.run_until(1_010 + PATIENCE_S)
    assert story.asked_s() == [1_010 + PATIENCE_S]
