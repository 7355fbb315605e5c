"""Evaluations that waited for room are decided in their order: leased to one worker at a time, the first first."""

from schemas.base import EvalKey
from schemas.evaluations import Blocked, EvaluationsWoken, Waiting, WakeEvaluations
from schemas.nodes import CapacityFreed
from services.eval_broker.blocked_queue import FIRST_TRIES
from services.eval_broker.worker_leases import WINDOW_ALONE
from shared.core.runtime import messages
from tests.unit.eval_broker.test_eval_broker import MS, Story, ended


def wait_for_room(story: Story, *job_ids: str, priority: int = 50) -> list[EvalKey]:
    """Blocked evaluations, tried in this order."""
    keys = []
    for job_id in job_ids:
        blocked = Blocked(classes=(0,), snapshot_seq=story.log.seq, waiting={"g": Waiting(count=1)})
        record, key = story.log.blocked(job_id, blocked, priority)
        story.step(record)
        keys.append(key)
    return keys


def with_jobs(*job_ids: str) -> Story:
    """Jobs that were submitted in this order and ask for different amounts: each shape has a queue of its own."""
    story = Story()
    for at, job_id in enumerate(job_ids):
        story.step(story.log.jobs(job_id, cpu_mhz=100 + at))
    return story


def leases_of(story: Story) -> list[tuple[str, EvalKey]]:
    return [(worker, lease.key) for worker, lease in story.leases]


def test_what_was_woken_together_is_decided_by_one_worker_in_order() -> None:
    """The order is that of the submissions, not of the last tries; all of them see the same of the log."""
    story = with_jobs("first", "second")
    later, earlier = wait_for_room(story, "second", "first")
    story.hear("w1", "w2")
    story.tx(CapacityFreed(classes=(0,)))
    (wake,) = [one for one in story.commands if isinstance(one, WakeEvaluations)]
    assert wake.keys == (earlier, later)
    story.tx(EvaluationsWoken(keys=wake.keys, reason=wake.reason))
    assert leases_of(story) == [("w1", earlier), ("w1", later)]
    assert {lease.min_seq for _, lease in story.leases} == {story.log.seq}


def test_the_more_important_goes_first_and_others_do_not_wait() -> None:
    """Priority goes before the submission; what did not wait is leased to the other worker meanwhile."""
    story = with_jobs("first", "second")
    (low,) = wait_for_room(story, "first")
    (high,) = wait_for_room(story, "second", priority=60)
    story.tx(EvaluationsWoken(keys=(low, high), reason="capacity freed"))
    (more,), (other,) = story.create("new", priority=90), story.create("newer")
    story.hear("w1", "w2")
    assert {
        worker: [key for of, key in leases_of(story) if of == worker] for worker in ("w1", "w2")
    } == {
        "w1": [more, other],
        "w2": [high, low],
    }


def test_the_next_that_waited_are_leased_when_those_before_have_ended() -> None:
    """A worker that decided beside the first one would not see its plans; a lost one loses its turn."""
    story = with_jobs("a", "b", "c", "d")
    a, b, c, d = wait_for_room(story, "a", "b", "c", "d")
    story.hear("w1", "w2")
    story.tx(EvaluationsWoken(keys=(a, b), reason="capacity freed"))
    assert leases_of(story) == [("w1", a), ("w1", b)]
    story.tx(EvaluationsWoken(keys=(c,), reason="capacity freed"))
    story.tx(ended(a))
    assert leases_of(story) == []
    story.tx(ended(b))
    assert [key for _, key in leases_of(story)] == [c]
    worker = leases_of(story)[0][0]
    story.tx(EvaluationsWoken(keys=(d,), reason="capacity freed"))
    assert leases_of(story) == []
    # It shows no life: another worker gets both, in order.
    other = {"w1": "w2", "w2": "w1"}[worker]
    story.wait(800 * MS, other)
    assert leases_of(story) == [(other, c), (other, d)]


def test_one_worker_has_one_batch_at_a_time() -> None:
    """Of two messages to a single worker the first may be lost or overtaken: the second waits for its end."""
    names = [f"j{at:03}" for at in range(WINDOW_ALONE + 1)]
    story = with_jobs(*names)
    keys = wait_for_room(story, *names)
    story.hear("w1")
    story.tx(EvaluationsWoken(keys=tuple(keys[:-1]), reason="capacity freed"))
    assert leases_of(story) == [("w1", key) for key in keys[:-1]]
    story.tx(EvaluationsWoken(keys=(keys[-1],), reason="capacity freed"))
    story.tx(*map(ended, keys[:-2]))
    assert leases_of(story) == []
    story.tx(ended(keys[-2]))
    assert leases_of(story) == [("w1", keys[-1])]


def test_another_broker_keeps_the_order() -> None:
    """That an evaluation waited is in the log: a broker that takes over leases them as the one before it would."""
    story = with_jobs("first", "second")
    later, earlier = wait_for_room(story, "second", "first")
    story.tx(EvaluationsWoken(keys=(later, earlier), reason="capacity freed"))
    story.step(messages.LeadershipLost())
    story.step(messages.LeadershipWon())
    story.hear("w1", "w2")
    assert leases_of(story) == [("w1", earlier), ("w1", later)]


def test_what_its_time_woke_did_not_wait_for_room() -> None:
    """Delayed evaluations compete no more than new ones do: the workers share them."""
    story = with_jobs("a", "b")
    a, b = wait_for_room(story, "a", "b")
    story.tx(EvaluationsWoken(keys=(a, b), reason="its time has come"))
    story.hear("w1", "w2")
    assert {worker for worker, _ in leases_of(story)} == {"w1", "w2"}


def test_jobs_behind_one_that_found_no_room_keep_their_order() -> None:
    """Of one shape, parked evaluations are tried by all workers until one finds no room, then by one at a time."""
    names = [f"j{at}" for at in range(10)]
    story = Story()
    story.step(story.log.jobs(*names))
    story.hear("w1", "w2")
    keys = story.create(*names)
    assert {worker for worker, _ in leases_of(story)} == {"w1", "w2"}
    assert sorted(story.leased) == keys[:FIRST_TRIES]
    (head,) = wait_for_room(story, names[0])
    story.step(*(story.log.tx(ended(key, "canceled")) for key in keys[:FIRST_TRIES]))
    # One of the tries is that of the blocked one, which is to be woken first.
    tried = keys[FIRST_TRIES : 2 * FIRST_TRIES - 1]
    assert leases_of(story) == [("w1", key) for key in tried]
    assert [one.keys for one in story.commands if isinstance(one, WakeEvaluations)] == [(head,)]
