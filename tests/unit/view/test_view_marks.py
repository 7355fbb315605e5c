"""What a transaction is news about: which values a view publishes because of it, and what they say."""

import msgspec
import pytest

from schemas.allocations import AllocationsCollected, AllocationsReported
from schemas.base import JobId
from schemas.jobs import JobsCollected
from schemas.nodes import NodesCollected
from schemas.plans import Evictions, Stops
from schemas.projections import NodeProjection
from shared.core.runtime.desired_allocs import read_desired_allocs
from shared.core.runtime.messages import Reconnected
from shared.core.state.ids import eval_id, make_key
from shared.protocol import subjects
from tests.unit.view.view_story import Story, puts

RUNNING, FAILED = 1, 3


def two_nodes() -> Story:
    """Two nodes, and a job of two allocations, one on each."""
    story = Story()
    story.node("n1")
    story.node("n2")
    story.job("j", count=2)
    story.plan("j", (0, 1))
    return story


def test_who_came_back_is_not_closed() -> None:
    """A node and a job that left and are there again, while the past went by, have their values and no last word."""
    story = two_nodes()
    gone = (NodesCollected(rows=(1,)), JobsCollected(job_ids=(JobId("j"),)))
    stops = story.plan("j", (), stops=(Stops(rows=(0, 1), client_status="lost"),))
    story.log(AllocationsCollected(rows=(0, 1)), *gone)
    story.node("n2")
    story.job("j")
    effects = story.start()
    closed = [put.subject for put in puts(effects) if put.ttl_s and "submission" not in put.subject]
    seen = story.land(effects)
    assert (closed, stops) == ([], 7)
    assert seen[subjects.view_node("n2")]["status"] == "ready"
    assert seen[subjects.view_job("j")].get("status", "pending") == "pending"


def test_an_eviction_is_an_order_to_the_node_that_holds_it() -> None:
    """An evicted allocation marks its own node and its job, wherever the new one is placed."""
    story = two_nodes()
    story.job("urgent")
    story.land(story.start())
    victims = (Evictions(job_id=JobId("j"), rows=(1,)),)
    story.plan("urgent", (0,), evictions=victims)
    seen = story.land(story.later())
    told = msgspec.convert(seen[subjects.node("n2")], NodeProjection)
    assert [one.desired for one in read_desired_allocs(told)] == ["evict"]
    assert subjects.view_job("j") in seen


@pytest.mark.parametrize("count", [3, 40])
def test_numbers_of_a_job_are_those_of_its_allocations(count: int) -> None:
    """Few allocations and many are counted alike, by group and status, and each verdict names its own evaluation."""
    story = Story()
    story.node("n1")
    story.job("j", count=count)
    story.plan("j", (0,) * count)
    story.log(AllocationsReported(rows=(0, 1), statuses=(RUNNING, FAILED)))
    seqs = [story.job(f"k{number}") for number in range(count)]
    seen = story.land(story.start())
    group = seen[subjects.view_job("j")]["groups"]["web"]
    assert (group["desired"], group["pending"]) == (count, count - 2)
    assert (group["running"], group["failed"], group["complete"]) == (1, 1, 0)
    told = [seen[subjects.view_submission(f"s-k{n}-0")]["eval_id"] for n in range(count)]
    assert told == [eval_id(make_key(seq, 0)) for seq in seqs]


def test_one_node_of_many_is_told_what_all_of_them_would_be() -> None:
    """What is said of one node is the same whether it is looked at alone or with all the others."""
    story = Story()
    for number in range(40):
        story.node(f"n{number}")
    story.job("j", count=80)
    story.plan("j", tuple(range(40)))
    story.log(AllocationsReported(rows=(3, 4), statuses=(RUNNING, FAILED)))
    story.land(story.start())
    story.plan("j", (3, 4))
    alone = story.land(story.later())
    assert set(alone) >= {subjects.node("n3"), subjects.view_node("n4")}
    assert subjects.node("n5") not in alone
    together = story.land(story.later(Reconnected()))
    for name, held in (("n3", 2), ("n4", 1)):
        for subject in (subjects.node(name), subjects.view_node(name)):
            assert {**alone[subject], "seq": 0} == {**together[subject], "seq": 0}
        assert alone[subjects.view_node(name)]["allocations"] == held
