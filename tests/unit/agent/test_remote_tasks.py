"""Remote tasks: known to the log before they start, taken over by token, and ended only where that is ordered."""

from typing import Any

import msgspec
import pytest

from schemas.nodes import NodeSpec
from schemas.remotes import RemoteEnding, RemoteTask, RemoteWanted, ReportRemoteEnded
from shared.core.runtime import agent_messages
from shared.core.runtime.remote_messages import DetachTask, EndRemote, RemoteEnded
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

KEY = (9 << 20) + 7
CLOUD = {"driver.cloud": "1", "driver.cloud.capabilities": "exec,remote"}
SPEC = NodeSpec(node_id="n1", cpu_mhz=1000, memory_mib=1000, attributes=CLOUD)  # type: ignore[arg-type]
HANDLE = msgspec.Raw(b'{"instance":"i-1"}')
HANDED = RemoteTask(driver="cloud", attempt=2, state="running", handle=HANDLE)


def story(**more: Any) -> Story:
    """An agent whose job has one remote task."""
    policy = {"Attempts": 3, "Interval": 10**12, "Delay": 10**9, "Mode": "fail"}
    return Story(job=job_json(task_json(driver="cloud"), restart=policy), spec=SPEC, **more)


def one(key: int = KEY, **more: Any) -> Any:
    return alloc(key, **more)


def running(told: Story, **more: Any) -> Story:
    """Follow the start: announced, seen, started."""
    told.hear(2, one(**more)).wait(1)
    told.hear(3, one(**more), reports_seen=told.agent._reports.number)
    assert told.starts() == [("main", 1)]
    return told.started(key=KEY, handle=HANDLE)


def test_the_log_knows_of_a_start_before_it_is_made() -> None:
    """Until the report of the attempt is acknowledged nothing starts; then it has its token, slot and epoch."""
    told = story().hear(2, one()).wait(1)
    assert told.starts() == []
    said = told.reports()[-1].states[0].remotes["main"]
    assert (said.attempt, said.state) == (1, "starting")
    told.hear(3, one(), reports_seen=told.agent._reports.number)
    (start,) = told.did(agent_messages.StartTask)
    assert (start.remote.epoch, start.remote.generation, start.remote.attempt) == (9, KEY, 1)
    told.started(key=KEY, handle=HANDLE)
    assert told.state(KEY).remotes["main"].handle == HANDLE


def test_a_kill_between_keeps_the_token() -> None:
    """Killed before and after the start, the next life names the same attempt."""
    told = story().hear(2, one()).wait(1)
    token = _token(told.restarted(spec=SPEC).hear(3, one(), boot_id="b2"))
    running(told)
    (found,) = told.restarted(spec=SPEC).did(agent_messages.RecoverTask)
    assert found.remote.token == token


def _token(told: Story) -> str:
    told.wait(1).hear(4, one(), boot_id="b2", reports_seen=told.agent._reports.number)
    (start,) = told.did(agent_messages.StartTask)
    return str(start.remote.token)


def test_the_next_tracker_has_token_and_handle_of_the_last() -> None:
    """An allocation that took a slot over starts with its generation, attempt and handle, and its own epoch."""
    wanted = RemoteWanted(generation=5, tasks={"main": HANDED})
    told = story().hear(2, one(remote=wanted)).wait(1)
    told.hear(3, one(remote=wanted), reports_seen=told.agent._reports.number)
    (start,) = told.did(agent_messages.StartTask)
    remote = start.remote
    assert (remote.generation, remote.attempt, remote.state) == (5, 2, "running")
    assert (remote.handle, remote.epoch) == (HANDLE, 9)


@pytest.mark.parametrize("omitted", [False, True])
def test_a_tracker_that_must_stop_ends_nothing(omitted: bool) -> None:  # noqa: FBT001
    """Drained, lost or unknown: it detaches, and says of what it tracked that it runs."""
    told = running(story())
    told.hear(4, *(() if omitted else (one(desired="stop"),)))
    assert told.did(agent_messages.SignalTask, agent_messages.KillTask) == []
    assert len(told.did(DetachTask)) == 1
    told.step(agent_messages.TaskExited(key=KEY, task="main", run=1, is_detached=True))
    assert told.state(KEY).status == "complete"
    assert told.state(KEY).remotes["main"].state == "running"


def test_an_order_to_end_is_a_stop_as_any() -> None:
    """Where the log says so, the task gets its kill signal, and its end is reported."""
    told = running(story())
    told.hear(4, one(desired="stop", remote=RemoteWanted(ends=True)))
    assert len(told.did(agent_messages.SignalTask)) == 1
    told.exited(0, key=KEY)
    assert told.state(KEY).remotes["main"].state == "ended"


def test_an_end_is_followed_by_another_attempt() -> None:
    """The next attempt has another token, and the log knows of it first."""
    told = running(story())
    (first,) = {_slot_of(told)}
    told.exited(1, key=KEY).wait(3)
    assert told.starts() == []
    told.hear(4, one(), reports_seen=told.agent._reports.number)
    (start,) = told.did(agent_messages.StartTask)
    assert (start.run, start.remote.attempt, start.remote.slot) == (2, 2, first)


def _slot_of(told: Story) -> str:
    from shared.core.runtime.remote_messages import slot_name

    return slot_name("c1", KEY, "main")


def test_a_start_that_may_have_happened_is_repeated_with_its_token() -> None:
    """Not known to have failed, the attempt stays open; known to have failed, another one follows."""
    for is_open, attempt in ((True, 1), (False, 2)):
        told = story().hear(2, one()).wait(1)
        told.hear(3, one(), reports_seen=told.agent._reports.number)
        failed = agent_messages.TaskStartFailed(
            key=KEY, task="main", run=1, reason="no answer", is_open=is_open
        )
        told.step(failed).wait(3)
        told.hear(4, one(), reports_seen=told.agent._reports.number).wait(3)
        starts = told.did(agent_messages.StartTask)
        assert [(one.run, one.remote.attempt) for one in starts] == [(1, 1), (2, attempt)]


def test_orders_without_an_allocation_are_repeated_until_they_are_seen() -> None:
    """What no allocation tracks is ended, and that is reported until it is seen."""
    order = RemoteEnding(generation=5, epoch=11, tasks={"main": HANDED})
    told = story().hear(2, remote_ends=(order,))
    (end,) = told.did(EndRemote)
    assert (end.remote.epoch, end.remote.attempt, end.remote.handle) == (11, 2, HANDLE)
    told.wait(6)
    assert len(told.did(EndRemote)) == 1
    told.step(RemoteEnded(remote=end.remote, task="main"))
    said = [one for one in told.reports() if isinstance(one, ReportRemoteEnded)]
    assert [(one.generation, one.epoch) for one in said] == [(5, 11)]
    told.wait(6)
    assert told.did(EndRemote) == []
    assert [one for one in told.reports() if isinstance(one, ReportRemoteEnded)]
    told.hear(3).wait(6)
    assert [one for one in told.reports() if isinstance(one, ReportRemoteEnded)] == []
