"""Stateful groups: order of starts, updates and stops, and at most one instance of an index."""

import msgspec
import pytest

from schemas.jobs import EvaluateJob, ReschedulePolicy
from schemas.nodes import NodeConfirmedDead, NodeRefused, NodeRegistered
from schemas.plans import PlanRefused
from schemas.policy import ConfirmDeath, DrainNode, OperatorRefused, StopAllocation
from shared.core.state.tables.allocations import LOST, UNHEALTHY
from tests.builders import join, placement, register, stop
from tests.unit.core.stateful_story import APP, StatefulStory, grown

PACED = [True, False]


@pytest.mark.parametrize("paced", PACED)
def test_an_index_starts_once_the_one_before_is_healthy(*, paced: bool) -> None:
    """Running is not enough; each health starts one more, and the wait names what it waits for."""
    story = StatefulStory(paced=paced)
    assert story.wanted == [0]
    wait = story.wait()
    assert wait is not None
    assert (wait.count, wait.wait_class) == (2, "order")
    assert wait.reasons[0] == "index 1 starts once index 0 is healthy"
    story.say(0, "running")
    assert story.wanted == [0]
    story.healthy(0)
    assert story.wanted == [0, 1]
    story.healthy(1)
    story.healthy(2)
    assert story.wanted == [0, 1, 2]
    assert story.wait() is None


@pytest.mark.parametrize("paced", PACED)
def test_an_unhealthy_instance_holds_the_next_back(*, paced: bool) -> None:
    """No later index starts behind one that is unhealthy."""
    story = StatefulStory(paced=paced)
    story.say(0, "running", health=UNHEALTHY)
    assert story.wanted == [0]


@pytest.mark.parametrize("paced", PACED)
def test_an_update_replaces_from_the_highest_one_at_a_time(*, paced: bool) -> None:
    """Stop, end, start, healthy; then the next lower one. The name and its predecessor stay."""
    story = grown(paced=paced)
    table = story.world.state.allocations
    story.submit(count=3, digest="d1")
    for index in (2, 1, 0):
        assert story.stopping == [index]
        before = int(table.key[story.row(index)])
        story.end(index)
        assert story.digest(index) == "d1"
        assert table.previous[story.row(index)] == before
        assert story.stopping == []
        story.say(index, "running")
        assert story.stopping == []
        story.healthy(index)
    assert [story.digest(index) for index in range(3)] == ["d1"] * 3
    assert story.stopping == []


def test_an_update_mends_what_never_became_healthy() -> None:
    """An older version whose first index is unhealthy does not hold its repair back."""
    story = StatefulStory()
    story.say(0, "running", health=UNHEALTHY)
    story.submit(count=3, digest="d1")
    assert story.stopping == [0]
    story.end(0)
    assert (story.wanted, story.digest(0)) == ([0], "d1")
    story.healthy(0)
    assert story.wanted == [0, 1]


def test_a_broken_update_stops_at_its_first_instance() -> None:
    """The others keep the older version while the new one is not healthy."""
    story = grown()
    story.submit(count=3, digest="d1")
    story.end(2)
    story.say(2, "running", health=UNHEALTHY)
    assert [story.digest(index) for index in range(3)] == ["d0", "d0", "d1"]
    assert story.stopping == []


@pytest.mark.parametrize("paced", PACED)
def test_a_smaller_count_removes_the_highest_one_by_one(*, paced: bool) -> None:
    """Index 3 ends before index 2 stops."""
    story = grown(4, paced=paced)
    story.submit(count=2)
    assert (story.wanted, story.stopping) == ([0, 1, 2], [3])
    story.end(3)
    assert (story.wanted, story.stopping) == ([0, 1], [2])
    story.end(2)
    assert (story.wanted, story.stopping) == ([0, 1], [])


def test_a_stopped_job_ends_from_the_highest() -> None:
    """Each stops once the one above has ended; a job without instances is left alone."""
    story = grown()
    story.world.do(stop("app"))
    story.settle()
    for index in (2, 1, 0):
        assert (story.wanted, story.stopping) == (list(range(index)), [index])
        story.end(index)
    assert story.live() == []
    assert not story.world.state.evaluations.open_of.get("app")


def test_a_removed_group_ends_from_the_highest() -> None:
    """As a stopped job does, though the version does not name the group any more."""
    story = grown()
    other = register("app", submission_id="other", salt=9)
    group = msgspec.structs.replace(other.groups[0], name="other")
    story.world.do(msgspec.structs.replace(other, groups=(group,)))
    story.settle()
    table = story.world.state.allocations

    def stopping() -> list[int]:
        return [int(table.index[row]) for row in story.live() if table.desired[row] != 0]

    assert stopping() == [2]
    story.end(2)
    assert stopping() == [1]


def test_a_failed_instance_is_replaced_under_its_index() -> None:
    """At its reschedule time, and only behind a healthy one."""
    story = grown()
    row = story.row(1)
    story.say(1, "failed")
    assert story.wanted == [0, 2]
    story.world.later(31)
    story.world.do(join("n9"))
    table = story.world.state.evaluations
    assert table.open_of["app"]
    story.settle()
    assert story.wanted == [0, 1, 2]
    assert story.world.state.allocations.previous[story.row(1)] == int(
        story.world.state.allocations.key[row]
    )


@pytest.mark.parametrize("status", ["running", "pending"])
def test_a_silent_node_keeps_its_index(status: str) -> None:
    """Down, its instance may run: nothing takes its place, and the wait names node and way out."""
    story = StatefulStory(count=1)
    if status == "running":
        story.healthy(0)
    node, row = story.node(0), story.row(0)
    story.silence(node)
    assert story.live() == [row]
    wait = story.wait()
    assert wait is not None
    assert (wait.count, wait.wait_class) == (1, "out_of_reach")
    assert "caravan node confirm-dead" in wait.reasons[0]
    assert node in wait.reasons[0]
    story.silence(node, "ready")
    assert (story.live(), story.wait()) == ([row], None)


def test_a_confirmed_death_frees_the_index() -> None:
    """The instance is lost, and its index starts on another node."""
    story = grown()
    node, row = story.node(1), story.row(1)
    story.silence(node)
    events = story.confirm_dead(node)
    assert any(isinstance(one, NodeConfirmedDead) for one in events)
    table = story.world.state.allocations
    assert table.client[row] == LOST
    assert story.wanted == [0, 1, 2]
    assert story.node(1) != node
    assert story.wait() is None
    assert not story.confirm_dead(node)


def test_any_word_of_a_node_ends_its_confirmed_death() -> None:
    """Also a report that names no allocation, before the node's heartbeats are seen again: the instance stays."""
    story = grown(count=1, nodes=3)
    node, row, world = story.node(0), story.row(0), story.world
    story.silence(node)
    world.do(ConfirmDeath(request_id="dead", node_id=node))
    world.report(node)
    story.settle()
    assert world.state.fleet.confirmed_dead == {}
    assert (story.live(), story.wanted) == ([row], [0])


def test_a_node_that_is_up_is_not_confirmed_dead() -> None:
    """The word of an operator is refused while the node is heard of, and forgotten once it is again."""
    story = grown()
    node = story.node(1)
    (refused,) = story.confirm_dead(node)
    assert isinstance(refused, OperatorRefused)
    assert refused.code == "conflict"
    story.silence(node)
    story.confirm_dead(node)
    story.silence(node, "ready")
    assert not story.world.state.fleet.confirmed_dead


def test_what_was_to_stop_on_a_silent_node_keeps_its_index() -> None:
    """An update stopped it, its node fell silent before it ended: still no second instance."""
    story = grown()
    story.submit(count=3, digest="d1")
    node, row = story.node(2), story.row(2)
    story.silence(node)
    assert story.row(2) == row
    assert story.stopping == [2]
    story.confirm_dead(node)
    assert story.digest(2) == "d1"


def test_a_stopped_job_keeps_what_its_silent_node_may_run() -> None:
    """Stopped and started again while the node is away: the index is still taken."""
    story = grown(1)
    node, row = story.node(0), story.row(0)
    story.silence(node)
    story.world.do(stop("app"))
    story.settle()
    story.submit(count=1, digest="d1")
    assert story.live() == [row]
    story.confirm_dead(node)
    assert story.digest(0) == "d1"


def test_an_evicted_instance_is_replaced_once_it_ended() -> None:
    """Its room is another's at once, its index not before its node says that it ended."""
    story = grown(1, nodes=1, memory_mib=600)
    row = story.row(0)
    story.world.do(join("n8"))
    big = register("big", priority=100, submission_id="big")
    spec = msgspec.structs.replace(big.groups[0], memory_mib=900, count=2)
    policy = story.world.state.policy.policy
    story.world.state.policy.policy = msgspec.structs.replace(
        policy, preemption=msgspec.structs.replace(policy.preemption, service=True)
    )
    story.world.run(msgspec.structs.replace(big, groups=(spec,)))
    assert story.stopping == [0]
    story.world.do(join("n9"))
    story.settle()
    assert story.live() == [row]
    story.end(0)
    story.settle()
    assert story.wanted == [0]


def test_an_operator_stops_any_instance_at_once() -> None:
    """`alloc stop` is not put off; the index comes back once it ended."""
    story = grown()
    story.world.do(
        StopAllocation(
            request_id="r", alloc_key=int(story.world.state.allocations.key[story.row(0)])
        )
    )
    story.settle()
    assert story.stopping == [0]
    story.end(0)
    assert story.wanted == [0, 1, 2]


def test_a_drain_moves_one_at_a_time() -> None:
    """The highest of a draining node first; the next once its replacement is healthy."""
    story = grown(2, nodes=1, distinct_hosts="")
    story.world.do(join("n8"))
    story.world.do(
        DrainNode(request_id="d", node_id="n0", draining=True, deadline_ns=story.world.now_ns * 2)
    )
    story.settle()
    assert story.stopping == [1]
    story.end(1)
    assert (story.node(1), story.stopping) == ("n8", [])
    story.healthy(1)
    assert story.stopping == [0]


def test_a_failed_index_beyond_the_count_holds_nothing_up() -> None:
    """One that is not tried again, and not wanted any more: drains move the others, and it begins anew if wanted."""
    story = grown(nodes=6, reschedule=ReschedulePolicy(attempts=0, interval_ns=0, unlimited=False))
    story.say(2, "failed")
    story.submit(count=2)
    story.healthy(0, 1)
    drain = DrainNode(request_id="d", node_id=story.node(0), draining=True, deadline_ns=0)
    story.world.do(drain)
    story.settle()
    assert story.stopping == [0]
    story.end(0)
    story.healthy(0)
    story.submit(count=3)
    story.healthy(0, 1)
    assert story.wanted == [0, 1, 2]


def test_a_plan_that_would_make_a_second_instance_is_refused() -> None:
    """The applier looks itself: a worker that is wrong, or late, makes none."""
    story = grown(2)
    node, row = story.node(1), story.row(1)
    story.silence(node)
    group = story.world.state.jobs.by_id["app"].groups[0]
    story.submit(count=3, digest=group.digest)
    taken = story.world.state.fleet.row_of["n3"]
    for at, names in enumerate(((1, 1), (5, 1, 5, 1))):
        counts = (len(names) // 2,)
        one = placement((taken,), counts, names=names, version=story.version - 1)
        story.world.do(EvaluateJob(submission_id=f"e{at}", digest="e", job_id=APP))
        refused = story.world.do(story.world.plan(placements=(one,), end=""))
        assert isinstance(refused[0], PlanRefused)
        assert refused[0].code == "stale"
        assert "may still run elsewhere" in refused[0].reason
        story.settle()
    assert story.row(1) == row


def test_no_other_machine_takes_over_its_node() -> None:
    """The id of a node that holds a stateful instance is another machine's only after its death is confirmed."""
    story = grown(1)
    node, row = story.node(0), story.row(0)
    story.silence(node)
    (refused,) = story.world.do(join(node, host="other", boot="b2"))
    assert isinstance(refused, NodeRefused)
    assert refused.code == "conflict"
    story.confirm_dead(node)
    assert story.row(0) != row
    assert any(
        isinstance(one, NodeRegistered)
        for one in story.world.do(join(node, host="other", boot="b3"))
    )
