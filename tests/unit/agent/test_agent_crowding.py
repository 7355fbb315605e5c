"""What comes to a node in the place of an evicted allocation waits until that is over."""

from shared.core.runtime import agent_messages
from tests.unit.agent.agent_story import Story, alloc

OLD, NEW = 7, 8


def story() -> Story:
    """An agent with one running allocation, which is then evicted while another one comes."""
    found = Story().hear(5, alloc(OLD)).started(key=OLD)
    found.did(agent_messages.StartTask, agent_messages.SignalTask)
    return found.hear(6, alloc(NEW), alloc(OLD, desired="evict"))


def test_nothing_new_starts_while_an_evicted_allocation_runs() -> None:
    """The evicted one is ordered to stop; the newcomer starts when it did, and no step earlier."""
    one = story()
    assert [signal.key for signal in one.did(agent_messages.SignalTask)] == [OLD]
    assert one.starts() == []
    one.hear(7, alloc(NEW), alloc(OLD, desired="evict")).wait(1)
    assert one.starts() == []
    one.exited(None, key=OLD, signal=2)
    assert [start.key for start in one.did(agent_messages.StartTask)] == [NEW]
    assert one.state(NEW).status == "pending"


def test_a_stopped_one_holds_up_nobody() -> None:
    """A stopped allocation keeps its room until it ended: a newcomer has room beside it."""
    one = Story().hear(5, alloc(OLD)).started(key=OLD)
    one.did(agent_messages.StartTask)
    one.hear(6, alloc(NEW), alloc(OLD, desired="stop"))
    assert [start.key for start in one.did(agent_messages.StartTask)] == [NEW]


def test_what_runs_already_goes_on() -> None:
    """A task that ended is started again beside the evicted allocation: its room is its own."""
    one = Story().hear(5, alloc(OLD), alloc(NEW)).started(key=OLD).started(key=NEW)
    one.did(agent_messages.StartTask)
    one.hear(6, alloc(NEW), alloc(OLD, desired="evict"))
    one.exited(1, key=NEW).wait(60)
    assert [(start.key, start.run) for start in one.did(agent_messages.StartTask)] == [(NEW, 2)]


def test_the_wait_outlives_a_restart_of_the_agent() -> None:
    """From the journal it knows who leaves: an adopted evicted run still holds up the newcomer."""
    one = story().restarted()
    one.step(agent_messages.TaskStarted(key=OLD, task="main", run=1, pid=101, adopted=True))
    one.hear(7, alloc(NEW), alloc(OLD, desired="evict"))
    assert one.starts() == []
    one.exited(None, key=OLD, signal=2)
    assert [start.key for start in one.did(agent_messages.StartTask)] == [NEW]


def test_one_that_left_the_projection_is_waited_for_while_it_runs() -> None:
    """The log may think it over (a lost one); what counts is that it still runs here."""
    one = story().hear(7, alloc(NEW))
    assert one.starts() == []
    one.exited(None, key=OLD, signal=2)
    assert [start.key for start in one.did(agent_messages.StartTask)] == [NEW]


def test_an_evicted_one_that_never_came_is_not_waited_for() -> None:
    """What this node never ran takes no room."""
    one = Story().hear(5, alloc(NEW), alloc(OLD, desired="evict"))
    assert [start.key for start in one.did(agent_messages.StartTask)] == [NEW]


def test_an_eviction_of_what_was_being_stopped_is_waited_for() -> None:
    """The newest order counts."""
    one = Story().hear(5, alloc(OLD)).started(key=OLD)
    one.did(agent_messages.StartTask)
    one.hear(6, alloc(OLD, desired="stop"))
    one.hear(7, alloc(OLD, desired="evict"), alloc(NEW))
    assert one.starts() == []


def test_a_newcomer_that_is_evicted_while_it_waits_is_over_at_once() -> None:
    """It never ran, so no allocation waits for it; the next one waits only for those that still run."""
    one = story().hear(7, alloc(NEW, desired="evict"), alloc(9), alloc(OLD, desired="evict"))
    assert one.starts() == []
    assert one.state(NEW).status == "complete"
    one.exited(None, key=OLD, signal=2)
    assert [start.key for start in one.did(agent_messages.StartTask)] == [9]
