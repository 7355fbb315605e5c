"""The broker under load and loss: doubted workers, the published backlog, and coalesced evaluations."""

from typing import TypeGuard

import msgspec

from schemas.base import EvalKey, JobId
from schemas.evaluations import (
    Blocked,
    EndEvaluations,
    EvaluationsCreated,
    NewEvaluation,
    Presence,
    Waiting,
)
from schemas.nodes import CapacityFreed
from schemas.plans import Origin, PlanCommitted
from services.eval_broker.backlog import REPORT_FROM
from shared.core.runtime import messages
from shared.core.state.ids import make_key
from shared.protocol import subjects
from tests.unit.eval_broker.test_eval_broker import MS, SECOND, Story, ended


def test_the_leases_of_one_not_heard_of_for_a_moment_are_doubted() -> None:
    """Who holds leases and misses three signs of life loses them, and gets none until it is heard again."""
    story = Story()
    story.hear("w1")
    [key] = story.create("a")
    story.tx(CapacityFreed(classes=(0,)))
    story.wait(700 * MS, "w2")
    assert not story.leases
    story.wait(50 * MS)
    assert [(worker, lease.key) for worker, lease in story.leases] == [("w2", key)]
    assert [lease.attempt for _, lease in story.leases] == [0]
    assert story.metric("leases_doubted_total") == 1
    story.create("b", "c")
    assert {worker for worker, _ in story.leases} == {"w2"}
    story.hear("w1")
    story.create("d")
    assert [worker for worker, _ in story.leases] == ["w1"]


def test_idle_workers_may_be_silent_for_longer() -> None:
    """Who holds nothing is a worker until two seconds have passed, and gets leases as ever."""
    story = Story()
    story.hear("w1")
    story.wait(1_500 * MS)
    [key] = story.create("a")
    assert [(worker, lease.key) for worker, lease in story.leases] == [("w1", key)]
    story.wait(400 * MS)
    assert story.metric("leases_doubted_total") == 0, "it has had its lease for a moment only"


def test_a_long_backlog_is_told_until_it_is_short() -> None:
    """Above some thousands the backlog is published to intake ten times a second, and once more when it is over."""
    story = Story()

    def told() -> list[int]:
        where = subjects.presence("eval_broker", "backlog")
        sends = [one for one in story.effects if isinstance(one, messages.Send)]
        decode = msgspec.json.Decoder(Presence).decode
        return [decode(one.data).waiting for one in sends if one.subject == where]

    keys = story.create(*(f"j{at}" for at in range(REPORT_FROM)))
    assert told() == [REPORT_FROM]
    story.wait(50 * MS)
    assert told() == []
    story.wait(50 * MS)
    assert told() == [REPORT_FROM]
    story.tx(ended(keys[0]))
    story.wait(100 * MS)
    assert told() == [REPORT_FROM - 1]
    story.wait(SECOND)
    assert told() == []


def test_a_line_that_moves_is_a_backlog_and_one_that_is_shut_is_none() -> None:
    """Jobs of one shape wait for workers until one of them found no room: from then on they wait for nodes."""
    story = Story()
    names = [f"j{at}" for at in range(REPORT_FROM + 100)]
    story.step(story.log.jobs(*names))
    story.hear("w1")
    keys = story.create(*names)
    [word] = [one for one in story.effects if is_word(one)]
    assert decoded(word).waiting >= REPORT_FROM
    blocked = Blocked(classes=(0,), snapshot_seq=story.log.seq, waiting={"g": Waiting(count=1)})
    follow = NewEvaluation(job_id=JobId(names[0]), priority=50, blocked=blocked)
    story.tx(ended(keys[0]), EvaluationsCreated(evaluations=(follow,)))
    story.wait(100 * MS)
    story.wait(100 * MS)
    assert [decoded(one).waiting for one in story.effects if is_word(one)] == []


def is_word(effect: messages.Effect) -> TypeGuard[messages.Send]:
    """Whether it tells of the backlog."""
    where = subjects.presence("eval_broker", "backlog")
    return isinstance(effect, messages.Send) and effect.subject == where


def decoded(word: messages.Send) -> Presence:
    return msgspec.json.decode(word.data, type=Presence)


def node_update(story: Story, *job_ids: str) -> list[EvalKey]:
    """Evaluations of jobs that had something on a node that is down now."""
    made = tuple(
        NewEvaluation(job_id=JobId(one), priority=50, triggered_by="node-update") for one in job_ids
    )
    story.tx(EvaluationsCreated(evaluations=made))
    return [EvalKey(make_key(story.log.seq, at)) for at in range(len(made))]


def ends(story: Story) -> list[EvalKey]:
    return [end for one in story.commands if isinstance(one, EndEvaluations) for end in one.keys]


def planned(key: EvalKey, job_id: str, snapshot_seq: int) -> PlanCommitted:
    """A plan in the log that was made on that snapshot."""
    made = Origin(worker="w1", number=1, part=0, parts=1, snapshot_seq=snapshot_seq)
    return PlanCommitted(key=key, job_id=JobId(job_id), origin=made)


def test_news_of_nodes_join_what_waits() -> None:
    """A job's second loss is looked at with its first while that waits: at its place, having seen both."""
    story = Story()
    first, other = node_update(story, "a", "b")
    second = node_update(story, "a")
    seen = story.log.seq
    story.hear("w1")
    assert next((lease.key, lease.min_seq) for _, lease in story.leases) == (first, seen)
    assert story.leased == [first, other]
    assert ends(story) == [], "no worker has decided it yet"
    story.tx(planned(first, "a", seen), ended(first))
    assert (ends(story), story.leased) == (second, [])


def test_news_that_a_plan_had_not_seen_are_looked_at() -> None:
    """A worker that was given up may decide after all: what joined its evaluation meanwhile is not lost with it."""
    story = Story()
    story.hear("w1")
    [first] = node_update(story, "a")
    before = story.log.seq
    story.wait(800 * MS)
    assert story.metric("leases_doubted_total") == 1
    second = node_update(story, "a")
    node_update(story, "a")
    newest = story.log.seq
    story.tx(planned(first, "a", before), ended(first))
    assert ends(story) == []
    story.hear("w1")
    assert [(lease.key, lease.min_seq) for _, lease in story.leases] == [(*second, newest)]


def test_news_are_not_lost_with_what_they_joined() -> None:
    """Where the older one ends without a plan, or in the very record that brings the news, these stay to be decided."""
    story = Story()
    [first] = node_update(story, "a")
    second = node_update(story, "a")
    story.tx(ended(first, "canceled"))
    made = NewEvaluation(job_id=JobId("b"), priority=50, triggered_by="node-update")
    [other] = node_update(story, "b")
    story.tx(EvaluationsCreated(evaluations=(made,)), ended(other))
    last = EvalKey(make_key(story.log.seq, 0))
    assert ends(story) == []
    story.hear("w1")
    assert story.leased == [*second, last]


def test_what_is_handed_out_is_joined_by_nothing() -> None:
    """A worker may have decided already: the news wait behind it."""
    story = Story()
    story.hear("w1")
    [first] = node_update(story, "a")
    [second] = node_update(story, "a")
    [third] = node_update(story, "a")
    joined = story.log.seq
    story.tx(planned(first, "a", 1), ended(first))
    assert [(lease.key, lease.min_seq) for _, lease in story.leases] == [(second, joined)]
    story.tx(planned(second, "a", joined), ended(second))
    assert ends(story) == [third]


def test_another_broker_asks_for_all_that_was_joined() -> None:
    """Who takes over does not know what was joined: all that it leases must have seen as much as it has itself."""
    story = Story()
    [first] = node_update(story, "a")
    [second] = node_update(story, "a")
    story.tx(ended(second, "canceled"))
    story.step(messages.LeadershipLost())
    story.step(messages.LeadershipWon())
    story.hear("w1")
    assert [(lease.key, lease.min_seq) for _, lease in story.leases] == [(first, story.log.seq)]
